//! Claims: their life over restarts and reboots, their CDI files, and the containers that live in them.

use super::cases::Case;
use crate::harness::agent_client::{AgentClient, claim, owner, words};
use crate::harness::bundle::{Bundle, Running, complaint, hook, printed};
use crate::harness::node::{Node, denied, id};
use crate::harness::{eventually, target_dir};
use gpuslice_wire::admin::{Answer, Command};
use gpuslice_wire::node::{NodeAnswer, NodeDenial, Reservation};
use gpuslice_wire::owner::Owner;
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SIMULATED: &str = "devices=2,mem=16GiB";

fn cdi(node: &Node, id: &str) -> PathBuf {
    node.runtime_dir().join(format!("cdi/gpuslice.io-{id}.json"))
}

fn stored(node: &Node, id: &str) -> PathBuf {
    node.runtime_dir().join("state/claims").join(id)
}

/// The runtime directory as a reboot leaves it, which keeps the claims elsewhere.
fn reboot(case: &mut Case) {
    case.node.end_daemon(Signal::SIGKILL);
    fs::write(case.node.runtime_dir().join("boot"), "another").expect("written");
    let _ = fs::remove_dir_all(case.node.runtime_dir().join("cdi"));
    case.start_again();
}

#[test]
fn claims_survive_restarts_and_reboots_and_released_ones_do_not() {
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    let asked = words("c-1", &gpus);
    agent.reserve(asked).expect("it fits");
    agent.reserve(words("c-2", &gpus[1..])).expect("it fits");
    agent.release("c-2");
    let before = agent.list();
    for life in 0..4 {
        match life % 2 {
            0 => {
                case.node.end_daemon(Signal::SIGKILL);
                case.start_again();
            }
            _ => reboot(&mut case),
        }
        let agent = AgentClient::of(&case.node);
        assert_eq!(agent.list(), before, "life {life}");
        assert_eq!(agent.reserve(asked).expect("the same words"), "gpuslice.io/gpu=c-1");
        assert!(cdi(&case.node, "c-1").exists() && !cdi(&case.node, "c-2").exists());
    }
    let agent = AgentClient::of(&case.node);
    agent.release("c-1");
    reboot(&mut case);
    let agent = AgentClient::of(&case.node);
    assert_eq!((agent.slice("c-1"), agent.facts()[0].promised), (None, Bytes::ZERO));
}

/// A daemon that was killed between the slice's record and the claim's file.
#[test]
fn a_slice_without_a_claim_ends_at_the_start() {
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    agent.reserve(words("c-1", &agent.gpus())).expect("it fits");
    case.node.end_daemon(Signal::SIGKILL);
    fs::remove_file(stored(&case.node, "c-1")).expect("there");
    case.start_again();
    let agent = AgentClient::of(&case.node);
    assert_eq!(agent.slice("c-1"), None);
    assert!(!cdi(&case.node, "c-1").exists());
    agent.reserve(words("c-1", &agent.gpus())).expect("as if it had never been");
}

/// The file of a claim is cut, or of zeros, or of another claim: it is reported, kept and refused, until it is
/// released.
#[test]
fn damaged_claims_are_refused() {
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    for id in ["whole", "cut", "zeros"] {
        agent.reserve(Reservation { share: None, ..words(id, &gpus) }).expect("it fits");
    }
    case.node.end_daemon(Signal::SIGKILL);
    let bytes = fs::read(stored(&case.node, "whole")).expect("there");
    fs::write(stored(&case.node, "cut"), &bytes[..bytes.len() / 2]).expect("cut");
    fs::write(stored(&case.node, "zeros"), vec![0; bytes.len()]).expect("zeros");
    fs::write(stored(&case.node, "named"), &bytes).expect("another claim's");
    fs::write(case.node.runtime_dir().join("boot"), "another").expect("a reboot");
    case.start_again();
    let agent = AgentClient::of(&case.node);
    assert!(agent.slice("whole").is_some());
    for id in ["cut", "zeros", "named"] {
        let path = stored(&case.node, id);
        assert!(case.node.log().contains(&path.display().to_string()), "{id}");
        assert!(path.exists() && agent.slice(id).is_none());
        let (why, text) = agent.reserve(words(id, &gpus)).expect_err("refused");
        assert!(why == NodeDenial::Host && text.contains("release it first"), "{text}");
        let (_, text) = denied(join(&case.node, "web", &[id]));
        assert!(text.contains(id), "{text}");
        agent.release(id);
        assert!(!path.exists());
        agent.reserve(Reservation { share: None, ..words(id, &gpus) }).expect("a new one");
    }
}

