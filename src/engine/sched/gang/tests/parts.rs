//! What one GPU's turns answer to gangs and do for them, each in the smallest state that shows it.

use std::vec::Vec;

use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};
use gpuslice_wire::waits::WaitCause;

use super::super::super::entity::Virtual;
use super::super::super::pick::Choice;
use super::super::super::starvation::GuardTurn;
use super::super::super::tests::Rig;
use super::super::super::untracked::Untracked;
use super::super::super::{Note, Phase};
use super::super::member::{Free, Kept};
use super::super::{Member, Turns};
use super::ms;
use crate::Late;
use crate::index::ContainerIndex;

const FIRST: ContainerIndex = ContainerIndex(0);
const SECOND: ContainerIndex = ContainerIndex(1);

/// Two containers without shares, of these classes, that have no work.
fn rig(first: Class, second: Class) -> Rig {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (rig.entity(0).class, rig.entity(1).class) = (first, second);
    rig.turns.phase = Phase::Idle;
    rig
}

fn held(index: ContainerIndex, guard: Option<GuardTurn>) -> Phase {
    Phase::Held { index, end: ms(90), guard }
}

fn closing(index: ContainerIndex, reported: bool) -> Phase {
    Phase::Closing { index, closed: ms(10), guard: None, reported }
}

/// The guard turn of `class` is due in a second.
fn puts_off(turns: &mut Turns, class: Class) {
    turns.guards.later(class, ms(1_000));
}

/// A drain is taken to last as long again as it has lasted: from 10 ms to 30 ms, so until 50 ms.
#[test]
fn when_a_gang_could_have_a_gpu() {
    let (now, later, guess) = ((30, true, false), (90, false, false), (50, false, true));
    let guard = Some(GuardTurn { class: Class::BestEffort, began: ms(20) });
    let normal = Class::Normal;
    type Row = (&'static str, Phase, Class, bool, (u64, bool, bool));
    let rows: [Row; 11] = [
        ("open", Phase::Open, normal, true, now),
        ("idle", Phase::Idle, normal, true, now),
        ("its own turn", held(FIRST, None), normal, true, now),
        ("its own drain", closing(FIRST, false), normal, true, now),
        ("another's turn", held(SECOND, None), normal, true, later),
        ("of a lower class", held(SECOND, None), Class::BestEffort, true, now),
        ("which is a guard turn", held(SECOND, guard), Class::BestEffort, true, later),
        ("of a higher class, and a guard turn is due", held(SECOND, None), Class::High, true, now),
        ("and none is due", held(SECOND, None), Class::High, false, later),
        ("another's drain", closing(SECOND, false), normal, true, guess),
        ("of a higher class", closing(SECOND, false), Class::High, true, guess),
    ];
    for (case, phase, other, due, (at, gives_way, guessed)) in rows {
        let mut rig = rig(normal, other);
        (rig.turns.phase, rig.turns.now) = (phase, ms(30));
        if !due {
            puts_off(&mut rig.turns, normal);
        }
        let expected = Free { at: ms(at), gives_way, guessed };
        assert_eq!(rig.turns.free_for(FIRST, normal), expected, "{case}");
    }
    let mut rig = rig(normal, normal);
    rig.turns.now = ms(30);
    rig.entity(1).untracked = Some(Untracked::new(ms(10)));
    let expected = Free { at: ms(50), gives_way: false, guessed: true };
    assert_eq!(rig.turns.free_for(FIRST, normal), expected, "another's work is not tracked");
}

#[test]
fn only_a_holder_of_a_higher_class_is_above() {
    let above = |class: Class| {
        let mut rig = rig(Class::Normal, class);
        rig.turns.phase = held(SECOND, None);
        rig.turns.above(Class::Normal)
    };
    assert_eq!(Class::ALL.map(above), [true, false, false]);
}

/// A gang that takes turns alone from now on has no credit for the time it waited for other GPUs; nor has its pool.
#[test]
fn a_gang_that_ends_forgoes_its_lag() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false), (1, 50, false)]);
    let class = Class::Normal;
    for who in [1, 2] {
        let mut other = rig.turns.entities[who].clone();
        other.start = Virtual::default().after(Duration::from_millis(100), other.weight);
        rig.turns.queues[class as usize].follow(&other);
    }
    let lags = |rig: &Rig| {
        let it = &rig.turns.entities[0];
        let queues = rig.turns.queues(class);
        [(it.start, false), (rig.turns.position(it).0, true)]
            .map(|(tag, upper)| tag < queues.time_of(upper))
    };
    assert_eq!(lags(&rig), [true, true]);
    for joins in [false, true, true] {
        rig.turns.join_gang(FIRST, joins);
        assert_eq!(lags(&rig), [true, true], "{joins}");
    }
    rig.turns.join_gang(FIRST, false);
    assert_eq!(lags(&rig), [false, false]);
}

