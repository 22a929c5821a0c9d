//! Shares in the upper queue, weights in the lower one.

use super::*;

/// Per mille of the next `ms` that each container gets.
pub(super) fn parts(rig: &mut Rig, ms: u64) -> Vec<u64> {
    let used = |rig: &Rig| -> Vec<u64> {
        let all = rig.turns.entities.iter();
        all.map(|it| it.gpu_time.0).collect()
    };
    let before = used(rig);
    rig.run(rig.turns.now.0 + ms * MS);
    let gained = used(rig).into_iter().zip(before);
    gained.map(|(now, then)| (now - then) / (ms * 1_000)).collect()
}

pub(super) fn close(got: &[u64], due: &[u64]) {
    let fits = got.iter().zip(due).all(|(got, due)| got.abs_diff(*due) <= 10);
    assert!(fits, "{got:?}, not {due:?}");
}

#[test]
fn a_share_is_exact_beside_any_weights() {
    for weight in [1, 10, 300] {
        let all = [(1, 50, false), (weight, 0, false), (3 * weight, 0, false)];
        let mut rig = Rig::new(&all);
        (0..3).for_each(|who| rig.wake(0, who));
        close(&parts(&mut rig, 2_000), &[500, 125, 375]);
        // the time it does not use goes to the others, and it has it back at once
        rig.report(2_000 * MS, 0, false, true);
        rig.report(2_000 * MS, 0, false, true);
        close(&parts(&mut rig, 2_000), &[0, 250, 750]);
        rig.wake(4_000 * MS, 0);
        close(&parts(&mut rig, 2_000), &[500, 125, 375]);
    }
}

