//! What the gate thread does at which instant.

use super::super::backend::{Context, Event, Stream};
use super::super::estimate::{Estimate, Key, Task};
use super::super::fake::{Fake, clock::Clock};
use super::super::fences::StreamId;
use super::super::gaps::CHANGE_NS;
use super::super::tests::Rig;
use super::super::word::{CLOSED, OPEN};
use super::*;
use gpuslice_wire::page::{GATE_OPEN, MODE_GATES, MODE_TURNS};
use std::sync::atomic::AtomicU32;

const US: u64 = 1_000;

const BEGUN: u64 = 1_000_000 * US;

/// A kernel of 1 ms was launched.
fn at_work() -> Lane {
    let mut lane = Lane::default();
    let (task, expected) = (Task::launch(Key(1)), Estimate::measured(1_000 * US));
    lane.fences.in_flight.launched(BEGUN, 0, task, expected, None);
    assert_eq!(lane.fences.in_flight.fence(0, Event(1)), None);
    lane
}

#[test]
fn the_last_part_of_a_drain_is_watched_for_a_limited_time() {
    let mut lane = at_work();
    let pauses = [0, 800, 920, 939, 940, 1_059, 1_060, 9_000]
        .map(|us| lane.drain_pause(BEGUN + us * US, false) / US);
    assert_eq!(pauses, [500, 140, 30, 30, 0, 0, 30, 30]);
    lane.watched_since = 0;
    assert_eq!(lane.drain_pause(BEGUN, true), 0, "gates may be closed: the end is not known");
}

#[test]
fn a_turn_is_checked_when_its_work_or_its_gap_or_itself_may_end() {
    let words = |idle_us: u64, end_us: u64| LaneFacts {
        mode: MODE_TURNS,
        turn: 1,
        turn_end_ns: BEGUN + end_us * US,
        window_ns: 500 * US,
        idle_ns: idle_us * US,
        heartbeat_ns: BEGUN,
        hard: false,
    };
    let (lane, long, now) = (at_work(), 1_000_000, |us: u64| BEGUN + us * US);
    let pause = |idle_us, us| lane.turn_pause(&words(idle_us, long), now(us), 7_000 * US) / US;
    assert_eq!([pause(2_000, 100), pause(2_000, 900), pause(300, 900)], [900, 500, 300]);
    assert_eq!([pause(2_000, 1_000), pause(300, 1_000), pause(50, 1_000)], [250, 150, 50]);
    let idle = Lane::default();
    let pause = |end_us, rest| idle.turn_pause(&words(2_000, end_us), now(0), rest * US) / US;
    assert_eq!([pause(long, 800), pause(long, 0), pause(long, 7_000)], [800, 50, 5_000]);
    assert_eq!(pause(300, 800), 320, "the turn ends sooner");
}

/// Work without a fence behind it has finished, which only a query of its stream can tell.
#[test]
fn streams_are_queried_only_after_a_pause_in_launches() {
    for (idle_us, pause_us) in [(2_000, 250), (300, 150)] {
        let fake = Fake::new();
        let gate = Gate::new(fake, Box::leak(Box::new(AtomicU32::new(word::CLOSED))));
        let pages = fake.pages();
        let shown = &pages.container.lane[0];
        shown.mode.store(MODE_TURNS, SeqCst);
        shown.turn.store(1, SeqCst);
        shown.turn_end_ns.store(u64::MAX, SeqCst);
        shown.idle_us.store(idle_us, SeqCst);
        pages.client.lane[0].runnable.store(1, SeqCst);
        assert!(pages.claim(0).take(1));
        let mut lane = gate.lane(0);
        let stream_id = StreamId { context: Context(1), stream: Stream(5), thread: 0 };
        let stream_index = lane.fences.stream_index(fake, stream_id).expect("room");
        let (task, short) = (Task::launch(Key(1)), Estimate::measured(10 * US));
        lane.fences.in_flight.launched(BEGUN, stream_index, task, short, None);
        lane.seen = BEGUN;
        drop(lane);
        let is_known = |us: u64| {
            gate.service(&pages, 0, BEGUN + us * US, &mut 1);
            gate.lane(0).fences.in_flight.empty()
        };
        assert_eq!([pause_us - 1, pause_us].map(is_known), [false, true], "{idle_us} us");
    }
}