/// Of gangs, those count that are ready, and the one that has the GPU.
#[test]
fn which_gangs_go_before_a_container() {
    let before = |phase: Phase, ready: bool| {
        let mut rig = rig(Class::Normal, Class::Normal);
        rig.turns.entities.iter_mut().for_each(|it| it.reported.runnable = true);
        let me = rig.entity(0);
        me.start = Virtual::default().after(Duration::from_millis(100), me.weight);
        rig.entity(1).gang = Some(Member::default());
        rig.turns.phase = phase;
        !rig.turns.none_before(FIRST, |_| ready)
    };
    assert!(!before(Phase::Idle, false));
    assert!(before(Phase::Idle, true));
    assert!(before(held(SECOND, None), false));
}

/// Before a gang begins, a turn must have drained: as long as its last drains took, or twice that before a guess.
#[test]
fn a_turn_fits_in_before_a_gang_with_its_drain() {
    let fits = |guessed: bool, overrun: bool| {
        let mut rig = rig(Class::Normal, Class::Normal);
        let (class, index) = (Class::Normal, SECOND);
        rig.turns.demand.kept = Some(Kept { until: ms(10), guessed, class, index });
        rig.entity(0).tail = Duration(ms(2).0);
        rig.entity(0).overrun = overrun.then_some(ms(0));
        rig.turns.fits(&rig.turns.entities[0]).map(|it| Instant(it.0))
    };
    assert_eq!((fits(false, false), fits(true, false)), (Some(ms(8)), Some(ms(6))));
    assert_eq!(fits(true, true), Some(ms(10)), "it is not waited for");
}

/// An extended turn is no new one, begins no new wait, and goes on after its last words.
#[test]
fn a_turn_that_is_extended_stays_the_same_turn() {
    let mut rig = rig(Class::Normal, Class::Normal);
    let state = |rig: &Rig| {
        let it = &rig.turns.entities[0];
        (it.turns, it.gang.and_then(|member| member.extended))
    };
    rig.entity(0).gang = Some(Member::default());
    assert!(!rig.turns.entities[0].gang.expect("a gang").again());
    rig.turns.phase = closing(SECOND, true);
    rig.turns.give(FIRST, Duration(ms(5).0), None);
    assert_eq!(state(&rig), (1, None), "another's turn was closed");
    for (reported, times) in [(true, 1), (false, 2)] {
        rig.turns.phase = closing(FIRST, reported);
        rig.turns.give(FIRST, Duration(ms(5).0), None);
        assert_eq!(state(&rig), (1, Some((ms(10), true, times))), "reported once");
    }
    assert!(rig.turns.entities[0].gang.expect("a gang").again());
    rig.turns.close_held(FIRST, &mut Vec::new());
    assert!(matches!(rig.turns.phase, Phase::Closing { reported: true, .. }));
}

#[test]
fn a_late_gang_is_reported_once_and_overruns_where_it_has_not_drained() {
    let late = Duration(ms(100).0);
    for (drained, overrun) in [(true, None), (false, Some(ms(10)))] {
        let (mut rig, mut notes) = (rig(Class::Normal, Class::Normal), Vec::new());
        rig.entity(0).reported.drained = drained;
        rig.turns.phase = closing(FIRST, false);
        for _ in 0..2 {
            rig.turns.report_late(FIRST, late, &mut notes);
            assert_eq!((rig.turns.entities[0].late_turns, notes.len()), (1, 1));
        }
        rig.turns.pass(FIRST, late, &mut notes);
        assert_eq!((rig.turns.phase, rig.turns.entities[0].overrun), (Phase::Idle, overrun));
        let passed = notes.contains(&Note::Late(FIRST, Late::Overrun, late));
        assert_eq!(passed, !drained);
    }
}

