//! The model on a device of its own, with a clock the test moves.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;

/// A piece of work with its start and its end; one that was taken back has none.
struct Piece {
    context: ContextId,
    work: Work,
    times: Option<(Nanos, Nanos)>,
}

/// A device whose contexts' queues run side by side, each in order.
#[derive(Default)]
struct Clockwork {
    now: Cell<Nanos>,
    all: RefCell<Vec<Piece>>,
    room: Cell<Option<usize>>,
}

impl Ring for Clockwork {
    fn now(&self) -> Nanos {
        self.now.get()
    }
    fn submit(&self, context: ContextId, work: Work) -> Result<Seq, DeviceError> {
        let mut all = self.all.borrow_mut();
        let end = |piece: &Piece| piece.times.map_or(0, |(_, end)| end);
        let pending = all.iter().filter(|piece| end(piece) > self.now.get()).count();
        if self.room.get().is_some_and(|room| pending >= room) {
            return Err(DeviceError::QueueFull);
        }
        let before = |piece: &&Piece| (piece.context, piece.work.queue) == (context, work.queue);
        let behind = all.iter().filter(before).map(end).max().unwrap_or(0);
        let awaited = work.after.map_or(0, |(_, seq)| end(&all[seq.0 as usize]));
        let start = behind.max(awaited).max(self.now.get());
        all.push(Piece { context, work, times: Some((start, start + work.duration_ns)) });
        Ok(Seq(all.len() as u64 - 1))
    }
    fn recall(&self, context: ContextId, from: Seq) -> Recalled {
        let mut taken = Vec::new();
        for (at, piece) in self.all.borrow_mut().iter_mut().enumerate().skip(from.0 as usize) {
            let begun = piece.times.is_some_and(|(start, _)| start < self.now.get());
            if !begun && piece.context == context {
                piece.times = None;
                taken.push(Seq(at as u64));
            }
        }
        Recalled(taken)
    }
    fn status(&self, _: ContextId, seq: Seq) -> Status {
        match self.all.borrow()[seq.0 as usize].times {
            Some((start_ns, end_ns)) if end_ns <= self.now.get() => {
                Status::Done { start_ns, end_ns }
            }
            Some((_, end_ns)) => Status::Pending { earliest_ns: end_ns },
            None => panic!("it was taken back"),
        }
    }
}

const A: u64 = 1;
const B: u64 = 2;

struct World {
    ring: Clockwork,
    model: Model,
    log: Arc<Mutex<Vec<u32>>>,
    /// Host functions that were started and have not returned.
    host: Vec<StreamKey>,
}

impl World {
    fn new() -> Self {
        Self::of(0, false)
    }
    fn of(queues: u32, overlap: bool) -> Self {
        let (ring, model) = (Clockwork::default(), Model::new(queues, overlap));
        Self { ring, model, log: Arc::default(), host: Vec::new() }
    }
    fn stream(&mut self, context: u64, manner: Manner) -> StreamKey {
        let context = ContextId::from_bits(context);
        self.model.create(context, manner, 0).expect("there is room")
    }
    fn push(&mut self, stream: StreamKey, body: Body) -> Mark {
        self.model.push(&self.ring, stream, Vec::new(), body).expect("the stream lives")
    }
    fn kernel(&mut self, stream: StreamKey, ns: Nanos) -> Mark {
        self.push(stream, Body::Work { kind: Kind::Kernel, ns, blocks: 1, effect: None })
    }
    fn note(&mut self, stream: StreamKey, ns: Nanos, number: u32) -> Mark {
        let log = Arc::clone(&self.log);
        let effect: Effect = Box::new(move || {
            log.lock().expect("not poisoned").push(number);
            Ok(())
        });
        self.push(stream, Body::Work { kind: Kind::Copy, ns, blocks: 0, effect: Some(effect) })
    }
    /// Moves the clock to `now` and runs the due effects.
    fn at(&mut self, now: Nanos) -> Vec<u32> {
        self.ring.now.set(now);
        while let Some(due) = self.model.advance(&self.ring) {
            match due {
                Due::Effect(stream, effect) => {
                    let result = effect();
                    self.model.finish(stream, result);
                }
                Due::Host(stream, call) => {
                    call();
                    self.host.push(stream);
                }
            }
        }
        std::mem::take(&mut *self.log.lock().expect("not poisoned"))
    }
    fn record(&mut self, event: EventKey, stream: StreamKey) -> bool {
        self.model.record(&self.ring, event, stream, Vec::new())
    }
    fn event(&mut self) -> EventKey {
        let context = ContextId::from_bits(A);
        self.model.create_event(context, true).expect("there is room")
    }
}

