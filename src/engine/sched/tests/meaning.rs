//! Rules whose effect figures of whole seconds do not show: the length of one turn, which turns are
//! interrupted, what is counted.

use super::*;
use gpuslice_wire::turns::TurnKind;

impl Rig {
    /// The length of the present turn, µs.
    fn length_us(&self) -> u64 {
        match self.turns.phase {
            Phase::Held { end, .. } => end.since(self.turns.now).0 / 1_000,
            phase => panic!("no turn but {phase:?}"),
        }
    }

    fn retune(&mut self, who: usize, change: impl FnOnce(&mut Entitlement)) {
        let mut entitlement = self.turns.entities[who].entitlement;
        change(&mut entitlement);
        self.turns.retune(ContainerIndex(who as u16), entitlement);
    }
}

/// Weights show in the length of every turn, and not only in the number of turns.
#[test]
fn a_turn_is_as_long_as_its_weight_says() {
    let mut rig = Rig::new(&[(1, 0, false), (3, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    let mut seen = [0, 0];
    for ms in 1..400 {
        let before = rig.holder();
        rig.run(ms * MS);
        if let Some(who) = rig.holder().filter(|_| rig.holder() != before) {
            let (length, due) = (rig.length_us(), [4_000, 12_000][who]);
            assert!(length.abs_diff(due) <= due / 2 + 1_000, "{who}: {length} µs");
            seen[who] += 1;
        }
    }
    assert!(seen.iter().all(|turns| *turns >= 10), "{seen:?}");
}

/// Few containers share a round; many make it longer, and have turns of 4 ms.
#[test]
fn turns_do_not_become_slivers_where_many_take_them() {
    for (many, due) in [(2, 8_000), (4, 4_000), (16, 4_000)] {
        let mut rig = Rig::new(&std::vec![(1, 0, false); many]);
        (0..many).for_each(|who| rig.wake(0, who));
        rig.run(1_000 * MS);
        let turns: u64 = rig.turns.entities.iter().map(|it| it.turns).sum();
        let mean = 1_000_000 / turns;
        assert!(mean.abs_diff(due) <= due / 10, "{many}: {mean} µs");
    }
}

#[test]
fn a_turn_is_no_longer_than_is_paid_for() {
    let mut rig = Rig::new(&[(1, 10, false)]);
    rig.wake(0, 0);
    // a tenth of 100 ms is in the bucket, and a tenth of the turn comes in on the way
    assert_eq!(rig.length_us(), 11_111);
}

#[test]
fn a_cap_that_is_spent_ends_the_turn() {
    let mut rig = Rig::new(&[(1, 50, false)]);
    rig.wake(0, 0);
    rig.at(5 * MS);
    rig.retune(0, |entitlement| {
        (entitlement.share, entitlement.limit) = (Percent::new(1).ok(), Percent::new(1).ok());
    });
    rig.at(5 * MS);
    assert_eq!(rig.holder(), Some(0), "something is left");
    rig.at(7 * MS);
    assert_eq!(rig.holder(), None, "spent");
}

#[test]
fn turns_that_end_for_a_higher_class_are_counted_and_no_others() {
    let counted = |rig: &Rig| {
        let it = &rig.turns.entities;
        [it[0].closed_early, it[1].closed_early, it[2].closed_early]
    };
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false), (1, 0, true)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.run(100 * MS);
    assert_eq!(counted(&rig), [0, 0, 0]);
    let holder = rig.holder().expect("a turn");
    rig.wake(101 * MS, 2);
    let mut expected = [0; 3];
    expected[holder] = 1;
    assert_eq!(counted(&rig), expected);
}

#[test]
fn a_late_container_is_counted_once_a_turn() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.wake(0, 1);
    rig.at(8 * MS);
    for ms in [100, 108, 109, 500, 1_000] {
        rig.at(ms * MS);
        let late = u64::from(ms >= 108);
        let it = &rig.turns.entities;
        assert_eq!((it[0].late_turns, it[1].late_turns), (late, 0), "after {ms} ms");
    }
}

/// Turns of a container whose kernel never ends, beside another one, within `end` ms: when they began, and how long
/// the turns after the first one are, µs. It is charged for all of that time.
fn turns_of_the_endless(shares: [u32; 2], end: u64) -> (Vec<u64>, Vec<u64>) {
    let mut rig = Rig::new(&[(1, shares[0], false), (1, shares[1], false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    let (mut began, mut lengths, mut before) = (Vec::new(), Vec::new(), None);
    for ms in 0..end {
        rig.at(ms * MS);
        if let Phase::Closing { index: ContainerIndex(1), .. } = rig.turns.phase {
            rig.report(ms * MS, 1, true, true);
        }
        let holder = rig.holder();
        if holder == Some(0) && before != holder {
            began.push(ms);
            lengths.push(rig.length_us());
        }
        before = holder;
    }
    assert_eq!(rig.used_ms(0), end - 1, "{began:?}");
    // The other one waited for it once, and for its turns.
    let other = rig.used_ms(1) + 2_008 + 9 * began.len() as u64;
    assert!(other >= end, "{other} of {end} ms: {began:?}");
    (began, lengths.split_off(1))
}

/// Its kernel may wait for a launch of another of its processes: it gets turns, however much it is charged
/// meanwhile, and is waited for only once.
#[test]
fn an_overrun_container_has_turns_and_pays_for_them() {
    let (began, _) = turns_of_the_endless([0, 0], 30_000);
    assert_eq!(began[0], 0);
    assert!((2_008..=2_020).contains(&began[1]), "{began:?}");
    assert!(began.len() >= 8, "{began:?}");
    let mut gaps = began.windows(2).map(|two| two[1] - two[0]);
    assert!(gaps.all(|gap| gap >= 2_000), "{began:?}");
}

/// A cap that does not pay for endless work does not keep the container from turns; they come ever more
/// rarely.
#[test]
fn an_overrun_container_has_turns_that_its_cap_does_not_pay_for() {
    let (began, lengths) = turns_of_the_endless([50, 0], 40_000);
    assert_eq!(lengths, [1_000; 5], "{began:?}");
    for two in began[1..].windows(2) {
        assert!(two[1] >= 2 * two[0] - 100, "{began:?}");
    }
}

/// A debt from before a time without turns is forgotten with it, also for a container that was detached
/// meanwhile.
#[test]
fn after_native_no_container_owes_anything() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.at(8 * MS);
    // half a second late, and gone
    rig.report(508 * MS, 0, false, true);
    assert_eq!(rig.holder(), Some(1));
    rig.turns.set_policy(Policy::Native);
    rig.at(509 * MS);
    rig.report(509 * MS, 1, true, true);
    rig.run(600 * MS);
    assert_eq!(rig.turns.mode(), Mode::Open);
    rig.turns.set_policy(Policy::Soft);
    rig.wake(600 * MS, 0);
    let before = [rig.used_ms(0), rig.used_ms(1)];
    rig.run(800 * MS);
    let had = [rig.used_ms(0) - before[0], rig.used_ms(1) - before[1]];
    assert!(had[0].abs_diff(had[1]) <= 16, "{had:?}");
}

/// A turn is extended before its end, so that instant is looked at; but not where no extension is possible.
#[test]
fn a_turn_that_is_not_extended_is_looked_at_once() {
    let due = |rig: &Rig| match rig.turns.phase {
        Phase::Held { end, .. } => rig.turns.deadline().map(|due| end.since(due).0 / 1_000),
        phase => panic!("no turn but {phase:?}"),
    };
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false), (1, 50, false)]);
    rig.wake(0, 2); // its cap makes turns needed
    assert_eq!(due(&rig), Some(500), "alone it goes on");
    rig.wake(MS, 0);
    assert_eq!(due(&rig), Some(0), "the other one will be first");
    rig.report(2 * MS, 0, false, true);
    assert_eq!(due(&rig), Some(500), "and is not there any more");
    // a guard turn of a lower class may end it, one of its own class may not
    rig.wake(2 * MS, 0);
    let guard = rig.turns.guards.due(Class::Normal);
    assert!(guard > Some(rig.turns.now), "{guard:?}");
    assert_eq!(due(&rig), Some(0));
}

