//! Gates in the streams of best-effort containers: present while a container of a higher class exists, gone
//! with the daemon, and never in the way of the program's own work.
//!
//! Whether a process has gates is visible from outside: the page that the GPU reads is mapped once more.

use super::deadlocks::{expect_no_deadlock, start};
use super::{Tenant, must, node};
use crate::harness::eventually;
use crate::harness::node::Node;
use gpuslice_sim_device::Machine;
use nix::sys::signal::Signal;
use std::time::Duration;

const A_WHILE: Duration = Duration::from_millis(30);

/// `a` is best effort, `b` has high priority.
fn ranked() -> (Node, Machine) {
    let (node, machine) = node();
    must(&node, &["set", "a", "--priority", "best-effort"]);
    must(&node, &["set", "b", "--priority", "high"]);
    (node, machine)
}

/// A tenant that launches a kernel now and then.
fn pulse(node: &Node, machine: &Machine) -> Tenant {
    Tenant::with(node, machine, "b", 300, &["--pause-us", "3000"])
}

#[test]
fn gates_exist_while_a_higher_class_does() {
    let (node, machine) = ranked();
    let low = Tenant::start(&node, &machine, "a", 50);
    low.gets(&machine, A_WHILE);
    assert_eq!(low.claims(), 1, "alone there is nothing to stop for");
    let high = pulse(&node, &machine);
    eventually("gates", || low.claims() == 2);
    for _ in 0..10 {
        high.gets(&machine, Duration::from_micros(900));
        low.gets(&machine, A_WHILE / 3);
    }
    assert_eq!(high.claims(), 1, "high priority is not stopped");
    drop(high);
    low.gets(&machine, 10 * A_WHILE);
}

#[test]
fn an_administrator_can_do_without() {
    let (mut node, machine) = ranked();
    node.end_daemon(Signal::SIGTERM);
    node.start_configured("stream_gates = false\n");
    let low = Tenant::start(&node, &machine, "a", 50);
    let high = pulse(&node, &machine);
    for _ in 0..10 {
        high.gets(&machine, Duration::from_micros(900));
        low.gets(&machine, A_WHILE / 3);
    }
    assert_eq!(low.claims(), 1);
}

/// The daemon dies with gates closed: the work behind them goes on. Under the next daemon it stops and goes on
/// as before.
#[test]
fn closed_gates_outlive_no_daemon() {
    let (mut node, machine) = ranked();
    let low = Tenant::start(&node, &machine, "a", 50);
    let high = Tenant::start(&node, &machine, "b", 500);
    eventually("gates", || low.claims() == 2);
    for _ in 0..3 {
        high.gets(&machine, A_WHILE);
        node.end_daemon(Signal::SIGKILL);
        low.gets(&machine, A_WHILE);
        node.start_daemon(&[]);
        for tenant in [&low, &high] {
            let back = || node.slice(tenant.container).is_some_and(|(_, clients)| clients == 1);
            eventually("a process that came back", back);
        }
        high.gets(&machine, A_WHILE);
    }
    // Without the higher class, the work behind gates has its turn.
    drop(high);
    low.gets(&machine, 10 * A_WHILE);
}

/// A process that ends with work behind closed gates does not wait for it.
#[test]
fn a_process_ends_with_its_gates_closed() {
    let (node, machine) = ranked();
    let high = Tenant::start(&node, &machine, "b", 500);
    let mut low = Tenant::start(&node, &machine, "a", 50);
    eventually("gates", || low.claims() == 2);
    high.gets(&machine, A_WHILE);
    low.signal(Signal::SIGTERM);
    eventually("its end", || low.child.try_wait().expect("ours").is_some());
    high.gets(&machine, A_WHILE);
}

/// Programs whose work waits for their own work, with gates in their streams.
fn try_case(case: &str, rounds: u32) {
    let (node, machine) = ranked();
    let high = pulse(&node, &machine);
    expect_no_deadlock(case, start(&node, case, rounds, true));
    high.gets(&machine, Duration::from_micros(900));
}

#[test]
fn a_gated_stream_that_waits_for_a_word_of_another() {
    try_case("word", 10);
}

#[test]
fn a_gated_stream_that_waits_for_data_of_a_copy() {
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
