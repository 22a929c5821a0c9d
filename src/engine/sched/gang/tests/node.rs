//! Decisions for all GPUs of a gang, each in the smallest state that shows it: a gang of two GPUs, and a container
//! alone on the second one.

use super::super::super::pick::Verdict;
use super::super::super::untracked::Untracked;
use super::super::member::Kept;
use super::super::plan::Rank;
use super::super::{Gang, Node, closure};
use super::*;
use crate::index::ContainerIndex;

const GANG: ContainerIndex = ContainerIndex(0);
const SINGLE: ContainerIndex = ContainerIndex(1);
const BOTH: GpuSet = 0b11;

/// The gang is runnable on both GPUs, which are idle; the other container is of `class` and has no work.
fn rig(class: Class) -> Rig {
    let mut rig = Rig::new(Config::default(), &[16, 16]);
    rig.admit(ask("a", "0,1", GIB)).expect("fits");
    rig.admit(SliceRequest { class, ..ask("b", "1", GIB) }).expect("fits");
    for name in ["a", "b"] {
        rig.attach(name, 0).expect("in");
    }
    for gpu in &mut rig.engine.gpus {
        gpu.turns.phase = Phase::Idle;
        let gang = gpu.turns.find_mut(GANG).expect("on both");
        gang.gang = Some(Default::default());
        (gang.reported.attached, gang.reported.runnable) = (true, true);
        gang.untracked = None;
    }
    rig
}

fn entity(rig: &mut Rig, gpu: usize, index: ContainerIndex) -> &mut Entity {
    rig.engine.gpus[gpu].turns.find_mut(index).expect("on that GPU")
}

fn gang(index: ContainerIndex, gpus: GpuSet) -> Gang {
    Gang { index, gpus, runnable: true, ready: None }
}

/// Does `act` with the node, whose first gang is of these GPUs.
fn with<T>(rig: &mut Rig, gpus: GpuSet, act: impl FnOnce(&mut Node) -> T) -> T {
    let mut gangs = [gang(GANG, gpus)];
    act(&mut Node { gpus: &mut rig.engine.gpus, gangs: &mut gangs, tied: BOTH })
}

fn hold(rig: &mut Rig, gpu: usize) {
    rig.engine.gpus[gpu].turns.phase = Phase::Held { index: GANG, end: ms(500), guard: None };
}

fn close(rig: &mut Rig, gpu: usize, closed: u64) {
    let closed = ms(closed);
    let phase = Phase::Closing { index: GANG, closed, guard: None, reported: false };
    rig.engine.gpus[gpu].turns.phase = phase;
}

#[test]
fn gangs_tie_the_gpus_that_they_share() {
    let gang = |gpus| gang(GANG, gpus);
    assert_eq!(closure(&[gang(0b0011), gang(0b1100)], 0b0001), 0b0011);
    assert_eq!(closure(&[gang(0b0110), gang(0b0011), gang(0b1000)], 0b0001), 0b0111);
    assert_eq!(closure(&[gang(0b0110)], 0b1000), 0b1000);
}

#[test]
fn a_gang_is_of_its_own_gpus() {
    let mut rig = rig(Class::High);
    let second = with(&mut rig, 0b10, |node| node.of(0, |_| true));
    assert_eq!(second, 0b10);
    // on the first GPU alone it would be of the normal class
    entity(&mut rig, 1, GANG).class = Class::High;
    assert_eq!(with(&mut rig, 0b10, |node| node.class(0)), Class::High);
}

#[test]
fn an_early_close_counts_where_the_higher_class_waits() {
    let mut rig = rig(Class::High);
    (0..2).for_each(|gpu| hold(&mut rig, gpu));
    entity(&mut rig, 1, SINGLE).reported.runnable = true;
    let verdict = with(&mut rig, BOTH, |node| node.verdict(GANG, BOTH));
    let early = [0, 1].map(|gpu| entity(&mut rig, gpu, GANG).closed_early);
    assert_eq!((verdict, early), (Verdict::CloseEarly, [0, 1]));
}