/// A clock that jumps while a turn is closed makes no drain longer than the longest wait.
#[test]
fn a_clock_that_jumps_drains_nothing() {
    for read in [false, true] {
        let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
        (0..2).for_each(|who| rig.wake(0, who));
        rig.at(8 * MS);
        assert!(matches!(rig.turns.phase, Phase::Closing { .. }));
        match read {
            true => rig.report(20_000 * MS, 0, true, true),
            false => rig.at(20_000 * MS),
        }
        let tail = rig.turns.entities[0].tail;
        assert_eq!(tail, rig.turns.config.drain_max, "read {read}");
    }
}

/// An overrun container has a turn when turns end: its processes are read after that, and it is not charged
/// once they have drained.
#[test]
fn an_overrun_container_is_read_when_turns_end() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.at(8 * MS);
    rig.at(2_008 * MS);
    assert!(rig.turns.entities[0].overrun.is_some());
    rig.report(2_009 * MS, 1, false, true);
    rig.notes.clear();
    rig.at(2_009 * MS);
    assert_eq!(rig.holder(), Some(0));
    while rig.turns.phase != Phase::Open {
        assert_eq!(rig.notes, []);
        let due = rig.turns.deadline().expect("turns end");
        rig.at(due.0);
    }
    assert_eq!(rig.notes, [Note::Closed(ContainerIndex(0))]);
}

