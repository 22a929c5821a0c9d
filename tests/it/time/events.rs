//! `gpuslice events`: what happened to the containers of a node, with sizes, processes and users.

use super::{Tenant, must, node};
use crate::harness::cli::{command, events, refused};
use crate::harness::eventually;
use crate::harness::node::{Node, denied};
use crate::harness::process::KillOnDrop;
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The last event of that kind.
pub fn last(node: &Node, container: &str, kind: &str) -> Option<Value> {
    let all = events(node, &["--slice", container]);
    all.into_iter().rfind(|event| event["event"] == kind)
}

/// Runs a command, which must succeed; its pid.
fn ended(node: &Node, words: &[&str]) -> u32 {
    let mut child = command(node, words).stdout(Stdio::null()).spawn().expect("it starts");
    assert!(child.wait().expect("ours").success(), "{words:?}");
    child.id()
}

#[test]
fn the_life_of_a_container() {
    let (node, machine) = node();
    let tenant = Tenant::start(&node, &machine, "a", 500);
    let set = ended(&node, &["set", "a", "--memory", "2GiB", "--weight", "3"]);
    let policy = ended(&node, &["policy", "0", "preemptive"]);
    denied(node.admit("a", Bytes(GIB)));
    let pid = tenant.pid().as_raw();
    drop(tenant);
    must(&node, &["rm", "--force", "a"]);
    let me = nix::unistd::getuid().as_raw();
    let expected = [
        ("slice-began", "gpus", Value::from(1)),
        ("memory-refused", "pid", pid.into()),
        ("cap-changed", "cap", (2 * GIB).into()),
        ("retuned", "text", "weight 1 -> 3, share none, share-limit none, normal".into()),
        ("slice-refused", "uid", me.into()),
        ("slice-ended", "text", "removed".into()),
    ];
    let all = events(&node, &["--slice", "a"]);
    let kinds: Vec<&str> = all.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(kinds, expected.clone().map(|(kind, ..)| kind), "{all:?}");
    for (event, (kind, key, value)) in all.iter().zip(expected) {
        assert_eq!(event[key], value, "{kind}: {event}");
        assert_eq!((&event["container"], &event["name"]), (&"a".into(), &"a".into()), "{event}");
    }
    let refused = &all[1];
    let (need, left) = (refused["need"].as_u64(), refused["left"].as_u64());
    assert!(need > left && need <= Some(512 << 20), "{refused}");
    assert_eq!((&all[2]["was"], &all[2]["uid"]), (&GIB.into(), &me.into()));
    assert_eq!((&all[2]["pid"], &all[3]["pid"]), (&set.into(), &set.into()));
    assert!(all[4]["text"].as_str().is_some_and(|why| why.contains("has a slice already")));
    let all = events(&node, &[]);
    assert_eq!((&all[0]["event"], &all[0]["slices"]), (&"daemon-started".into(), &0.into()));
    let set = all.iter().find(|event| event["event"] == "policy-set").expect("the policy");
    assert!(set["text"].as_str().is_some_and(|it| it.starts_with("preemptive: GPU-")), "{set}");
    assert_eq!((&set["uid"], &set["pid"]), (&me.into(), &policy.into()));
    assert_eq!(set["container"], Value::Null);
    let numbers: Vec<u64> = all.iter().filter_map(|event| event["sequence"].as_u64()).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    // lines for people
    let text = must(&node, &["events", "--slice", "a"]);
    assert!(
        text.contains("  cap-changed     a                 gpu 0 (simulated): 1GiB -> 2GiB (pid "),
        "{text}"
    );
}

#[test]
fn an_overrun_is_told_with_its_length() {
    let (node, machine) = node();
    let _long = Tenant::with(&node, &machine, "b", 2_600_000, &["--batch", "1"]);
    let short = Tenant::start(&node, &machine, "a", 500);
    short.gets(&machine, Duration::from_millis(20));
    eventually("an overrun", || last(&node, "b", "overrun").is_some());
    let overrun = last(&node, "b", "overrun").expect("an overrun");
    assert!(overrun["after_ns"].as_u64() >= Some(2_000_000_000), "{overrun}");
    assert!(overrun["gpu"].as_str().is_some_and(|gpu| gpu.starts_with("GPU-")), "{overrun}");
    assert!(last(&node, "a", "overrun").is_none());
}