#[test]
fn kernels_follow_each_other_though_nobody_looks() {
    let mut world = World::new();
    let stream = world.stream(A, Manner::NonBlocking);
    let (start, end) = (world.event(), world.event());
    assert!(world.record(start, stream));
    for _ in 0..10 {
        world.kernel(stream, 500_000);
    }
    assert!(world.record(end, stream));
    assert_eq!(world.model.elapsed(start, end), Elapsed::NotReady);
    // Looked at half a second late, the times are still the device's.
    world.at(500_000_000);
    assert_eq!(world.model.elapsed(start, end), Elapsed::Milliseconds(5.0));
    assert_eq!(world.model.next_effect(&world.ring), Look::Never);
}

#[test]
fn effects_come_in_order_and_not_before_their_time() {
    let mut world = World::new();
    let stream = world.stream(A, Manner::NonBlocking);
    world.kernel(stream, 100);
    world.note(stream, 50, 1);
    world.kernel(stream, 100);
    world.note(stream, 0, 2);
    assert!(world.at(149).is_empty());
    assert_eq!(world.model.next_effect(&world.ring), Look::At(150));
    assert_eq!(world.at(150), [1]);
    assert_eq!(world.model.next_effect(&world.ring), Look::At(250));
    assert_eq!(world.at(1_000), [2]);
}

#[test]
fn a_held_stream_holds_nobody_else() {
    let mut world = World::new();
    let (held, free) = (world.stream(A, Manner::Blocking), world.stream(A, Manner::Blocking));
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    world.push(held, Body::Wait(Box::new(move || gate.load(Ordering::Relaxed))));
    world.kernel(held, 100);
    world.note(held, 0, 1);
    world.note(free, 100, 2);
    assert_eq!(world.at(1_000), [2]);
    assert_eq!(world.model.next_effect(&world.ring), Look::Poll);
    open.store(true, Ordering::Relaxed);
    // The held operation begins now, not when it was queued.
    assert!(world.at(1_000).is_empty());
    assert_eq!(world.at(1_100), [1]);
}

#[test]
fn a_word_that_is_right_costs_no_time_and_holds_as_soon_as_it_is_not() {
    let mut world = World::new();
    let (gated, other) =
        (world.stream(A, Manner::NonBlocking), world.stream(A, Manner::NonBlocking));
    let open = Arc::new(AtomicBool::new(true));
    let wait = || {
        let gate = Arc::clone(&open);
        Body::Wait(Box::new(move || gate.load(Ordering::Relaxed)))
    };
    let event = world.event();
    for number in 0..4 {
        world.push(gated, wait());
        world.note(gated, 100, number);
    }
    assert!(world.record(event, gated));
    let mark = world.model.pending(event).expect("it was recorded");
    world.model.push(&world.ring, other, vec![mark], Body::nothing());
    world.note(other, 10, 9);
    assert_eq!(world.at(100), [0], "no advance in between");
    // In the middle of the second: that one ends, the others were never there.
    world.ring.now.set(150);
    open.store(false, Ordering::Relaxed);
    assert!(world.at(150).is_empty());
    assert_eq!(world.at(1_000), [1]);
    open.store(true, Ordering::Relaxed);
    assert!(world.at(1_000).is_empty());
    assert_eq!(world.at(1_100), [2]);
    assert_eq!(world.at(1_209), [3]);
    assert_eq!(world.at(1_210), [9]);
    assert_eq!(world.model.next_effect(&world.ring), Look::Never);
}

#[test]
fn a_closed_word_holds_only_what_is_behind_it() {
    let mut world = World::new();
    let (gated, free) =
        (world.stream(A, Manner::NonBlocking), world.stream(A, Manner::NonBlocking));
    let open = Arc::new(AtomicBool::new(true));
    let gate = Arc::clone(&open);
    world.note(gated, 100, 1);
    world.push(gated, Body::Wait(Box::new(move || gate.load(Ordering::Relaxed))));
    world.note(gated, 100, 2);
    world.note(free, 100, 3);
    assert!(world.at(50).is_empty());
    open.store(false, Ordering::Relaxed);
    assert!(world.at(60).is_empty());
    assert_eq!(world.at(100), [1]);
    assert_eq!(world.at(200), [3], "it takes the place of what was taken back");
    assert_eq!(world.at(1_000), Vec::<u32>::new());
    open.store(true, Ordering::Relaxed);
    world.at(2_000);
    assert_eq!(world.at(2_100), [2]);
}