/// A second, which counts as endless here.
const LONG: u64 = 1_000_000 * US;
const EVENT: usize = 900;

impl Rig {
    /// A kernel in flight in the stream 5, which will take `ns`, as is expected.
    fn runs(&self, ns: u64) {
        let stream_id = StreamId { context: Context(1), stream: Stream(5), thread: 0 };
        let mut lane = self.gate.lane(0);
        let index = lane.fences.stream_index(self.fake, stream_id).expect("room");
        let (now, task) = (os::now(), Task::launch(Key(9)));
        lane.fences.in_flight.launched(now, index, task, Estimate::measured(ns), None);
        assert_eq!(lane.fences.in_flight.fence(index, Event(EVENT)), None);
        self.fake.gpu().events.insert(EVENT, now + ns);
        lane.seen = now;
    }

    /// The gate thread looks at the lane; its pause, ns.
    fn looks(&self, seen_turn: u32) -> u64 {
        self.gate.service(&self.fake.pages(), 0, os::now(), &mut { seen_turn })
    }

    fn told(&self) -> (u32, u32) {
        (self.claims().runnable.load(SeqCst), self.claims().drained.load(SeqCst))
    }
}

/// A lane as the gate thread finds it, in the turn word `turn` of which the thread has seen the begin or not.
struct Found {
    mode: u32,
    turn: u32,
    is_seen: bool,
    runnable: u32,
    /// The turn in which the process took part, and that after which it has reported a drain.
    took: (u32, u32),
    waiting: u32,
    /// Work in flight, ns.
    work: u64,
}

/// Nothing to do: an idle process between turns.
const IDLE: Found = Found {
    mode: MODE_TURNS,
    turn: 2,
    is_seen: true,
    runnable: 0,
    took: (1, 1),
    waiting: 0,
    work: 0,
};
/// A process that holds the turn 3, and nothing in flight.
const HOLDS: Found = Found { turn: 3, runnable: 1, took: (3, 1), ..IDLE };
const PARKED: u32 = 1 | RUNNABLE_PARKED;

/// Each state, with the pause that follows, ns, and what is told to the daemon: whether the process is runnable, and
/// the turn after which it has drained.
#[test]
fn each_state_of_a_lane_has_its_pause_and_its_report() {
    let table: [(&str, Found, u64, (u32, u32)); 14] = [
        ("idle", IDLE, REST_NS, (0, 1)),
        ("a turn was closed", Found { took: (1, 0), ..IDLE }, REST_NS, (0, 1)),
        ("and one follows", Found { is_seen: false, took: (1, 0), ..HOLDS }, REST_NS, (0, 1)),
        ("a turn begins", Found { is_seen: false, ..HOLDS }, BEGUN_NS, (1, 1)),
        ("a launch waits", Found { runnable: 1, waiting: 1, ..IDLE }, LOOK_NS, (1, 1)),
        ("in its turn", Found { waiting: 1, ..HOLDS }, LOOK_NS, (1, 1)),
        ("unseen", Found { is_seen: false, runnable: 1, waiting: 1, ..IDLE }, LOOK_NS, (1, 1)),
        ("it works", Found { work: 10_000 * US, ..HOLDS }, TURN_NS.1, (1, 1)),
        ("beyond its turn", Found { took: (1, 0), work: 10_000 * US, ..IDLE }, DRAIN_NS.1, (0, 0)),
        (
            "up to gates",
            Found { mode: MODE_GATES, took: (1, 0), work: 10_000 * US, ..IDLE },
            0,
            (0, 0),
        ),
        ("without a turn", Found { runnable: 1, work: 10_000 * US, ..IDLE }, DRAIN_NS.1, (1, 1)),
        ("parked", Found { runnable: PARKED, work: 10_000 * US, ..IDLE }, LOOK_NS, (PARKED, 1)),
        ("it goes on", Found { runnable: PARKED, work: 10_000 * US, ..HOLDS }, TURN_NS.1, (1, 1)),
        (
            "at once",
            Found { is_seen: false, runnable: PARKED, work: 10_000 * US, ..HOLDS },
            TURN_NS.1,
            (1, 1),
        ),
    ];
    for (name, found, pause, report) in table {
        let (_clock, rig) = Rig::still(found.mode);
        rig.turn(found.turn, LONG);
        let claims = rig.claims();
        claims.runnable.store(found.runnable, SeqCst);
        claims.active.store(found.took.0, SeqCst);
        claims.drained.store(found.took.1, SeqCst);
        if found.work > 0 {
            rig.runs(found.work);
        }
        let mut lane = rig.gate.lane(0);
        (lane.waiting, lane.parked) = (found.waiting, found.runnable == PARKED);
        drop(lane);
        let seen = if found.is_seen { found.turn } else { 0 };
        assert_eq!((rig.looks(seen), rig.told()), (pause, report), "{name}");
    }
}

