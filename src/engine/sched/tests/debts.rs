//! Debts: a container owes the time it used while another was runnable, also after a pause and without
//! turns.

use super::*;

/// A container of weight 1 whose kernel of a second ran on after its turn, beside one of `weight`, and
/// which is not runnable since.
fn owing(weight: u32) -> Rig {
    let mut rig = Rig::new(&[(1, 0, false), (weight, 0, false)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.at(20 * MS);
    assert!(matches!(rig.turns.phase, Phase::Closing { index: ContainerIndex(0), .. }));
    rig.run_until_drained(1_000 * MS);
    assert_eq!(rig.holder(), Some(1));
    rig
}

impl Rig {
    /// No report arrives until `end`. A longer step would not be charged.
    fn run_beside(&mut self, end: u64) {
        while self.turns.now.0 < end {
            self.at((self.turns.now.0 + 100 * MS).min(end));
        }
    }

    /// Then the first container has drained, and is not runnable.
    fn run_until_drained(&mut self, end: u64) {
        self.run_beside(end);
        self.report(end, 0, false, true);
    }
}

#[test]
fn turns_go_on_until_a_debt_is_paid() {
    let mut rig = owing(10);
    // a second at weight 1 is ten at weight 10
    rig.run(10_900 * MS);
    assert_eq!(rig.turns.mode(), Mode::Turns);
    rig.run(11_100 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
}

#[test]
fn a_debtor_waits_after_a_pause() {
    let mut rig = owing(10);
    rig.run(1_030 * MS);
    rig.wake(1_030 * MS, 0);
    rig.run(10_900 * MS);
    assert_eq!((rig.holder(), rig.used_ms(0)), (Some(1), 1_000));
    rig.run(12_000 * MS);
    assert!(rig.used_ms(0) > 1_000, "and has its turn then");
}

#[test]
fn a_debtor_that_is_gone_keeps_no_turns_and_owes_when_it_comes_back() {
    let mut rig = owing(10);
    let gone = Report { drained: true, ..Report::default() };
    rig.turns.report(ContainerIndex(0), gone);
    rig.run(1_100 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
    rig.run(2_000 * MS);
    rig.report(2_000 * MS, 0, false, true);
    assert_eq!(rig.turns.mode(), Mode::Turns, "before it launches");
    assert_eq!(rig.turns.untracked().count(), 0, "it is not waited for");
    rig.run(11_100 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open, "paid, partly while it was away");
}

#[test]
fn a_gpu_without_runnable_containers_has_no_turns() {
    let mut rig = owing(10);
    rig.report(1_030 * MS, 1, false, true);
    rig.report(1_030 * MS, 1, false, true); // read after the close
    rig.run(1_100 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open, "with a debt");
    rig.wake(2_000 * MS, 1);
    assert_eq!(rig.turns.mode(), Mode::Turns, "time is owed to it");
    rig.wake(2_010 * MS, 0);
    rig.run(10_900 * MS);
    assert_eq!((rig.holder(), rig.used_ms(0)), (Some(1), 1_000));
}

/// Time that a container runs alone is no debt, with turns or without, however long its turns are.
#[test]
fn nothing_is_owed_to_containers_that_are_not_runnable() {
    let mut rig = owing(1);
    rig.run(2_100 * MS);
    // alone with turns, because the other one has a cap
    rig.turns.retune(
        ContainerIndex(1),
        Entitlement { share: Percent::new(50).ok(), ..rig.turns.entities[1].entitlement },
    );
    rig.report(2_100 * MS, 1, false, true);
    rig.report(2_100 * MS, 1, false, true);
    rig.wake(2_100 * MS, 0);
    for ms in 2_101..4_000 {
        rig.at(ms * MS);
    }
    assert_eq!(rig.turns.mode(), Mode::Turns);
    let before = rig.used_ms(1);
    rig.wake(4_000 * MS, 1);
    rig.at(4_020 * MS);
    rig.report(4_020 * MS, 0, true, true);
    rig.run(4_060 * MS);
    let had = rig.used_ms(1) - before;
    assert!((10..=40).contains(&had), "{had} ms, as two equals");
}

/// Two containers run when turns begin: the one that owes more for untracked work goes after the other one.
#[test]
fn untracked_work_counts_before_the_first_turn() {
    let mut rig = Rig::new(&[(1, 0, false), (10, 0, false)]);
    rig.wake(0, 0);
    rig.run(100 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
    rig.deep = Some(0);
    rig.turns.report(
        ContainerIndex(1),
        Report { attached: true, runnable: true, drained: false, ..Report::default() },
    );
    rig.turns.decide(&mut rig.notes);
    // both have work in flight for 20 ms, then the second one has drained
    rig.pass(120 * MS);
    rig.turns.report(
        ContainerIndex(1),
        Report { attached: true, runnable: true, drained: true, ..Report::default() },
    );
    rig.turns.decide(&mut rig.notes);
    assert_eq!(rig.holder(), None, "the first one owes 10 ms");
    rig.report(150 * MS, 0, true, true);
    assert_eq!(rig.holder(), Some(1), "what it ran since counts too");
}

/// A container was idle, and reports running work when turns begin: it is charged from the queue's virtual
/// time, as it would be in a turn.
#[test]
fn untracked_work_of_an_idle_container_is_paid_from_the_queue_time() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.run(10_000 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
    rig.deep = Some(1);
    rig.wake(10_000 * MS, 2);
    rig.pass(10_100 * MS);
    rig.report(10_100 * MS, 1, false, true);
    let sleeper = &rig.turns.entities[1];
    let debt = sleeper.debt(rig.turns.queue_time(sleeper)).0 / MS;
    assert_eq!((rig.used_ms(1), debt), (100, 100));
    assert_ne!(rig.holder(), Some(1));
    rig.wake(10_101 * MS, 1);
    rig.run(10_130 * MS);
    assert_eq!(rig.used_ms(1), 100, "others go first");
}