/// A gang that has its turn on the first GPU has it on the second one too, unless a container goes before it there.
#[test]
fn a_turn_is_completed_or_closed() {
    let completed = |class: Class, runnable: bool| {
        let mut rig = rig(class);
        hold(&mut rig, 0);
        entity(&mut rig, 1, SINGLE).reported.runnable = runnable;
        with(&mut rig, BOTH, |node| node.complete(0, 0b01, 0b10));
        let phases = [0, 1].map(|gpu| rig.engine.gpus[gpu].turns.phase);
        match phases {
            [Phase::Held { end: first, .. }, Phase::Held { end: second, .. }]
                if first == second =>
            {
                true
            }
            [Phase::Closing { .. }, Phase::Idle] => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(completed(Class::High, false));
    assert!(!completed(Class::High, true));
    assert!(completed(Class::Normal, true), "of its own class none is asked for");
    assert!(!completed(Class::BestEffort, true), "its guard turn is due");
}

/// The wait for a drain is that for the GPU that has not drained.
#[test]
fn a_late_drain_is_reported_where_it_is_late() {
    for (second, late) in [(10, [0, 1]), (60, [0, 0])] {
        let mut rig = rig(Class::Normal);
        close(&mut rig, 0, 10);
        close(&mut rig, 1, second);
        entity(&mut rig, 0, GANG).reported.drained = true;
        entity(&mut rig, 1, GANG).reported.drained = false;
        rig.engine.gpus.iter_mut().for_each(|gpu| gpu.turns.now = ms(111));
        with(&mut rig, BOTH, |node| node.drain(0));
        let turns = [0, 1].map(|gpu| entity(&mut rig, gpu, GANG).late_turns);
        assert_eq!(turns, late, "closed at {second} ms");
    }
}

/// Half of a collective runs on the first GPU. Its other half may have a turn, unless that would be over at once.
#[test]
fn half_a_collective_is_extended_where_that_helps() {
    let extended = |change: fn(&mut Rig)| {
        let mut rig = rig(Class::Normal);
        close(&mut rig, 0, 10);
        entity(&mut rig, 0, GANG).reported.drained = false;
        change(&mut rig);
        with(&mut rig, BOTH, |node| node.extend_at(0))
    };
    assert_eq!(extended(|_| ()), Some(ms(10).plus(EXTEND)));
    assert_eq!(extended(|rig| entity(rig, 0, GANG).reported.drained = true), None);
    assert_eq!(extended(|rig| entity(rig, 1, GANG).reported.runnable = false), None);
    let both_close = |rig: &mut Rig| {
        close(rig, 1, 20);
        entity(rig, 1, GANG).reported.drained = true;
    };
    assert_eq!(extended(both_close), Some(ms(20).plus(EXTEND)));
    assert_eq!(
        extended(|rig| {
            close(rig, 1, 20);
            entity(rig, 1, GANG).reported.drained = true;
            entity(rig, 1, GANG).reported.runnable = false;
            rig.engine.gpus[1].turns.set_policy(Policy::Native);
        }),
        None
    );
}

/// A second gang of both GPUs, and a third of the second GPU alone, both of `class`; those of `waits` are runnable.
fn more(rig: &mut Rig, class: Class, waits: [bool; 2]) -> [Gang; 3] {
    for (name, gpus) in [("c", "0,1"), ("d", "1")] {
        rig.admit(SliceRequest { class, ..ask(name, gpus, GIB) }).expect("fits");
        rig.attach(name, 0).expect("in");
    }
    let all = [gang(GANG, BOTH), gang(ContainerIndex(2), BOTH), gang(ContainerIndex(3), 0b110)];
    for (gang, waits) in all[1..].iter().zip(waits) {
        for gpu in &mut rig.engine.gpus {
            gpu.turns.phase = Phase::Idle;
            if let Some(member) = gpu.turns.find_mut(gang.index) {
                member.gang = Some(Default::default());
                (member.reported.attached, member.reported.runnable) = (true, waits);
            }
        }
    }
    all
}

/// Where higher classes wait, a gang needs a guard turn there, and keeps those of its class. Where only gangs wait,
/// which may not be able to begin, it keeps its place in its queues.
#[test]
fn why_a_gang_may_have_a_turn() {
    let (queue, guard) = (Some(Rank::Queue), Some(Rank::Guard));
    let (high, low) = (Class::High, Class::BestEffort);
    // the other gangs' class, which of them wait, whether the single container does and guard turns are due; the rank,
    // and the GPUs on which guard turns are kept
    type Row = (Class, [bool; 2], bool, bool, Option<Rank>, [bool; 2]);
    let rows: [Row; 11] = [
        (high, [false, false], false, true, queue, [false, false]),
        (high, [false, false], true, true, guard, [false, true]),
        (high, [false, false], true, false, None, [false, true]),
        (high, [true, false], false, true, guard, [true, true]),
        (high, [true, false], false, false, queue, [true, true]),
        (high, [false, true], false, true, guard, [false, true]),
        (high, [true, true], false, true, guard, [true, true]),
        (high, [false, true], true, true, guard, [false, true]),
        (high, [false, true], true, false, None, [false, true]),
        (Class::Normal, [true, true], false, true, queue, [false, false]),
        (low, [true, true], false, true, queue, [false, false]),
    ];
    for (class, waits, single, due, expected, kept) in rows {
        let mut rig = rig(Class::High);
        let mut gangs = more(&mut rig, class, waits);
        entity(&mut rig, 1, SINGLE).reported.runnable = single;
        if !due {
            rig.engine
                .gpus
                .iter_mut()
                .for_each(|gpu| gpu.turns.guards.later(Class::Normal, ms(100)));
        }
        let mut node = Node { gpus: &mut rig.engine.gpus, gangs: &mut gangs, tied: BOTH };
        let case = (class, waits, single, due);
        assert_eq!(node.rank(0, Class::Normal), expected, "{case:?}");
        let demand = [0, 1].map(|gpu| node.gpus[gpu].turns.demand);
        assert_eq!(demand.map(|it| it.guards[Class::Normal as usize]), kept, "{case:?}");
        let looks = demand.map(|it| it.look.is_some());
        assert_eq!(looks, if due { [false, false] } else { kept }, "{case:?}");
    }
}

/// A turn of a gang begins on all its GPUs, or on none.
#[test]
fn when_a_gang_begins() {
    let begins = |rank: Rank, change: fn(&mut Rig)| {
        let mut rig = rig(Class::BestEffort);
        change(&mut rig);
        let begun = with(&mut rig, BOTH, |node| node.begin(0, Class::Normal, rank));
        let phases = [0, 1].map(|gpu| rig.engine.gpus[gpu].turns.phase);
        let length = |end: Instant| end.0 / 1_000_000;
        match (begun, phases) {
            (true, [Phase::Held { end, guard, .. }, Phase::Held { end: other, .. }])
                if end == other =>
            {
                Some((length(end), guard.is_some()))
            }
            (false, _) => None,
            other => panic!("{other:?}"),
        }
    };
    fn untracked(rig: &mut Rig) {
        entity(rig, 1, GANG).untracked = Some(Untracked::new(ms(0)));
    }
    fn keep(rig: &mut Rig) {
        let kept = Kept { until: ms(500), guessed: false, class: Class::Normal, index: SINGLE };
        rig.engine.gpus[1].turns.demand.kept = Some(kept);
    }
    fn waits(rig: &mut Rig) {
        entity(rig, 1, SINGLE).reported.runnable = true;
    }
    let both = |rig: &mut Rig| (untracked(rig), keep(rig)).1;
    let waits_and_untracked = |rig: &mut Rig| (waits(rig), untracked(rig)).1;
    let whole = Config::default().turn_max.0 / 1_000_000;
    assert_eq!(begins(Rank::Queue, |_| ()), Some((whole, false)));
    assert_eq!(begins(Rank::Guard, |_| ()), Some((1, true)));
    assert_eq!(begins(Rank::Queue, untracked), Some((whole, true)), "it is not interrupted");
    assert_eq!(begins(Rank::Queue, keep), Some((whole, false)));
    assert_eq!(begins(Rank::Queue, both), None, "its untracked work delays the other gang");
    assert_eq!(begins(Rank::Queue, waits), None, "a guard turn is due there");
    assert!(begins(Rank::Again, waits).is_some());
    assert!(begins(Rank::Queue, waits_and_untracked).is_some(), "no other may go there");
}

/// The GPUs of a gang that cannot begin are kept for it. Others give way where that lets it begin.
#[test]
fn what_is_kept_for_a_gang() {
    let kept = |change: fn(&mut Rig), before: bool| {
        let mut rig = rig(Class::Normal);
        change(&mut rig);
        let mut taken = [(Instant(0), before); gpuslice_wire::limits::GPUS_MAX];
        with(&mut rig, BOTH, |node| node.keep(0, Class::Normal, &mut taken));
        let demand = rig.engine.gpus[1].turns.demand;
        let kept = demand.kept.expect("kept");
        (kept.until.0 / 1_000_000, kept.guessed, demand.pressed.is_some())
    };
    let held = |rig: &mut Rig| {
        rig.engine.gpus[1].turns.phase = Phase::Held { index: SINGLE, end: ms(90), guard: None };
    };
    let drains = |rig: &mut Rig| {
        let phase = Phase::Closing { index: SINGLE, closed: ms(10), guard: None, reported: false };
        rig.engine.gpus[1].turns.phase = phase;
        rig.engine.gpus.iter_mut().for_each(|gpu| gpu.turns.now = ms(30));
    };
    let first = |rig: &mut Rig| {
        let index = SINGLE;
        let kept = Kept { until: ms(7), guessed: false, class: Class::Normal, index };
        rig.engine.gpus[0].turns.demand.kept = Some(kept);
    };
    assert_eq!(kept(|_| (), false), (0, false, true));
    assert_eq!(kept(|_| (), true), (0, true, true), "a turn before it ends by a guess");
    assert_eq!(kept(held, false), (90, false, false));
    assert_eq!(kept(drains, false), (50, true, false));
    assert_eq!(kept(first, false), (0, false, false), "another gang is first on the first GPU");
}

/// A gang of none of the GPUs is not asked about, and one that does not wait is not called.
#[test]
fn which_gangs_are_called() {
    let called = |gpus: GpuSet, waits: bool| {
        let mut rig = rig(Class::Normal);
        entity(&mut rig, 1, GANG).reported.runnable = waits;
        for gpu in 0..2 {
            entity(&mut rig, gpu, GANG).gang.as_mut().expect("a gang").called = !waits;
        }
        with(&mut rig, gpus, |node| node.plan(false));
        [0, 1].map(|gpu| entity(&mut rig, gpu, GANG).gang.expect("a gang").called)
    };
    assert_eq!(called(BOTH, true), [true, true]);
    assert_eq!(called(BOTH, false), [false, false]);
    assert_eq!(called(0b10, true), [false, true]);
    assert_eq!(called(0b10, false), [true, false]);
    assert_eq!(called(0b100, true), [false, false]);
    // one that is ready on other GPUs stays so
    let mut gangs = [Gang { ready: Some(ms(1)), ..gang(GANG, 0b100) }];
    let mut rig = rig(Class::Normal);
    Node { gpus: &mut rig.engine.gpus, gangs: &mut gangs, tied: BOTH }.plan(false);
    assert_eq!(gangs[0].ready, Some(ms(1)));
}