/// What no longer fits after a reboot: a GPU less.
#[test]
fn a_claim_that_cannot_be_kept_is_reported() {
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    agent.reserve(words("c-1", &agent.gpus())).expect("it fits");
    agent.reserve(words("c-2", &agent.gpus()[..1])).expect("it fits");
    case.node.end_daemon(Signal::SIGKILL);
    fs::write(case.node.runtime_dir().join("boot"), "another").expect("a reboot");
    case.start_beside("devices=1,mem=16GiB", "smaller");
    let agent = AgentClient::of(&case.node);
    assert!(agent.slice("c-1").is_none() && agent.slice("c-2").is_some());
    assert!(case.node.log().contains("claim not restored"));
    assert!(!cdi(&case.node, "c-1").exists() && cdi(&case.node, "c-2").exists());
    let (_, text) = denied(join(&case.node, "web", &["c-1"]));
    assert!(text.contains("c-1"), "{text}");
    let again = words("c-1", &agent.gpus());
    let (_, text) = agent.reserve(again).expect_err("not before it is released");
    assert!(text.contains("c-1") && text.contains("release"), "{text}");
    agent.release("c-1");
    agent.reserve(Reservation { share: None, ..again }).expect("a new one");
}

/// A GPU that does not answer while a daemon starts: the claim has no slice, and the container in it keeps its files.
/// It reaches the next daemon that has the GPU.
#[test]
fn a_gpu_that_is_away_for_a_start_costs_a_claims_container_nothing() {
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    for (claim, container) in [("c-1", "web"), ("c-2", "ends")] {
        agent.reserve(words(claim, &gpus[1..])).expect("it fits");
        let joined = join(&case.node, container, &[claim]);
        assert!(matches!(joined, Answer::Admitted { .. }), "{joined:?}");
    }
    let member = |claim: &str, container: &str| NodeAnswer::Member {
        claim: self::claim(claim),
        container: id(container),
    };
    case.node.end_daemon(Signal::SIGKILL);
    case.start_beside("devices=1,mem=16GiB", "smaller");
    let agent = AgentClient::of(&case.node);
    assert!(agent.slice("c-1").is_none());
    assert!(agent.list().contains(&member("c-1", "web")), "{:?}", agent.list());
    assert_eq!(agent.release("c-2"), 1, "its container lives");
    assert!(case.node.inside("web").exists());
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    let agent = AgentClient::of(&case.node);
    assert!(agent.slice("c-1").is_some());
    assert!(agent.list().contains(&member("c-1", "web")), "{:?}", agent.list());
    case.node.tenant("web").attach(Bytes::ZERO);
}

#[test]
fn cdi_files_are_remade_and_reported_once() {
    let case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    agent.reserve(words("c-1", &agent.gpus())).expect("it fits");
    let path = cdi(&case.node, "c-1");
    let text = fs::read_to_string(&path).expect("there");
    let spec: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(spec["kind"], "gpuslice.io/gpu");
    let hook = &spec["devices"][0]["containerEdits"]["hooks"][0];
    let dir = case.node.runtime_dir().to_str().expect("plain").to_owned();
    let args = ["gpuslice-hook", "--runtime-dir", &dir, "--claim", "c-1", "createRuntime"];
    assert_eq!(hook["args"], json!(args));
    let same = || fs::read_to_string(&path).is_ok_and(|now| now == text);
    let reports = |what: &str| {
        let line = format!("was {what}; it is written again");
        case.node.log().matches(&line).count()
    };
    fs::write(&path, "{}").expect("altered");
    eventually("the altered file is written again", || same() && reports("altered") == 1);
    fs::remove_file(&path).expect("deleted");
    eventually("the deleted file is written again", || same() && reports("deleted") == 1);
    // Two looks later.
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!((reports("altered"), reports("deleted")), (1, 1));
    agent.release("c-1");
    assert!(!path.exists());
}

