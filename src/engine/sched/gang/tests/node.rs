//! Decisions for all GPUs of a gang, each in the smallest state that shows it: a gang of two GPUs, and a container alone
//! on the second one.

use super::super::super::pick::Verdict;
use super::super::{Gang, Node, closure};
use super::*;
use crate::index::ContainerIndex;
use gpuslice_wire::units::Instant;

const GANG: ContainerIndex = ContainerIndex(0);
const SINGLE: ContainerIndex = ContainerIndex(1);
const BOTH: GpuSet = 0b11;

fn ms(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

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
    }
    rig
}

fn entity(rig: &mut Rig, gpu: usize, index: ContainerIndex) -> &mut Entity {
    rig.engine.gpus[gpu].turns.find_mut(index).expect("on that GPU")
}

/// Does `act` with the node.
fn with<T>(rig: &mut Rig, gpus: GpuSet, act: impl FnOnce(&mut Node) -> T) -> T {
    let mut gangs = [Gang { index: GANG, gpus, runnable: true, ready: None }];
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
    let gang = |gpus: GpuSet| Gang { index: GANG, gpus, runnable: true, ready: None };
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
