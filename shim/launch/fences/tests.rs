//! Fences in streams, and what is learned from them, with the fake driver.

use super::*;
use crate::launch::estimate::{Estimate, Key, Task, WHOLE};
use crate::launch::fake::{Fake, at_work};

const US: u64 = 1_000;
/// A kernel.
const SHORT: (Task, Estimate) = (Task::launch(Key(1)), Estimate::measured(50 * US));

fn id(context: usize, stream: usize) -> StreamId {
    StreamId { context: Context(context), stream: Stream(stream), thread: 0 }
}

/// Work of 50 µs ended at 100 µs by both clocks, the GPU's 7 ms ahead; the next is launched at 900 µs and
/// ends at `end`.
fn stalled(end: u64, last: StreamIndex) -> Option<u64> {
    let (fake, mut in_flight) = (Fake::new(), InFlight::default());
    for (event, at) in [(1, 100), (2, end)] {
        fake.gpu().events.insert(event, (7_000 + at) * US);
    }
    for (stream_index, at, event) in [(last, 50, 1), (3, 900, 2)] {
        in_flight.launched(at * US, stream_index, SHORT.0, SHORT.1, None);
        in_flight.fence(stream_index, Event(event));
        if event == 1 {
            in_flight.retire(200 * US, |_| Some(Progress::Done));
        }
    }
    let group = in_flight.retire(2_000 * US, |_| Some(Progress::Done));
    stall(fake, &group.expect("done"), Some(Event(1)))
}

#[test]
fn the_stall_is_measured_by_both_clocks() {
    assert_eq!(stalled(950, 3), Some(0));
    assert_eq!(stalled(1_000, 3), Some(50 * US), "another context's");
    assert_eq!(stalled(949, 3), None, "faster than expected");
    assert_eq!(stalled(1_000, 4), None, "another stream's work was the last");
}

#[test]
fn the_stall_of_a_turn_is_counted_once() {
    let (fake, mut fences) = (Fake::new(), Fences::default());
    let index = fences.stream_index(fake, id(1, 7)).expect("room");
    let work = |fences: &mut Fences, number: u64, begin: u64, end: u64| {
        fake.gpu().events.insert(number as usize, (7_000 + end) * US);
        fences.in_flight.launched(begin * US, index, SHORT.0, SHORT.1, None);
        assert_eq!(fences.in_flight.fence(index, Event(number as usize)), None);
        let done = fences.in_flight.retire(2_000 * number * US, |_| Some(Progress::Done));
        fences.learn(fake, done.expect("done"));
        [fences.stalled(), fences.stalled()]
    };
    assert_eq!(work(&mut fences, 1, 50, 100), [0, 0], "no turn begins");
    fences.turn_begins();
    assert_eq!(work(&mut fences, 2, 2_800, 2_900), [50 * US, 0]);
}

#[test]
fn spare_events_have_a_limit() {
    let (fake, mut fences) = (Fake::new(), Fences::default());
    for event in 0..SPARE_MAX + 2 {
        fake.gpu().events.insert(event, 0);
        fences.recycle(fake, Context(1), Event(event));
    }
    assert_eq!((fences.spare.len(), fake.gpu().events.len()), (SPARE_MAX, SPARE_MAX));
}

#[test]
fn an_event_of_a_failed_launch_is_used_again_in_its_context() {
    let (fake, mut fences) = (Fake::new(), Fences::default());
    let [one, two] = [1, 2].map(|it| fences.stream_index(fake, id(it, 7)).expect("room"));
    let base = fences.base(fake, one);
    fences.unused(fake, one, base);
    let events = [base, fences.base(fake, two), fences.base(fake, one)];
    assert_eq!(events, [1, 2, 1].map(|event| Some(Event(event))));
}

#[test]
fn a_destroyed_context_takes_its_work_and_events_along() {
    let (fake, mut fences) = (Fake::new(), Fences::default());
    for it in [1, 2] {
        let index = fences.stream_index(fake, id(it, 7)).expect("room");
        fences.in_flight.launched(0, index, SHORT.0, SHORT.1, None);
        fake.gpu().events.insert(it, 0);
        fences.recycle(fake, Context(it), Event(it));
    }
    fences.drop_context(fake, 0, Context(1));
    assert_eq!([1, 2].map(|it| fences.busy(id(it, 7))), [false, true]);
    assert_eq!(fences.spare, [(Context(2), Event(2))]);
    assert_eq!([1, 2].map(|it| fake.gpu().events.contains_key(&it)), [false, true]);
}

/// The driver may give its handle to a new stream.
#[test]
fn a_destroyed_stream_is_not_one_created_later() {
    let (fake, mut fences) = (Fake::new(), Fences::default());
    let old = fences.stream_index(fake, id(1, 7)).expect("room");
    fences.in_flight.launched(0, old, SHORT.0, SHORT.1, None);
    at_work(Stream(7), || fences.close_streams(fake, 0, false, |it| it.stream == Stream(7)));
    assert!(fences.in_flight.busy(old) && !fences.in_flight.is_open(old));
    assert!(!fences.busy(id(1, 7)));
    assert_ne!(fences.stream_index(fake, id(1, 7)), Some(old));
}

