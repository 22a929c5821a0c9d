//! When a held launch goes, and what is put into its stream, on a clock of the test's own.

use super::*;
use crate::launch::backend::Context;
use crate::launch::estimate::WHOLE;
use crate::launch::fake::in_context;
use crate::launch::gaps::CHANGE_NS;
use crate::launch::releases::BEHIND_MAX_NS;
use crate::launch::slow_path::Ticket;
use crate::launch::window::HELD_MAX_NS;
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::page::{MODE_GATES, RUNNABLE_PARKED};

const LONG: u64 = 60_000_000 * US;

impl Rig {
    /// Kernels of this key and length, measured.
    fn knows(&self, key: u64, ns: u64) {
        let mut lane = self.gate.lane(0);
        lane.fences.estimates.observe(Key(key), u64::from(WHOLE), ns);
    }
    fn tries(&self, key: u64) {
        self.gate.lane(0).fences.estimates.accepted(Key(key));
    }
    /// How long a launch is held, ns.
    fn held(&self, stream: usize, over_bus: bool) -> u64 {
        let before = os::now();
        self.start(1, stream, US, over_bus);
        os::now() - before
    }
    fn leave(&self, ticket: Ticket, stream: Stream) {
        at_work(stream, || self.gate.leave(ticket, true));
    }
    fn enter(&self, key: u64, stream: Stream) -> Option<Ticket> {
        let work = Work { task: Task::launch(Key(key)), stream, over_bus: false };
        at_work(stream, || self.gate.enter(&work))
    }
}

/// A launch goes without a turn when work in flight may wait for it: a copy over the bus soon; another one once the
/// work is stuck, and behind that work in its stream later. No turn comes before a minute is over.
#[test]
fn a_launch_that_work_may_wait_for_goes_at_its_time() {
    // The stuck work is expected to take 100 us, as is one that was never measured.
    let stuck = HELD_MAX_NS + 50_000 * US * 2;
    let minute = LONG;
    for (over_bus, works, parked, stream, held) in [
        (true, true, false, 6, HELD_MAX_NS),
        (true, true, false, 5, HELD_MAX_NS),
        (true, false, false, 6, BEHIND_MAX_NS),
        (true, true, true, 6, BEHIND_MAX_NS),
        (false, true, false, 6, stuck - 50_000 * US),
        (false, true, false, 5, BEHIND_MAX_NS),
        (false, true, true, 6, minute),
        (false, false, false, 6, minute),
    ] {
        let (clock, rig) = Rig::still(MODE_TURNS);
        rig.turn(1, LONG);
        if works {
            rig.launch(9, 5, 2 * LONG);
        }
        rig.turn(2, 0);
        rig.gate.lane(0).parked = parked;
        let page = rig.page();
        clock.plan(minute, || {
            page.lane[0].turn_end_ns.store(2 * LONG, SeqCst);
            page.lane[0].turn.store(3, SeqCst);
            os::wake(&page.lane[0].turn);
        });
        assert_eq!(rig.held(stream, over_bus), held, "{over_bus} {works} {parked} {stream}");
    }
}

/// A full window holds a launch for so long, since work in flight may wait for it.
#[test]
fn a_full_window_holds_a_launch_so_long_and_no_longer() {
    let (_clock, rig) = Rig::still(MODE_TURNS);
    rig.knows(1, US);
    rig.knows(9, 8_000 * US);
    rig.turn(1, LONG);
    [5, 7].into_iter().for_each(|stream| rig.launch(9, stream, LONG));
    rig.turn(1, 0); // over by the clock, but not closed yet
    assert_eq!(rig.held(6, false), HELD_MAX_NS);
}

/// If the GPU was idle when a held launch went, more is admitted from then on.
#[test]
fn a_launch_held_although_the_gpu_was_idle_raises_the_limit() {
    let bound = 500 * US;
    for (work, ends, raises) in [(0, 0, false), (8_000, 5_000, true), (8_000, 20_000, false)] {
        let (_clock, rig) = Rig::still(MODE_TURNS);
        rig.knows(1, 10 * US);
        rig.knows(9, work * US + 1);
        rig.gate.lane(0).limit.drained(LONG, bound);
        rig.turn(1, 0);
        if work > 0 {
            rig.launch(9, 5, ends * US);
        }
        assert_eq!(rig.held(5, false) > 0, work > 0);
        let mut lane = rig.gate.lane(0);
        let before = lane.limit.current(bound);
        lane.limit.drained(0, bound);
        assert_eq!(
            lane.limit.current(bound) > before,
            raises,
            "{work} us, which ends after {ends}"
        );
    }
}

