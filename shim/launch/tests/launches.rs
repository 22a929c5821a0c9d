//! What the gate does before and after the driver's call.

use super::*;
use crate::daemon::fake::in_child;
use crate::launch;
use crate::launch::backend::Context;
use crate::launch::fake::in_context;
use crate::launch::fences::StreamId;
use gpuslice_nvabi::types::{CU_STREAM_LEGACY, CUfunction, CUresult, CUstream};

/// The functions that the hooks call: the gate of the process, of which there is one.
#[test]
fn a_launch_through_the_process_s_gate_is_tracked_if_the_driver_accepted_it() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 60_000_000 * US);
    let (fake, null) = (rig.fake, (CUstream(std::ptr::null_mut()), launch::DefaultStream::Legacy));
    let function = CUfunction(std::ptr::null_mut());
    let call = |result: CUresult| {
        let work = Work::kernel(function, [1; 3], [1; 3], 0, null);
        at_work(Stream::LEGACY, || launch::launch(fake, work, || result))
    };
    assert!(!launch::takes_turns());
    launch::watch(fake); // memory alone starts the gate thread
    assert_eq!(fake.threads.load(SeqCst), 1);
    assert_eq!(call(CUresult::ERROR_INVALID_VALUE), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(fake.gpu().recorded, 0);
    assert!(launch::takes_turns() && !launch::open());
    assert_eq!(call(CUresult::SUCCESS), CUresult::SUCCESS);
    assert_eq!(fake.gpu().recorded, 1, "the fence of an unknown kernel");
    assert_eq!(rig.claims().launches.load(SeqCst), 2);
    // The turns end.
    rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
    rig.page().lane[0].mode.store(MODE_OPEN, SeqCst);
    rig.page().gated.store(0, SeqCst);
    assert_eq!(call(CUresult::SUCCESS), CUresult::SUCCESS);
    assert!(launch::open() && launch::open_to_graphs() && !launch::takes_turns());
    launch::meter_graphs();
    assert!(launch::open() && !launch::open_to_graphs());
    streams_are_known_until_the_process_ends(fake);
}

fn streams_are_known_until_the_process_ends(fake: &'static Fake) {
    let stream = CUstream(std::ptr::without_provenance_mut(0x700));
    let stream_id = StreamId { context: Context(1), stream: stream.into(), thread: 0 };
    let gate = launch::existing().expect("made");
    launch::stream_made(fake, stream);
    gate.lane(0).fences.untracked(0);
    assert!(gate.lane(0).fences.busy(stream_id));
    at_work(stream.into(), || launch::stream_closing(stream));
    assert!(!gate.lane(0).fences.busy(stream_id));
    launch::at_exit();
    assert!(*gate.driving.lock().expect("unpoisoned"), "its thread goes on");
    // Here it would also forget the captures of other tests, which go on for ever then.
    assert!(in_child(|| {
        launch::in_child();
        launch::existing().is_none() && !launch::open()
    }));
}

/// The gate thread would contend with the driver's call for the processor.
#[test]
fn the_first_launch_of_a_turn_wakes_the_gate_thread_after_the_call() {
    let rig = Rig::new(MODE_TURNS);
    let work = Work { task: Task::launch(Key(1)), stream: Stream::LEGACY, over_bus: false };
    let wakes = || {
        let ticket = rig.gate.enter(&work).expect("tracked");
        let wakes = ticket.wake.0.is_some();
        rig.gate.leave(ticket, false);
        wakes
    };
    for turn in [1, 3] {
        rig.turn(turn, 60_000_000 * US);
        assert_eq!([wakes(), wakes()], [true, false], "{turn}");
    }
}

/// Without the gate thread no thread would close the word when turns begin.
#[test]
fn the_word_stays_closed_until_the_gate_thread_runs() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
    rig.fake.threadless.store(2, SeqCst);
    let words = [(); 3].map(|()| {
        rig.launch(1, 0, US);
        rig.gate.word.load(SeqCst)
    });
    assert_eq!(words, [CLOSED, CLOSED, OPEN]);
    rig.turns_begin();
    eventually("the word closes", || rig.gate.word.load(SeqCst) == CLOSED);
}

/// The driver takes the context of a kernel of a library from the stream: the current one may be of another GPU, or
/// there may be none.
#[test]
fn a_launch_waits_for_the_turn_of_its_stream_s_gpu() {
    for current in [None, Some(Context(1))] {
        let rig = Rig::new(MODE_OPEN);
        rig.page().lanes.store(2, SeqCst);
        rig.page().gated.store(1, SeqCst);
        rig.page().lane[1].mode.store(MODE_TURNS, SeqCst);
        rig.page().lane[1].turn.store(2, SeqCst);
        rig.fake.gpu().elsewhere.insert(7, (Context(2), 1));
        std::thread::scope(|scope| {
            let held = scope.spawn(|| in_context(current, || rig.launch(1, 7, US)));
            eventually("it waits for GPU 1", || {
                assert!(!held.is_finished(), "it went without a turn, in {current:?}");
                rig.gate.lane(1).waiting == 1
            });
            rig.page().lane[1].turn_end_ns.store(u64::MAX, SeqCst);
            rig.page().lane[1].turn.store(3, SeqCst);
            os::wake(&rig.page().lane[1].turn);
        });
        assert_eq!(rig.fake.gpu().recorded, 1, "the fence of an unknown kernel");
        let client = rig.fake.pages.lock().expect("unpoisoned").client;
        assert_eq!(client.lane[1].active.load(SeqCst), 3);
        assert_eq!(client.lane[0].runnable.load(SeqCst), 0);
    }
}