/// A GPU that is kept for a gang of a higher class has time for others in guard turns alone.
#[test]
fn what_goes_while_a_gpu_is_kept() {
    let normal = Class::Normal;
    let kept = |class: Class| Some(Kept { until: ms(10), guessed: false, class, index: SECOND });
    // of the gang's class: whether a guard turn of both classes is due, the choice, and whether it may go first
    type Row = (Option<Class>, bool, Option<bool>, bool);
    let rows: [Row; 7] = [
        (None, true, Some(false), true),
        (Some(Class::High), true, Some(true), false),
        (Some(Class::High), false, Some(false), false),
        (Some(normal), true, Some(false), true),
        (Some(normal), false, Some(false), true),
        (Some(Class::BestEffort), true, Some(false), false),
        (Some(Class::BestEffort), false, Some(false), true),
    ];
    for (class, due, guard, first) in rows {
        let mut rig = rig(normal, normal);
        rig.entity(0).reported.runnable = true;
        rig.turns.demand.kept = class.and_then(kept);
        if !due {
            [normal, Class::BestEffort].into_iter().for_each(|it| puts_off(&mut rig.turns, it));
        }
        let choice = |guard| Choice { index: FIRST, guard };
        assert_eq!(rig.turns.choose(), guard.map(choice), "{class:?} {due}");
        assert_eq!(rig.turns.first(FIRST), first.then(|| choice(false)), "{class:?} {due}");
    }
}

/// A guard turn takes the time that is left, however short.
#[test]
fn a_guard_turn_goes_though_it_does_not_fit_in() {
    let normal = Class::Normal;
    let mut rig = rig(normal, normal);
    rig.entity(0).reported.runnable = true;
    rig.turns.demand.kept =
        Some(Kept { until: ms(0), guessed: false, class: Class::High, index: SECOND });
    rig.turns.grant();
    let end = ms(0).plus(rig.turns.config.turn_min);
    let guard = Some(GuardTurn { class: normal, began: ms(0) });
    assert_eq!(rig.turns.phase, Phase::Held { index: FIRST, end, guard });
}

/// A lower class interrupts a higher one when its guard turn is due: by a container alone, or by a gang.
#[test]
fn which_guard_turns_wait() {
    let waits = |second: Class, holder: Class, due: bool, gang: bool| {
        let mut rig = rig(holder, second);
        match gang {
            true => rig.turns.demand.pressed = Some(second),
            false => rig.entity(1).reported.runnable = true,
        }
        if !due {
            puts_off(&mut rig.turns, second);
        }
        rig.turns.guard_waits(holder)
    };
    for gang in [false, true] {
        let rows = [
            (Class::BestEffort, Class::Normal, true, true),
            (Class::BestEffort, Class::Normal, false, false),
            (Class::Normal, Class::Normal, true, false),
            (Class::Normal, Class::BestEffort, true, false),
        ];
        for (second, holder, due, expected) in rows {
            assert_eq!(
                waits(second, holder, due, gang),
                expected,
                "{second} {holder} {due} {gang}"
            );
        }
    }
}

/// Ten milliseconds of a gang on one GPU, or of a container alone: waiting for another one, for its other GPUs, or a
/// change of turns.
#[test]
fn what_a_gangs_time_is_called() {
    #[derive(Debug, PartialEq, Eq)]
    enum Is {
        Waiting,
        Gang,
        HandOver,
    }
    let kept = |index| Some(Kept { until: ms(10), guessed: false, class: Class::Normal, index });
    let other = held(SECOND, None);
    let rows = [
        (true, other, None, Some(FIRST), Is::Gang),
        (true, other, None, Some(SECOND), Is::Waiting),
        (false, other, None, Some(FIRST), Is::Waiting),
        (true, Phase::Idle, kept(SECOND), None, Is::Waiting),
        (true, Phase::Idle, kept(FIRST), None, Is::Gang),
        (true, Phase::Idle, None, None, Is::Gang),
        (false, Phase::Idle, kept(SECOND), None, Is::Waiting),
        (false, Phase::Idle, None, None, Is::HandOver),
    ];
    for (gang, phase, kept, fits_before, expected) in rows {
        let mut rig = rig(Class::Normal, Class::Normal);
        rig.entity(0).reported.runnable = true;
        rig.entity(0).gang = gang.then(Member::default);
        (rig.turns.phase, rig.turns.demand.kept) = (phase, kept);
        rig.turns.fits_before = fits_before;
        rig.pass(ms(10).0);
        let time = &rig.turns.entities[0].time;
        if kept.is_some_and(|it| it.index == SECOND) {
            let of_gangs = time.waits.table().by_cause()[WaitCause::Gang as usize];
            assert_eq!(of_gangs, 10_000_000, "kept for a gang");
        }
        let is = match (time.waiting().0, time.gang.0, time.handover.0) {
            (10_000_000, 0, 0) => Is::Waiting,
            (0, 10_000_000, 0) => Is::Gang,
            (0, 0, 10_000_000) => Is::HandOver,
            other => panic!("{other:?}"),
        };
        assert_eq!(is, expected, "{gang} {phase:?} {kept:?} {fits_before:?}");
    }
}