/// What a hook of a container asks. The first process is the test itself.
fn join(node: &Node, container: &str, claims: &[&str]) -> Answer {
    let mut named = [None; 4];
    for (place, id) in named.iter_mut().zip(claims) {
        *place = Some(claim(id));
    }
    let (container, pid) = (id(container), std::process::id());
    node.admin().ask(&Command::Join { container, claims: named, owner: Owner::default(), pid })
}

#[test]
fn joins_that_are_refused() {
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpus = agent.gpus();
    for id in ["c-1", "c-2"] {
        agent.reserve(words(id, &gpus)).expect("it fits");
    }
    node.must_admit("own", Bytes(GIB));
    for (container, claims, expected) in [
        ("web", &[][..], "no claim is named"),
        ("web", &["nowhere"], "no such claim nowhere"),
        ("web", &["c-1", "c-2"], "reserve all its GPUs as one claim"),
        ("own", &["c-1"], "has a slice of its own"),
    ] {
        let (_, text) = denied(join(&node, container, claims));
        assert!(text.contains(expected), "{text}");
        assert_eq!(agent.members("c-1"), []);
    }
    assert!(matches!(join(&node, "web", &["c-1", "c-1"]), Answer::Admitted { .. }));
    // The hook of a second device of the same claim.
    assert!(matches!(join(&node, "web", &["c-1"]), Answer::Done {}));
    let (_, text) = denied(join(&node, "web", &["c-2"]));
    assert!(text.contains("lives in claim c-1"), "{text}");
    let (_, text) = denied(node.admit("web", Bytes(GIB)));
    assert!(text.contains("lives in a claim"), "{text}");
    assert_eq!(agent.members("c-1"), [id("web")]);
    let (_, text) = denied(node.dismiss("web"));
    assert!(text.contains("still runs"), "{text}");
}

/// A container with the hook of a claim's CDI device, as an engine would write it.
fn in_claim(node: &Node, id: &str, claims: &[&str], command: &[&str]) -> Bundle {
    let runtime_dir = node.runtime_dir().display().to_string();
    let claims: Vec<String> = claims.iter().map(|&claim| claim.to_owned()).collect();
    Bundle::new(node.root(), id, "runc", node.runtime_dir()).command(command).edit(move |config| {
        let hook = config["hooks"]["createRuntime"][0]["path"].clone();
        let one = |claim: &String| {
            let words =
                ["gpuslice-hook", "--runtime-dir", &runtime_dir, "--claim", claim, "createRuntime"];
            json!({ "path": hook, "args": words, "env": [], "timeout": 10 })
        };
        config["hooks"] = json!({ "createRuntime": claims.iter().map(one).collect::<Vec<_>>() });
        config["annotations"] = json!({
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-namespace": "default",
            "io.kubernetes.cri.sandbox-name": "web-0",
            "io.kubernetes.cri.sandbox-uid": "u-1",
            "io.kubernetes.cri.container-name": "main",
        });
    })
}