#[test]
fn a_host_function_holds_until_it_has_returned() {
    let mut world = World::new();
    let (stream, other) = (world.stream(A, Manner::Blocking), world.stream(A, Manner::Blocking));
    world.kernel(stream, 100);
    world.push(stream, Body::Host(Box::new(|| {})));
    let last = world.note(stream, 10, 1);
    world.note(other, 10, 2);
    assert!(world.at(99).is_empty() && world.host.is_empty());
    assert_eq!(world.at(200), [2]);
    assert_eq!(world.host, [stream]);
    assert!(world.at(500).is_empty());
    world.model.finish(stream, Ok(()));
    assert!(world.at(500).is_empty());
    assert_eq!(world.at(510), [1]);
    assert!(world.model.reached(last));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let mut world = World::new();
    let legacy = world.stream(A, Manner::Legacy);
    let (blocking, free) =
        (world.stream(A, Manner::Blocking), world.stream(A, Manner::NonBlocking));
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    world.push(blocking, Body::Wait(Box::new(move || gate.load(Ordering::Relaxed))));
    world.note(legacy, 0, 1);
    let second = world.stream(A, Manner::Blocking);
    world.note(second, 0, 2);
    world.note(free, 0, 3);
    assert_eq!(world.at(10), [3]);
    open.store(true, Ordering::Relaxed);
    assert_eq!(world.at(10), [1, 2]);
}

#[test]
fn events_order_streams_of_one_and_of_two_contexts() {
    for context in [A, B] {
        let mut world = World::new();
        let first = world.stream(A, Manner::NonBlocking);
        let second = world.stream(context, Manner::NonBlocking);
        let (event, end) = (world.event(), world.event());
        world.note(first, 100, 1);
        assert!(world.record(event, first));
        let mark = world.model.pending(event).expect("it was recorded");
        world.model.push(&world.ring, second, vec![mark], Body::nothing());
        world.note(second, 50, 2);
        assert!(world.record(end, second));
        // Recorded again elsewhere: the wait keeps its first recording.
        assert!(world.record(event, second));
        assert!(world.at(99).is_empty());
        assert_eq!(world.at(100), [1]);
        assert_eq!(world.at(150), [2]);
        assert_eq!(world.model.elapsed(event, end), Elapsed::Milliseconds(0.0));
    }
}

