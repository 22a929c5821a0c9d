//! A daemon that is killed in the middle of a turn stalls no tenant for more than 300 ms.
//!
//! The open turn is not closed, and no other one is opened. The tenants see that the daemon's heartbeat has
//! stopped, and go on without turns; with a new daemon they take turns again. That must hold at every instant
//! of a turn, so the test tries many random ones.

use super::{Hiccups, TURNS, Tenant, delay_of_new_daemon, node, setting};
use crate::harness::{Random, eventually};
use nix::sys::signal::Signal;
use std::time::Duration;

const BOUND: Duration = Duration::from_millis(300);

#[test]
fn a_daemon_killed_in_a_turn_stalls_no_tenant() {
    let seed = setting("SEED", 5);
    eprintln!("SEED={seed}");
    let mut random = Random(seed | 1 << 32);
    let (mut node, machine) = node();
    let tenants = [("a", 600), ("b", 900)]
        .map(|(container, us)| Tenant::start(&node, &machine, container, us));
    // The longest gaps, and the hiccups allowed for.
    let mut gaps = Vec::new();
    for round in 0..setting("KILLS", 20) {
        let hiccups = Hiccups::of(&[&node], &tenants.each_ref());
        tenants.iter().for_each(|tenant| tenant.watch(&machine));
        std::thread::sleep(Duration::from_micros(50_000 + random.below(40_000)));
        node.end_daemon(Signal::SIGKILL);
        // Restarted soon, after all tenants have noticed, or at any time between.
        std::thread::sleep(Duration::from_millis(random.below(600)));
        node.start_daemon(&[]);
        for tenant in &tenants {
            tenant.gets(&machine, Duration::from_millis(20));
            let back = || node.slice(tenant.container).is_some_and(|(_, clients)| clients == 1);
            eventually("a process that came back", back);
            tenant.gets(&machine, Duration::from_millis(20));
        }
        for tenant in &tenants {
            let gap = tenant.longest_gap(&machine);
            let allowance = hiccups.allowance() + delay_of_new_daemon(&node);
            let allowed = BOUND + TURNS + allowance;
            gaps.push((gap, allowance));
            assert!(
                gap <= allowed,
                "round {round}: {} stood still for {gap:?}, allowed {allowed:?}",
                tenant.container
            );
        }
    }
    gaps.sort();
    let (median, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    eprintln!("gaps and allowances: {median:?} (median), {worst:?} (worst of {})", gaps.len());
}
