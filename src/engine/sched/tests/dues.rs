//! Shares, weights and limits: what each container is due, and what it gets.

use super::queues::{close, parts};
use super::*;

/// Containers of (weight, share, limit), 0 for none, attached and idle.
fn rig(who: &[(u32, u32, u32)]) -> Rig {
    let mut rig = Rig::new(&std::vec![(1, 0, false); who.len()]);
    for (n, &(weight, share, limit)) in who.iter().enumerate() {
        let entitlement = Entitlement {
            weight: Weight::new(weight).ok(),
            share: Percent::new(share).ok(),
            limit: Percent::new(limit).ok(),
            class: Class::Normal,
            whole: false,
            alone: true,
        };
        rig.turns.retune(ContainerIndex(n as u16), entitlement);
    }
    rig
}

/// Per mille that each is due; 0 while it does not count.
fn dues(rig: &Rig) -> Vec<u32> {
    rig.turns.entities.iter().map(|it| it.due.map_or(0, |due| (due + 500) / 1_000)).collect()
}

#[test]
fn the_level_is_one_for_all_weights_and_limits_bind() {
    type Row = (&'static [(u32, u32, u32)], &'static [u32]);
    let rows: [Row; 13] = [
        // a share alone has no part of time that weights want
        (&[(0, 50, 0), (1, 0, 0), (3, 0, 0)], &[500, 125, 375]),
        // with a weight it has its part of the rest
        (&[(1, 50, 0), (1, 0, 0), (3, 0, 0)], &[600, 100, 300]),
        // a limit on the share, and one on a weight
        (&[(1, 50, 55), (1, 0, 0), (3, 0, 0)], &[550, 113, 338]),
        (&[(1, 50, 50), (1, 0, 0)], &[500, 500]),
        (&[(1, 50, 0), (1, 0, 0), (3, 0, 10)], &[700, 200, 100]),
        (&[(0, 50, 0), (1, 0, 0), (3, 0, 10)], &[500, 400, 100]),
        // what all weights must leave goes to shares, in proportion
        (&[(0, 20, 0), (0, 30, 0), (3, 0, 10)], &[360, 540, 100]),
        (&[(0, 20, 25), (0, 30, 0), (3, 0, 10)], &[250, 650, 100]),
        (&[(0, 20, 0), (0, 30, 0)], &[400, 600]),
        (&[(0, 20, 20), (0, 30, 30)], &[200, 300]),
        // the first limit that is reached raises the level for the others, and so on
        (&[(8, 0, 20), (4, 0, 25), (2, 10, 0), (1, 0, 0)], &[200, 250, 400, 150]),
        // shares of 100 leave a hundredth
        (&[(0, 60, 0), (1, 40, 0), (4, 0, 0)], &[600, 402, 8]),
        (&[(0, 100, 0), (1, 0, 0)], &[1_000, 10]),
    ];
    for (who, expected) in rows {
        let mut rig = rig(who);
        (0..who.len()).for_each(|n| rig.wake(0, n));
        assert_eq!(dues(&rig), expected, "{who:?}");
    }
}

/// Containers of another class have no part of a class's time.
#[test]
fn dues_are_of_one_class() {
    let mut rig = rig(&[(0, 50, 0), (1, 0, 0), (0, 20, 0), (1, 0, 0)]);
    for index in [2, 3].map(ContainerIndex) {
        let entitlement = rig.turns.find(index).expect("it entered").entitlement;
        rig.turns.retune(index, Entitlement { class: Class::High, ..entitlement });
    }
    (0..4).for_each(|n| rig.wake(0, n));
    assert_eq!(dues(&rig), [500, 500, 200, 800]);
}

