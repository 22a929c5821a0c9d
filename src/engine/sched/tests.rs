//! One GPU's turns; the test plays the rest of the engine.

mod debts;
mod dues;
mod effort;
mod meaning;
mod queues;
mod rules;
mod time_account;

use super::*;
use gpuslice_wire::units::{Percent, Weight};

const MS: u64 = 1_000_000;

/// Turns of one GPU whose tenants drain at once when their turn closes.
pub(super) struct Rig {
    pub(super) turns: Turns,
    pub(super) notes: Vec<Note>,
    /// The container with untracked work in flight.
    deep: Option<usize>,
}

impl Rig {
    /// Containers of (weight, share, high), attached and idle. A share is also a limit, and has no weight.
    pub(super) fn new(who: &[(u32, u32, bool)]) -> Rig {
        Rig::with(Config::default(), who)
    }
    pub(super) fn with(config: Config, who: &[(u32, u32, bool)]) -> Rig {
        let mut turns = Turns::new(config, Instant(0), Charged::default());
        for (at, &(weight, share, high)) in who.iter().enumerate() {
            let entitlement = Entitlement {
                weight: Weight::new(weight).ok().filter(|_| share == 0),
                share: Percent::new(share).ok(),
                limit: Percent::new(share).ok(),
                class: if high { Class::High } else { Class::Normal },
                whole: false,
                alone: true,
            };
            turns.enter(ContainerIndex(at as u16), Lane(0), entitlement);
        }
        let mut rig = Rig { turns, notes: Vec::new(), deep: None };
        (0..who.len()).for_each(|at| rig.report(0, at, false, true));
        rig
    }
    pub(super) fn pass(&mut self, now: u64) {
        let gap = Instant(now).since(self.turns.now);
        self.turns.advance(Instant(now), self.turns.booked.plus(gap));
    }
    pub(super) fn at(&mut self, now: u64) {
        self.pass(now);
        self.turns.decide(&mut self.notes);
        self.drain_untracked();
    }
    pub(super) fn report(&mut self, now: u64, who: usize, runnable: bool, drained: bool) {
        self.pass(now);
        self.turns.report(
            ContainerIndex(who as u16),
            Report { attached: true, runnable, drained, ..Report::default() },
        );
        self.turns.decide(&mut self.notes);
        self.drain_untracked();
    }
    /// Reads each untracked container, except `deep`, as drained.
    fn drain_untracked(&mut self) {
        let deep = self.deep.map(|who| ContainerIndex(who as u16));
        let untracked = self.turns.untracked().map(|e| (e.index, e.reported));
        let untracked: Vec<(ContainerIndex, Report)> =
            untracked.filter(|(index, _)| Some(*index) != deep).collect();
        for (index, reported) in untracked {
            self.turns.report(index, Report { drained: true, ..reported });
        }
        self.turns.decide(&mut self.notes);
    }
    pub(super) fn wake(&mut self, now: u64, who: usize) {
        self.report(now, who, true, true);
    }
    pub(super) fn holder(&self) -> Option<usize> {
        match self.turns.phase {
            Phase::Held { index, .. } => Some(usize::from(index.0)),
            _ => None,
        }
    }
    /// The GPU is held by `who` for a second from now on.
    pub(super) fn hold(&mut self, who: usize) {
        let end = self.turns.now.plus(Duration::from_millis(1_000));
        self.turns.phase = Phase::Held { index: ContainerIndex(who as u16), end, guard: None };
    }
    pub(super) fn entity(&mut self, who: usize) -> &mut Entity {
        &mut self.turns.entities[who]
    }
    /// Runs until `end`; a closed container drains at once.
    fn run(&mut self, end: u64) {
        while let Some(due) = self.turns.deadline().filter(|due| due.0 <= end) {
            self.at(due.0);
            if let Phase::Closing { index, .. } = self.turns.phase {
                let runnable = self.turns.find(index).is_some_and(|e| e.reported.runnable);
                self.report(due.0, usize::from(index.0), runnable, true);
            }
        }
        self.at(end);
    }
    fn used_ms(&self, who: usize) -> u64 {
        self.turns.entities[who].gpu_time.0 / MS
    }
}

#[test]
fn alone_runs_freely_and_is_charged() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.run(1_000 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
    assert_eq!((rig.used_ms(0), rig.used_ms(1)), (1_000, 0));
}

#[test]
fn a_second_container_ends_open_mode_and_owes_nothing_for_the_past() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.run(10_000 * MS);
    rig.wake(10_000 * MS, 1);
    assert_eq!((rig.turns.mode(), rig.holder()), (Mode::Turns, Some(0)));
    rig.run(11_000 * MS);
    let (first, second) = (rig.used_ms(0) - 10_000, rig.used_ms(1));
    assert!(first.abs_diff(second) <= 16, "{first} and {second} ms");
    // and open mode returns when the contention is over
    rig.report(11_000 * MS, 1, false, true);
    rig.run(11_100 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
}

#[test]
fn weights_divide() {
    let mut rig = Rig::new(&[(1, 0, false), (2, 0, false), (4, 0, false)]);
    (0..3).for_each(|who| rig.wake(0, who));
    rig.run(7_000 * MS);
    for (who, expected) in [(0, 1_000u64), (1, 2_000), (2, 4_000)] {
        assert!(rig.used_ms(who).abs_diff(expected) <= 16, "{who}: {} ms", rig.used_ms(who));
    }
}

