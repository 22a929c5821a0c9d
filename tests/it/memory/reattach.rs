//! Programs that lose their connection, and children that outlive them: the ledger has all that the device holds.

use super::{CONTAINER, DeviceView, MIB, Tenant, node};
use crate::harness::eventually;
use crate::harness::node::Node;
use gpuslice_wire::units::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const CAP: u64 = 512 * MIB;
/// Bytes that the first process takes.
const HELD: u64 = 256 * MIB;
/// Bytes that the second process asks for and that do not fit beside [`HELD`].
const WANTED: u64 = 300 * MIB;

/// A process that holds memory, and another one that wants more than is left.
fn two(node: &Node) -> (Tenant, Tenant) {
    let (mut one, other) = (Tenant::start(node, 1, 1, 1), Tenant::start(node, 2, 1, 1));
    assert_eq!(one.numbers(&format!("take {HELD}"))[0], 0);
    (one, other)
}

fn wants(tenant: &mut Tenant) -> bool {
    tenant.numbers(&format!("take {WANTED}"))[0] == 0
}

fn reserved(node: &Node) -> u64 {
    node.slice(CONTAINER).map_or(0, |(Bytes(bytes), _)| bytes)
}

/// A program that closes the shim's descriptors is attached again soon, without any request of its own.
#[test]
fn a_closed_connection_is_reattached_and_the_memory_stays_charged() {
    let node = node(CAP);
    let device = DeviceView::of(&node);
    let (mut one, mut other) = two(&node);
    for _ in 0..3 {
        assert_eq!(one.numbers("hangup"), [1]);
        assert!(!wants(&mut other));
        eventually("both", || node.slice(CONTAINER).map(|(_, clients)| clients) == Some(2));
        assert!(reserved(&node) >= HELD && device.held() <= CAP);
    }
    // Its next request works, and its account is complete.
    assert_eq!(one.numbers(&format!("take {}", 4 * MIB))[0], 0);
    assert_eq!(one.ask("drop"), "dropped");
    assert!(wants(&mut other));
    one.end();
    other.end();
    node.wait_refunded(CONTAINER);
}

/// The same for a process that is stopped at once, so that it cannot reattach.
#[test]
fn a_stopped_process_without_a_connection_stays_charged() {
    let node = node(CAP);
    let device = DeviceView::of(&node);
    let (mut one, mut other) = two(&node);
    let pid = Pid::from_raw(one.child.id().cast_signed());
    assert_eq!(one.numbers("hangup"), [1]);
    kill(pid, Signal::SIGSTOP).expect("ours");
    // Longer than any connection was ever waited for.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(!wants(&mut other), "the device holds {}", device.held());
    assert!(device.held() <= CAP);
    kill(pid, Signal::SIGCONT).expect("ours");
    eventually("both", || node.slice(CONTAINER).map(|(_, clients)| clients) == Some(2));
    one.kill();
    eventually("what it had", || wants(&mut other));
}

/// A process that has lost its connection begins to use NVML. NVML's own connection, which holds no memory, is
/// not taken for the process's new one.
#[test]
fn an_nvml_connection_releases_nothing() {
    let node = node(CAP);
    let device = DeviceView::of(&node);
    let (mut one, mut other) = two(&node);
    let pid = Pid::from_raw(one.child.id().cast_signed());
    for _ in 0..2 {
        assert_eq!(one.numbers("hangup").len(), 1);
        assert_eq!(one.numbers("look"), [1]);
        kill(pid, Signal::SIGSTOP).expect("ours");
        assert!(!wants(&mut other), "the device holds {}", device.held());
        assert!(reserved(&node) >= HELD, "{}", reserved(&node));
        assert!(device.held() <= CAP);
        kill(pid, Signal::SIGCONT).expect("ours");
    }
    // And both go on.
    assert_eq!(one.numbers(&format!("take {}", 4 * MIB))[0], 0);
    assert_eq!(one.numbers("look"), [1]);
    one.end();
    eventually("what it had", || wants(&mut other));
    other.end();
    node.wait_refunded(CONTAINER);
}

/// The daemon is killed while a process is stopped, so that the process does not reattach. It stays charged.
#[test]
fn a_process_stopped_during_a_daemon_restart_stays_charged() {
    let mut node = node(CAP);
    let device = DeviceView::of(&node);
    let (mut one, other) = two(&node);
    drop(other);
    let pid = Pid::from_raw(one.child.id().cast_signed());
    kill(pid, Signal::SIGSTOP).expect("ours");
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    let mut other = Tenant::start(&node, 3, 1, 1);
    // Longer than the daemon waits for processes to reattach.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(!wants(&mut other), "the device holds {}", device.held());
    assert!(device.held() <= CAP);
    kill(pid, Signal::SIGCONT).expect("ours");
    eventually("both", || node.slice(CONTAINER).map(|(_, clients)| clients) == Some(2));
    assert_eq!(one.numbers(&format!("take {}", 4 * MIB))[0], 0);
    one.end();
    eventually("what it had", || wants(&mut other));
    other.end();
    node.wait_refunded(CONTAINER);
}

/// A driver keeps a process's memory while a forked child has its open files. The simulated one does not, so the test
/// reads the ledger.
#[test]
fn memory_kept_by_a_forked_child_is_charged_until_it_ends() {
    let node = node(CAP);
    let (mut one, mut other) = two(&node);
    let child = one.numbers("fork")[0];
    let child = Pid::from_raw(i32::try_from(child).expect("a number"));
    one.kill();
    eventually("its end", || node.slice(CONTAINER).map(|(_, clients)| clients) == Some(1));
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(reserved(&node) >= HELD, "{}", reserved(&node));
    assert!(!wants(&mut other));
    kill(child, Signal::SIGKILL).expect("it lives");
    eventually("the child's end", || wants(&mut other));
    other.end();
    node.wait_refunded(CONTAINER);
}
