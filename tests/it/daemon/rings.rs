//! What a ring of a doorbell costs the daemon.
//!
//! A process rings as often as it likes, and so do all processes of its container. Where each ring let the daemon look
//! at the claims of all of them, on all GPUs, 255 processes on 16 GPUs took the thread that gives turns for
//! themselves. A ring must cost as much as the claims of the process that rang, however many processes there are.
//!
//! The measure is the processor time of that thread for a ring, among many processes in proportion to among few. It is
//! taken in rounds, of which the cheapest counts: other programs on the same core make any of them dearer. In a debug
//! build the engine checks all that it has after each step, and nothing else can be measured: `make soak` runs this
//! test.

use crate::harness::agent::Agent;
use crate::harness::node::{Node, admit};
use crate::harness::skip;
use crate::harness::wire::{Attached, TenantClient, client_page};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::limits::CLIENTS_PER_CONTAINER_MAX;
use gpuslice_wire::page::ClientPage;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, GIB};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const TEST: &str = "a_ring_costs_the_same_among_many_processes";
const GPUS: usize = 16;
const FEW: usize = 8;
/// Of one container, as many as it may have.
const MANY: usize = CLIENTS_PER_CONTAINER_MAX - 1;
/// In one round of a measurement.
const RINGS: usize = 2 * MANY;
const ROUNDS: usize = 5;

/// A process with claims about all GPUs.
struct Process {
    _agent: Agent,
    _link: TenantClient,
    attached: Attached,
    claims: &'static ClientPage,
}

impl Process {
    fn start(node: &Node) -> Process {
        let agent = Agent::start();
        let link = agent.tenant(&node.socket("a"));
        let attached = link.attach(Bytes::ZERO);
        let claims = client_page(&attached);
        Process { _agent: agent, _link: link, attached, claims }
    }

    /// Claims something else than before about each GPU, and rings.
    fn ring(&self, number: usize) {
        for lane in &self.claims.lane[..GPUS] {
            lane.runnable.store(number as u32 % 2, SeqCst);
            lane.launches.store(number as u64, SeqCst);
        }
        nix::unistd::write(&self.attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
    }
}

/// Processor time of the thread that gives turns, the daemon's first.
fn processor_time(node: &Node) -> Duration {
    let file = format!("/proc/{}/schedstat", node.pid());
    let text = std::fs::read_to_string(file).expect("it runs");
    let ns = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(ns.expect("a number"))
}

/// Processor time for a ring of these processes in the cheapest round.
fn cost(node: &Node, processes: &[Process], other: &TenantClient) -> Duration {
    let rounds = (0..ROUNDS).map(|_| cost_in(node, processes, other));
    rounds.min().expect("rounds")
}

/// Processor time for a ring of these processes, one after the other: each claims work, and then none. The daemon has
/// seen each before the next one, since it answers another container in between.
fn cost_in(node: &Node, processes: &[Process], other: &TenantClient) -> Duration {
    let before = processor_time(node);
    for number in 0..RINGS {
        processes[number % processes.len()].ring(1 + number / processes.len());
        let answer = other.reserve(0, 1, 1);
        assert!(matches!(answer, Reply::Reserved { .. }), "{number}: {answer:?}");
    }
    (processor_time(node) - before) / RINGS as u32
}

#[test]
fn a_ring_costs_the_same_among_many_processes() {
    if cfg!(debug_assertions) {
        return skip(
            TEST,
            "a debug build's checks cost more than what is measured; make soak judges it",
        );
    }
    let node = Node::start_with(&format!("devices={GPUS},mem=1GiB"));
    let half = MemoryAsk::Exactly(Bytes(GIB / 2));
    for container in ["a", "b"] {
        node.must_grant(&admit(container, "all", half));
    }
    let other = node.process("b");
    other.attach(Bytes::ZERO);
    let mut processes: Vec<Process> = (0..FEW).map(|_| Process::start(&node)).collect();
    let few = cost(&node, &processes, &other);
    processes.extend((FEW..MANY).map(|_| Process::start(&node)));
    let many = cost(&node, &processes, &other);
    eprintln!("a ring costs {few:?} among {FEW} processes, {many:?} among {MANY}");
    assert!(many < 4 * few, "{few:?} among {FEW} processes, {many:?} among {MANY}");
}
