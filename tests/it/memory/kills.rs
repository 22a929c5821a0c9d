//! The end of a process by a signal, at any instant, gives everything back.

use super::{CONTAINER, DeviceView, MIB, PAGE, Tenant, node, node_of, setting};
use crate::harness::{PATIENCE, Random, eventually};
use gpuslice_wire::units::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

/// Signals that end a process which does not handle them. Programs in Rust handle SIGSEGV, and those that a shell
/// starts in the background ignore SIGINT and SIGQUIT.
const SIGNALS: [Signal; 4] = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGABRT, Signal::SIGUSR1];

/// How long the daemon and the device take to release a dead process's memory. The promise is
/// 100 ms on an idle machine, which the bench judges, not this test.
fn forgotten(node: &crate::harness::node::Node, device: &DeviceView) -> Duration {
    let start = Instant::now();
    while node.slice(CONTAINER) != Some((Bytes::ZERO, 0)) || device.used() != 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", node.slice(CONTAINER));
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

#[test]
fn a_kill_at_any_instant_returns_everything() {
    let seed = setting("SEED", 11);
    eprintln!("SEED={seed}");
    let mut random = Random(seed | 1 << 32);
    let node = node_of("memory::kills", 512 * MIB);
    let device = DeviceView::of(&node);
    let mut times = Vec::new();
    for round in 0..setting("KILLS", 40) {
        // Also while it starts and attaches, which takes a few milliseconds.
        let mut tenant = Tenant::spawn(&node, seed + round, 4, 8);
        tenant.order("go 100000");
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        let signal = SIGNALS[random.below(SIGNALS.len() as u64) as usize];
        kill(Pid::from_raw(tenant.child.id().cast_signed()), signal).expect("ours");
        let mut ended = || tenant.child.try_wait().expect("ours");
        eventually(signal.as_str(), || ended().is_some());
        assert_eq!(ended().and_then(|it| it.signal()), Some(signal as i32));
        times.push(forgotten(&node, &device));
    }
    times.sort();
    eprintln!(
        "returned after {:?} (median), {:?} (worst of {})",
        times[times.len() / 2],
        times[times.len() - 1],
        times.len()
    );
}

/// A stopped process keeps the memory it uses. The credit it holds in reserve is missing to the
/// others for no longer than a recall lasts.
#[test]
fn a_recall_does_not_wait_for_a_stopped_process() {
    let cap = 512 * MIB;
    let node = node(cap);
    let (mut idle, mut busy) = (Tenant::start(&node, 1, 1, 1), Tenant::start(&node, 2, 1, 1));
    assert_eq!(idle.numbers(&format!("take {PAGE}"))[0], 0);
    let pid = Pid::from_raw(idle.child.id().cast_signed());
    kill(pid, Signal::SIGSTOP).expect("ours");
    // Each request is answered: 128 MiB are available, the whole cap is not.
    assert_eq!(busy.numbers(&format!("take {}", 128 * MIB))[0], 0);
    assert_eq!(busy.numbers(&format!("take {cap}"))[0], 2);
    kill(pid, Signal::SIGCONT).expect("ours");
    assert_eq!(idle.numbers(&format!("take {PAGE}"))[0], 0);
    drop(idle);
    let rest = cap - 2 * 128 * MIB;
    assert_eq!(busy.numbers(&format!("take {rest}"))[0], 0);
}
