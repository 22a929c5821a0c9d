//! A daemon that is killed in the middle of a turn stalls no tenant for more than 300 ms.
//!
//! The open turn is not closed, and no other one is opened. The tenants see that the daemon's heartbeat has
//! stopped, and go on without turns; with a new daemon they take turns again. That must hold at every instant
//! of a turn, so the test tries many random ones.

use super::{Ends, Hiccups, TURNS, Tenant, delay_of_new_daemon, node, setting};
use crate::harness::{Random, eventually};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_millis(300);

#[test]
fn a_daemon_killed_in_a_turn_stalls_no_tenant() {
    let seed = setting("SEED", 5);
    eprintln!("SEED={seed}");
    let mut random = Random(seed | 1 << 32);
    let (mut node, machine) = node();
    // The device keeps the ends of 4,096 kernels. They last so long that none is missed while a daemon starts.
    let tenants = [("a", 1_500), ("b", 2_000)]
        .map(|(container, us)| Tenant::start(&node, &machine, container, us));
    let mut ends = [0, 1].map(|at: usize| Ends::of(&tenants[at], &machine));
    // The longest gaps, and the hiccups allowed for.
    let mut gaps = Vec::new();
    for round in 0..setting("KILLS", 20) {
        let hiccups = Hiccups::of(&[&node], &tenants.each_ref());
        std::thread::sleep(Duration::from_micros(50_000 + random.below(40_000)));
        node.end_daemon(Signal::SIGKILL);
        // Restarted soon, after all tenants have noticed, or at any time between.
        let away = Instant::now() + Duration::from_millis(random.below(600));
        while Instant::now() < away {
            std::thread::sleep(Duration::from_millis(20));
            ends.iter_mut().for_each(|ends| _ = ends.longest_gap(&machine));
        }
        node.start_daemon(&[]);
        for tenant in &tenants {
            tenant.gets(&machine, Duration::from_millis(20));
            let back = || node.slice(tenant.container).is_some_and(|(_, clients)| clients == 1);
            eventually("a process that came back", back);
            tenant.gets(&machine, Duration::from_millis(20));
        }
        for (ends, tenant) in ends.iter_mut().zip(&tenants) {
            let gap = ends.longest_gap(&machine);
            ends.longest = 0;
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
