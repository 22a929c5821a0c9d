//! A driver that frees the memory of ended processes a second late: the ledger grants it again when the device has it.

use super::{CONTAINER, DeviceView, MIB, Tenant};
use crate::harness::agent::Agent;
use crate::harness::node::Node;
use crate::harness::wire::TenantClient;
use crate::harness::{PATIENCE, eventually};
use gpuslice_wire::admin::Answer;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::Bytes;
use nix::sys::signal::{Signal, kill};
use std::time::{Duration, Instant};

const CAP: u64 = 1024 * MIB;
const MOST: u64 = 768 * MIB;

/// A node whose GPU has just this much memory, and whose driver frees that of ended processes this late.
fn late_node(mem: u64, exit: &str) -> Node {
    Node::start_with(&format!("devices=1,mem={}MiB,context=64MiB,exit={exit}", mem / MIB))
}

/// A process of the container that has taken most of its cap: `took` is the driver's answer, 0 for success.
fn holder(node: &Node) -> (Tenant, u64, Duration) {
    let mut tenant = Tenant::start(node, 1, 1, 1);
    let since = Instant::now();
    let took = tenant.numbers(&format!("take {MOST}"))[0];
    (tenant, took, since.elapsed())
}

fn reserved(node: &Node) -> u64 {
    node.slice(CONTAINER).expect("a slice").0.0
}

/// A process that takes the place of a killed one waits for its memory, and is not refused.
#[test]
fn a_successor_waits_for_the_memory_of_an_ended_process() {
    let node = late_node(CAP, "1s");
    node.must_admit(CONTAINER, Bytes(CAP));
    let device = DeviceView::of(&node);
    let (mut first, took, _) = holder(&node);
    assert_eq!(took, 0);
    for _ in 0..3 {
        let killed = Instant::now();
        first.kill();
        assert!(reserved(&node) >= MOST || killed.elapsed() > Duration::from_secs(1));
        let (next, took, waited) = holder(&node);
        assert_eq!(took, 0, "after {waited:?}");
        eprintln!("the successor had its memory {:?} after the end", killed.elapsed());
        assert!(device.used() <= CAP);
        first = next;
    }
    first.kill();
    node.wait_refunded(CONTAINER);
    assert_eq!(device.used(), 0, "the ledger does not run ahead of the device");
}

/// A daemon that never asks NVML, or has none, does not know what the device still has. One that asks it, beside it,
/// charges the memory for as long as a driver may take.
#[test]
fn without_accounting_an_end_counts_at_once() {
    for has_nvml in [true, false] {
        let configuration = if has_nvml { "accounting_interval_ms = 0\n" } else { "" };
        let (asking, mut its) = slow_to_free(true, "");
        let (node, mut own) = slow_to_free(has_nvml, configuration);
        its.kill();
        own.kill();
        node.wait_refunded(CONTAINER);
        assert!(reserved(&asking) >= MOST, "an end counts no sooner than with NVML, {has_nvml}");
        assert!(DeviceView::of(&node).used() >= MOST, "the device has it for a minute more");
    }
}

/// A node whose driver frees the memory of ended processes a minute late, and a process that holds most of its cap.
fn slow_to_free(has_nvml: bool, configuration: &str) -> (Node, Tenant) {
    let mut node = Node::new();
    node.set_gpus("devices=1,mem=1GiB,context=64MiB,exit=60s");
    if !has_nvml {
        std::fs::remove_file(node.root().join("driver/libnvidia-ml.so.1")).expect("there");
    }
    node.start_configured(configuration);
    node.must_admit(CONTAINER, Bytes(CAP));
    let (tenant, took, _) = holder(&node);
    assert_eq!(took, 0);
    (node, tenant)
}

/// On a driver that frees at once, a successor waits no longer than until NVML can show it.
#[test]
fn a_successor_on_a_prompt_driver_waits_for_one_look() {
    let node = late_node(CAP, "0s");
    node.must_admit(CONTAINER, Bytes(CAP));
    let (mut first, took, _) = holder(&node);
    assert_eq!(took, 0);
    let mut times = Vec::new();
    for _ in 0..10 {
        first.kill();
        let (next, took, waited) = holder(&node);
        assert_eq!(took, 0);
        times.push(waited);
        first = next;
    }
    times.sort();
    eprintln!("waited {:?} (median), {:?} (worst of {})", times[5], times[9], times.len());
}

