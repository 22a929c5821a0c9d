//! Processes that fill the cap at the same time: together they get all of it and never more, and none
//! is refused memory that another one only holds as credit.

use super::{CONTAINER, DeviceView, MIB, PAGE, Tenant, node, setting};
use crate::harness::eventually;

/// A refusal after this long may be due to a late process, which has 300 ms to give its credit back, ns.
const RECALL_NEARLY_OVER_NS: u64 = 250_000_000;

/// The number of allocations a tenant got until it was refused, and how long it waited for the refusal, ns.
fn filled(tenant: &mut Tenant) -> [u64; 2] {
    let answer = tenant.answer().expect("alive");
    let [count, result, ns] = super::numbers(&answer)[..] else { panic!("{answer}") };
    assert_eq!(result, 2, "out of memory is the only reason to stop");
    [count, ns]
}

/// Fills the slice from `processes` processes at once, `rounds` times: they get exactly as many
/// allocations as fit. On a busy machine a process with credit may stand still for longer than a recall: a process
/// that was refused after so long a wait fills again.
fn fill_at_once(processes: u64, rounds: u64) {
    let cap = 512 * MIB + processes * 64 * MIB;
    let node = node(cap);
    let mut tenants: Vec<Tenant> =
        (0..processes).map(|seed| Tenant::start(&node, seed, 1, 1)).collect();
    let contexts = DeviceView::of(&node).used();
    let fits = (cap - contexts) / (8 * PAGE);
    let order = format!("fill {}", 8 * PAGE);
    for round in 0..rounds {
        tenants.iter_mut().for_each(|tenant| tenant.order(&order));
        let mut answers: Vec<[u64; 2]> = tenants.iter_mut().map(filled).collect();
        let mut got: u64 = answers.iter().map(|[count, _]| count).sum();
        for (tenant, answer) in tenants.iter_mut().zip(&mut answers) {
            for _ in 0..5 {
                if got < fits && answer[1] >= RECALL_NEARLY_OVER_NS {
                    tenant.order(&order);
                    *answer = filled(tenant);
                    got += answer[0];
                }
            }
        }
        assert_eq!(got, fits, "round {round} of {processes} processes: {answers:?}");
        for tenant in &mut tenants {
            tenant.order("drop");
        }
        for tenant in &mut tenants {
            assert_eq!(tenant.answer().as_deref(), Some("dropped"));
        }
    }
}

#[test]
fn two_fill_the_cap() {
    fill_at_once(2, setting("CONTENTION_ROUNDS", 30));
}

#[test]
fn eight_fill_the_cap() {
    fill_at_once(8, setting("CONTENTION_ROUNDS", 30));
}

/// Credit that one process holds for its next allocations goes to another one that is short of memory.
#[test]
fn credit_of_a_sibling_is_no_reason_to_fail() {
    let cap = 512 * MIB;
    let node = node(cap);
    let mut tenants = [0, 1, 2].map(|seed| Tenant::start(&node, seed, 1, 1));
    let free = cap - DeviceView::of(&node).used();
    let mut times = Vec::new();
    for round in 0..setting("CONTENTION_ROUNDS", 30) {
        // Each has just allocated and freed, and so has credit.
        for tenant in &mut tenants {
            assert_eq!(tenant.numbers(&format!("take {PAGE}"))[0], 0, "round {round}");
        }
        for tenant in &mut tenants {
            assert_eq!(tenant.ask("drop"), "dropped");
        }
        let chosen = round as usize % tenants.len();
        let mut take = || tenants[chosen].numbers(&format!("take {free}"));
        let mut all = take();
        // On a busy machine the others may stand still for longer.
        for _ in 1..5 {
            if all[0] != 0 {
                assert!(
                    all[1] >= RECALL_NEARLY_OVER_NS,
                    "round {round}: refused after {} ns",
                    all[1]
                );
                all = take();
            }
        }
        assert_eq!(all[0], 0, "round {round}: all free memory");
        times.push(all[1]);
        let one_more = tenants[chosen].numbers(&format!("take {PAGE}"));
        assert_eq!(one_more[0], 2, "round {round}: no page more");
        assert_eq!(tenants[chosen].ask("drop"), "dropped");
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    eprintln!(
        "an allocation that needs the credit of two others: {median} ns (median), {worst} ns"
    );
}

/// Once all processes are idle, the free memory that a program reads is what the daemon has not granted.
#[test]
fn idle_processes_see_the_same_free_memory() {
    let cap = 512 * MIB;
    let node = node(cap);
    let mut tenants = [0, 1].map(|seed| Tenant::start(&node, seed, 1, 1));
    for tenant in &mut tenants {
        assert_eq!(tenant.numbers(&format!("take {}", 16 * PAGE))[0], 0);
    }
    let device = DeviceView::of(&node);
    eventually("all agree", || {
        let reserved = node.slice(CONTAINER).expect("a slice").0.0;
        let told = tenants.each_mut().map(|tenant| tenant.numbers("info"));
        reserved == device.used() && told.iter().all(|told| told[..] == [cap - reserved, cap])
    });
}