/// With nothing in flight the turn is kept for as long as `gaps.rs` says, and not a nanosecond longer.
#[test]
fn a_turn_is_kept_over_a_gap_and_then_given_up() {
    let (clock, rig) = Rig::still(MODE_TURNS);
    rig.turn(1, LONG);
    rig.launch(1, 5, 50 * US); // an unknown kernel: its end counts as that of the guess
    clock.pass(300 * US);
    assert_eq!((rig.looks(1), rig.told().0), (CHANGE_NS - 200 * US, 1));
    clock.pass(CHANGE_NS - 200 * US - 1);
    assert_eq!((rig.looks(1), rig.told().0), (TURN_NS.0, 1));
    clock.pass(1);
    assert_eq!((rig.looks(1), rig.told()), (REST_NS, (0, 1)));
}

/// The GPU may pass a gate just as it closes; work before a gate may wait for work behind one, if it is late.
#[test]
fn work_counts_as_blocked_at_gates_after_a_moment() {
    let (clock, rig) = Rig::still(MODE_GATES);
    let mut lane = rig.gate.lane(0);
    let is_blocked = |lane: &mut Lane| lane.is_blocked(rig.fake, rig.claims(), os::now());
    rig.fake.gpu().events.insert(1, u64::MAX);
    lane.fences.in_flight.gate(os::now(), 0, Some(Event(1)));
    assert!(!is_blocked(&mut lane), "the gate is open");
    rig.claims().gate.store(GATE_CLOSED, SeqCst);
    let blocked = [0, PASSING_NS - 1, 1].map(|ns| {
        clock.pass(ns);
        is_blocked(&mut lane)
    });
    assert_eq!(blocked, [false, false, true]);
    // Work of 100 us in another stream.
    let (task, expected) = (Task::launch(Key(1)), Estimate::measured(100 * US));
    lane.fences.in_flight.launched(os::now(), 1, task, expected, None);
    assert!(!is_blocked(&mut lane), "nobody watches it yet");
    lane.watched_since = os::now();
    let blocked = [0, 200 * US + TIED_NS, PASSING_NS, PASSING_NS].map(|ns| {
        clock.pass(ns);
        is_blocked(&mut lane)
    });
    assert_eq!(blocked, [false, false, false, true]);
    rig.claims().gate.store(GATE_OPEN, SeqCst);
    assert!(!is_blocked(&mut lane));
}