/// Two containers of one claim: each sees the claim's cap as the GPU's memory, and both together get no more.
#[test]
fn containers_of_a_claim_share_one_account() {
    let Some(hook) = hook("containers_of_a_claim_share_one_account", "runc") else {
        return;
    };
    let node = Node::start();
    let agent = AgentClient::of(&node);
    let gpu = agent.gpus()[0];
    agent.reserve(words("c-1", &[gpu])).expect("it fits");
    let tenant = |id: &str, most: &str| {
        let seconds = if id == "alone" { "0" } else { "600" };
        let words =
            ["/bin/tenant", "--seconds", seconds, "--step-mib", "64", "--most-mib", most, "--idle"];
        let bundle =
            in_claim(&node, id, &["c-1"], &words).variable("ALIYUN_COM_GPU_MEM_CONTAINER=9");
        bundle.add_program(&target_dir().join("tenant"), "bin/tenant");
        bundle
    };
    let told = printed(&tenant("alone", "64").run(&hook));
    assert!(told.contains(&format!("\"total\":{GIB}")), "the claim's memory is the GPU's: {told}");
    let held = |node: &Node| match AgentClient::of(node).slice("c-1") {
        Some(NodeAnswer::Slice { reserved, .. }) => reserved,
        other => panic!("{other:?}"),
    };
    let first = tenant("first", "512").started(&hook);
    eventually("the first one holds its part", || held(&node) >= Bytes(512 << 20));
    let second = tenant("second", "4096").started(&hook);
    // Less is left than one more allocation, beside credit that the first one may not have returned in time.
    eventually("both hold all", || held(&node) > Bytes(GIB - ((64 + 16) << 20)));
    assert!(held(&node) <= Bytes(GIB));
    assert_eq!(agent.members("c-1").len(), 2);
    assert_eq!(agent.facts()[0].promised, Bytes(GIB), "one promise");
    drop(second);
    eventually("the second one has left", || agent.members("c-1") == [id("first")]);
    drop(first);
    eventually("both have left", || agent.members("c-1").is_empty());
    assert!(agent.slice("c-1").is_some(), "the promise stays");
    assert!(!node.container_dir("first").exists() && !node.container_dir("second").exists());
}

/// Starts a container that sleeps in a claim, and waits until it lives there.
fn sleeping(node: &Node, name: &str, claim: &str, hook: &Path) -> Running {
    let running = in_claim(node, name, &[claim], &["/bin/sleep", "600"]).started(hook);
    let agent = AgentClient::of(node);
    eventually("it has joined", || agent.members(claim).contains(&id(name)));
    running
}

#[test]
fn a_released_claim_keeps_its_promise_until_its_containers_end() {
    let Some(hook) = hook("a_released_claim_keeps_its_promise", "runc") else {
        return;
    };
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    agent.reserve(words("c-1", &gpus)).expect("it fits");
    let running = sleeping(&case.node, "web", "c-1", &hook);
    assert_eq!(agent.release("c-1"), 1);
    assert_eq!(agent.release("c-1"), 1, "idempotent");
    assert!(!cdi(&case.node, "c-1").exists() && !stored(&case.node, "c-1").exists());
    assert_eq!(agent.facts()[0].promised, Bytes(GIB));
    let (why, _) = agent.reserve(words("c-1", &gpus)).expect_err("its containers live");
    assert_eq!(why, NodeDenial::Released);
    let said = complaint(&in_claim(&case.node, "late", &["c-1"], &["/bin/true"]).run(&hook));
    assert!(said.contains("was released"), "{said}");
    // The daemon that starts meanwhile knows as much.
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    let agent = AgentClient::of(&case.node);
    assert!(matches!(agent.slice("c-1"), Some(NodeAnswer::Slice { released: true, .. })));
    assert_eq!(agent.members("c-1"), [id("web")]);
    drop(running);
    eventually("the promise ends", || agent.slice("c-1").is_none());
    assert_eq!(agent.facts()[0].promised, Bytes::ZERO);
}

#[test]
fn containers_stay_in_their_claim_over_a_restart() {
    let Some(hook) = hook("containers_stay_in_their_claim_over_a_restart", "runc") else {
        return;
    };
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    agent.reserve(words("c-1", &agent.gpus())).expect("it fits");
    let first = sleeping(&case.node, "first", "c-1", &hook);
    let second = sleeping(&case.node, "second", "c-1", &hook);
    case.node.end_daemon(Signal::SIGKILL);
    drop(second);
    case.start_again();
    let agent = AgentClient::of(&case.node);
    assert_eq!(agent.members("c-1"), [id("first")]);
    assert!(case.node.socket("first").exists() && !case.node.container_dir("second").exists());
    drop(first);
    eventually("it has left", || agent.members("c-1").is_empty());
}

