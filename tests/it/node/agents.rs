//! The socket of the node's agents: what they read, what they reserve, and what a hostile one cannot do.

use super::cases::Case;
use crate::harness::agent::Agent;
use crate::harness::agent_client::{AgentClient, claim, owner, words};
use crate::harness::node::{Node, admit, denied, is_admitted};
use crate::harness::process::become_member;
use crate::harness::wire::{Connection, Heard};
use crate::harness::{Random, eventually, is_root, skip};
use gpuslice_wire::admin::{Answer, Denial, MemoryAsk};
use gpuslice_wire::frame::{RequestId, encode};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::node::{
    GpuList, GpuNumbers, HealthState, NodeAnswer, NodeDenial, NodeRequest, Reservation,
};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::units::{Bytes, GIB, Percent, Weight};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::Gid;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn facts_name_what_a_gpu_is_and_what_is_left() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    node.must_admit("web", Bytes(4 * GIB));
    let words = words("c-1", &[agent.gpus()[0]]);
    assert_eq!(agent.reserve(words).expect("it fits"), "gpuslice.io/gpu=c-1");
    let facts = agent.facts();
    assert_eq!(facts.len(), 2);
    let [first, second] = [facts[0], facts[1]];
    assert_eq!((first.number, second.number), (0, 1));
    assert!(first.simulated && first.uuid != second.uuid);
    assert!(!first.product.is_empty() && !first.driver.is_empty() && !first.pci.is_empty());
    assert!(first.capability[0] > 0, "{first:?}");
    assert_eq!((first.health.state, first.total), (HealthState::Healthy, Bytes(16 * GIB)));
    assert_eq!((first.promised, first.left), (Bytes(5 * GIB), Bytes(11 * GIB)));
    assert_eq!((first.share_promised, first.share_left, first.slices), (30, 70, 2));
    assert_eq!((second.promised, second.share_left, second.slices), (Bytes::ZERO, 100, 0));
}

#[test]
fn a_list_shows_slices_and_claims() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    node.must_admit("web", Bytes(GIB));
    let both = words("c-1", &agent.gpus());
    agent.reserve(both).expect("it fits");
    let rows = agent.list();
    assert_eq!(rows.len(), 4, "{rows:?}");
    let slices: Vec<_> = rows
        .iter()
        .filter_map(|row| match row {
            NodeAnswer::Slice { slice, claim, gpus, memory, owner, .. } => {
                Some((slice.to_string(), *claim, *gpus, *memory, *owner))
            }
            _ => None,
        })
        .collect();
    let of_claim =
        ("claim.c-1".to_owned(), Some(claim("c-1")), GpuNumbers(3), Bytes(GIB), both.owner);
    let own = ("web".to_owned(), None, GpuNumbers(1), Bytes(GIB), Default::default());
    assert!(slices.contains(&of_claim) && slices.contains(&own), "{slices:?}");
}

/// The same words have the same answer, other words are refused, and nothing is promised twice.
#[test]
fn reservations_and_releases_are_idempotent() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpu = agent.gpus()[0];
    let asked = words("c-1", &[gpu]);
    for _ in 0..3 {
        assert_eq!(agent.reserve(asked).expect("the same"), "gpuslice.io/gpu=c-1");
    }
    assert_eq!(agent.facts()[0].promised, Bytes(GIB));
    let others = [
        ("memory", Reservation { memory: Bytes(2 * GIB), ..asked }),
        ("share", Reservation { share: None, ..asked }),
        ("list of GPUs", words("c-1", &agent.gpus())),
        ("share limit", Reservation { share_limit: Percent::new(50).ok(), ..asked }),
        ("weight", Reservation { weight: Weight::new(2).ok(), ..asked }),
        ("priority", Reservation { class: Class::High, ..asked }),
        ("gang", Reservation { gang: Gangs::Never, ..asked }),
        ("pinned memory", Reservation { pinned: Some(Bytes(GIB)), ..asked }),
        ("owner", Reservation { owner: owner("web-1"), ..asked }),
    ];
    for (what, other) in others {
        let (why, text) = agent.reserve(other).expect_err("refused");
        assert_eq!(why, NodeDenial::ClaimDiffers);
        assert!(text.contains("claim differs") && text.contains(what), "{text}");
    }
    assert_eq!(agent.facts()[0].promised, Bytes(GIB));
    for _ in 0..2 {
        assert_eq!(agent.release("c-1"), 0);
    }
    assert_eq!(agent.release("never"), 0);
    assert_eq!((agent.facts()[0].promised, agent.slice("c-1")), (Bytes::ZERO, None));
    agent.reserve(Reservation { memory: Bytes(2 * GIB), ..asked }).expect("a new claim");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpu = agent.gpus()[0];
    let asked = |id: &str| words(id, &[gpu]);
    agent.reserve(asked("first")).expect("it fits");
    let refused = [
        (NodeDenial::NoSuchGpu, words("x", &[GpuUuid([9; 16])])),
        (NodeDenial::Memory, Reservation { memory: Bytes(17 * GIB), ..asked("x") }),
        (NodeDenial::Memory, Reservation { memory: Bytes(16 * GIB), share: None, ..asked("x") }),
        (NodeDenial::Capacity, Reservation { share: Percent::new(71).ok(), ..asked("x") }),
        (NodeDenial::Invalid, Reservation { share_limit: Percent::new(29).ok(), ..asked("x") }),
        (NodeDenial::Invalid, Reservation { memory: Bytes::ZERO, ..asked("x") }),
        (NodeDenial::Invalid, Reservation { gpus: GpuList::default(), ..asked("x") }),
        (NodeDenial::Invalid, words("x", &[gpu, gpu])),
    ];
    let before = agent.list();
    for (expected, words) in refused {
        let (why, text) = agent.reserve(words).expect_err("refused");
        assert_eq!(why, expected, "{text}");
        assert!(!text.is_empty());
    }
    assert_eq!(agent.list(), before);
    assert!(!node.runtime_dir().join("cdi/gpuslice.io-x.json").exists());
    agent.reserve(Reservation { share: Percent::new(70).ok(), ..asked("x") }).expect("it fits");
}

