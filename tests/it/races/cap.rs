//! Processes that race to the cap: together they get all of it and never more, and none is refused
//! what another one only keeps in reserve.

use super::{MIB, PAGE, Tenant, Truth, WHO, Watcher, node, setting};
use crate::harness::eventually;

/// Fills a tenant until it is refused; how many allocations it got.
fn filled(tenant: &mut Tenant) -> u64 {
    let answer = tenant.answer().expect("alive");
    let [count, result] = super::numbers(&answer)[..] else {
        panic!("{answer}")
    };
    assert_eq!(result, 2, "out of memory is the only reason to stop");
    count
}

/// Fills the slice from `processes` processes at once, `rounds` times: not a piece more than fits is
/// got, and not one less.
fn race(processes: u64, rounds: u64) {
    let cap = 512 * MIB + processes * 64 * MIB;
    let node = node(cap);
    let watcher = Watcher::start(&node);
    let mut tenants: Vec<Tenant> = (0..processes)
        .map(|seed| Tenant::start(&node, seed, 1, 1))
        .collect();
    let contexts = Truth::of(&node).used();
    let fits = (cap - contexts) / (8 * PAGE);
    let order = format!("fill {}", 8 * PAGE);
    for round in 0..rounds {
        tenants.iter_mut().for_each(|tenant| tenant.order(&order));
        let raced: u64 = tenants.iter_mut().map(filled).sum();
        assert_eq!(raced, fits, "round {round} of {processes} processes");
        let most = watcher.most().0;
        assert!(most <= cap, "{most} of {cap} bytes");
        for tenant in &mut tenants {
            tenant.order("drop");
        }
        for tenant in &mut tenants {
            assert_eq!(tenant.answer().as_deref(), Some("dropped"));
        }
    }
}

#[test]
fn two_race_to_the_cap() {
    race(2, setting("RACE_ROUNDS", 30));
}

#[test]
fn four_race_to_the_cap() {
    race(4, setting("RACE_ROUNDS", 30));
}

#[test]
fn eight_race_to_the_cap() {
    race(8, setting("RACE_ROUNDS", 30));
}

/// What one process keeps for its next allocations, another one gets when it is short.
#[test]
fn credit_of_a_sibling_is_no_reason_to_fail() {
    let cap = 512 * MIB;
    let node = node(cap);
    let mut tenants = [0, 1, 2].map(|seed| Tenant::start(&node, seed, 1, 1));
    let free = cap - Truth::of(&node).used();
    let mut times = Vec::new();
    for round in 0..setting("RACE_ROUNDS", 30) {
        // Each has just allocated and freed, and so has credit.
        for tenant in &mut tenants {
            assert_eq!(
                tenant.numbers(&format!("take {PAGE}"))[0],
                0,
                "round {round}"
            );
        }
        for tenant in &mut tenants {
            assert_eq!(tenant.ask("drop"), "dropped");
        }
        let who = round as usize % tenants.len();
        let all = tenants[who].numbers(&format!("take {free}"));
        assert_eq!(all[0], 0, "round {round}: all that nobody uses");
        times.push(all[1]);
        let one_more = tenants[who].numbers(&format!("take {PAGE}"));
        assert_eq!(one_more[0], 2, "round {round}: and nothing more");
        assert_eq!(tenants[who].ask("drop"), "dropped");
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    eprintln!(
        "an allocation that needs the credit of two others: {median} ns (median), {worst} ns"
    );
}

/// Free memory as a program is told it is what the daemon has not promised, once nobody moves.
#[test]
fn in_quiet_everybody_sees_the_same_number() {
    let cap = 512 * MIB;
    let node = node(cap);
    let mut tenants = [0, 1].map(|seed| Tenant::start(&node, seed, 1, 1));
    for tenant in &mut tenants {
        assert_eq!(tenant.numbers(&format!("take {}", 16 * PAGE))[0], 0);
    }
    let truth = Truth::of(&node);
    eventually("all agree", || {
        let reserved = node.slice(WHO).expect("a slice").0.0;
        let told = tenants.each_mut().map(|tenant| tenant.numbers("info"));
        reserved == truth.used() && told.iter().all(|told| told[..] == [cap - reserved, cap])
    });
}