/// A container names its claim and cannot start without it.
#[test]
fn a_container_without_its_claim_does_not_start() {
    let Some(hook) = hook("a_container_without_its_claim_does_not_start", "runc") else {
        return;
    };
    let node = Node::start();
    let agent = AgentClient::of(&node);
    for id in ["c-1", "c-2"] {
        agent.reserve(words(id, &agent.gpus())).expect("it fits");
    }
    let run = |id: &str, claims: &[&str]| {
        complaint(&in_claim(&node, id, claims, &["/bin/true"]).run(&hook))
    };
    assert!(run("a", &["gone"]).contains("no such claim gone"));
    assert!(run("b", &["../x"]).contains("a claim id is"));
    assert!(run("c", &["c-1", "c-2"]).contains("reserve all its GPUs as one claim"));
    let five = ["c-1", "c-2", "c-3", "c-4", "c-5"];
    assert!(run("d", &five).contains("the devices of 5 claims"));
    let both = in_claim(&node, "e", &["c-1"], &["/bin/true"])
        .edit(|config| config["annotations"]["gpuslice.io/memory"] = json!("1GiB"));
    assert!(complaint(&both.run(&hook)).contains("use either the device"));
    eventually("nothing is left", || agent.members("c-1").is_empty());
    // Two devices of one claim are one.
    let mounts = printed(
        &in_claim(&node, "f", &["c-1", "c-1"], &["/bin/cat", "/proc/self/mountinfo"]).run(&hook),
    );
    let own = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/run/gpuslice"));
    assert_eq!(own.count(), 1, "{mounts}");
}

/// The names that Kubernetes gives, with a claim and without.
#[test]
fn slices_name_their_pods() {
    let Some(hook) = hook("slices_name_their_pods", "runc") else {
        return;
    };
    let mut case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    let nameless = Reservation { owner: Owner::default(), ..words("c-1", &agent.gpus()) };
    agent.reserve(nameless).expect("it fits");
    agent.reserve(words("c-2", &agent.gpus())).expect("it fits");
    let _joined = sleeping(&case.node, "joined", "c-1", &hook);
    let _own = in_claim(&case.node, "own", &[], &["/bin/sleep", "600"])
        .edit(|config| {
            config["annotations"]["gpuslice.io/memory"] = json!("1GiB");
        })
        .edit({
            let dir = case.node.runtime_dir().display().to_string();
            let path = hook.clone();
            move |config| {
                let words = ["gpuslice-hook", "--runtime-dir", &dir, "createRuntime"];
                config["hooks"] = json!({ "createRuntime": [{ "path": path, "args": words }] });
            }
        })
        .started(&hook);
    eventually("its own slice", || case.node.slice("own").is_some());
    let pod = |uid: &str| json!({ "namespace": "default", "name": "web-0", "uid": uid, "container": "main" });
    for life in 0..2 {
        assert_eq!(case.row("own")["pod"], pod("u-1"), "life {life}");
        assert_eq!(case.row("claim.c-1")["pod"], pod("u-1"), "life {life}");
        let uid = owner("web-0").uid;
        assert_eq!(case.row("claim.c-2")["pod"], pod(uid.as_str()), "life {life}");
        let wide = case.says(&["ps", "--wide"]);
        assert_eq!(wide.matches("  default/web-0/main").count(), 5, "{wide}");
        let metrics = case.says(&["metrics"]);
        for slice in ["own", "claim.c-1", "claim.c-2"] {
            let named = format!("slice=\"{slice}\"");
            let mut lines = metrics.lines().filter(|line| line.contains(&named)).peekable();
            assert!(lines.peek().is_some(), "{slice}: {metrics}");
            assert!(lines.all(|line| line.contains("pod=\"web-0\"")), "{slice}: {metrics}");
        }
        case.node.end_daemon(Signal::SIGKILL);
        case.start_again();
    }
}
