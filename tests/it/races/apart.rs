//! Programs that lose their connection, and children that outlive them: what the device holds is in the books.

use super::{MIB, Tenant, Truth, WHO, node};
use crate::harness::eventually;
use crate::harness::node::Node;
use gpuslice_wire::units::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const CAP: u64 = 512 * MIB;
/// What the first one takes.
const HELD: u64 = 256 * MIB;
/// What the second one wants beside it, and cannot have.
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
    node.slice(WHO).map_or(0, |(Bytes(bytes), _)| bytes)
}

/// A program that closes descriptors which are not its own is known again soon, without asking for anything.
#[test]
fn who_closes_the_connection_is_attached_again_and_keeps_its_memory() {
    let node = node(CAP);
    let truth = Truth::of(&node);
    let (mut one, mut other) = two(&node);
    for _ in 0..3 {
        assert_eq!(one.numbers("hangup"), [1]);
        assert!(!wants(&mut other));
        eventually("both", || {
            node.slice(WHO).map(|(_, clients)| clients) == Some(2)
        });
        assert!(reserved(&node) >= HELD && truth.held() <= CAP);
    }
    // It asks again, and its books are whole.
    assert_eq!(one.numbers(&format!("take {}", 4 * MIB))[0], 0);
    assert_eq!(one.ask("drop"), "dropped");
    assert!(wants(&mut other));
    one.end();
    other.end();
    node.wait_refunded(WHO);
}

/// The same of one that is stopped at once, so that it cannot come back.
#[test]
fn who_is_stopped_without_a_connection_keeps_its_memory() {
    let node = node(CAP);
    let truth = Truth::of(&node);
    let (mut one, mut other) = two(&node);
    let pid = Pid::from_raw(one.child.id().cast_signed());
    assert_eq!(one.numbers("hangup"), [1]);
    kill(pid, Signal::SIGSTOP).expect("ours");
    // Longer than any connection was ever waited for.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(!wants(&mut other), "the device holds {}", truth.held());
    assert!(truth.held() <= CAP);
    kill(pid, Signal::SIGCONT).expect("ours");
    eventually("both", || {
        node.slice(WHO).map(|(_, clients)| clients) == Some(2)
    });
    one.kill();
    eventually("what it had", || wants(&mut other));
}

/// It begins to use NVML when it has lost its connection: that library's own one, which holds nothing, is not taken
/// for the process's next.
#[test]
fn a_library_that_only_looks_gives_nothing_back() {
    let node = node(CAP);
    let truth = Truth::of(&node);
    let (mut one, mut other) = two(&node);
    let pid = Pid::from_raw(one.child.id().cast_signed());
    for _ in 0..2 {
        assert_eq!(one.numbers("hangup").len(), 1);
        assert_eq!(one.numbers("look"), [1]);
        kill(pid, Signal::SIGSTOP).expect("ours");
        assert!(!wants(&mut other), "the device holds {}", truth.held());
        assert!(reserved(&node) >= HELD, "{}", reserved(&node));
        assert!(truth.held() <= CAP);
        kill(pid, Signal::SIGCONT).expect("ours");
    }
    // And both go on.
    assert_eq!(one.numbers(&format!("take {}", 4 * MIB))[0], 0);
    assert_eq!(one.numbers("look"), [1]);
    one.end();
    eventually("what it had", || wants(&mut other));
    other.end();
    node.wait_refunded(WHO);
}

/// The daemon is killed while a process is stopped, which so does not come back: it is charged all the same.
#[test]
fn who_is_stopped_while_the_daemon_is_restarted_keeps_its_memory() {
    let mut node = node(CAP);
    let truth = Truth::of(&node);
    let (mut one, other) = two(&node);
    drop(other);
    let pid = Pid::from_raw(one.child.id().cast_signed());
    kill(pid, Signal::SIGSTOP).expect("ours");
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    let mut other = Tenant::start(&node, 3, 1, 1);
    // Longer than those are waited for who come back.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(!wants(&mut other), "the device holds {}", truth.held());
    assert!(truth.held() <= CAP);
    kill(pid, Signal::SIGCONT).expect("ours");
    eventually("both", || {
        node.slice(WHO).map(|(_, clients)| clients) == Some(2)
    });
    assert_eq!(one.numbers(&format!("take {}", 4 * MIB))[0], 0);
    one.end();
    eventually("what it had", || wants(&mut other));
    other.end();
    node.wait_refunded(WHO);
}

/// A driver keeps a process's memory while a forked child has its open files. (The simulated one does not, so it
/// is the books that are looked at.)
#[test]
fn what_a_forked_child_keeps_is_charged_until_it_ends() {
    let node = node(CAP);
    let (mut one, mut other) = two(&node);
    let child = one.numbers("fork")[0];
    let child = Pid::from_raw(i32::try_from(child).expect("a number"));
    one.kill();
    eventually("its end", || {
        node.slice(WHO).map(|(_, clients)| clients) == Some(1)
    });
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(reserved(&node) >= HELD, "{}", reserved(&node));
    assert!(!wants(&mut other));
    kill(child, Signal::SIGKILL).expect("it lives");
    eventually("the child's end", || wants(&mut other));
    other.end();
    node.wait_refunded(WHO);
}
