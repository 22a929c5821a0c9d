//! The node as `gpuslice ps`, `gpus` and `set` show and name it: columns by name, GPUs by index and UUID, slices by
//! name, id and the beginning of an id.

use super::misuse::install;
use crate::harness::cli::{self, json};
use crate::harness::node::{Node, denied, id};
use crate::harness::{is_root, skip};
use gpuslice_wire::admin::Command as Admin;
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, GIB};
use serde_json::Value;
use std::process::{Command, Stdio};

/// A node with a slice of GPU 1 for the container `c0ffee`, named `web server`.
pub fn node() -> Node {
    let node = Node::start();
    let name = Name::new("web server").expect("a name");
    node.must_admit_with("c0ffee0123456789", "1", Bytes(GIB), |asked| asked.name = name);
    node
}

/// Success, and all that it says.
pub fn run(node: &Node, words: &[&str]) -> (bool, String) {
    let output = cli::gpuslice(node, words);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn columns_are_chosen() {
    let node = node();
    let (_, wide) = run(&node, &["ps", "--wide"]);
    assert_eq!(run(&node, &["ps", "-o", "wide"]).1, wide);
    let lines: Vec<&str> = wide.lines().collect();
    assert!(
        lines[0].contains(" PROCS ID ")
            && lines[0].contains(" LAST-REFUSED ")
            && lines[0].ends_with(" POD"),
        "{wide}"
    );
    assert!(lines[1].starts_with("web server ") && lines[1].contains(" c0ffee012345 "), "{wide}");
    let (_, some) = run(&node, &["ps", "-o", "id,why,NAME"]);
    assert!(some.starts_with("ID           WHY                          NAME\n"), "{some}");
    assert!(some.contains("\nc0ffee012345 no process                   web server"), "{some}");
    let slices = json(&node, &["ps", "-o", "json"])["slices"].clone();
    assert_eq!(slices[0]["container"], "c0ffee0123456789");
    for (words, why) in [
        (
            &["ps", "-o", "NAME,nosuch"][..],
            "no column is called \"nosuch\"; the columns are: NAME, ",
        ),
        (&["ps", "-o", "json", "--wide"], "cannot be used with"),
        (&["ps", "-o", "json", "--watch"], "--watch shows a table, not JSON"),
    ] {
        let (fine, said) = run(&node, words);
        assert!(!fine && said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn each_gpu_has_a_row() {
    let node = node();
    let (fine, text) = run(&node, &["gpus"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(fine && lines.len() == 3, "{text}");
    assert!(lines[0].starts_with("GPU PRODUCT ") && lines[0].ends_with(" SLICES"), "{text}");
    assert!(
        lines[2].starts_with("  1 ") && lines[2].ends_with(" 0.0%      1  simulated (kind)"),
        "{text}"
    );
    let all = json(&node, &["gpus", "--json"]);
    let [free, busy] = [&all["gpus"][0], &all["gpus"][1]];
    assert_eq!((&free["memory_unpromised"], &free["slices"]), (&(16 * GIB).into(), &0.into()));
    assert_eq!(
        (&busy["memory_unpromised"], &busy["memory_promised"]),
        (&(15 * GIB).into(), &GIB.into())
    );
    assert_eq!((&busy["simulated"], &busy["policy"]), (&true.into(), &"soft".into()));
    let product = busy["product"].as_str().expect("a text");
    assert!(!product.is_empty() && lines[2].contains(product), "{all}");
    assert_eq!(json(&node, &["ps", "--json"])["gpus"][1]["product"], product);
}

#[test]
fn names_and_ids_are_taken_alike() {
    let node = node();
    let uuid = json(&node, &["gpus", "--json"])["gpus"][1]["uuid"].as_str().expect("it").to_owned();
    for (name, option, gpu) in [
        ("web server", "--gpu", "1"),
        ("c0ffee0123456789", "--gpus", &*uuid),
        ("c0f", "--gpu", &uuid),
    ] {
        let (fine, said) = run(&node, &["set", name, "--memory", "2GiB", option, gpu]);
        assert!(fine && said.starts_with("web server: "), "{said}");
        let (fine, said) = run(&node, &["explain", name, "--seconds", "0.1"]);
        assert!(fine && said.starts_with("web server, gpu 1 (simulated), "), "{said}");
        let (fine, said) = run(&node, &["events", "--slice", name]);
        let is_of_it = |line: &str| line.contains("  web server  ");
        assert!(fine && !said.is_empty() && said.lines().all(is_of_it), "{said}");
    }
    for (gpu, policy) in [(&*uuid, "fixed"), ("1", "fair")] {
        assert!(run(&node, &["policy", gpu, policy]).0);
        assert_eq!(json(&node, &["gpus", "--json"])["gpus"][1]["policy"], policy);
    }
    let other =
        json(&node, &["gpus", "--json"])["gpus"][0]["uuid"].as_str().expect("it").to_owned();
    let (fine, said) = run(&node, &["set", "c0f", "--memory", "2GiB", "--gpu", &other]);
    assert!(!fine && said.contains(&format!("the slice has no {other}")), "{said}");
    assert!(run(&node, &["rm", "web server"]).0);
    assert!(node.containers().is_empty());
    let events = run(&node, &["events", "--slice", "web server"]).1;
    assert!(events.contains("slice-ended") && events.contains("removed"), "{events}");
    denied(node.admin().ask(&Admin::Resize {
        container: id("c0ffee0123456789"),
        lane: gpuslice_wire::ids::Lane(0),
        memory: gpuslice_wire::admin::MemoryAsk::Exactly(Bytes(GIB)),
    }));
}

/// A change of several values is made as a whole or not at all, and one that changes nothing says so.
#[test]
fn set_changes_all_or_nothing_and_says_when_there_is_nothing_to_change() {
    let node = node();
    let slice = || json(&node, &["ps", "--json"])["slices"][0].clone();
    let values = |slice: &Value| {
        ["memory_cap", "memory_limit", "pinned_cap", "weight", "share"]
            .map(|key| slice[key].clone())
    };
    let before = values(&slice());
    // A limit below the cap of the same command is seen before either is sent.
    let (fine, said) = run(&node, &["set", "c0f", "--memory-limit", "3GiB", "--memory", "4GiB"]);
    let why = "web server: gpu 1 (simulated): memory limit 3GiB is below the cap 4GiB; ";
    assert!(!fine && said.contains(why) && !said.contains(" -> "), "{said}");
    let (_, events) = run(&node, &["events"]);
    assert!(!events.contains("-changed"), "nothing was sent: {events}");
    // what comes first would fit
    let words = ["--memory", "2GiB", "--pinned", "1GiB", "--share", "50", "--share-limit", "20"];
    let (fine, said) = run(&node, &[&["set", "c0f"], &words[..]].concat());
    assert!(!fine && said.contains("is below the share"), "{said}");
    assert!(!said.contains(" -> "), "nothing is told as changed: {said}");
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(values(&slice()), before);
    let again = ["set", "c0f", "--memory", "1GiB", "--weight", "1", "--priority", "normal"];
    let (fine, said) = run(&node, &again);
    assert!(fine && said.lines().count() == 3, "{said}");
    assert!(said.lines().all(|line| line.ends_with(" already; nothing to change")), "{said}");
    let (_, events) = run(&node, &["events"]);
    assert!(!events.contains("retuned"), "nothing was sent: {events}");
}

/// A cap that reaches the limit takes it along when it is set back; the limit is set back as well.
#[test]
fn a_set_that_is_refused_keeps_the_memory_limit() {
    let node = node();
    assert!(run(&node, &["set", "c0f", "--memory-limit", "8GiB", "--share", "50"]).0);
    let values = || {
        let slice = json(&node, &["ps", "--json"])["slices"][0].clone();
        ["memory_cap", "memory_limit"].map(|key| slice[key].as_u64().map(|bytes| bytes / GIB))
    };
    assert_eq!(values(), [Some(1), Some(8)]);
    for memory in [["--memory", "8GiB", "--weight", "1"], ["--memory", "6GiB", "--weight", "1"]] {
        let words = [&["set", "c0f"], &memory[..], &["--share-limit", "20"]].concat();
        let (fine, said) = run(&node, &words);
        assert!(!fine && said.contains("nothing was changed"), "{said}");
        assert_eq!(values(), [Some(1), Some(8)], "{memory:?}");
    }
    // A limit that equals the cap goes along with it, unless the same command asks for it.
    assert!(run(&node, &["set", "c0f", "--memory", "8GiB", "--memory-limit", "none"]).0);
    let (fine, said) = run(&node, &["set", "c0f", "--memory", "2GiB", "--memory-limit", "8GiB"]);
    assert!(fine && said.contains("memory limit: 8GiB already"), "{said}");
    assert_eq!(values(), [Some(2), Some(8)]);
}

/// A cap on pinned host memory can be lifted again.
#[test]
fn a_cap_on_pinned_memory_is_set_and_lifted() {
    let node = node();
    let cap = || json(&node, &["ps", "--json"])["slices"][0]["pinned_cap"].clone();
    assert_eq!(cap(), Value::Null);
    let (fine, said) = run(&node, &["set", "c0f", "--pinned", "1GiB"]);
    assert!(fine && said.ends_with("pinned host memory: no cap -> 1GiB\n"), "{said}");
    assert_eq!(cap(), GIB);
    let (fine, said) = run(&node, &["set", "c0f", "--pinned", "none"]);
    assert!(fine && said.ends_with("pinned host memory: 1GiB -> no cap\n"), "{said}");
    assert_eq!(cap(), Value::Null);
    let lifted = json(&node, &["set", "c0f", "--pinned", "2GiB", "--json"]);
    assert_eq!(lifted["changes"][0]["was"], Value::Null);
    let (_, events) = run(&node, &["events"]);
    assert!(events.contains("1GiB of pinned memory -> no cap"), "{events}");
}

/// A node's daemon at its place, and the commands of an ordinary user. The command that follows is one line. The
/// daemon's simulated GPU would outlive it, for the next build to find one of another layout.
const BESIDE: &str = r#"
set -eu
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /dev/shm
cp -r "$0" /run/installed
chmod -R a+rX /run/installed
mkdir -m 700 /run/user
chown 65534 /run/user
cd /run/installed
export GPUSLICE_SIM=mem=4GiB TMPDIR=/run/user HOME=/run/user
TMPDIR=/tmp ./gpusliced --driver-dir /run/installed/sim 2>/run/log &
until grep -q 'gpusliced ready' /run/log; do kill -0 $! || { cat /run/log >&2; exit 9; }; sleep 0.05; done
status=0
setpriv --reuid 65534 --regid 65534 --clear-groups "$@" || status=$?
kill -9 %1
exit $status
"#;

/// A user that may not ask the node's daemon has one of its own where it names another driver, and is told of sudo
/// otherwise.
#[test]
fn an_ordinary_user_beside_the_nodes_daemon() {
    if !is_root() {
        return skip("an_ordinary_user_beside_the_nodes_daemon", "another /run needs root");
    }
    let place = tempfile::tempdir().expect("a directory");
    install(&place.path().join("all"));
    let driver = "/run/installed/sim";
    for (words, fine, said) in [
        (
            &["run", "--driver-dir", driver, "--memory", "1GiB", "--", "true"][..],
            true,
            "private daemon at /run/user/",
        ),
        (
            &["ps"],
            false,
            "only root may ask the node's at /run/gpuslice/admin.sock; try sudo gpuslice",
        ),
        (&["explain"], false, "try sudo gpuslice"),
        (
            &["ps", "--runtime-dir", "/run/gpuslice"],
            false,
            "permission denied: this user may not ask",
        ),
        (&["metrics"], false, "permission denied: this user may not ask"),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-c", BESIDE]);
        command.arg(place.path().join("all")).arg("./gpuslice").args(words);
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(output.status.success(), fine, "{words:?}: {text}");
        assert!(text.contains(said) && !text.contains("gpuslice_up 0"), "{words:?}: {text}");
    }
}
