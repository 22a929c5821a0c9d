//! Why a container is slow: `gpuslice ps --json` names the part of its wall time that is largest, and the
//! container that it waits behind.
//!
//! The figures are compared over an interval in which all tenants run. A pause of the machine makes any part
//! longer, so a test asserts which part is the largest, and sums. Most scenes are those of `explain.rs`.

use super::{Tenant, must, node, settles, shown};
use crate::harness::node::Node;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const PARTS: [&str; 7] = ["running", "waiting", "handover", "limited", "gang", "idle", "absent"];
/// How long the tenants are watched.
const A_WHILE: Duration = Duration::from_secs(3);

/// Parts of a stretch of wall time, in thousandths.
pub type Parts = BTreeMap<&'static str, u64>;

pub fn number(value: &Value) -> u64 {
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

/// How much each part grew while this was done, in thousandths of the wall time; and the account after that.
pub fn parts(node: &Node, container: &str, act: impl FnOnce()) -> (Parts, Value) {
    let before = time(node, container);
    act();
    let after = time(node, container);
    let grew = |name: &str| number(&after[name]) - number(&before[name]);
    let wall = grew("wall_ns");
    let grown = PARTS.map(|part| (part, grew(&format!("{part}_ns")) * 1_000 / wall));
    eprintln!("{container}: {grown:?}, {after}");
    (grown.into(), after)
}

/// The same over a while.
pub fn parts_of_a_while(node: &Node, container: &str) -> (Parts, Value) {
    parts(node, container, || std::thread::sleep(A_WHILE))
}

/// The part that grew most.
pub fn largest(parts: &Parts) -> &'static str {
    let most = parts.iter().max_by_key(|(_, grown)| **grown);
    most.expect("seven parts").0
}

/// The container behind which most time was spent: its id, the longest wait, and the cause of that.
pub fn culprit(time: &Value) -> (&str, Duration, &str) {
    let wait = &time["behind"][0];
    let text = |name: &str| wait[name].as_str().expect("a text");
    (text("container"), Duration::from_nanos(number(&wait["longest_ns"])), text("cause"))
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
        || parts_of_a_while(&node, "a"),
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