/// Parked work goes on in a turn, without turns, and without a daemon, though the word has changed meanwhile; for a
/// turn that was not seen, a report is owed.
#[test]
fn parked_work_goes_on_when_it_may() {
    let word = 4;
    for (mode, turn, stale, goes, active) in [
        (MODE_TURNS, 3, false, false, 3),
        (MODE_TURNS, 3, true, true, 3),
        (MODE_TURNS, word, false, false, 3),
        (MODE_OPEN, word, false, true, word),
    ] {
        let (_clock, rig) = Rig::still(mode);
        rig.turn(word, 0);
        let pages = rig.fake.pages();
        let mut words = pages.facts(0);
        (words.turn, words.hard) = (turn, true);
        words.heartbeat_ns = if stale { os::now() - 2 * LOOK_NS * 5 } else { u64::MAX };
        let mut lane = rig.gate.lane(0);
        lane.parked = true;
        resume_parked(&mut lane, (rig.claims(), &pages.claim(0)), &words, os::now());
        assert_eq!(lane.parked, !goes, "{turn} in mode {mode}, {stale}");
        assert_eq!(rig.claims().active.load(SeqCst), active, "{turn} in mode {mode}, {stale}");
    }
}

/// A turn that drains late lowers the limit of work in flight, but not one that others have followed.
#[test]
fn a_late_drain_is_learned_from_once() {
    for (turn, learns) in [(2, true), (3, false), (4, false)] {
        let (clock, rig) = Rig::still(MODE_TURNS);
        rig.turn(turn, 0);
        rig.claims().active.store(1, SeqCst);
        clock.pass(5_000 * US);
        rig.looks(0);
        assert_eq!(rig.told().1, 1);
        let lower = rig.gate.lane(0).limit.current(500 * US) < 500 * US;
        assert_eq!(lower, learns, "{turn}");
    }
}

/// A thread that waited for the GPU ends the turn, or wakes the gate thread if that sleeps too long for it; not while
/// another thread waits for the turn, not without turns, and not while work is parked.
#[test]
fn a_wait_that_is_over_ends_the_turn_in_time() {
    let sleeps_until = |later: u64| move |lane: &mut Lane| lane.next_look = os::now() + later;
    type Change = Box<dyn Fn(&mut Lane)>;
    let idle_us = 300;
    let limit = u64::from(idle_us) * US + LATE_NS;
    let table: [(Change, usize); 4] = [
        (Box::new(sleeps_until(limit + 1)), 1),
        (Box::new(sleeps_until(limit)), 0),
        (Box::new(|lane| (lane.waiting, lane.next_look) = (1, u64::MAX)), 0),
        (Box::new(|lane| (lane.parked, lane.next_look) = (true, u64::MAX)), 0),
    ];
    for (at, (change, wakes)) in table.into_iter().enumerate() {
        let (clock, rig) = Rig::still(MODE_TURNS);
        rig.page().lane[0].idle_us.store(idle_us, SeqCst);
        rig.turn(1, LONG);
        rig.launch(1, 5, 50 * US);
        clock.pass(200 * US);
        change(&mut rig.gate.lane(0));
        clock.wakes(&rig.page().futex);
        rig.gate.waited(os::now() - 100 * US);
        assert_eq!(clock.wakes(&rig.page().futex), wakes, "{at}");
        assert_eq!(rig.told().0, 1, "{at}");
    }
    let (clock, rig) = Rig::still(MODE_OPEN);
    rig.launch(1, 5, 50 * US);
    clock.pass(200 * US);
    rig.gate.waited(os::now());
    assert!(!rig.gate.lane(0).fences.in_flight.empty(), "without turns the end is not looked at");
    rig.fake.lane.store(LANES_MAX as u32, SeqCst);
    rig.gate.waited(os::now());
}