/// A runtime's container cannot take the name of a claim's slice.
#[test]
fn the_ids_of_claims_slices_are_reserved() {
    let node = Node::start();
    let (why, text) = denied(node.admit("claim.c-1", Bytes(GIB)));
    assert_eq!(why, Denial::Invalid, "{text}");
    let agent = AgentClient::of(&node);
    agent.reserve(words("c-1", &agent.gpus())).expect("it fits");
    // Nor is there a way in by the slice's own socket: no process belongs to it.
    node.tenant("claim.c-1").0.expect_rejected(gpuslice_wire::tenant::Rejection::NotYours);
    // An administrator ends it as any other slice.
    assert!(matches!(node.dismiss("claim.c-1"), Answer::Dismissed {}));
    assert_eq!(agent.slice("c-1"), None);
    assert!(!node.runtime_dir().join("cdi/gpuslice.io-c-1.json").exists());
}

#[test]
fn changes_reach_a_watching_agent_together() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpus = agent.gpus();
    let watching = AgentClient::of(&node);
    watching.0.send(5, &NodeRequest::Watch {}).expect("the daemon reads");
    assert_eq!(watching.rows().len(), 2, "two GPUs");
    let start = Instant::now();
    for n in 0..10 {
        agent
            .reserve(Reservation { share: None, ..words(&format!("c-{n}"), &gpus) })
            .expect("fits");
    }
    let (mut batches, mut slices) = (0, 0);
    while slices < 10 {
        let rows = watching.rows();
        let is_slice = |row: &&NodeAnswer| matches!(row, NodeAnswer::Slice { .. });
        slices += rows.iter().filter(is_slice).count();
        batches += 1;
    }
    let most = 2 + start.elapsed().as_millis() / 100;
    assert!(batches <= most, "{batches} batches in {:?}", start.elapsed());
    agent.release("c-3");
    let gone = watching.rows();
    assert!(gone.contains(&NodeAnswer::Gone { slice: claim("c-3").slice() }), "{gone:?}");
    // What a watching agent sends ends its connection.
    watching.0.send(5, &NodeRequest::List {}).expect("sent");
    loop {
        match watching.0.message::<NodeAnswer>() {
            Some((_, NodeAnswer::Denied { why, .. }, _)) => assert_eq!(why, NodeDenial::Protocol),
            Some(_) => {}
            None => break,
        }
    }
}

/// Repeats changes until they have filled what the daemon and the kernel keep for an agent that does not read them.
/// That is a matter of their number, and not of the time that they take on a busy machine.
fn within_rounds(what: &str, mut happens: impl FnMut() -> bool) {
    assert!((0..100).any(|_| happens()), "not after 100 rounds: {what}");
}

/// Reads what the daemon had sent before it ended the connection, and that end.
fn ends(agent: &AgentClient) {
    while agent.0.message::<NodeAnswer>().is_some() {}
}

