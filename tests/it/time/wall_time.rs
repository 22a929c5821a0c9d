//! Why a container is slow: `gpuslice ps --json` names the part of its wall time that is largest, and the
//! container that it waits behind.
//!
//! The figures are compared over an interval in which all tenants run. A pause of the machine makes any part
//! longer, so a test asserts which part is the largest, and sums.

use super::{Tenant, must, node, settles, shown};
use crate::harness::node::Node;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const PARTS: [&str; 7] = ["running", "waiting", "handover", "limited", "gang", "idle", "absent"];
/// How long the tenants are watched.
const A_WHILE: Duration = Duration::from_secs(3);

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"))
}

/// A container's wall time, whose parts add up to it.
fn time(node: &Node, container: &str) -> Value {
    let shown = shown(node, container);
    let time = shown["time"].clone();
    let parts = PARTS.map(|part| number(&time[format!("{part}_ns")]));
    assert_eq!(parts.iter().sum::<u64>(), number(&time["wall_ns"]), "{time}");
    let behind = time["behind"].as_array().expect("a list");
    let waits: u64 = behind.iter().map(|wait| number(&wait["total_ns"])).sum();
    assert_eq!(waits + number(&time["others_ns"]), number(&time["waiting_ns"]), "{time}");
    let waited = ["waiting_ns", "handover_ns", "limited_ns", "gang_ns"].map(|it| number(&time[it]));
    assert_eq!(waited.iter().sum::<u64>(), number(&shown["wait_ns"]), "{shown}");
    time
}

/// How much each part grew in a while, in thousandths of the wall time; and the account after that.
fn parts(node: &Node, container: &str) -> (BTreeMap<&'static str, u64>, Value) {
    let before = time(node, container);
    std::thread::sleep(A_WHILE);
    let after = time(node, container);
    let grew = |name: &str| number(&after[name]) - number(&before[name]);
    let wall = grew("wall_ns");
    let grown = PARTS.map(|part| (part, grew(&format!("{part}_ns")) * 1_000 / wall));
    eprintln!("{container}: {grown:?}, {after}");
    (grown.into(), after)
}

/// The part that grew most.
fn largest(parts: &BTreeMap<&'static str, u64>) -> &'static str {
    let most = parts.iter().max_by_key(|(_, grown)| **grown);
    most.expect("seven parts").0
}

/// The container behind which most time was spent: its id, the longest wait, and the cause of that.
fn culprit(time: &Value) -> (&str, Duration, &str) {
    let wait = &time["behind"][0];
    let text = |name: &str| wait[name].as_str().expect("a text");
    (text("container"), Duration::from_nanos(number(&wait["longest_ns"])), text("cause"))
}

#[test]
fn long_kernels_of_another_container_are_named() {
    let (node, machine) = node();
    must(&node, &["set", "b", "--weight", "3"]);
    let _long = Tenant::with(&node, &machine, "b", 600_000, &["--batch", "1"]);
    let short = Tenant::start(&node, &machine, "a", 500);
    short.gets(&machine, Duration::from_millis(200));
    let (parts, time) = parts(&node, "a");
    assert_eq!(largest(&parts), "waiting");
    let (container, longest, cause) = culprit(&time);
    assert_eq!((container, cause), ("b", "long-kernel"), "{time}");
    assert!(longest > Duration::from_millis(300), "{longest:?}");
}

#[test]
fn a_share_holds_back() {
    let (mut node, machine) = node();
    must(&node, &["set", "a", "--share", "20", "--share-limit", "20"]);
    let tenant = Tenant::start(&node, &machine, "a", 500);
    tenant.gets(&machine, Duration::from_millis(100));
    // a fifth, a burst and a turn; a busy machine may keep the program itself from launching in time
    let (_, first) = settles(
        "a fifth",
        || parts(&node, "a"),
        |(parts, _)| {
            let has = parts["running"];
            largest(parts) == "limited" && has < 240 && has + parts["idle"] >= 150
        },
    );
    assert_eq!(first["behind"].as_array().map(Vec::len), Some(0));
    // the next daemon begins anew, and its account is complete from then on
    node.end_daemon(Signal::SIGTERM);
    node.start_daemon(&[]);
    tenant.gets(&machine, Duration::from_millis(50));
    let next = time(&node, "a");
    let end = number(&first["since_ns"]) + number(&first["wall_ns"]);
    assert!(number(&next["since_ns"]) > end, "{first} {next}");
}

/// A program that loads data for most of the time does not wait, though another container is always busy.
#[test]
fn a_pause_of_its_own_is_no_wait() {
    let (node, machine) = node();
    let _busy = Tenant::start(&node, &machine, "b", 500);
    let loader = Tenant::with(&node, &machine, "a", 2_000, &["--pause-us", "200000"]);
    loader.gets(&machine, Duration::from_millis(6));
    let (_, time) = settles(
        "a program that does not wait",
        || parts(&node, "a"),
        |(parts, _)| largest(parts) == "idle" && parts["waiting"] + parts["handover"] < 200,
    );
    assert_eq!(culprit(&time).0, "b");
}

#[test]
fn a_higher_class_is_named() {
    let (node, machine) = node();
    must(&node, &["set", "b", "--priority", "high"]);
    let _high = Tenant::start(&node, &machine, "b", 500);
    let low = Tenant::start(&node, &machine, "a", 500);
    low.gets(&machine, Duration::from_millis(10));
    let (parts, time) = parts(&node, "a");
    assert_eq!(largest(&parts), "waiting");
    assert_eq!(culprit(&time).0, "b");
    // Not the longest single wait: a busy machine may stop the other program in the middle of its turn.
    let causes = time["behind"][0]["by_cause_ns"].as_object().expect("times by cause");
    let most = causes.iter().max_by_key(|(_, ns)| number(ns)).expect("five causes");
    assert_eq!(most.0, "higher-class", "{time}");
}