/// Without turns the word closes after the idle time. A GPU whose launches are not seen, because another one keeps the
/// word open, is idle after four times that.
#[test]
fn the_open_word_closes_after_the_idle_time() {
    let idle = 20_000 * US;
    for (lanes, seen, open, pause, left) in [
        (1, 0, 5_000 * US, 15_000 * US, (OPEN, 1)),
        (1, 0, idle - 1, 1, (OPEN, 1)),
        (1, 0, idle, idle, (CLOSED, 1)),
        (1, 4 * idle, 5_000 * US, 15_000 * US, (OPEN, 1)),
        (2, 4 * idle - 1, 5_000 * US, 15_000 * US, (OPEN, 1)),
        (2, 4 * idle, 5_000 * US, REST_NS, (OPEN, 0)),
    ] {
        let (_clock, rig) = Rig::still(MODE_OPEN);
        rig.page().lanes.store(lanes, SeqCst);
        rig.claims().runnable.store(1, SeqCst);
        rig.gate.word.store(OPEN, SeqCst);
        rig.gate.opened.store(os::now() - open, Relaxed);
        rig.gate.lane(0).seen = os::now() - seen;
        assert_eq!(rig.looks(0), pause, "{lanes} GPUs, {seen}, {open}");
        assert_eq!((rig.gate.word.load(SeqCst), rig.told().0), left, "{lanes}, {seen}, {open}");
    }
}

/// Runs the gate thread on a clock of its own, while the test acts at these instants, and then stops it.
fn run(rig: &Rig, clock: &Clock, acts: Vec<Box<dyn FnOnce()>>) {
    let (gate, futex) = (rig.gate, &rig.page().futex);
    *gate.driving.lock().expect("unpoisoned") = false;
    let stop: Box<dyn FnOnce()> = Box::new(|| gate.stop());
    for (at, act) in (1..).zip(acts.into_iter().chain([stop])) {
        clock.plan(at * 1_000 * US, move || {
            act();
            os::wake(futex);
        });
    }
    gate.run();
}

/// Threads that wait for a turn are woken once, when turns are no longer taken.
#[test]
fn the_end_of_all_turns_wakes_launches() {
    let (clock, rig) = Rig::still(MODE_TURNS);
    let (turn, page) = (&rig.page().lane[0].turn, rig.page());
    let ends: Box<dyn FnOnce()> = Box::new(|| page.gated.store(0, SeqCst));
    run(&rig, &clock, vec![Box::new(|| ())]);
    assert_eq!(clock.wakes(turn), 0, "turns are taken");
    run(&rig, &clock, vec![ends, Box::new(|| ())]);
    assert_eq!(clock.wakes(turn), 1);
}

/// The next launch of a process that is not runnable must take the slow path.
#[test]
fn the_word_is_open_only_to_a_runnable_process() {
    for (runnable, word) in [(0, CLOSED), (1, OPEN)] {
        let (clock, rig) = Rig::still(MODE_OPEN);
        rig.claims().runnable.store(runnable, SeqCst);
        rig.gate.word.store(OPEN, SeqCst);
        rig.gate.opened.store(os::now(), Relaxed);
        run(&rig, &clock, vec![]);
        assert_eq!(rig.gate.word.load(SeqCst), word, "runnable: {runnable}");
    }
}

/// A recall that cannot be answered now is tried again soon; the thread updates what can wait only in a longer sleep.
#[test]
fn updates_wait_for_a_longer_sleep() {
    for (recalls, waits) in [(0, &[REST_NS][..]), (1, &[RECALL_NS, REST_NS])] {
        let (clock, rig) = Rig::still(MODE_OPEN);
        rig.fake.recalls.store(recalls, SeqCst);
        run(&rig, &clock, vec![]);
        assert_eq!(clock.waits(), waits);
        assert_eq!(rig.fake.settles.load(SeqCst), 1);
    }
}

#[test]
fn a_stopped_gate_thread_queries_nothing() {
    let (_clock, rig) = Rig::still(MODE_TURNS);
    rig.turn(1, LONG);
    rig.launch(1, 5, US);
    rig.turn(2, 0);
    rig.gate.run();
    assert_ne!(rig.told().1, 1);
}