#[test]
fn shares_divide_what_they_are_and_no_more() {
    let mut rig = Rig::new(&[(1, 20, false), (1, 30, false), (9, 0, false)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.run(1_000 * MS);
    close(&parts(&mut rig, 4_000), &[200, 300, 0]);
    rig.wake(5_000 * MS, 2);
    close(&parts(&mut rig, 2_000), &[200, 300, 500]);
    // shares of 99 % leave a hundredth
    rig.turns.retune(
        ContainerIndex(1),
        Entitlement {
            share: Percent::new(80).ok(),
            limit: Percent::new(80).ok(),
            ..rig.turns.entities[1].entitlement
        },
    );
    close(&parts(&mut rig, 4_000), &[198, 792, 10]);
}

/// Containers that come, take one turn each and go, count as one, whatever their number.
#[test]
fn containers_that_come_and_go_count_as_one() {
    let mut all = std::vec![(1, 50, false)];
    all.extend([(1000, 0, false); 6]);
    let mut rig = Rig::new(&all);
    rig.wake(0, 0);
    rig.wake(0, 1);
    let mut comes = 1;
    for ms in 1..4_000 {
        rig.run(ms * MS);
        // the container that has had its turn goes, and the next one comes
        if rig.turns.entities[comes].run.0 > 0 && rig.holder() != Some(comes) {
            rig.report(ms * MS, comes, false, true);
            comes = comes % 6 + 1;
            rig.wake(ms * MS, comes);
        }
    }
    let had = rig.used_ms(0);
    assert!(had.abs_diff(2_000) <= 40, "{had} ms of 4000");
}

/// A turn of a container of the pool that ran over is owed by the whole pool, also by later containers, and
/// when the container is gone or in another queue by then.
#[test]
fn the_pool_owes_for_a_turn_that_ran_over() {
    let goes: [fn(&mut Rig); 3] = [
        |rig| rig.turns.leave(ContainerIndex(1)),
        |rig| {
            let entitlement = rig.turns.entities[1].entitlement;
            let class = Class::BestEffort;
            rig.turns.retune(ContainerIndex(1), Entitlement { class, ..entitlement });
        },
        |rig| {
            let entitlement = rig.turns.entities[1].entitlement;
            let share = Percent::new(1).ok();
            rig.turns.retune(ContainerIndex(1), Entitlement { share, ..entitlement });
        },
    ];
    for goes in goes {
        let mut rig = Rig::new(&[(1, 50, false), (1, 0, false), (1, 0, false)]);
        rig.wake(0, 1);
        rig.wake(0, 0);
        rig.wake(0, 2);
        while rig.holder() != Some(1) {
            let due = rig.turns.deadline().expect("it has a turn");
            rig.run(due.0);
        }
        // a kernel of 400 ms
        let end = rig.turns.now.0 + 400 * MS;
        while rig.turns.now.0 < end {
            rig.at(rig.turns.now.0 + MS);
        }
        goes(&mut rig);
        let position = |index| {
            let entity = rig.turns.find(index).expect("there");
            rig.turns.position(entity).0
        };
        assert!(position(ContainerIndex(2)) > position(ContainerIndex(0)), "at once");
        rig.report(end, 1, false, true);
        let before = rig.used_ms(0);
        rig.run(end + 370 * MS);
        let had = rig.used_ms(0) - before;
        assert!(had >= 340, "{had} ms of 370 for the one with a share");
    }
}

/// A turn belongs to the queue in which it was granted: a container that loses its share or class during it
/// is charged for the rest, and the containers of its new queue are not.
#[test]
fn a_pool_does_not_owe_for_a_turn_of_another_queue() {
    let changes: [(bool, u32); 2] = [(false, 20), (true, 0)];
    for (high, share) in changes {
        let mut rig = Rig::new(&[(1, 50, false), (1, share, high), (1, 0, false)]);
        rig.wake(0, 1);
        rig.wake(0, 0);
        rig.wake(0, 2);
        while rig.holder() != Some(1) {
            let due = rig.turns.deadline().expect("it has a turn");
            rig.run(due.0);
        }
        let entitlement =
            Entitlement { share: None, class: Class::Normal, ..rig.turns.entities[1].entitlement };
        rig.turns.retune(ContainerIndex(1), entitlement);
        let end = rig.turns.now.0 + 400 * MS;
        while rig.turns.now.0 < end {
            rig.at(rig.turns.now.0 + MS);
        }
        rig.report(end, 1, false, true);
        let before = rig.used_ms(2);
        rig.run(end + 100 * MS);
        let had = rig.used_ms(2) - before;
        assert!(had >= 30, "{had} ms of 100 for one of its new pool");
    }
}

/// Debts stay the same GPU time when a container gets or loses a share.
#[test]
fn a_debt_moves_to_the_other_queue() {
    let mut rig = Rig::new(&[(4, 0, false), (4, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.run(100 * MS);
    let debt = |rig: &Rig| {
        let entity = &rig.turns.entities[0];
        entity.debt(rig.turns.queue_time(entity)).0 / 1_000
    };
    rig.turns.entities[0].charge(Duration(50 * MS));
    let before = debt(&rig);
    for share in [30, 0, 90, 0] {
        let entitlement = rig.turns.entities[0].entitlement;
        let share = Percent::new(share).ok();
        rig.turns.retune(ContainerIndex(0), Entitlement { share, ..entitlement });
        assert!(debt(&rig).abs_diff(before) <= 1, "{} µs of {before}", debt(&rig));
    }
}

/// Container 1 has a share of 50, and pauses for twice as long as each of its turns took. It uses less than
/// its share, and container 0 still gets all of its own.
#[test]
fn a_share_is_kept_beside_one_that_pauses_after_each_turn() {
    let mut rig = Rig::new(&[(1, 30, false), (1, 50, false), (1, 0, false)]);
    (0..3).for_each(|who| rig.wake(0, who));
    let (mut ran, mut pause) = (Duration(0), 0);
    for ms in 1..6_000 {
        rig.run(ms * MS);
        let run = rig.turns.entities[1].gpu_time;
        if pause > 0 {
            pause -= 1;
            if pause == 0 {
                rig.wake(ms * MS, 1);
            }
        } else if run > ran && rig.holder() != Some(1) {
            rig.report(ms * MS, 1, false, true);
            pause = 2 * (run.0 - ran.0) / MS;
            ran = run;
        }
    }
    let had = [0, 1, 2].map(|who| rig.used_ms(who));
    assert!(had[0] >= 1_760, "{had:?} ms of 6000");
    assert!(had[1] >= 1_200, "{had:?} ms of 6000: the test asks for more");
}

/// A container with a share waits for a second behind a kernel. The time is owed to it, also when another
/// container comes and all caps change.
#[test]
fn a_changed_cap_keeps_what_is_owed() {
    let mut rig = Rig::new(&[(1, 0, false); 3]);
    rig.turns.set_policy(Policy::Preemptive);
    let entitlement = rig.turns.entities[0].entitlement;
    let share = Percent::new(40).ok();
    rig.turns.retune(ContainerIndex(0), Entitlement { share, ..entitlement });
    rig.wake(0, 1);
    rig.wake(0, 0);
    (0..1_000).for_each(|ms| rig.at(ms * MS));
    assert_eq!(rig.turns.on_gpu(), Some(ContainerIndex(1)));
    rig.turns.enter(ContainerIndex(3), Lane(0), entitlement);
    rig.report(1_000 * MS, 1, true, true);
    let before = rig.used_ms(0);
    rig.run(1_600 * MS);
    let got = rig.used_ms(0) - before;
    assert!(got >= 590, "{got} of 600 ms, and more is due for the second");
}

/// A kernel of the pool overruns, and its container has no more to launch. Another container of the pool waits
/// until the share has its part of what the pool used.
#[test]
fn the_pool_is_behind_what_an_overrun_container_used() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 50, false), (1, 0, false)]);
    (0..3).for_each(|who| rig.wake(0, who));
    assert_eq!(rig.holder(), Some(0));
    rig.report(MS, 0, false, false);
    while rig.turns.find(ContainerIndex(0)).is_some_and(|it| it.overrun.is_none()) {
        let due = rig.turns.deadline().expect("a turn that ends, or a wait for its end");
        rig.at(due.0);
    }
    let (passed, used) = (rig.turns.now.0, rig.used_ms(0));
    while rig.used_ms(2) == 0 {
        let due = rig.turns.deadline().expect("turns");
        rig.run(due.0);
    }
    let shared = rig.used_ms(1);
    assert!(shared >= used, "{shared} ms after {passed} ns, of which {used} ms were the pool's");
}

/// A container of the pool overruns while the pool leads its queue by far. The pool's tags change with its weight;
/// the container goes before the pool all the same.
#[test]
fn an_overrun_container_goes_before_its_pool_whatever_that_weighs() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 98, false), (1, 0, false)]);
    (0..3).for_each(|who| rig.wake(0, who));
    let used = rig.turns.entities[0].clone();
    rig.turns.queues[Class::Normal as usize].charge(&used, Duration::from_millis(1_000));
    rig.turns.requeue(ContainerIndex(2));
    rig.turns.overran(ContainerIndex(0), Some(Instant(0)));
    rig.turns.queues[Class::Normal as usize].reweigh(QueueWeight::new(1_000_000));
    let position = |who: usize| rig.turns.position(&rig.turns.entities[who]);
    assert!(position(0) < position(2), "{:?} and {:?}", position(0), position(2));
}