#[test]
fn streams_have_gates_while_turns_are_taken_beside_a_high_container() {
    let gates = |stream_gates: bool, who: &[(u32, u32, bool)]| {
        let mut rig = Rig::with(Config { stream_gates, ..Config::default() }, who);
        (0..who.len()).for_each(|who| rig.wake(0, who));
        (rig.turns.mode(), rig.turns.gates())
    };
    let (normal, high) = ((1, 0, false), (1, 0, true));
    assert_eq!(gates(true, &[normal, high]), (Mode::Turns, true));
    assert_eq!(gates(false, &[normal, high]), (Mode::Turns, false));
    assert_eq!(gates(true, &[normal, normal]), (Mode::Turns, false));
    assert_eq!(gates(true, &[high]), (Mode::Open, false));
}

/// Another kind of time, another turn or a gap ends a recorded stretch, and nothing else does.
#[test]
fn what_is_charged_without_a_change_is_one_stretch() {
    let stretches = |kind, turns: u32, gap: u64| {
        let mut rig = Rig::new(&[(1, 0, false)]);
        rig.turns.set_recording(true);
        let charged = |kind| Some((kind, Duration(3)));
        rig.turns.now = Instant(10);
        rig.turns.note_charge(0, Instant(0), charged(TurnKind::Turn));
        rig.turns.entities[0].turn += turns;
        rig.turns.now = Instant(20);
        rig.turns.note_charge(0, Instant(10 + gap), charged(kind));
        rig.turns.set_recording(false);
        let told = rig.turns.take_recorded();
        told.map(|(_, it)| (it.from.0, it.to.0, it.charged.0)).collect::<Vec<_>>()
    };
    assert_eq!(stretches(TurnKind::Turn, 0, 0), [(0, 20, 6)]);
    assert_eq!(stretches(TurnKind::Drain, 0, 0), [(0, 10, 3), (10, 20, 3)]);
    assert_eq!(stretches(TurnKind::Turn, 2, 0), [(0, 10, 3), (10, 20, 3)]);
    assert_eq!(stretches(TurnKind::Turn, 0, 1), [(0, 10, 3), (11, 20, 3)]);
}

/// Containers that run at the same time without turns share that time, and so do those whose untracked work runs. One
/// that has overrun is charged in full: how much it uses beside others is not known.
#[test]
fn time_without_turns_is_divided_among_those_that_run() {
    let mut rig = Rig::new(&[(1, 0, false); 3]);
    let at_work = Report { attached: true, runnable: true, ..Report::default() };
    (0..3).for_each(|who| rig.turns.report(ContainerIndex(who), at_work));
    rig.turns.entities[0].overrun = Some(Instant(0));
    let billed = |rig: &Rig| {
        let of = |entity| rig.turns.bill(entity, Duration(6)).0;
        rig.turns.entities.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!((rig.turns.mode(), billed(&rig)), (Mode::Open, std::vec![2, 2, 2]));
    rig.turns.report(ContainerIndex(0), Report { runnable: false, ..at_work });
    assert_eq!(billed(&rig), [6, 3, 3]);
    rig.turns.revoke(&mut rig.notes);
    assert_eq!((rig.turns.mode(), billed(&rig)), (Mode::Turns, std::vec![6, 3, 3]));
}