/// An agent that reads nothing is disconnected, and delays no other one.
#[test]
fn a_slow_reader_is_disconnected() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpus = agent.gpus();
    let slow = AgentClient::of(&node);
    slow.0.send(5, &NodeRequest::Watch {}).expect("the daemon reads");
    within_rounds("the slow reader is disconnected", || {
        for round in 0..20 {
            let id = format!("c-{round}");
            agent
                .reserve(Reservation { share: None, memory: Bytes(1 << 20), ..words(&id, &gpus) })
                .expect("fits");
        }
        assert_eq!(agent.list().len(), 22, "another agent is answered");
        for round in 0..20 {
            agent.release(&format!("c-{round}"));
        }
        std::thread::sleep(Duration::from_millis(120));
        let log = node.log();
        // it is silent, or by then behind by more than a list
        ["an agent does not read its answers", "an agent reads changes too slowly"]
            .iter()
            .any(|why| log.contains(why))
    });
    ends(&slow);
}

/// It reads now and then, so that it is not silent, and less than what happens.
#[test]
fn a_watcher_that_stays_behind_is_disconnected_to_list_again() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpus = agent.gpus();
    let slow = AgentClient::of(&node);
    slow.0.send(5, &NodeRequest::Watch {}).expect("the daemon reads");
    within_rounds("the watcher is disconnected", || {
        for round in 0..20 {
            let id = format!("c-{round}");
            let one = Reservation { share: None, memory: Bytes(1 << 20), ..words(&id, &gpus) };
            agent.reserve(one).expect("fits");
            if round % 5 == 4 {
                let _its_end = slow.0.message::<NodeAnswer>(); // so that it is not silent on a slow machine either
            }
        }
        std::thread::sleep(Duration::from_millis(120));
        (0..20).for_each(|round| {
            agent.release(&format!("c-{round}"));
        });
        std::thread::sleep(Duration::from_millis(120));
        let _its_end = slow.0.message::<NodeAnswer>();
        node.log().contains("an agent reads changes too slowly; disconnected, to list again")
    });
    ends(&slow);
    let again = AgentClient::of(&node);
    again.0.send(5, &NodeRequest::Watch {}).expect("the daemon reads");
    assert!(!again.rows().is_empty(), "it lists again");
}

/// A thousand connections at the same time; none where this process may not have as many.
fn crowd(path: &Path) -> Option<Vec<Connection>> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    if most < 4096 {
        skip("a_hostile_agent_gets_nowhere", "this process may open only a few files");
        return None;
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("allowed");
    let connect = |_| Connection::connect(path).expect("the daemon accepts, and closes at once");
    Some((0..1000).map(connect).collect())
}

/// Frames that are none, halves of frames, random ones, and connections without end.
#[test]
fn a_hostile_agent_gets_nowhere() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpus = agent.gpus();
    agent.reserve(words("c-1", &gpus)).expect("it fits");
    let before = agent.list();
    let mut buffer = [0; FRAME_BYTES_MAX];
    let request = NodeRequest::Reserve { words: words("evil", &gpus) };
    let len = encode(RequestId(1), &request, &mut buffer).expect("fits");
    let mut random = Random(7);
    let path = node.runtime_dir().join("node.sock");
    for round in 0..300 {
        let mut frame = buffer[..len].to_vec();
        match round % 3 {
            0 => frame.truncate(random.below(len as u64) as usize),
            1 => {
                // The header, the claim's id or the GPUs: never a valid reservation of another kind.
                let at = random.below(24 + 2) as usize;
                frame[at] ^= 1 + random.below(255) as u8;
            }
            _ => frame.iter_mut().for_each(|byte| *byte = random.next() as u8),
        }
        let connection = Connection::connect(&path).expect("it listens");
        connection.send_raw(&frame, &[]).expect("sent");
        if let Heard::Packet(..) = connection.hear() {
            connection.hang_up();
        }
    }
    let _ = agent.release("evil"); // a changed request id is none of a frame's errors
    assert_eq!(agent.list(), before);
    let Some(crowd) = crowd(&path) else { return };
    assert_eq!(agent.list(), before, "a connected agent is served");
    assert!(is_admitted(&node.admit("web", Bytes(GIB))));
    drop(crowd);
    eventually("room for agents", || {
        let connection = Connection::connect(&path).expect("it listens");
        connection.send(5, &NodeRequest::Facts {}).is_ok()
            && connection.message::<NodeAnswer>().is_some()
    });
}

/// A user in a group; without the group, its processes are refused.
fn as_user(gid: u32, groups: &[u32]) -> std::io::Result<()> {
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    become_member(65534, gid, &groups)
}

