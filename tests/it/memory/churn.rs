//! Random allocations of every kind in four processes of eight threads, with kills in between and
//! a changing cap.
//!
//! Pools are the hard kind: they take memory in pieces of their own size, which is known only
//! afterwards. The test makes no allowance for that.

use super::{CONTAINER, DeviceView, MIB, Tenant, node, numbers, setting};
use crate::harness::node::{Node, id};
use crate::harness::{Random, eventually};
use gpuslice_wire::admin::{Answer, Command, MemoryAsk};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::units::Bytes;
use std::time::Duration;

const CAP: u64 = 1024 * MIB;
const PROCESSES: usize = 4;
const THREADS: u64 = 8;
/// Steps of a thread between two comparisons of ledger and device.
const STEPS: u64 = 100;

/// The sums of what the processes reported.
#[derive(Default)]
pub struct Said {
    pub held: u64,
    pub managed: u64,
    refused: u64,
}

/// Replaces dead processes. If a context does not fit, the others free their memory one after the
/// other until it does.
fn replace(node: &Node, tenants: &mut [Option<Tenant>], kinds: &str, random: &mut Random) {
    while let Some(dead) = tenants.iter().position(Option::is_none) {
        let mut tenant = Tenant::spawn_of(node, random.next() >> 16, THREADS, 8, kinds);
        if tenant.answer().as_deref() == Some("ready") {
            tenants[dead] = Some(tenant);
            continue;
        }
        let full = tenants.iter_mut().flatten().find(|tenant| tenant.holding);
        let full = full.expect("with nothing held there is room for a context");
        assert_eq!(full.ask("drop"), "dropped");
        full.holding = false;
    }
}

/// One stretch of work, in which one process may be killed; returns what the others reported.
fn stretch(
    node: &Node,
    tenants: &mut [Option<Tenant>],
    kinds: &str,
    trouble: Trouble,
    random: &mut Random,
) -> Said {
    replace(node, tenants, kinds, random);
    for tenant in tenants.iter_mut().flatten() {
        tenant.order(&format!("go {STEPS}"));
        tenant.holding = true;
    }
    let victim = random.below(2 * tenants.len() as u64) as usize;
    let victim = tenants.get_mut(victim);
    if let (Some(tenant), Trouble::KillsAndResizes) = (victim, trouble) {
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        *tenant = None; // SIGKILL
    }
    let mut said = Said::default();
    for tenant in tenants.iter_mut().flatten() {
        let answer = tenant.answer().expect("alive");
        let [_, refused, held, managed] = numbers(&answer)[..] else { panic!("{answer}") };
        said.refused += refused;
        said.held += held;
        said.managed += managed;
    }
    said
}

/// Waits until ledger and device agree.
pub fn agree(node: &Node, device: &DeviceView, said: &Said) {
    let look = || (node.slice(CONTAINER).expect("a slice").0.0, device.shown() + said.managed);
    let start = std::time::Instant::now();
    loop {
        let (booked, real) = look();
        if booked == real {
            return;
        }
        assert!(
            start.elapsed() < crate::harness::PATIENCE,
            "booked {booked}, the device says {real} ({} by the processes' own count, {} of it managed)",
            said.held,
            said.managed
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Disturbances of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// Processes are killed, and the cap moves between three quarters and all of [`CAP`].
    KillsAndResizes,
}

fn resize(node: &Node, random: &mut Random) {
    let memory = Bytes(CAP - random.below(3) * CAP / 8);
    let (container, lane, memory) = (id(CONTAINER), Lane(0), MemoryAsk::Exactly(memory));
    let answer = node.admin().ask(&Command::Resize { container, lane, memory });
    assert!(matches!(answer, Answer::Resized { .. }), "{answer:?}");
}

/// Allocates and frees until the number of operations is reached. No instant is above the cap, which the node judges
/// at its end, and some are above half of it.
fn run(kinds: &str, trouble: Trouble) {
    let seed = setting("SEED", 7);
    let operations = setting("CHURN_OPERATIONS", 25_000);
    eprintln!("SEED={seed} CHURN_OPERATIONS={operations} kinds {kinds}");
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let node = node(CAP);
    let device = DeviceView::of(&node);
    let mut tenants: Vec<Option<Tenant>> = (0..PROCESSES).map(|_| None).collect();
    let mut refused = 0;
    for _ in 0..operations.div_ceil(STEPS * THREADS * PROCESSES as u64) {
        if trouble == Trouble::KillsAndResizes {
            resize(&node, &mut random);
        }
        let said = stretch(&node, &mut tenants, kinds, trouble, &mut random);
        agree(&node, &device, &said);
        refused += said.refused;
    }
    assert!(refused > 0, "no allocation was refused: the cap was not reached");
    for mut tenant in tenants.into_iter().flatten() {
        assert_eq!(tenant.ask("drop"), "dropped");
        tenant.end();
    }
    node.wait_refunded(CONTAINER);
    eventually("nothing is used", || device.used() == 0);
    let most = device.most();
    assert!(most > CAP / 2, "the tenants held {most} of {CAP} bytes");
}

#[test]
fn no_instant_of_pools_is_above_the_cap() {
    run("3", Trouble::None);
}

#[test]
fn every_kind_together() {
    run("012345", Trouble::KillsAndResizes);
}