/// The pool leads its queue by a kernel of 400 ms when turns end for good. When they come back, no container owes
/// anything.
#[test]
fn the_pool_owes_nothing_after_a_time_without_turns() {
    let mut rig = Rig::new(&[(1, 50, false), (1, 0, false)]);
    let policy = rig.turns.policy();
    (0..2).for_each(|who| rig.wake(0, who));
    let it = rig.turns.entities[1].clone();
    rig.turns.queues[Class::Normal as usize].charge(&it, Duration::from_millis(400));
    assert!(rig.turns.queues(Class::Normal).pool_leads());
    rig.turns.set_policy(Policy::Native);
    rig.turns.set_policy(policy);
    assert!(!rig.turns.queues(Class::Normal).pool_leads());
}

/// Another policy that also divides time by turns changes neither leads nor debts.
#[test]
fn what_was_used_ahead_is_owed_under_the_next_policy() {
    let mut rig = Rig::new(&[(1, 50, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    let it = rig.turns.entities[1].clone();
    rig.turns.queues[Class::Normal as usize].charge(&it, Duration::from_millis(400));
    let before = rig.turns.queues(Class::Normal).pool_leads();
    rig.turns.set_policy(Policy::Weighted);
    assert_eq!((before, rig.turns.queues(Class::Normal).pool_leads()), (true, true));
}

/// What is due to the runnable containers of a class is all of its time, whichever of them have shares.
#[test]
fn the_fractions_of_a_class_add_up_to_one() {
    let rows: [&[(u32, u32, bool)]; 3] = [
        &[(1, 20, false), (1, 30, false)],
        &[(1, 0, false), (3, 0, false)],
        &[(1, 50, false), (1, 0, false), (3, 0, false)],
    ];
    for who in rows {
        let mut rig = Rig::new(who);
        (0..who.len()).for_each(|at| rig.wake(0, at));
        let due = rig.turns.entities.iter().map(|it| rig.turns.due(it));
        let per_million: u64 = due.map(|(own, all)| own * 1_000_000 / all).sum();
        assert!(per_million.abs_diff(1_000_000) <= 3, "{who:?}: {per_million}");
    }
}
