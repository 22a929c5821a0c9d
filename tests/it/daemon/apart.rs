//! Processes that lost their connections: what they were granted stays theirs until they are gone.

use super::{answer, granted};
use crate::harness::agent::Agent;
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::wire::{TenantClient, own_slot};
use gpuslice_wire::limits::CLIENTS_PER_CONTAINER_MAX;
use gpuslice_wire::tenant::{Rejection, Reply};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const CAP: u64 = 512 * MIB;
/// What the process that loses its connection holds.
const HELD: u64 = 256 * MIB;
/// What its sibling wants.
const WANTED: u64 = 300 * MIB;
/// A second and a half: longer than a closed connection was ever waited for.
const LONG: Duration = Duration::from_millis(1_500);

fn node() -> Node {
    let node = Node::start();
    node.must_admit("a", Bytes(CAP));
    node
}

/// A process that holds memory, by its own report and by the ledger.
fn holder(node: &Node) -> (Agent, TenantClient) {
    let agent = Agent::start();
    let tenant = agent.tenant(&node.socket("a"));
    let slot = own_slot(&tenant.attach(Bytes::ZERO));
    assert!(granted(&tenant.reserve(0, HELD, HELD)));
    slot.held[0].store(HELD, SeqCst);
    (agent, tenant)
}

fn sibling(node: &Node) -> TenantClient {
    let tenant = node.process("a");
    tenant.attach(Bytes::ZERO);
    tenant
}

#[test]
fn a_lost_connection_refunds_nothing_while_its_process_lives() {
    let node = node();
    let (agent, lost) = holder(&node);
    let other = sibling(&node);
    drop(lost);
    eventually("the end of the connection", || node.slice("a") == Some((Bytes(HELD), 1)));
    std::thread::sleep(LONG);
    assert!(
        !granted(&other.reserve(0, WANTED, WANTED)),
        "the process lives, and has {HELD} of {CAP}"
    );
    agent.end();
    eventually("the refund", || granted(&other.reserve(0, WANTED, WANTED)));
}

#[test]
fn its_own_new_connection_takes_over_what_it_holds() {
    let node = node();
    let (agent, lost) = holder(&node);
    drop(lost);
    let again = agent.tenant(&node.socket("a"));
    let attached = answer(&again, HELD);
    assert!(matches!(attached, Reply::Attached { .. }), "{attached:?}");
    assert_eq!(node.slice("a"), Some((Bytes(HELD), 1)));
    // And what it does not say that it holds it gives back.
    drop(again);
    let less = agent.tenant(&node.socket("a"));
    less.attach(Bytes(HELD / 2));
    assert_eq!(node.slice("a"), Some((Bytes(HELD / 2), 1)));
    assert!(granted(&less.reserve(0, WANTED, WANTED)));
    agent.end();
    drop(less);
    node.wait_refunded("a");
}

/// The kernel says which process it is; another one's account is out of reach.
#[test]
fn a_sibling_takes_over_nothing() {
    let node = node();
    let (_agent, lost) = holder(&node);
    drop(lost);
    eventually("the end of the connection", || node.slice("a") == Some((Bytes(HELD), 0)));
    let liar = node.process("a");
    let rejected = Reply::Rejected { why: Rejection::Overdrawn };
    assert_eq!(answer(&liar, CAP - HELD + 1), rejected);
    sibling(&node);
    assert_eq!(node.slice("a"), Some((Bytes(HELD), 0)));
}

/// 12 GiB under a cap of half a GiB, and the ledger believed it.
#[test]
fn to_say_that_one_holds_it_is_not_to_have_been_granted_it() {
    let node = node();
    let (agent, lost) = holder(&node);
    drop(lost);
    let rejected = Reply::Rejected { why: Rejection::Overdrawn };
    for says in [12 * GIB, CAP + 1, u64::MAX, CAP, HELD + 1] {
        let liar = agent.tenant(&node.socket("a"));
        assert_eq!(answer(&liar, says), rejected, "{says}");
        let stranger = node.process("a");
        assert_eq!(answer(&stranger, says), rejected, "{says}");
        let small = node.process("a");
        assert_eq!(answer(&small, 1), rejected);
    }
    assert_eq!(node.slice("a"), Some((Bytes(HELD), 0)), "and nothing is lost");
    agent.tenant(&node.socket("a")).attach(Bytes(HELD));
    agent.end();
    node.wait_refunded("a");
}

/// A child that was forked has its parent's connection as it has the driver's descriptors, with which the
/// driver keeps the parent's memory. Here the test has it.
#[test]
fn a_connection_that_outlives_its_process_keeps_what_that_was_granted() {
    let node = node();
    let (agent, inherited) = holder(&node);
    let other = sibling(&node);
    agent.end();
    eventually("the end of the process", || node.slice("a") == Some((Bytes(HELD), 1)));
    std::thread::sleep(LONG);
    // No process speaks for one that is gone.
    let _unheard = inherited.0.send_raw(b"anything", &[]);
    assert!(!granted(&other.reserve(0, WANTED, WANTED)));
    assert_eq!(node.slice("a"), Some((Bytes(HELD), 1)));
    drop(inherited);
    eventually("the refund", || granted(&other.reserve(0, WANTED, WANTED)));
}

/// One process that connects, takes and hangs up again and again has one account, and costs one descriptor.
#[test]
fn hanging_up_again_and_again_gathers_nothing() {
    let node = node();
    let open = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", node.pid()));
        fds.expect("readable").count()
    };
    let (agent, first) = holder(&node);
    drop(first);
    eventually("the end of the connection", || node.slice("a") == Some((Bytes(HELD), 0)));
    let before = open();
    for _ in 0..2 * CLIENTS_PER_CONTAINER_MAX {
        let again = agent.tenant(&node.socket("a"));
        again.attach(Bytes(HELD));
    }
    eventually("one account", || node.slice("a") == Some((Bytes(HELD), 0)) && open() <= before);
    agent.end();
    node.wait_refunded("a");
}

/// Accounts without a connection fill their own container and no other.
#[test]
fn connections_that_hung_up_count_for_their_own_container() {
    let node = node();
    node.must_admit("b", Bytes(GIB));
    let agents: Vec<Agent> = (0..CLIENTS_PER_CONTAINER_MAX)
        .map(|_| {
            let agent = Agent::start();
            let tenant = agent.tenant(&node.socket("a"));
            tenant.attach(Bytes::ZERO);
            assert!(granted(&tenant.reserve(0, 1, 1)));
            agent
        })
        .collect();
    eventually("all to have hung up", || node.slice("a").map(|(_, clients)| clients) == Some(0));
    node.process("a").0.expect_rejected(Rejection::TooManyClients);
    node.process("b").attach(Bytes::ZERO);
    agents[7].tenant(&node.socket("a")).attach(Bytes(1));
    drop(agents);
    node.wait_refunded("a");
    node.process("a").attach(Bytes::ZERO);
}
