//! A process that breaks a rule of the protocol is told which one, and loses its connection. Other processes
//! keep theirs.

use crate::harness::agent::Agent;
use crate::harness::node::Node;
use crate::harness::wire::{Connection, Heard, TenantClient};
use crate::harness::{Random, eventually, setting, skip};
use gpuslice_wire::admin::{Answer, Denial};
use gpuslice_wire::frame::{RequestId, decode, encode, version_of};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{
    ACCOUNTS_MAX, CLIENTS_PER_CONTAINER_MAX, FRAME_BYTES_MAX, WIRE_VERSION,
};
use gpuslice_wire::tenant::{Rejection, Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

fn node() -> Node {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    node
}

fn frame(request: &Request) -> Vec<u8> {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let len = encode(RequestId(1), request, &mut buffer).expect("fits");
    buffer[..len].to_vec()
}

fn attach() -> Vec<u8> {
    frame(&Request::Attach { held: [Bytes::ZERO; ACCOUNTS_MAX] })
}

/// Sends one packet as a first word and expects to be rejected with `rule`; then a good process
/// of the same container is served.
fn first_word(node: &Node, packet: &[u8], rule: Rejection) {
    let bad = node.tenant("a");
    bad.0.send_raw(packet, &[]).expect("sent");
    bad.0.expect_rejected(rule);
    let good = node.tenant("a");
    assert_eq!(good.attach(Bytes::ZERO).lanes, 1);
}

#[test]
fn a_silent_process_is_dropped_after_a_second() {
    let node = node();
    let start = Instant::now();
    let silent = node.tenant("a");
    silent.0.expect_end();
    let after = start.elapsed();
    assert!(after >= Duration::from_millis(900), "too soon: {after:?}");
    let quiet = node.tenant("a");
    quiet.attach(Bytes::ZERO);
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(
        matches!(quiet.reserve(0, 1, 1), Reply::Reserved { .. }),
        "once attached, all the time"
    );
}

#[test]
fn unreadable_first_words_are_rejected() {
    let node = node();
    let good = attach();
    first_word(&node, &good[..good.len() / 2], Rejection::Protocol);
    first_word(&node, b"x", Rejection::Protocol);
    let mut wrong = good.clone();
    wrong[4..6].copy_from_slice(&(WIRE_VERSION + 1).to_le_bytes());
    first_word(&node, &wrong, Rejection::Version);
    let mut wrong = good.clone();
    wrong[6..8].copy_from_slice(&301u16.to_le_bytes());
    first_word(&node, &wrong, Rejection::Protocol);
    let mut wrong = good;
    wrong[12] = 1;
    first_word(&node, &wrong, Rejection::Protocol);
    let early = frame(&Request::Reserve { lane: Lane(0), need: Bytes(1), wish: Bytes(1) });
    first_word(&node, &early, Rejection::Protocol);
}

/// As after a downgrade of the node. The reason is in the log, once for many, and the reply is in a version that the
/// newer process knows.
#[test]
fn a_process_of_a_newer_version_is_refused_with_what_to_do() {
    let node = node();
    let mut newer = attach();
    newer[4..6].copy_from_slice(&(WIRE_VERSION + 1).to_le_bytes());
    for _ in 0..3 {
        let process = node.tenant("a");
        process.0.send_raw(&newer, &[]).expect("sent");
        let Heard::Packet(reply, _) = process.0.hear() else { panic!("no answer") };
        assert_eq!(version_of(&reply), WIRE_VERSION);
        let rejected = Reply::Rejected { why: Rejection::Version };
        assert_eq!(decode(&reply).map(|(_, reply)| reply), Ok(rejected));
        process.0.expect_end();
    }
    let log = node.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("a container's library")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    let wanted = ["container=a", "version=3", "newest=2", "install the daemon of that version"];
    assert!(wanted.iter().all(|words| lines[0].contains(words)), "{}", lines[0]);
}

#[test]
fn too_long_packets_and_descriptors_are_rejected() {
    let node = node();
    let long = node.tenant("a");
    long.0.allow_long_packets();
    let mut packet = attach();
    packet.resize(FRAME_BYTES_MAX + 1, 0);
    long.0.send_raw(&packet, &[]).expect("sent");
    long.0.expect_rejected(Rejection::Protocol);

    let generous = node.tenant("a");
    let own = std::fs::File::open("/dev/null").expect("null");
    match generous.0.send_raw(&attach(), &[own.as_raw_fd(); 8]) {
        // Since Linux 6.16 by the kernel: nothing was sent.
        Err(Errno::EPERM) => drop(generous.attach(Bytes::ZERO)),
        // The answer is lost where the packet is still unread when the connection is closed.
        sent => {
            sent.expect("sent");
            assert!(generous.0.message::<Reply>().is_none_or(|(_, reply, _)| {
                let why = Rejection::Protocol;
                reply == Reply::Rejected { why }
            }));
            generous.0.expect_end();
        }
    }
    let null = |fd: &std::fs::DirEntry| {
        std::fs::read_link(fd.path()).is_ok_and(|target| target.ends_with("null"))
    };
    let open = || std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("readable");
    let nulls = || open().flatten().filter(null).count();
    // One of its children may be about to start.
    eventually("only stdin, stdout and the spare one", || nulls() <= 3);
}

#[test]
fn an_empty_packet_is_an_end() {
    let node = node();
    let empty = node.tenant("a");
    empty.0.send_raw(&[], &[]).expect("sent");
    empty.0.expect_end();
}

#[test]
fn attaching_twice_is_rejected_and_the_end_refunds() {
    let node = node();
    let twice = node.process("a");
    twice.attach(Bytes::ZERO);
    assert!(matches!(twice.reserve(0, MIB, MIB), Reply::Reserved { .. }));
    twice.0.send_raw(&attach(), &[]).expect("sent");
    twice.0.expect_rejected(Rejection::Protocol);
    drop(twice);
    node.wait_refunded("a");
}

#[test]
fn releasing_more_than_granted_is_rejected_and_the_end_refunds() {
    let node = node();
    let greedy = node.process("a");
    greedy.attach(Bytes::ZERO);
    assert_eq!(
        greedy.reserve(0, MIB, 2 * MIB),
        Reply::Reserved { lane: Lane(0), bytes: Bytes(2 * MIB) }
    );
    greedy.release(0, MIB);
    greedy.release(0, MIB + 1);
    greedy.0.expect_rejected(Rejection::Overdrawn);
    eventually("a process without a connection", || node.slice("a") == Some((Bytes(MIB), 0)));
    drop(greedy);
    node.wait_refunded("a");
}

#[test]
fn a_lane_the_slice_does_not_have_is_rejected() {
    let node = node();
    let lost = node.tenant("a");
    lost.attach(Bytes::ZERO);
    assert_eq!(lost.reserve(1, 1, 1), Reply::Rejected { why: Rejection::NoSuchLane });
    lost.0.expect_end();
}

#[test]
fn a_death_refunds_everything() {
    let node = node();
    let first = node.process("a");
    first.attach(Bytes::ZERO);
    let all = Reply::Reserved { lane: Lane(0), bytes: Bytes(GIB) };
    assert_eq!(first.reserve(0, GIB, GIB), all);
    let second = node.tenant("a");
    second.attach(Bytes::ZERO);
    assert_eq!(
        second.reserve(0, 1, GIB),
        Reply::Refused { lane: Lane(0), need: Bytes(1), left: Bytes::ZERO }
    );
    assert_eq!(node.slice("a"), Some((Bytes(GIB), 2)));
    drop(first);
    eventually("the refund", || node.slice("a") == Some((Bytes::ZERO, 1)));
    assert_eq!(second.reserve(0, GIB, GIB), all);
}

/// A flood of connections that say nothing: at most so many are kept, the rest is told; others are
/// served meanwhile; a second later all are gone.
#[test]
fn a_flood_of_one_container_does_not_touch_another() {
    let node = node();
    node.must_admit("b", Bytes(GIB));
    let victim = node.tenant("b");
    victim.attach(Bytes::ZERO);
    let start = Instant::now();
    let mut flood: Vec<TenantClient> = Vec::new();
    for n in 0..3 * CLIENTS_PER_CONTAINER_MAX {
        flood.push(node.tenant("a"));
        if n % 64 == 0 {
            assert!(matches!(victim.reserve(0, 1, 1), Reply::Reserved { .. }));
        }
    }
    let newcomer = node.tenant("b");
    newcomer.attach(Bytes::ZERO);
    let told = flood.iter().filter(|client| is_told(client)).count();
    // Each place is free again after a second at the earliest. The last connection that was kept came a second before
    // all were gone, or earlier.
    let seconds = start.elapsed().as_secs().max(1) as usize;
    let kept = flood.len() - told;
    assert!(told > 0 && kept <= seconds * CLIENTS_PER_CONTAINER_MAX, "{kept} in {seconds} s");
    node.tenant("a").attach(Bytes::ZERO);
    assert_eq!(node.slice("b").map(|(_, clients)| clients), Some(2));
}

/// Four containers that take all they can get leave every other container its minimum, also one that
/// starts later.
#[test]
fn greedy_containers_leave_others_their_minimum() {
    let greedy = ["a", "b", "c", "d"];
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    if most < 4096 {
        return skip("greedy containers", "this process may open only a few files");
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("allowed");
    let node = node();
    greedy[1..].iter().for_each(|name| node.must_admit(name, Bytes(GIB)));
    node.must_admit("modest", Bytes(GIB));
    let attached = |name: &str| {
        let tenant = node.tenant(name);
        tenant.try_attach().map(|_| tenant)
    };
    let taken = greedy.map(|name| {
        let most = 0..2 * CLIENTS_PER_CONTAINER_MAX;
        most.map_while(|_| attached(name)).collect::<Vec<_>>()
    });
    let counts = taken.each_ref().map(Vec::len);
    assert_eq!(counts, [CLIENTS_PER_CONTAINER_MAX; 4]);
    node.must_admit("late", Bytes(GIB));
    for name in ["modest", "late"] {
        let its: Vec<_> = (0..4).map_while(|_| attached(name)).collect();
        assert_eq!(its.len(), 4, "{name}");
    }
}

/// Hears a flooding connection out: it was told, or it timed out; both end it.
fn is_told(client: &TenantClient) -> bool {
    let connection: &Connection = &client.0;
    let Some((_, reply, _)) = connection.message::<Reply>() else { return false };
    assert_eq!(reply, Reply::Rejected { why: Rejection::TooManyClients });
    connection.expect_end();
    true
}

/// A process that sends requests and reads no answer fills its own socket and is disconnected.
#[test]
fn not_reading_answers_ends_the_connection() {
    let node = node();
    let unresponsive = node.process("a");
    unresponsive.attach(Bytes::ZERO);
    let request = Request::Reserve { lane: Lane(0), need: Bytes(1), wish: Bytes(1) };
    let sent = (0..1_000_000).take_while(|_| unresponsive.0.send(2, &request).is_ok()).count();
    assert!(sent < 1_000_000, "never disconnected");
    drop(unresponsive);
    node.wait_refunded("a");
}

/// With few descriptors, a flood on one container's socket leaves enough for another container,
/// its processes and the admin socket.
#[test]
fn few_descriptors_are_shared_out() {
    let mut node = Node::new();
    node.start_daemon_limited(140);
    node.must_admit("a", Bytes(GIB));
    let flood: Vec<TenantClient> = (0..200).map(|_| node.tenant("a")).collect();
    node.must_admit("b", Bytes(GIB));
    node.tenant("b").attach(Bytes::ZERO);
    let mut given = 2;
    let (why, text) = loop {
        match node.admit(&format!("c{given}"), Bytes(1 << 20)) {
            Answer::Denied { why, text } => break (why, text),
            _ => given += 1,
        }
    };
    assert_eq!(why, Denial::Capacity, "{text}");
    let why = format!(
        "{given} slices exist, as many as containers_max and the daemon's descriptor limit allow"
    );
    assert!(given >= 4 && text.as_str().starts_with(&why), "{given} slices: {text}");
    drop(flood);
    node.tenant("b").attach(Bytes::ZERO);
    assert_eq!(node.dismiss("a"), Answer::Dismissed {});
    node.must_admit("another", Bytes(GIB));
}

/// Processes that lost their connections may come back where there is no room for others, and cost a descriptor each
/// meanwhile: not more of them for each time that they come.
#[test]
fn processes_that_come_back_many_times_leave_descriptors_for_others() {
    let mut node = Node::new();
    node.start_daemon_limited(512);
    let greedy = ["a", "b", "c"];
    let mut agents: Vec<(&str, Agent)> = Vec::new();
    let holds = |name: &str, agent: &Agent| {
        let tenant = agent.tenant(&node.socket(name));
        let attached = tenant.try_attach().is_some();
        attached && matches!(tenant.reserve(0, 512, 512), Reply::Reserved { .. })
    };
    for name in greedy {
        node.must_admit(name, Bytes(GIB));
        let mut more = true;
        while more {
            let agent = Agent::start();
            more = holds(name, &agent);
            agents.push((name, agent));
        }
    }
    for (name, agent) in &agents {
        let all: Vec<TenantClient> = (0..32).map(|_| agent.tenant(&node.socket(name))).collect();
        let attached = all.iter().filter(|tenant| tenant.try_attach().is_some());
        attached.for_each(|tenant| _ = tenant.reserve(0, 512, 512));
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.pid()));
    let open = open.expect("it lives").count();
    node.must_admit("late", Bytes(GIB));
    node.tenant("late").attach(Bytes::ZERO);
    let log = node.log();
    assert!(!log.contains("out of descriptors"), "{open} open: {log}");
    assert!(open < 256, "{open} open");
}

/// Through which nothing is taken over is granted nothing either.
#[test]
fn who_only_looks_is_granted_nothing() {
    let node = node();
    let looker = node.process("a");
    looker.0.send(1, &Request::Look {}).expect("the daemon reads");
    let (_, reply, pages) = looker.0.message::<Reply>().expect("an answer");
    assert!(matches!(reply, Reply::Attached { .. }), "{reply:?}");
    assert_eq!(pages.len(), 4);
    let request = Request::Reserve { lane: Lane(0), need: Bytes(1), wish: Bytes(1) };
    looker.0.send(2, &request).expect("the daemon reads");
    looker.0.expect_rejected(Rejection::Protocol);
    let second = node.process("a");
    second.0.send(1, &Request::Look {}).expect("the daemon reads");
    assert!(second.0.message::<Reply>().is_some());
    second.0.send(1, &Request::Look {}).expect("the daemon reads");
    second.0.expect_rejected(Rejection::Protocol);
    node.wait_refunded("a");
}

/// Nonsense of every kind on a thousand connections: the daemon lives, keeps its ledger and its size.
#[test]
fn random_packets_harm_nobody() {
    let node = node();
    node.must_admit("b", Bytes(GIB));
    let victim = node.tenant("b");
    victim.attach(Bytes::ZERO);
    // What it allocated; pages of its program and of NVML come as they are first used.
    let own = || node.status("RssAnon:");
    let before = own();
    let mut random = Random(0x5EED);
    let agent = Agent::start();
    let mut sent = 0;
    for round in 0..setting("CONNECTIONS", 1_000) {
        let tenant = agent.tenant(&node.socket("a"));
        if random.below(2) == 0 {
            tenant.attach(Bytes::ZERO);
        }
        for _ in 0..10 {
            let packet = nonsense(&mut random);
            if tenant.0.send_raw(&packet, &[]).is_err() {
                break;
            }
            sent += 1;
        }
        if round % 100 == 0 {
            assert!(matches!(victim.reserve(0, 1, 1), Reply::Reserved { .. }), "{round}");
        }
    }
    drop(agent);
    node.wait_refunded("a");
    let after = own();
    assert!(after < before + 1024, "grew from {before} to {after} KiB");
    eprintln!("{sent} packets");
}

/// A packet: noise, or a good frame with a few bytes changed or cut.
fn nonsense(random: &mut Random) -> Vec<u8> {
    let amount = Bytes(random.next());
    let mut packet = match random.below(4) {
        0 => vec![0; random.below(FRAME_BYTES_MAX as u64) as usize],
        1 => attach(),
        2 => frame(&Request::Release { lane: Lane(random.below(16) as u8), bytes: amount }),
        _ => frame(&Request::Reserve { lane: Lane(0), need: Bytes(1), wish: amount }),
    };
    for _ in 0..random.below(4) {
        let at = random.below(packet.len() as u64 + 1) as usize;
        if let Some(byte) = packet.get_mut(at) {
            *byte = random.next() as u8;
        }
    }
    if random.below(4) == 0 {
        packet.truncate(random.below(packet.len() as u64 + 1) as usize);
    }
    packet
}

/// Processes that ask to attach and close at once cannot be attached. The daemon's log tells so once a minute, with
/// their number, and not of each.
#[test]
fn a_storm_of_connections_does_not_fill_the_log() {
    let node = node();
    for _ in 0..2_000 {
        let client = node.tenant("a");
        // Fails if the daemon has closed it meanwhile.
        let _ = client.0.send_raw(&attach(), &[]);
        client.0.hang_up();
    }
    assert_eq!(node.tenant("a").attach(Bytes::ZERO).lanes, 1, "others are served");
    let log = node.log();
    let told = log.lines().filter(|line| line.contains("processes could not be attached")).count();
    assert_eq!(told, 1, "{log}");
    assert!(log.lines().count() < 100, "{log}");
}
