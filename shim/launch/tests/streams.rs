//! Events and gates in captured, destroyed and per-thread streams.

use super::*;
use crate::launch::window::STREAMS_MAX;

/// The gate puts nothing into a stream for a launch that the driver refuses; once such a launch has
/// succeeded, its time is measured.
#[test]
fn a_refused_launch_leaves_nothing_in_its_stream() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 60_000_000 * US);
    let work = Work { task: Task::launch(Key(1)), stream: Stream::LEGACY, over_bus: false };
    for _ in 0..3 {
        let ticket = rig.gate.enter(&work).expect("tracked");
        rig.gate.leave(ticket, false);
    }
    assert_eq!(rig.fake.gpu().recorded, 0);
    rig.launch(1, 0, 50 * US);
    assert_eq!(rig.fake.gpu().recorded, 1, "a fence behind it");
    // Far longer than expected, so that its fence is queried.
    std::thread::sleep(Duration::from_millis(20));
    rig.launch(1, 0, 50 * US);
    assert_eq!(rig.fake.gpu().recorded, 3, "and a base");
}

#[test]
fn launches_under_capture_are_not_gated() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(2, 0);
    rig.fake.gpu().capturing.push(Stream(7));
    rig.launch(1, 7, US);
    assert_eq!(rig.claims().runnable.load(SeqCst), 0);
}

#[test]
fn a_stream_captured_after_a_launch_is_not_used() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 60_000_000 * US);
    for _ in 0..2 {
        rig.launch(1, 7, US);
        eventually("known", || rig.claims().runnable.load(SeqCst) == 0);
    }
    rig.launch(1, 7, US); // Known and short: no fence follows.
    rig.fake.gpu().capturing.push(Stream(7));
    rig.turn(2, 0);
    eventually("given up as finished", || rig.claims().drained.load(SeqCst) == 1);
}

/// Another thread begins to capture the stream of a launch that waits for its turn.
#[test]
fn a_stream_captured_while_its_launch_is_held_gets_no_fences() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 60_000_000 * US);
    rig.launch(1, 7, US); // accepted once, so that a base may precede it
    rig.turn(2, 0);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| rig.launch(1, 7, US));
        eventually("a launch waits", || rig.gate.lane(0).waiting == 1);
        super::super::captures::begin(|| rig.fake.gpu().capturing.push(Stream(7)));
        rig.turn(3, 60_000_000 * US);
        held.join().expect("launches after the grant");
    });
    rig.turn(4, 0);
    eventually("given up as finished", || rig.claims().drained.load(SeqCst) == 3);
}

#[test]
fn destroyed_streams_and_contexts_are_never_used_again() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 60_000_000 * US);
    rig.launch(1, 7, US);
    eventually("known", || rig.claims().runnable.load(SeqCst) == 0);
    rig.launch(1, 7, 3_000 * US);
    at_work(Stream(7), || rig.gate.stream_closing(Stream(7)));
    rig.fake.gpu().dead.push(Stream(7));
    rig.turn(2, 0);
    eventually("drained", || rig.claims().drained.load(SeqCst) == 1);
    assert!(os::now() >= rig.fake.gpu().busy_until);
    rig.turn(3, 60_000_000 * US);
    rig.launch(1, 8, 60_000_000 * US);
    rig.gate.context_closing(super::super::backend::Context(1), || rig.fake.gpu().lost = true);
    rig.turn(4, 0);
    eventually("a dead context counts as drained", || rig.claims().drained.load(SeqCst) == 3);
}

/// Every thread has a stream of its own behind the same handle, and only that thread can fence it.
#[test]
fn per_thread_streams_of_many_threads_drain() {
    let rig = Rig::new(MODE_TURNS);
    for round in 0..5_u32 {
        let turn = 2 * round + 1;
        rig.turn(turn, 60_000_000 * US);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let rig = &rig;
                scope.spawn(move || {
                    for _ in 0..20 {
                        rig.launch(thread | 1, Stream::PER_THREAD.0, 50 * US);
                        rig.start(9, 0, 20 * US, thread % 2 == 0); // And the legacy stream between.
                    }
                });
            }
        });
        rig.turn(turn + 1, 0);
        eventually("drained", || {
            let claims = rig.claims();
            claims.drained.load(SeqCst) == claims.active.load(SeqCst)
        });
        assert!(os::now() >= rig.fake.gpu().busy_until, "reported too early");
    }
}

impl Rig {
    /// Turns begin, with another container's: the process must drain first.
    pub(super) fn turns_begin(&self) {
        self.page().lane[0].mode.store(MODE_TURNS, SeqCst);
        self.page().gated.store(1, SeqCst);
        self.turn(2, 0);
    }
    /// Waits for the drain before the first turn. Returns when it was reported.
    fn drains(&self) -> u64 {
        let claims = self.claims();
        let reported = || claims.active.load(SeqCst) == claims.drained.load(SeqCst);
        eventually("drained", reported);
        os::now()
    }
}

/// A stream may be destroyed with work in it that bypassed the gate; the work goes on.
#[test]
fn untracked_work_of_a_destroyed_stream_drains_before_the_first_turn() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
    [5, 6].into_iter().for_each(|stream| rig.gate.stream_made(Stream(stream)));
    rig.launch(1, 5, 50 * US);
    rig.fake.launch(Stream(5), 3_000_000 * US);
    let end = rig.fake.gpu().busy_until;
    for stream in [5, 6].map(Stream) {
        let recorded = rig.fake.gpu().recorded;
        at_work(stream, || rig.gate.stream_closing(stream));
        rig.fake.gpu().dead.push(stream);
        assert_eq!(rig.fake.gpu().recorded > recorded, stream == Stream(5), "{stream:?}");
    }
    rig.turns_begin();
    assert!(rig.drains() >= end, "the drain was reported too early");
}

/// The gate knows a limited number of streams; destroyed ones do not count.
#[test]
fn a_stream_is_known_however_many_were_destroyed_before() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
    for stream in (100..100 + STREAMS_MAX).map(Stream) {
        rig.gate.stream_made(stream);
        at_work(stream, || rig.gate.stream_closing(stream));
    }
    rig.gate.stream_made(Stream(5));
    rig.launch(1, 0, 50 * US);
    rig.fake.launch(Stream(5), 3_000_000 * US);
    let end = rig.fake.gpu().busy_until;
    rig.turns_begin();
    assert!(rig.drains() >= end, "the drain was reported too early");
}