/// A gap ends with the first launch after it, and not with one that comes while others wait.
#[test]
fn a_gap_is_learned_from_once() {
    for (waiting, hold) in [(1, CHANGE_NS), (0, CHANGE_NS / 2)] {
        let (clock, rig) = Rig::still(MODE_TURNS);
        rig.turn(1, LONG);
        rig.launch(1, 5, 50 * US);
        clock.pass(10_000 * US);
        rig.gate.lane(0).waiting = waiting;
        rig.launch(1, 5, 50 * US);
        let lane = rig.gate.lane(0);
        assert_eq!(
            lane.gaps.hold(lane.fences.in_flight.ended(), CHANGE_NS),
            hold,
            "{waiting} wait"
        );
    }
}

/// The first launch of a turn takes parked work along, and wakes the gate thread.
#[test]
fn a_launch_in_a_new_turn_resumes_parked_work() {
    let (clock, rig) = Rig::still(MODE_TURNS);
    rig.turn(3, LONG);
    rig.claims().runnable.store(1 | RUNNABLE_PARKED, SeqCst);
    rig.gate.lane(0).parked = true;
    clock.wakes(&rig.page().futex);
    rig.launch(1, 5, US);
    assert_eq!(clock.wakes(&rig.page().futex), 1);
    assert_eq!(rig.claims().runnable.load(SeqCst), 1);
    assert!(!rig.gate.lane(0).parked);
}

/// A GPU beyond those of the page, and a per-thread stream without a current context.
#[test]
fn a_launch_on_an_unknown_gpu_is_not_gated() {
    let (_clock, rig) = Rig::still(MODE_TURNS);
    rig.turn(1, LONG);
    in_context(None, || assert!(rig.enter(1, Stream::PER_THREAD).is_none()));
    rig.fake.lane.store(LANES_MAX as u32, SeqCst);
    assert!(rig.enter(1, Stream(5)).is_none());
    rig.gate.stream_made(Stream(5));
    assert_eq!(rig.claims().runnable.load(SeqCst), 0);
}

/// The context of a foreign stream may be gone when the driver's call returns.
#[test]
fn a_launch_whose_context_is_gone_is_not_inside_the_driver() {
    let (_clock, rig) = Rig::still(MODE_TURNS);
    rig.turn(1, LONG);
    rig.fake.gpu().elsewhere.insert(7, (Context(2), 0));
    let ticket = rig.enter(1, Stream(7)).expect("tracked");
    assert_eq!(rig.gate.lane(0).fences.in_flight.inside(), 1);
    rig.fake.gpu().lost = true;
    rig.leave(ticket, Stream(7));
    assert!(rig.gate.lane(0).fences.in_flight.empty());
}

/// Without turns a launch is tracked every five milliseconds.
#[test]
fn without_turns_some_launches_are_tracked() {
    let (clock, rig) = Rig::still(MODE_OPEN);
    let tracked = [0, 1, 5_000_000 - 2, 1, 1].map(|ns| {
        clock.pass(ns);
        let ticket = rig.enter(1, Stream(5));
        ticket.map(|ticket| rig.leave(ticket, Stream(5))).is_some()
    });
    assert_eq!(tracked, [true, false, false, true, false]);
}

/// The events in a stream: a fence behind each launch into a per-thread stream, whose end no other thread can query; a
/// base in front of the first launch like one before; a fence between known kernels and one to be measured. With a gate
/// in front of it, a launch has its base behind the gate.
#[test]
fn events_are_put_where_they_are_needed() {
    let (known, tried) = (1, 2);
    for (mode, stream, keys, recorded) in [
        (MODE_TURNS, Stream(5), [known, known], 1),
        (MODE_TURNS, Stream::PER_THREAD, [known, known], 1 + 2),
        (MODE_TURNS, Stream(5), [known, tried], 1 + 1 + 1),
        (MODE_GATES, Stream(5), [known, known], 1),
    ] {
        let (_clock, rig) = Rig::still(mode);
        rig.knows(known, US);
        rig.tries(tried);
        rig.turn(1, LONG);
        keys.into_iter().for_each(|key| rig.launch(key, stream.0, US));
        assert_eq!(rig.fake.gpu().recorded, recorded, "{stream:?} {keys:?} in mode {mode}");
    }
}