#[test]
fn each_gets_what_it_is_due() {
    for who in [
        &[(0, 50, 0), (1, 0, 0), (3, 0, 0)][..],
        &[(1, 50, 0), (1, 0, 0), (3, 0, 0)],
        &[(1, 50, 55), (1, 0, 0), (3, 0, 0)],
        &[(1, 50, 0), (1, 0, 0), (3, 0, 10)],
        &[(0, 20, 0), (0, 30, 0), (3, 0, 10)],
        &[(0, 20, 25), (0, 30, 0), (3, 0, 10)],
        &[(8, 0, 20), (4, 0, 25), (2, 10, 0), (1, 0, 0)],
    ] {
        let mut rig = rig(who);
        (0..who.len()).for_each(|n| rig.wake(0, n));
        let due: Vec<u64> = dues(&rig).into_iter().map(u64::from).collect();
        rig.run(1_000 * MS);
        close(&parts(&mut rig, 4_000), &due);
    }
}

/// A container counts until what it used ahead of its queue is paid back, and no longer.
#[test]
fn a_container_that_pauses_counts_while_it_has_a_lead() {
    let mut rig = rig(&[(0, 50, 0), (0, 10, 0), (1, 0, 0), (1, 0, 0)]);
    (0..4).for_each(|n| rig.wake(0, n));
    rig.run(100 * MS);
    while rig.holder() != Some(0) {
        let due = rig.turns.deadline().expect("others have turns");
        rig.run(due.0);
    }
    let now = rig.turns.now.0 + 3 * MS;
    rig.run(now);
    // it is asked whether it has drained as its turn is closed
    (0..2).for_each(|_| rig.report(now, 0, false, true));
    assert_eq!(dues(&rig), [500, 100, 200, 200], "3 ms ahead");
    rig.run(now + 2 * MS);
    assert_eq!(dues(&rig), [500, 100, 200, 200], "about 2 ms of others' time later");
    rig.run(now + 50 * MS);
    assert_eq!(dues(&rig), [0, 100, 450, 450], "paid back");
    // the pool counts together
    (0..2).for_each(|_| rig.report(now + 50 * MS, 2, false, true));
    (0..2).for_each(|_| rig.report(now + 50 * MS, 3, false, true));
    rig.run(now + 150 * MS);
    assert_eq!(dues(&rig), [0, 1_000, 0, 0]);
}

#[test]
fn a_container_that_has_not_run_yet_does_not_count() {
    let mut rig = rig(&[(0, 50, 0), (1, 0, 0)]);
    rig.wake(0, 1);
    assert_eq!(dues(&rig), [0, 1_000]);
}

/// What it used ahead of the pool's other container is not paid back when the pool has paid back its own.
#[test]
fn a_container_with_a_lead_counts_in_a_pool_without_one() {
    let mut rig = rig(&[(0, 50, 0), (1, 0, 0), (1, 0, 0)]);
    (0..3).for_each(|n| rig.wake(0, n));
    rig.run(100 * MS);
    while rig.holder() != Some(1) {
        let due = rig.turns.deadline().expect("others have turns");
        rig.run(due.0);
    }
    let mut now = rig.turns.now.0 + 3 * MS;
    rig.run(now);
    (0..2).for_each(|_| rig.report(now, 1, false, true));
    while rig.turns.queues(Class::Normal).pool_leads() {
        now += MS / 2;
        rig.run(now);
    }
    assert_eq!(dues(&rig), [500, 250, 250]);
}

/// The only runnable container of the pool pauses. It counts while the pool has a lead; then no container of the pool
/// does, and the pool keeps the weight by which its tags were charged.
#[test]
fn the_pool_counts_while_it_has_a_lead_and_keeps_its_weight_after_that() {
    let (mut rig, now) = (rig(&[(0, 50, 0), (1, 0, 0)]), 3 * MS);
    [1, 0].into_iter().for_each(|n| rig.wake(0, n));
    rig.run(now);
    assert_eq!(rig.holder(), Some(1));
    // it is asked whether it has drained as its turn is closed
    (0..2).for_each(|_| rig.report(now, 1, false, true));
    let weight = |rig: &Rig| rig.turns.queues(Class::Normal).pool_weight();
    assert_eq!((dues(&rig), weight(&rig)), (std::vec![500, 500], 500_000));
    rig.run(now + 50 * MS);
    assert_eq!((dues(&rig), weight(&rig)), (std::vec![1_000, 0], 500_000));
}