/// Short kernels are fenced together, but the last ones of a turn are fenced at once.
#[test]
fn long_kernels_and_the_last_ones_of_a_turn_are_fenced() {
    let rig = Rig::new(MODE_TURNS);
    let is_open = || rig.gate.lane(0).fences.in_flight.is_open(0);
    for (key, ns) in [(1, 10 * US), (2, 2_000 * US)] {
        rig.turn(1, 60_000_000 * US);
        for _ in 0..8 {
            rig.launch(key, 5, ns);
            eventually("it is done", || os::now() > rig.fake.gpu().busy_until);
            assert!(ns < 100 * US || !is_open(), "a long one");
        }
        rig.turn(1, 0); // over by the clock, but not closed yet
        rig.launch(key, 5, ns);
        assert!(!is_open(), "the last one");
    }
}

/// Launches on each GPU are to be observed, so one of another GPU does not open the word at once.
#[test]
fn with_several_gpus_the_word_stays_closed_for_a_moment() {
    let (now, long_ago) = (u64::MAX, 0);
    for (lanes, closed, opens) in
        [(1, now, true), (1, long_ago, true), (2, now, false), (2, long_ago, true)]
    {
        let rig = Rig::new(MODE_OPEN);
        rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
        rig.page().lanes.store(lanes, SeqCst);
        rig.gate.closed.store(closed, SeqCst);
        rig.launch(1, 0, US);
        let open = rig.gate.word.load(SeqCst) == OPEN;
        assert_eq!(open, opens, "{lanes} GPUs, closed at {closed}");
    }
}

#[test]
fn a_waiting_launch_looks_at_the_pages_of_a_new_connection() {
    let (rig, again) = (Rig::new(MODE_TURNS), Rig::new(MODE_TURNS));
    let old = &rig.page().lane[0];
    rig.turn(2, 0);
    again.turn(1, 60_000_000 * US);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| rig.launch(1, 0, US));
        eventually("it waits", || rig.gate.lane(0).waiting == 1);
        let pages = *again.fake.pages.lock().expect("unpoisoned");
        *rig.fake.pages.lock().expect("unpoisoned") = pages;
        old.turn_end_ns.store(os::now() + 60_000_000 * US, SeqCst);
        old.turn.store(3, SeqCst);
        os::wake(&old.turn);
        held.join().expect("it launches");
    });
    assert_eq!(again.claims().launches.load(SeqCst), 1);
}

#[test]
fn the_word_is_open_to_graphs_unless_they_need_memory() {
    use launch::word::{METERED, is_open, is_open_to_graphs};
    let states = [CLOSED, OPEN, METERED, OPEN | METERED].map(|word| {
        let word = AtomicU32::new(word);
        (is_open(&word), is_open_to_graphs(&word))
    });
    assert_eq!(states, [(false, false), (true, true), (false, false), (true, false)]);
}

/// A kernel with its grid, block and dynamic memory has a key of its own; a copy says whether it goes over the bus.
#[test]
fn work_says_what_it_is() {
    let null = CUstream(std::ptr::null_mut());
    let of = |stream: CUstream, default| {
        Work::kernel(CUfunction(std::ptr::null_mut()), [1; 3], [1; 3], 0, (stream, default)).stream
    };
    let (legacy, per_thread) = (launch::DefaultStream::Legacy, launch::DefaultStream::PerThread);
    let other = CUstream(std::ptr::without_provenance_mut(0x100));
    let named = [CU_STREAM_LEGACY, null, other]
        .map(|it| [legacy, per_thread].map(|default| of(it, default)));
    let third = Stream(0x100);
    let (default, threads) = (Stream::LEGACY, Stream::PER_THREAD);
    assert_eq!(named, [[default, default], [default, threads], [third, third]]);
    let key = |changed: usize| {
        let n = |at: usize| 2 + u32::from(at == changed);
        let work = Work::kernel(
            CUfunction(std::ptr::null_mut()),
            [n(0), n(1), n(2)],
            [n(3), n(4), n(5)],
            n(6),
            (null, legacy),
        );
        work.task.key.0
    };
    let keys: std::collections::HashSet<u64> = (0..8).map(key).collect();
    assert_eq!(keys.len(), 8);
    let over_bus = |kind| Work::bytes(kind, 64, null, legacy).over_bus;
    let (bus, fill) = (launch::TransferKind::Bus, launch::TransferKind::Fill);
    assert_eq!((over_bus(bus), over_bus(fill)), (true, false));
}

#[test]
fn the_word_is_closed_only_for_turns() {
    use crate::launch::word::{METERED, OPEN, close_for_turns, is_open};
    for (gated, open) in [(0, true), (2, false)] {
        let word = AtomicU32::new(OPEN | METERED);
        assert_eq!(close_for_turns(&word, &AtomicU32::new(gated)), gated);
        assert_eq!((is_open(&word), word.load(SeqCst) & METERED), (open, METERED));
    }
}