#[test]
fn a_sleeper_gets_no_credit() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.run(5_000 * MS);
    rig.wake(5_000 * MS, 2);
    rig.run(5_300 * MS);
    assert!(rig.used_ms(2).abs_diff(100) <= 16, "{} ms", rig.used_ms(2));
}

#[test]
fn a_hard_share_holds_alone() {
    let mut rig = Rig::new(&[(1, 30, false)]);
    rig.wake(0, 0);
    assert_eq!(rig.turns.mode(), Mode::Turns);
    rig.run(10_000 * MS);
    assert!(rig.used_ms(0).abs_diff(3_000) <= 50, "{} ms", rig.used_ms(0));
}

#[test]
fn high_goes_first_at_once_and_leaves_a_twentieth() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, true)]);
    rig.wake(0, 0);
    assert_eq!(rig.holder(), Some(0));
    rig.wake(2 * MS, 1);
    assert_eq!(rig.holder(), None, "revoked");
    rig.report(2 * MS + 100_000, 0, true, true);
    assert_eq!(rig.holder(), Some(1));
    rig.run(2_000 * MS);
    assert!(rig.used_ms(0).abs_diff(100) <= 5, "{} ms", rig.used_ms(0));
    rig.report(2_000 * MS, 1, false, true);
    rig.report(2_000 * MS, 1, false, true);
    assert_eq!(rig.holder(), Some(0));
}

#[test]
fn a_late_container_is_reported_then_overruns_and_is_charged_until_drained() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.at(8 * MS);
    assert!(matches!(rig.turns.phase, Phase::Closing { .. }));
    rig.notes.clear();
    rig.at(108 * MS);
    let late = |stage, ms| Note::Late(ContainerIndex(0), stage, Duration(ms * MS));
    assert_eq!(rig.notes, [late(Late::Waiting, 100)]);
    for step in 109..=2_008 {
        rig.at(step * MS);
    }
    assert_eq!(rig.notes.last(), Some(&late(Late::Overrun, 2_000)));
    assert_eq!(rig.holder(), Some(0), "a turn for what it may wait for");
    rig.at(2_024 * MS);
    assert_eq!(rig.holder(), Some(1), "and no second wait");
    for step in 2_025..=3_024 {
        rig.at(step * MS);
        assert_ne!(rig.holder(), Some(0), "its position moved back");
        if let Phase::Closing { .. } = rig.turns.phase {
            rig.report(step * MS, 1, true, true);
        }
    }
    let paid = rig.used_ms(0);
    assert_eq!((paid, rig.used_ms(1)), (3_024, 1_000));
    rig.report(3_024 * MS, 0, true, true);
    rig.run(4_024 * MS);
    assert_eq!(rig.used_ms(0), paid, "its debt keeps it waiting");
}

#[test]
fn an_idle_holder_gives_way() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.report(MS, 0, false, true);
    rig.report(MS, 0, false, true);
    assert_eq!(rig.holder(), Some(1));
}

#[test]
fn a_leaving_holder_frees_the_gpu() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.turns.leave(ContainerIndex(0));
    rig.at(MS);
    assert_eq!(rig.holder(), Some(1));
    rig.run(21 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
}

/// One container ran in open mode for a second, with work in flight, beside one that becomes runnable then
/// and may be of the high class.
fn open_mode_ends() -> Rig {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.run(1_000 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
    rig.deep = Some(0);
    rig.notes.clear();
    let entitlement = Entitlement { class: Class::High, ..rig.turns.entities[1].entitlement };
    rig.turns.retune(ContainerIndex(1), entitlement);
    rig
}

#[test]
fn work_from_before_the_turns_runs_out_first() {
    let mut rig = open_mode_ends();
    // as the only one with untracked work, it goes on in a turn of its own
    rig.at(1_000 * MS);
    assert_eq!((rig.turns.mode(), rig.holder()), (Mode::Turns, Some(0)));
    let mut rig = open_mode_ends();
    // but not before a container of a higher class, which waits until it has drained
    rig.wake(1_000 * MS, 1);
    assert_eq!((rig.turns.mode(), rig.holder()), (Mode::Turns, None));
    rig.run(1_050 * MS);
    assert_eq!((rig.holder(), rig.used_ms(0)), (None, 1_050));
    rig.report(1_050 * MS, 0, true, true);
    assert_eq!(rig.holder(), Some(1));
}

#[test]
fn untracked_work_that_does_not_drain_overruns_and_is_charged() {
    let mut rig = open_mode_ends();
    rig.wake(1_000 * MS, 1);
    rig.notes.clear();
    rig.run(2_999 * MS);
    let late = |stage, ms| Note::Late(ContainerIndex(0), stage, Duration(ms * MS));
    assert_eq!(rig.notes, [late(Late::Waiting, 100)]);
    assert_eq!(rig.holder(), None);
    rig.run(3_000 * MS);
    assert_eq!(rig.notes.last(), Some(&late(Late::Overrun, 2_000)));
    assert_eq!(rig.holder(), Some(1));
    rig.run(3_500 * MS);
    // a twentieth is in guard turns
    assert_eq!(rig.used_ms(0), 3_500);
    assert!((474..=500).contains(&rig.used_ms(1)));
    assert_eq!(rig.turns.entities[0].late_turns, 1);
}