#[test]
fn a_full_device_queue_delays_and_loses_nothing() {
    let mut world = World::new();
    world.ring.room.set(Some(2));
    let stream = world.stream(A, Manner::NonBlocking);
    for number in 0..6 {
        world.note(stream, 100, number);
    }
    let mut seen = Vec::new();
    for now in (0..10_000).step_by(50) {
        seen.extend(world.at(now));
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn destroyed_streams_end_their_work_and_killed_contexts_do_not() {
    let mut world = World::new();
    let (first, second) = (world.stream(A, Manner::Blocking), world.stream(B, Manner::Blocking));
    world.note(first, 100, 1);
    assert!(world.model.destroy(first) && !world.model.destroy(first));
    assert!(world.model.push(&world.ring, first, Vec::new(), Body::nothing()).is_none());
    let mark = world.note(second, 100, 2);
    let context = ContextId::from_bits(B);
    world.model.set_fault(context, CUresult::ERROR_ILLEGAL_ADDRESS);
    assert!(world.model.reached(mark));
    assert_eq!(world.model.fault(context), Some(CUresult::ERROR_ILLEGAL_ADDRESS));
    assert_eq!(world.at(200), [1]);
    assert!(world.model.streams.get(first).is_none());
    world.model.drop_context(context);
    assert_eq!(world.model.fault(context), None);
    assert!(world.model.stream(second).is_none());
}

#[test]
fn a_wait_holds_up_the_streams_of_its_hardware_queue() {
    let mut world = World::of(2, false);
    let streams = [(); 4].map(|()| world.stream(A, Manner::NonBlocking));
    let foreign = world.stream(B, Manner::NonBlocking);
    let open = Arc::new(AtomicBool::new(false));
    let before = world.kernel(streams[2], 1_000);
    let opens = Arc::clone(&open);
    world.push(streams[0], Body::Wait(Box::new(move || opens.load(Ordering::SeqCst))));
    let [behind, beside, other] =
        [streams[2], streams[1], foreign].map(|it| world.kernel(it, 1_000));
    world.at(10_000);
    // What was queued before the wait has run, and so have the other queue and the other context.
    assert!([before, beside, other].into_iter().all(|mark| world.model.reached(mark)));
    assert!(!world.model.reached(behind));
    open.store(true, Ordering::SeqCst);
    world.at(20_000);
    world.at(30_000);
    assert!(world.model.reached(behind));
}

#[test]
fn with_a_queue_each_no_stream_waits_for_another() {
    let mut world = World::new();
    let streams = [(); 40].map(|()| world.stream(A, Manner::NonBlocking));
    world.push(streams[0], Body::Wait(Box::new(|| false)));
    let marks: Vec<_> = streams[1..].iter().map(|stream| world.kernel(*stream, 10)).collect();
    world.at(1_000);
    assert!(marks.iter().all(|mark| world.model.reached(*mark)));
}

/// An event of another stream holds a queue as a word does, until that stream's work is with the device.
#[test]
fn a_wait_for_an_event_holds_a_hardware_queue() {
    let mut world = World::of(2, false);
    let streams = [(); 3].map(|()| world.stream(A, Manner::NonBlocking));
    let open = Arc::new(AtomicBool::new(false));
    let opens = Arc::clone(&open);
    world.push(streams[1], Body::Wait(Box::new(move || opens.load(Ordering::SeqCst))));
    let event = world.event();
    assert!(world.record(event, streams[1]));
    let after: Vec<_> = world.model.pending(event).into_iter().collect();
    world.model.push(&world.ring, streams[0], after, Body::nothing()).expect("the stream lives");
    let behind = world.kernel(streams[2], 10);
    world.at(1_000);
    assert!(!world.model.reached(behind));
    open.store(true, Ordering::SeqCst);
    world.at(2_000);
    world.at(3_000);
    assert!(world.model.reached(behind));
}

#[test]
fn streams_of_different_queues_run_at_the_same_time() {
    let mut world = World::of(2, true);
    let streams = [(); 3].map(|()| world.stream(A, Manner::NonBlocking));
    let marks = streams.map(|stream| world.kernel(stream, 100));
    world.at(100);
    let reached = marks.map(|mark| world.model.reached(mark));
    assert_eq!(reached, [true, true, false], "the third shares a queue with the first");
    world.at(200);
    assert!(world.model.reached(marks[2]));
}

#[test]
fn the_default_stream_waits_for_all_and_all_for_it() {
    let mut world = World::of(0, true);
    let blocking = [(); 3].map(|()| world.stream(A, Manner::Blocking));
    let (legacy, apart) = (world.stream(A, Manner::Legacy), world.stream(A, Manner::NonBlocking));
    for (stream, ns) in blocking.into_iter().zip([100, 300, 200]) {
        world.kernel(stream, ns);
    }
    let (default, end) = (world.kernel(legacy, 50), world.event());
    assert!(world.record(end, legacy));
    let (after, beside) = (world.kernel(blocking[0], 10), world.kernel(apart, 400));
    world.at(349);
    assert!(!world.model.reached(default));
    world.at(355);
    assert!(world.model.reached(default) && !world.model.reached(after));
    world.at(400);
    assert!(world.model.reached(after) && world.model.reached(beside));
}

/// A word turns wrong behind which one stream's work was placed, while another one's runs.
#[test]
fn work_behind_a_word_is_taken_back_beside_work_that_runs() {
    let mut world = World::of(0, true);
    let [held, waiting, free] = [(); 3].map(|()| world.stream(A, Manner::NonBlocking));
    let open = Arc::new(AtomicBool::new(true));
    let opens = Arc::clone(&open);
    world.kernel(held, 100);
    world.push(held, Body::Wait(Box::new(move || opens.load(Ordering::SeqCst))));
    let behind = world.note(held, 100, 1);
    // This one begins now, and the next one when `held` has done its note.
    let runs = world.note(free, 500, 2);
    let awaits = vec![behind];
    world.model.push(&world.ring, waiting, awaits, Body::nothing()).expect("the stream lives");
    let later = world.note(waiting, 10, 3);
    open.store(false, Ordering::SeqCst);
    assert_eq!(world.at(50), []);
    assert_eq!(world.at(500), [2], "what ran was not taken back");
    assert!(world.model.reached(runs) && !world.model.reached(behind));
    open.store(true, Ordering::SeqCst);
    world.at(1_000);
    assert_eq!(world.at(1_100), [1]);
    assert_eq!(world.at(1_110), [3]);
    assert!(world.model.reached(later));
}

/// The device was past a word when that turned wrong: what another stream has begun behind it is not done again.
#[test]
fn work_that_another_stream_has_begun_is_not_taken_back() {
    let mut world = World::of(0, true);
    let [held, other] = [(); 2].map(|()| world.stream(A, Manner::NonBlocking));
    let open = Arc::new(AtomicBool::new(true));
    let opens = Arc::clone(&open);
    world.push(held, Body::Wait(Box::new(move || opens.load(Ordering::SeqCst))));
    let event = world.event();
    assert!(world.record(event, held));
    let after: Vec<_> = world.model.pending(event).into_iter().collect();
    world.model.push(&world.ring, other, after, Body::nothing()).expect("the stream lives");
    let mark = world.note(other, 100, 1);
    open.store(false, Ordering::SeqCst);
    assert_eq!(world.at(50), []);
    assert_eq!(world.at(100), [1], "as if nothing had changed");
    assert!(world.model.reached(mark));
    let works = |piece: &&Piece| piece.work.duration_ns > 0;
    assert_eq!(
        world.ring.all.borrow().iter().filter(works).count(),
        1,
        "it was given to the device once"
    );
}