/// One container is refused memory ten thousand times.
#[test]
fn a_flood_hides_no_events_of_others() {
    let node = Node::start();
    for container in ["quiet", "loud"] {
        node.must_admit(container, Bytes(GIB));
    }
    let tenant = node.tenant("loud");
    drop(tenant.attach(Bytes::ZERO));
    for _ in 0..10_000 {
        tenant.reserve(0, 2 * GIB, 2 * GIB);
    }
    let all = events(&node, &[]);
    let of = |container: &str| all.iter().filter(|event| event["container"] == container).count();
    assert_eq!(of("quiet"), 1);
    assert!((9..200).contains(&of("loud")), "{}", of("loud"));
    let loud = events(&node, &["--slice", "loud"]);
    assert_eq!(loud[0]["event"], "slice-began", "its own earlier events are there too");
    let counted: u64 = loud[1..].iter().filter_map(|event| event["count"].as_u64()).sum();
    assert!((8..=10_000).contains(&counted), "{counted}");
}

#[test]
fn a_follower_sees_each_event_also_of_the_next_daemon() {
    let (mut node, _machine) = node();
    let mut follow = command(&node, &["events", "--follow", "--json"]);
    let child = follow.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut follower = KillOnDrop(child);
    let out = follower.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines();
    let mut next = || {
        let line = lines.next().expect("a line").expect("text");
        let event: Value = serde_json::from_str(&line).expect("JSON");
        (event["event"].as_str().expect("a kind").to_owned(), event)
    };
    for kind in ["daemon-started", "slice-began", "slice-began"] {
        assert_eq!(next().0, kind);
    }
    must(&node, &["set", "b", "--priority", "high"]);
    assert_eq!(next().0, "retuned");
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&["--log-format", "json"]);
    let (kind, event) = next();
    assert_eq!(
        (kind.as_str(), &event["slices"], &event["sequence"]),
        ("daemon-started", &2.into(), &1.into())
    );
    must(&node, &["set", "b", "--priority", "normal"]);
    let (kind, event) = next();
    assert_eq!((kind.as_str(), &event["name"]), ("retuned", &"b".into()));
    // and the log of that daemon is JSON
    let log = node.log();
    let line = log.lines().rfind(|line| line.contains("class changed")).expect("a line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["container"], &line["level"]), (&"b".into(), &"INFO".into()), "{line}");
}

/// `sudo` changes the user, and the kernel remembers which one had logged in.
#[test]
fn the_user_that_logged_in_is_told() {
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    let script =
        "echo 1234 > /proc/self/loginuid && exec \"$0\" set web --weight 3 --runtime-dir \"$1\"";
    let mut set = Command::new("sh");
    set.args(["-c", script]).arg(env!("CARGO_BIN_EXE_gpuslice")).arg(node.runtime_dir());
    let output = set.output().expect("it starts");
    if !output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("gpuslice") {
        let why = "this kernel keeps no logins, or this user may not set one";
        return crate::harness::skip("the_user_that_logged_in_is_told", why);
    }
    let retuned = last(&node, "web", "retuned").expect("a change");
    let me = nix::unistd::getuid().as_raw();
    assert_eq!((&retuned["uid"], &retuned["login_uid"]), (&me.into(), &1234.into()));
    let text = must(&node, &["events", "--slice", "web"]);
    assert!(text.contains(&format!(", uid {me}, login 1234)")), "{text}");
}

#[test]
fn bad_words_are_refused() {
    let node = Node::start();
    for (words, why) in
        [(&["--since", "soon"][..], "invalid value"), (&["--since"], "a value is required")]
    {
        let said = refused(&node, &[&["events"], words].concat());
        assert!(said.contains(why), "{words:?}: {said}");
    }
    assert_eq!(events(&node, &["--since", "1h"]).len(), 1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(events(&node, &["--since", "10ms"]).len(), 0);
}
