//! A driver that needs seconds for a first context, and takes its memory in steps: NVML samples the first step. And an
//! NVML that shows the context late, or whose daemon ends meanwhile.

use super::{CONTAINER, DeviceView, MIB, PAGE, Tenant};
use crate::harness::eventually;
use crate::harness::node::{Node, id};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::Bytes;
use nix::sys::signal::{Signal, kill};
use std::thread::sleep;
use std::time::{Duration, Instant};

const CAP: u64 = 1024 * MIB;
const CONTEXT: u64 = 518 * MIB;

/// Reserved bytes of the container, and what of them NVML shows beyond its grants.
fn charged(node: &Node) -> (u64, u64) {
    let rows = node.admin().list();
    let of_it = rows.iter().find_map(|row| match row {
        Snapshot::Slice { container, reserved, untracked, .. } if *container == id(CONTAINER) => {
            Some((reserved.0, untracked.0))
        }
        _ => None,
    });
    of_it.expect("a slice")
}

/// The first process of a container makes a context; returns whether its first step was charged before, of so many MiB.
/// What is free is exact when the context is there, and stays so while nothing happens. `None` if the first look was
/// not exact.
fn is_exact_after_samples(part: u64) -> Option<bool> {
    let gpu = format!("devices=1,mem=2GiB,context=518MiB,part={part}MiB,create=4s");
    let node = Node::start_with(&gpu);
    node.must_admit(CONTAINER, Bytes(CAP));
    let begun = Instant::now();
    let mut tenant = Tenant::spawn(&node, 1, 1, 1);
    let sampled = || charged(&node) == (part * MIB, part * MIB);
    while !sampled() && begun.elapsed() < Duration::from_millis(3_900) {
        sleep(Duration::from_millis(5));
    }
    let sampled = sampled();
    assert_eq!(tenant.answer().as_deref(), Some("ready"), "there is room for its context");
    let (ready, mut seen_exact) = (Instant::now(), false);
    while ready.elapsed() < Duration::from_millis(1_500) {
        let after = ready.elapsed();
        let seen = (tenant.numbers("info"), charged(&node).1);
        if seen != (vec![CAP - CONTEXT, CAP], 0) {
            assert!(!seen_exact, "{seen:?}, {after:?} after the context");
            return None;
        }
        seen_exact = true;
    }
    assert_eq!(charged(&node), (CONTEXT, 0));
    tenant.end();
    node.wait_refunded(CONTAINER);
    Some(sampled)
}

/// On a busy machine the second sample may come after the context.
fn check(part: u64) {
    let tries: Vec<_> =
        (0..5).map(|_| is_exact_after_samples(part)).take_while(|it| *it != Some(true)).collect();
    assert!(!tries.windows(2).any(|two| two == [None, None]), "not exact at once: {tries:?}");
    assert!(tries.len() < 5, "two samples see the first step: {tries:?}");
}

#[test]
fn a_context_that_is_sampled_half_made_is_charged_once() {
    check(14);
}

/// The cap has room for one context and not for two.
#[test]
fn a_context_that_is_sampled_before_its_call_returns_is_not_refused() {
    check(518);
}

/// A process whose first context the driver has made, under a cap with room for no second one. Each call of NVML's
/// takes half a second, and an answer several calls: seconds, but fewer than the 10 after which it counts as hung.
fn measured_late() -> (Node, Tenant) {
    let node = Node::start_with("devices=1,mem=2GiB,context=518MiB,nvml=500ms");
    node.must_admit(CONTAINER, Bytes(CAP));
    let tenant = Tenant::spawn(&node, 1, 1, 1);
    let device = DeviceView::of(&node);
    eventually("the context", || device.used() >= CONTEXT);
    (node, tenant)
}

/// What the context took is charged when the application gets it, so that not a page more than the rest is granted.
fn has_the_rest(mut tenant: Tenant) {
    assert_eq!(tenant.answer().as_deref(), Some("ready"));
    assert_eq!(tenant.numbers("info"), [CAP - CONTEXT, CAP]);
    let mut takes = |bytes: u64| tenant.numbers(&format!("take {bytes}"))[0];
    assert_eq!([takes(CAP - CONTEXT + PAGE), takes(CAP - CONTEXT)], [2, 0]);
    tenant.end();
}

#[test]
fn a_first_context_is_charged_however_late_nvml_shows_it() {
    let (_node, tenant) = measured_late();
    has_the_rest(tenant);
}

#[test]
fn a_first_context_is_charged_though_the_daemon_ends_before_its_answer() {
    let (mut node, tenant) = measured_late();
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    has_the_rest(tenant);
}

/// The process that asks NVML hangs. The context is there once the daemon has given that process up, which it does
/// after 10 s (`src/daemon/accounting/supervisor.rs`).
#[test]
fn a_first_context_is_there_although_nvml_hangs() {
    let node = Node::start_with("devices=1,mem=2GiB,context=518MiB");
    node.must_admit(CONTAINER, Bytes(CAP));
    let asker = || node.children().remove("--ask-nvml");
    eventually("it asks", || asker().is_some());
    let hung = asker().expect("just seen");
    kill(hung, Signal::SIGSTOP).expect("it lives");
    let since = Instant::now();
    Tenant::start(&node, 1, 1, 1).end();
    // A question may have been on its way.
    assert!(since.elapsed() > Duration::from_secs(8), "the context did not wait");
    eventually("another one asks", || asker().is_some_and(|it| it != hung));
}

/// It is destroyed again after the 30 s for which requests wait for a daemon.
#[test]
fn a_first_context_is_refused_where_the_daemon_stays_away() {
    let (mut node, mut tenant) = measured_late();
    let since = Instant::now();
    node.end_daemon(Signal::SIGKILL);
    assert_eq!(tenant.answer(), None, "it ends: no context");
    // It may have asked for some seconds before.
    assert!(since.elapsed() > Duration::from_secs(20), "after {:?}", since.elapsed());
    assert_eq!(DeviceView::of(&node).used(), 0);
}
