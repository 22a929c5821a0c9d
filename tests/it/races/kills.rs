//! SIGKILL at any instant gives everything back.

use super::{MIB, PAGE, Tenant, Truth, WHO, node, setting};
use crate::harness::{PATIENCE, Random};
use gpuslice_wire::units::Bytes;
use std::time::{Duration, Instant};

/// How long until the daemon and the device have forgotten the dead; the promise is 100 ms on a
/// machine that is not busy, and judged by the bench, not here.
fn forgotten(node: &crate::harness::node::Node, truth: &Truth) -> Duration {
    let start = Instant::now();
    while node.slice(WHO) != Some((Bytes::ZERO, 0)) || truth.used() != 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", node.slice(WHO));
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

#[test]
fn a_kill_at_any_instant_returns_everything() {
    let seed = setting("SEED", 11);
    eprintln!("SEED={seed}");
    let mut random = Random(seed | 1 << 32);
    let node = node(512 * MIB);
    let truth = Truth::of(&node);
    let mut times = Vec::new();
    for round in 0..setting("KILLS", 40) {
        // Also while it starts and attaches, which takes a few milliseconds.
        let mut tenant = Tenant::spawn(&node, seed + round, 4, 8);
        tenant.order("go 100000");
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        tenant.kill();
        times.push(forgotten(&node, &truth));
    }
    times.sort();
    eprintln!(
        "returned after {:?} (median), {:?} (worst of {})",
        times[times.len() / 2],
        times[times.len() - 1],
        times.len()
    );
}

/// A process that is stopped holds what it has, and what it only keeps in reserve is no loss to the
/// others for longer than a recall lasts.
#[test]
fn the_stopped_are_not_waited_for_for_ever() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    let cap = 512 * MIB;
    let node = node(cap);
    let (mut idle, mut busy) = (Tenant::start(&node, 1, 1, 1), Tenant::start(&node, 2, 1, 1));
    assert_eq!(idle.numbers(&format!("take {PAGE}"))[0], 0);
    let pid = Pid::from_raw(idle.child.id().cast_signed());
    kill(pid, Signal::SIGSTOP).expect("ours");
    // Every answer comes: most of the memory is there, all of it is not.
    assert_eq!(busy.numbers(&format!("take {}", 128 * MIB))[0], 0);
    assert_eq!(busy.numbers(&format!("take {cap}"))[0], 2);
    kill(pid, Signal::SIGCONT).expect("ours");
    assert_eq!(idle.numbers(&format!("take {PAGE}"))[0], 0);
    drop(idle);
    let rest = cap - 2 * 128 * MIB;
    assert_eq!(busy.numbers(&format!("take {rest}"))[0], 0);
}
