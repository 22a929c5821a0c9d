//! Gates in the streams of best-effort containers: there while somebody goes first, gone with the daemon,
//! and never in anybody's way.
//!
//! Whether a process has gates is seen from outside: the page that the GPU reads is mapped once more.

use super::deadlocks::{expect_no_deadlock, start};
use super::{Tenant, must, node};
use crate::harness::node::Node;
use crate::harness::{PATIENCE, eventually};
use gpuslice_sim_device::Machine;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const A_WHILE: Duration = Duration::from_millis(30);

/// `a` is best effort, `b` goes first.
fn ranked() -> (Node, Machine) {
    let (node, truth) = node();
    must(&node, &["set", "a", "--priority", "best-effort"]);
    must(&node, &["set", "b", "--priority", "high"]);
    (node, truth)
}

/// A tenant that now and then has a kernel.
fn pulse(node: &Node, truth: &Machine) -> Tenant {
    Tenant::with(node, truth, "b", 300, &["--pause-us", "3000"])
}

#[test]
fn gates_are_there_while_somebody_goes_first() {
    let (node, truth) = ranked();
    let low = Tenant::start(&node, &truth, "a", 50);
    low.gets(&truth, A_WHILE);
    assert_eq!(low.claims(), 1, "alone there is nothing to stop for");
    let high = pulse(&node, &truth);
    eventually("gates", || low.claims() == 2);
    for _ in 0..10 {
        high.gets(&truth, Duration::from_micros(900));
        low.gets(&truth, A_WHILE / 3);
    }
    assert_eq!(high.claims(), 1, "who goes first is not stopped");
    drop(high);
    low.gets(&truth, 10 * A_WHILE);
}

#[test]
fn an_administrator_can_do_without() {
    let (mut node, truth) = ranked();
    node.end_daemon(Signal::SIGTERM);
    let config = node.root().join("no-gates.toml");
    std::fs::write(&config, "stream_gates = false\n").expect("written");
    node.start_daemon(&["--config", config.to_str().expect("a path")]);
    let low = Tenant::start(&node, &truth, "a", 50);
    let high = pulse(&node, &truth);
    for _ in 0..10 {
        high.gets(&truth, Duration::from_micros(900));
        low.gets(&truth, A_WHILE / 3);
    }
    assert_eq!(low.claims(), 1);
}

/// The daemon dies with gates closed: what is behind them goes on, and after a daemon that comes back it
/// stops and goes on as before.
#[test]
fn closed_gates_outlive_no_daemon() {
    let (mut node, truth) = ranked();
    let low = Tenant::start(&node, &truth, "a", 50);
    let high = Tenant::start(&node, &truth, "b", 500);
    eventually("gates", || low.claims() == 2);
    for _ in 0..3 {
        high.gets(&truth, A_WHILE);
        node.end_daemon(Signal::SIGKILL);
        low.gets(&truth, A_WHILE);
        node.start_daemon(&[]);
        for tenant in [&low, &high] {
            let back = || {
                node.slice(tenant.who)
                    .is_some_and(|(_, clients)| clients == 1)
            };
            eventually("a process that came back", back);
        }
        high.gets(&truth, A_WHILE);
    }
    // Nobody goes first any more: what is behind gates has its turn.
    drop(high);
    low.gets(&truth, 10 * A_WHILE);
}

/// A process that ends with work behind closed gates does not wait for it.
#[test]
fn a_process_ends_with_its_gates_closed() {
    let (node, truth) = ranked();
    let high = Tenant::start(&node, &truth, "b", 500);
    let mut low = Tenant::start(&node, &truth, "a", 50);
    eventually("gates", || low.claims() == 2);
    high.gets(&truth, A_WHILE);
    low.signal(Signal::SIGTERM);
    let start = Instant::now();
    while low.child.try_wait().expect("ours").is_none() {
        assert!(start.elapsed() < PATIENCE, "it never ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    high.gets(&truth, A_WHILE);
}

/// Programs whose work waits for their own work, with gates in their streams.
fn try_case(case: &str, rounds: u32) {
    let (node, truth) = ranked();
    let high = pulse(&node, &truth);
    expect_no_deadlock(case, start(&node, case, rounds, true));
    high.gets(&truth, Duration::from_micros(900));
}

#[test]
fn a_gated_stream_that_waits_for_a_word_of_another() {
    try_case("word", 10);
}

#[test]
fn a_gated_stream_that_waits_for_what_a_copy_brings() {
    try_case("copy", 10);
}

#[test]
fn a_host_function_that_launches_in_gated_streams() {
    try_case("callback", 10);
    try_case("own-stream", 2);
}

#[test]
fn gated_streams_of_both_flavours_in_many_threads() {
    try_case("flavours", 4);
}

#[test]
fn gates_while_another_thread_captures() {
    try_case("capture", 2);
}

#[test]
fn gated_streams_memory_and_contexts_that_go_with_work_queued() {
    try_case("deep", 10);
    try_case("context", 4);
}