#[test]
fn only_root_and_the_group_may_use_the_socket() {
    if !is_root() {
        return skip(
            "only_root_and_the_group_may_use_the_socket",
            "needs root, to be another user",
        );
    }
    // A group that every machine has.
    let case = Case::start("devices=1,mem=1GiB", "node_group = \"daemon\"");
    let path = case.node.runtime_dir().join("node.sock");
    fs::set_permissions(case.node.root(), fs::Permissions::from_mode(0o711)).expect("passable");
    let meta = fs::metadata(&path).expect("there");
    assert_eq!((meta.mode() & 0o777, meta.uid()), (0o660, 0));
    let group = meta.gid();
    assert_ne!(group, 0);
    let asks = |agent: &Agent| {
        let connection = agent.try_connect(&path)?;
        connection.send(5, &NodeRequest::Facts {}).expect("sent");
        connection.message::<NodeAnswer>().map(|(_, answer, _)| answer)
    };
    let [member, primary, other] = [(65534, vec![group]), (group, vec![]), (65534, vec![])]
        .map(|(gid, groups)| Agent::start_after(move || as_user(gid, &groups)));
    assert!(matches!(asks(&member), Some(NodeAnswer::Gpu { .. })));
    assert!(matches!(asks(&primary), Some(NodeAnswer::Gpu { .. })));
    assert_eq!(asks(&other), None, "the file is closed to it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("opened by mistake");
    let refused = other.try_connect(&path).expect("it gets there");
    match refused.message().map(|(_, answer, _)| answer) {
        Some(NodeAnswer::Denied { why: NodeDenial::Protocol, text }) => {
            assert!(text.as_str().contains("node_group"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_group_the_socket_is_roots() {
    let node = Node::start();
    let meta = fs::metadata(node.runtime_dir().join("node.sock")).expect("there");
    assert_eq!(meta.mode() & 0o777, 0o600);
    let mut wrong = Node::new();
    let file = wrong.root().join("config");
    fs::write(&file, "node_group = \"no-such-group\"").expect("written");
    let output = wrong.daemon_command(&["--config", file.to_str().expect("plain")]).output();
    let said = String::from_utf8(output.expect("it ends").stderr).expect("text");
    assert!(said.contains("no-such-group") && said.contains("no such group"), "{said}");
    wrong.set_runtime_dir(Path::new("/nonexistent").into());
}

/// A node of 8 GPUs and 100 claims.
#[test]
fn a_full_list_is_bounded() {
    let case = Case::start("devices=8,mem=141GiB", "");
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    assert_eq!(gpus.len(), 8);
    for n in 0..100 {
        let words = words(&format!("6f1c9c1e-1111-4222-8333-9444555666{n:02}-0"), &gpus);
        agent.reserve(Reservation { share: None, ..words }).expect("it fits");
    }
    agent.0.send(5, &NodeRequest::List {}).expect("the daemon reads");
    let (mut bytes, mut rows) = (0, 0);
    loop {
        let Heard::Packet(packet, _) = agent.0.hear() else { panic!("no end") };
        (bytes, rows) = (bytes + packet.len(), rows + 1);
        let (_, row) = gpuslice_wire::frame::decode::<NodeAnswer>(&packet).expect("a row");
        if row == (NodeAnswer::End {}) {
            break;
        }
    }
    assert_eq!(rows, 8 + 100 + 1);
    assert!(bytes <= 128 << 10, "{bytes} bytes");
    let _ = admit("web", "0", MemoryAsk::Exactly(Bytes(GIB)));
    let mut case = case;
    case.node.end_daemon(Signal::SIGTERM);
    case.start_again();
    assert_eq!(AgentClient::of(&case.node).list().len(), 108, "after a restart");
}

/// A directory of its own for the agents' socket: the node's programs find it from the runtime directory.
#[test]
fn programs_of_the_node_find_a_socket_in_a_directory_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let own = dir.path().join("agents");
    let configured = format!("node_socket_dir = {:?}\n", own.to_str().expect("plain"));
    let mut case = Case::start("devices=1,mem=16GiB", &configured);
    let link = case.node.runtime_dir().join("node.sock");
    assert_eq!(fs::read_link(&link).expect("a link"), own.join("node.sock"));
    let table = case.says(&["inspect"]);
    assert!(table.contains("0/16"), "{table}");
    case.node.end_daemon(Signal::SIGTERM);
    assert!(fs::symlink_metadata(&link).is_err() && !own.join("node.sock").exists());
    // The next daemon has it where others have it.
    fs::write(case.node.root().join("config"), "").expect("written");
    case.start_again();
    assert!(fs::symlink_metadata(&link).expect("a socket").file_type().is_socket());
    assert!(case.says(&["inspect"]).contains("0/16"));
}