/// A container that takes the place of an ended one waits; what is promised to an older one is there at once.
#[test]
fn a_later_container_waits_for_the_memory_of_an_ended_one_and_an_older_one_does_not() {
    // On a busy machine the driver may have freed it before this test has looked.
    assert!((0..3).any(|_| is_promised_and_waits()), "this test is never in time");
}

/// Whether the device still had the memory of the ended process when the older one had its own.
fn is_promised_and_waits() -> bool {
    let node = late_node(2 * CAP, "4s");
    node.must_admit("old", Bytes(CAP));
    node.must_admit(CONTAINER, Bytes(CAP));
    let device = DeviceView::of(&node);
    let (mut first, took, _) = holder(&node);
    assert_eq!(took, 0);
    let killed = Instant::now();
    first.kill();
    let is_over = || killed.elapsed() >= Duration::from_secs(4);
    assert!(matches!(node.dismiss(CONTAINER), Answer::Dismissed { .. }));
    node.must_admit(CONTAINER, Bytes(CAP));
    let charged = reserved(&node);
    assert!(charged >= MOST || is_over(), "{charged}");
    let old: TenantClient = node.process("old");
    old.attach(Bytes::ZERO);
    let all = old.reserve(0, CAP, CAP);
    assert!(matches!(all, Reply::Reserved { .. }), "{all:?}");
    let has_it_still = device.used() >= MOST;
    assert!(has_it_still || is_over(), "an older promise does not wait");
    let (_next, took, waited) = holder(&node);
    assert_eq!(took, 0, "after {waited:?}");
    has_it_still
}

/// A process is killed after the driver has made its first context, and before NVML's late figure tells what it takes.
#[test]
fn a_context_whose_process_ends_before_it_is_charged_counts() {
    let context = 300 * MIB;
    let node = Node::start_with("devices=1,mem=2GiB,context=300MiB,exit=2s,late=100ms");
    node.must_admit(CONTAINER, Bytes(CAP));
    let device = DeviceView::of(&node);
    let mut uncharged = 0;
    for round in 0..100 {
        // On a busy machine this process may see each context only once it is charged.
        if round >= 8 && uncharged > 0 {
            break;
        }
        let mut tenant = Tenant::spawn(&node, round, 1, 1);
        let since = Instant::now();
        while device.used() == 0 {
            assert!(since.elapsed() < PATIENCE, "it makes a context");
            std::thread::yield_now();
        }
        uncharged += u64::from(node.slice(CONTAINER).is_some_and(|(held, _)| held.0 < context));
        tenant.kill();
        while node.slice(CONTAINER).is_none_or(|(_, processes)| processes > 0) {
            assert!(since.elapsed() < PATIENCE, "the daemon sees its end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (held, on_device) = (reserved(&node), device.used());
        assert!(held >= on_device, "{held} bytes are charged, and the device has {on_device}");
        node.wait_refunded(CONTAINER);
    }
    assert!(uncharged > 0, "no process was killed before its context was charged");
}

/// A process closes its connection, and later ends. What another one asks for after that end is granted, although the
/// daemon reads it first: that process's connection was ready before.
#[test]
fn an_end_counts_for_a_request_that_was_sent_after_it() {
    let node = Node::start_with("devices=1,mem=2GiB");
    node.must_admit(CONTAINER, Bytes(CAP));
    let one = Agent::start();
    let link = one.tenant(&node.socket(CONTAINER));
    link.attach(Bytes::ZERO);
    let other = node.process(CONTAINER);
    other.attach(Bytes::ZERO);
    let half = CAP / 2;
    let reply = link.reserve(0, half, half);
    assert!(matches!(reply, Reply::Reserved { .. }), "{reply:?}");
    drop(link);
    let clients = || node.slice(CONTAINER).map(|(_, clients)| clients);
    eventually("the end of its connection", || clients() == Some(1));
    let most = CAP / 4 * 3;
    let early = other.reserve(0, most, most);
    assert!(matches!(early, Reply::Refused { .. }), "it lives: {early:?}");
    kill(node.pid(), Signal::SIGSTOP).expect("it runs");
    other.release(0, 0);
    one.end();
    let (lane, bytes) = (Lane(0), Bytes(most));
    other.0.send(4, &Request::Reserve { lane, need: bytes, wish: bytes }).expect("room");
    kill(node.pid(), Signal::SIGCONT).expect("it is there");
    let (_, reply, _) = other.0.message::<Reply>().expect("an answer");
    assert!(matches!(reply, Reply::Reserved { .. }), "{reply:?}");
}