/// As many streams as are tracked, 0 and up; all but the first are idle.
fn full(fake: &Fake) -> Fences {
    let mut fences = Fences::default();
    for stream in 0..STREAMS_MAX {
        assert_eq!(fences.stream_index(fake, id(1, stream)), Some(stream as StreamIndex));
    }
    fences.in_flight.launched(0, 0, SHORT.0, SHORT.1, None);
    fences
}

#[test]
fn a_launch_into_one_stream_too_many_replaces_an_idle_stream() {
    let fake = Fake::new();
    assert_eq!(full(fake).stream_index(fake, id(1, 500)), Some(1));
}

/// Work in a destroyed one is over before it is replaced.
#[test]
fn a_new_stream_replaces_a_destroyed_one_alone() {
    let fake = Fake::new();
    let mut fences = full(fake);
    fences.made(fake, 0, id(1, 500));
    let known = [0, 1].map(|index| fences.stream(index));
    assert_eq!(known, [0, 1].map(|stream| Some(Stream(stream))));
    at_work(Stream(0), || fences.close_streams(fake, 0, false, |it| it.stream == Stream(0)));
    fences.made(fake, 0, id(1, 500));
    assert_eq!([0, 1].map(|index| fences.stream(index)), [500, 1].map(|it| Some(Stream(it))));
}

#[test]
fn a_stream_is_queried_in_its_context_unless_it_is_destroyed_or_another_thread_s() {
    let fake = Fake::new();
    fake.gpu().elsewhere.insert(8, (Context(2), 0));
    let other = StreamId { thread: 3, stream: Stream::PER_THREAD, ..id(1, 0) };
    let gone = StreamId { stream: Stream::GONE, ..id(1, 0) };
    let done = [id(1, 7), id(2, 8), other, gone].map(|it| it.finished(fake).is_some());
    assert_eq!(done, [true, true, false, false]);
    assert_eq!(fake.gpu().misuse, Vec::<&str>::new());
}

/// Two streams run, one is done, and in one a fence tells that it is done.
#[test]
fn each_stream_is_queried_once_while_work_retires() {
    let fake = Fake::new();
    let mut fences = full(fake);
    (0..2).for_each(|stream| fake.launch(Stream(stream), 3_600_000_000 * US));
    for index in 1..4 {
        fences.in_flight.launched(0, index, SHORT.0, SHORT.1, None);
    }
    fences.in_flight.fence(3, Event(1));
    fences.collect(fake, 0, true);
    assert_eq!([0, 1, 2, 3].map(|index| fences.in_flight.busy(index)), [true, true, false, false]);
    assert_eq!(fake.gpu().asked, 3);
}

#[test]
fn work_that_cannot_be_queried_is_over_when_it_is_given_up() {
    let (fake, mut fences) = (Fake::new(), Fences::default());
    let index = fences.stream_index(fake, StreamId { thread: 3, ..id(1, 2) }).expect("room");
    fences.in_flight.launched(0, index, SHORT.0, SHORT.1, None);
    let over = [5_100 * US - 1, 5_100 * US].map(|now| {
        fences.collect(fake, now, true);
        fences.in_flight.empty()
    });
    assert_eq!(over, [false, true]);
}

/// A round ends when more than the distance, here 100, was launched into all streams.
#[test]
fn a_stream_gets_a_gate_in_front_of_its_first_launch_of_a_round() {
    let fake = Fake::new();
    let mut fences = full(fake);
    let launches = [
        (1, 150, true),
        (1, 40, true),
        (1, 60, false),
        (1, 1, true),
        (2, 1, true),
        (2, 98, false),
        (1, 1, true),
        (2, 1, true),
    ];
    for (at, (index, ns, due)) in launches.into_iter().enumerate() {
        let before = fake.gpu().held.len();
        assert!(fences.gate(fake, 0, (index, ns), (0, 100)), "launch {at}");
        assert_eq!(fake.gpu().held.len() > before, due, "launch {at}");
    }
}

/// Launches of kernels of 50 µs each, at 1000 µs and later, and the time from the base to the fence behind both.
#[test]
fn estimates_follow_a_group_whose_launches_were_dense_and_one_kernel_s_upper_bound() {
    let cases = [
        ([1, 1], 100, 200, 75_000),
        ([1, 1], 101, 200, 50_000),
        ([1, 1], 100, 40, 35_000),
        ([1, 2], 100, 200, 56_250),
        ([1, 2], 101, 200, 50_000),
    ];
    for (keys, later, us, expected) in cases {
        let (fake, mut fences) = (Fake::new(), Fences::default());
        let index = fences.stream_index(fake, id(1, 7)).expect("room");
        fences.estimates.observe(Key(1), WHOLE.into(), 50 * US);
        fake.gpu().events.extend([(1, 7_000 * US), (2, (7_000 + us) * US)]);
        for (key, at) in keys.into_iter().zip([0, later]) {
            let (at, task) = ((1_000 + at) * US, Task::launch(Key(key)));
            fences.in_flight.launched(at, index, task, SHORT.1, Some(Event(1)));
        }
        fences.in_flight.fence(index, Event(2));
        let group = fences.in_flight.retire(0, |_| Some(Progress::Done)).expect("done");
        fences.learn(fake, group);
        assert_eq!(fences.estimates.expect(SHORT.0).ns, expected, "{keys:?} {later} {us}");
    }
}
