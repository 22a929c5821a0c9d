//! The usage table: each process has a slot for as long as it can hold memory, and none afterwards.

use super::granted;
use crate::harness::agent::Agent;
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::wire::{
    Attached, Heard, TenantClient, client_page, container_page, own_slot, usage_table,
};
use gpuslice_wire::frame::{RequestId, decode, encode, version_of};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, WIRE_VERSION_MIN};
use gpuslice_wire::tenant::{Rejection, Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use gpuslice_wire::usage::{NO_SLOT, USAGE_SLOTS, USAGE_TABLE_MAGIC};
use nix::sys::signal::Signal;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

fn node() -> Node {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    node
}

fn slot(attached: &Attached) -> u32 {
    client_page(attached).slot.load(SeqCst)
}

fn says(attached: &Attached, held: u64) {
    own_slot(attached).held[0].store(held, SeqCst);
}

/// Bytes in all slots.
fn sum(attached: &Attached) -> u64 {
    usage_table(attached).others(0, NO_SLOT)
}

#[test]
fn a_slot_lasts_as_long_as_its_process() {
    let node = node();
    let watcher = node.tenant("a");
    let watcher = watcher.attach(Bytes::ZERO);
    assert_eq!(usage_table(&watcher).magic.load(SeqCst), USAGE_TABLE_MAGIC);
    let agents: Vec<Agent> = (0..3).map(|_| Agent::start()).collect();
    let tenants: Vec<(TenantClient, Attached)> = agents
        .iter()
        .map(|agent| {
            let tenant = agent.tenant(&node.socket("a"));
            let attached = tenant.attach(Bytes::ZERO);
            assert!(granted(&tenant.reserve(0, 10 * MIB, 10 * MIB)));
            says(&attached, 10 * MIB);
            (tenant, attached)
        })
        .collect();
    let mut slots: Vec<u32> = tenants.iter().map(|(_, attached)| slot(attached)).collect();
    let before = slots[0];
    slots.sort_unstable();
    slots.dedup();
    assert_eq!((slots.len(), sum(&watcher)), (3, 30 * MIB));
    // A lost connection leaves the memory, and the process keeps its slot when it connects again.
    drop(tenants);
    eventually("three without a connection", || container_page(&watcher).clients.load(SeqCst) == 1);
    assert_eq!(sum(&watcher), 30 * MIB);
    let again = agents[0].tenant(&node.socket("a"));
    let attached = again.attach(Bytes(10 * MIB));
    assert_eq!((slot(&attached), sum(&watcher)), (before, 30 * MIB));
    // Another program in the same process begins with nothing.
    drop(again);
    let anew = agents[0].tenant(&node.socket("a"));
    anew.attach(Bytes::ZERO);
    assert_eq!(sum(&watcher), 20 * MIB);
    let mut agents = agents.into_iter();
    for left in [20 * MIB, 10 * MIB, 0] {
        agents.next().expect("three").end();
        eventually("an empty slot", || sum(&watcher) == left);
    }
    // The first one held nothing at its end, so that the sum does not tell whether the daemon knows of it.
    eventually("no slots are left", || usage_table(&watcher).slots.load(SeqCst) <= 2);
}

/// The grants of a process that has not connected again count as its use, until it says what it uses.
#[test]
fn a_restarted_daemon_fills_the_slots_anew() {
    let mut node = node();
    let agent = Agent::start();
    let tenant = agent.tenant(&node.socket("a"));
    tenant.attach(Bytes::ZERO);
    assert!(granted(&tenant.reserve(0, 100 * MIB, 100 * MIB)));
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    let watcher = node.tenant("a").attach(Bytes::ZERO);
    assert_eq!(sum(&watcher), 100 * MIB);
    let attached = agent.tenant(&node.socket("a")).attach(Bytes(60 * MIB));
    assert_eq!(sum(&watcher), 100 * MIB, "it has not written its slot");
    says(&attached, 55 * MIB);
    assert_eq!(sum(&watcher), 55 * MIB);
    agent.end();
    eventually("its end", || sum(&watcher) == 0);
}

/// A process misleads its siblings at most: neither the ledger nor the daemon depends on the table.
#[test]
fn false_slots_grant_nothing() {
    let node = node();
    let one = node.process("a");
    let attached = one.attach(Bytes::ZERO);
    let other = node.process("a");
    other.attach(Bytes::ZERO);
    assert!(granted(&one.reserve(0, GIB - MIB, GIB - MIB)));
    let table = usage_table(&attached);
    for lie in [0, u64::MAX] {
        table.slots.store(u32::MAX, SeqCst);
        table.slot.iter().for_each(|slot| slot.held[0].store(lie, SeqCst));
        assert!(!granted(&other.reserve(0, 2 * MIB, 2 * MIB)));
        assert_eq!(node.slice("a"), Some((Bytes(GIB - MIB), 2)));
    }
    let more: [TenantClient; 3] = std::array::from_fn(|_| {
        let process = node.process("a");
        assert!((slot(&process.attach(Bytes::ZERO)) as usize) < USAGE_SLOTS);
        process
    });
    drop((one, other, more));
    node.wait_refunded("a");
}

/// Sends a request as a process of the oldest version does, and returns the answer as it comes.
fn old(tenant: &TenantClient, request: &Request) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let len = encode(RequestId(1), request, &mut buffer).expect("fits");
    buffer[4..6].copy_from_slice(&WIRE_VERSION_MIN.to_le_bytes());
    tenant.0.send_raw(&buffer[..len], &[]).expect("the daemon reads");
    match tenant.0.hear() {
        Heard::Packet(packet, fds) => (packet, fds),
        Heard::End => panic!("no answer"),
    }
}

/// A running process keeps its shim when the node is upgraded. The daemon writes its slot for it.
#[test]
fn a_process_of_the_version_before_is_served_in_its_version() {
    let node = node();
    let watcher = node.tenant("a").attach(Bytes::ZERO);
    let tenant = node.process("a");
    let (packet, fds) = old(&tenant, &Request::Attach { held: [Bytes::ZERO; ACCOUNTS_MAX] });
    assert_eq!((version_of(&packet), fds.len()), (WIRE_VERSION_MIN, 3));
    let wish = Bytes(8 * MIB);
    let reserve = Request::Reserve { lane: gpuslice_wire::ids::Lane(0), need: wish, wish };
    let (packet, _) = old(&tenant, &reserve);
    assert_eq!(version_of(&packet), WIRE_VERSION_MIN);
    let (_, reply) = decode::<Reply>(&packet).expect("a reply");
    assert!(granted(&reply), "{reply:?}");
    // The page is written after the replies of a round.
    let reserved = || container_page(&watcher).lane[0].reserved.load(SeqCst);
    eventually("the page", || reserved() == 8 * MIB);
    let mut fds = fds.into_iter();
    let mut next = || fds.next().expect("three descriptors");
    let (container_page, client_page_fd, bell) = (next(), next(), next());
    let usage = watcher.usage.try_clone().expect("a descriptor");
    let its = Attached { lanes: 1, container_page, client_page: client_page_fd, bell, usage };
    client_page(&its).lane[0].held.store(5 * MIB, SeqCst);
    nix::unistd::write(&its.bell, &1u64.to_ne_bytes()).expect("rung");
    eventually("its slot", || sum(&watcher) == 5 * MIB);
    let unknown = node.tenant("a");
    let (packet, _) = old(&unknown, &reserve);
    assert_eq!(version_of(&packet), WIRE_VERSION_MIN);
    let (_, reply) = decode::<Reply>(&packet).expect("a reply");
    assert_eq!(reply, Reply::Rejected { why: Rejection::Protocol });
}
