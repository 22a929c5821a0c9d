//! A driver that needs seconds for a first context, and takes its memory in steps: NVML samples the first step. And an
//! NVML that shows the context late, or never.

use super::{CONTAINER, DeviceView, MIB, PAGE, Tenant, numbers};
use crate::harness::eventually;
use crate::harness::node::{Node, id};
use crate::time::helpers::waits_in;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::Bytes;
use nix::libc::SYS_read;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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
/// not exact, or the context was refused: on a busy machine its measurement may be late, for which there are 400 ms.
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
    if tenant.answer().as_deref() != Some("ready") {
        return None;
    }
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
    assert!(
        !tries.windows(2).any(|two| two == [None, None]),
        "refused, or not exact at once: {tries:?}"
    );
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

/// The daemon's child that asks NVML.
fn asker(node: &Node) -> Option<Pid> {
    node.children().remove("--ask-nvml")
}

/// A node with a container, and the child that asks NVML, stopped: NVML does not answer.
fn silent() -> (Node, Pid) {
    let node = Node::start_with("devices=1,mem=2GiB,context=518MiB");
    node.must_admit(CONTAINER, Bytes(CAP));
    eventually("a child that asks", || asker(&node).is_some());
    let asker = asker(&node).expect("a child that asks");
    // Not within a question: then it may have the lock of the simulated device.
    eventually("it is stopped where it waits", || {
        kill(asker, Signal::SIGSTOP).expect("it lives");
        sleep(Duration::from_millis(10));
        waits_in(asker) == Some(SYS_read) || kill(asker, Signal::SIGCONT).is_err()
    });
    (node, asker)
}

/// NVML answers some seconds after a process has its first context. The process cannot take what the context may have
/// taken, and neither can the container's second process.
fn grows_after_its_figure() -> bool {
    let (node, stopped) = silent();
    let device = DeviceView::of(&node);
    let mut tenant = Tenant::spawn(&node, 1, 1, 1);
    tenant.order(&format!("take {}", CAP - CONTEXT + PAGE));
    eventually("the context", || device.used() >= CONTEXT);
    // More than it is told to wait for one answer.
    sleep(Duration::from_secs(1));
    let mut sibling = Tenant::spawn(&node, 2, 1, 1);
    sleep(Duration::from_secs(1));
    let _ = kill(stopped, Signal::SIGCONT);
    let both = [tenant.answer(), tenant.answer()];
    if asker(&node) != Some(stopped) {
        return false; // replaced after 10 s without an answer: that NVML tells nothing
    }
    assert_eq!(both[0].as_deref(), Some("ready"));
    assert_eq!(numbers(both[1].as_deref().unwrap_or_default())[0], 2, "{both:?}");
    assert_eq!(sibling.answer(), None, "there is room for one context");
    assert_eq!(tenant.numbers(&format!("take {}", CAP - CONTEXT))[0], 0, "and for no less");
    tenant.end();
    true
}

#[test]
fn a_container_grows_after_a_late_nvml_has_shown_its_first_context() {
    assert!((0..5).any(|_| grows_after_its_figure()), "NVML was asked within 10 s");
}

/// An NVML that never answers is replaced, and so is one that tells no figure: the process goes on.
#[test]
fn a_process_goes_on_where_nvml_does_not_show_its_first_context() {
    let (node, _stopped) = silent();
    let mut tenant = Tenant::start(&node, 1, 1, 1);
    assert_eq!(tenant.numbers(&format!("take {}", CAP - CONTEXT))[0], 0);
    tenant.end();
    for listed in ["pids", "never"] {
        let node = Node::start_with(&format!("mem=2GiB,context=518MiB,listed={listed}"));
        node.must_admit(CONTAINER, Bytes(CAP));
        let mut tenant = Tenant::start(&node, 1, 1, 1);
        assert_eq!(tenant.numbers("info"), [CAP, CAP], "{listed}: charged nothing");
        tenant.end();
    }
}
