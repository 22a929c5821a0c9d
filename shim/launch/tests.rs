//! The gate against a fake driver and a test's page, with real threads and real waits.

use super::backend::Stream;
use super::estimate::{Key, Task};
use super::fake::clock::Clock;
use super::fake::{Fake, at_work};
use super::os;
use super::slow_path::{Gate, Work};
use super::word::{CLOSED, OPEN};
use gpuslice_wire::page::{ClientLane, ContainerPage, MODE_OPEN, MODE_TURNS};
use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

mod claims;
mod gates;
mod instants;
mod launches;
mod pauses;
mod streams;

const US: u64 = 1_000;

pub(super) struct Rig {
    pub(super) fake: &'static Fake,
    pub(super) gate: &'static Gate,
}

impl Rig {
    pub(super) fn new(mode: u32) -> Rig {
        let fake = Fake::new();
        let word = Box::leak(Box::new(AtomicU32::new(CLOSED)));
        let rig = Rig { fake, gate: Box::leak(Box::new(Gate::new(fake, word))) };
        rig.page().lane[0].mode.store(mode, SeqCst);
        rig.page().gated.store(u32::from(mode == MODE_TURNS), SeqCst);
        rig
    }
    /// A rig on a clock of the test's own, and without a gate thread.
    pub(super) fn still(mode: u32) -> (Clock, Rig) {
        let clock = Clock::stopped_at(1_000_000 * US);
        let rig = Rig::new(mode);
        rig.gate.stop();
        (clock, rig)
    }
    pub(super) fn page(&self) -> &'static ContainerPage {
        self.fake.pages.lock().expect("unpoisoned").container
    }
    pub(super) fn claims(&self) -> &'static ClientLane {
        &self.fake.pages.lock().expect("unpoisoned").client.lane[0]
    }
    /// A grant or a close by the daemon.
    pub(super) fn turn(&self, turn: u32, ns: u64) {
        let lane = &self.page().lane[0];
        lane.turn_end_ns.store(os::now() + ns, SeqCst);
        lane.turn.store(turn, SeqCst);
        self.page().futex.fetch_add(1, SeqCst);
        os::wake(&lane.turn);
        os::wake(&self.page().futex);
    }
    pub(super) fn launch(&self, key: u64, stream: usize, ns: u64) {
        self.start(key, stream, ns, false);
    }
    fn start(&self, key: u64, stream: usize, ns: u64, over_bus: bool) {
        let work = Work { task: Task::launch(Key(key)), stream: Stream(stream), over_bus };
        if self.gate.word.load(SeqCst) == OPEN {
            return self.fake.launch(work.stream, ns);
        }
        at_work(work.stream, || {
            let ticket = self.gate.enter(&work);
            self.fake.launch(work.stream, ns);
            if let Some(ticket) = ticket {
                self.gate.leave(ticket, true);
            }
        });
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.fake.gpu().misuse, Vec::<&str>::new());
        }
    }
}

/// Waits for a condition that must come true; the limit is far beyond what any machine needs.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// How many rounds a test has for one in which its thread was not late.
const ROUNDS: usize = 5;
/// The idle time of the two tests below.
const IDLE_US: u32 = 300_000;

/// Launches, and judges what it finds then: the word and `runnable`. A thread that needed the idle time for that was
/// late, so that the gate thread may rightly have seen an idle process; the answer is then false.
fn launch_and_look(rig: &Rig, judge: impl Fn(u32, u32)) -> bool {
    let since = os::now();
    rig.launch(1, 0, US);
    let (word, runnable) = (rig.gate.word.load(SeqCst), rig.claims().runnable.load(SeqCst));
    let in_time = os::now() - since < u64::from(IDLE_US) * US;
    if in_time {
        judge(word, runnable);
    }
    in_time
}

#[test]
fn a_single_container_opens_the_word_and_an_idle_process_is_not_runnable() {
    let opens = |word: u32, runnable: u32| assert_eq!((word, runnable), (OPEN, 1));
    let in_time = (0..ROUNDS).any(|_| {
        let rig = Rig::new(MODE_OPEN);
        rig.page().lane[0].idle_us.store(IDLE_US, SeqCst);
        let first = launch_and_look(&rig, opens);
        eventually("runnable is cleared", || rig.claims().runnable.load(SeqCst) == 0);
        assert_eq!(rig.gate.word.load(SeqCst), CLOSED);
        // It rings after it has cleared `runnable`.
        eventually("the daemon is told", || rig.fake.rings.load(SeqCst) >= 2);
        launch_and_look(&rig, opens) && first
    });
    assert!(in_time, "this thread was late in each round");
}

#[test]
fn a_busy_process_stays_runnable() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(IDLE_US, SeqCst);
    let stays =
        |_: u32, runnable: u32| assert_eq!(runnable, 1, "it was cleared between two launches");
    let (mut judged, end) = (0, Instant::now() + Duration::from_millis(1_000));
    while Instant::now() < end {
        judged += u32::from(launch_and_look(&rig, stays));
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(judged > 0, "this thread was late each time");
}

/// The word is open because of one stream; work in another one, which bypassed the gate, is found too.
#[test]
fn work_on_the_fast_path_keeps_the_process_runnable() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(20_000, SeqCst);
    rig.gate.stream_made(Stream(7));
    rig.launch(1, 0, US);
    rig.launch(1, 7, 500_000 * US);
    let end = rig.fake.gpu().busy_until;
    eventually("runnable is cleared", || rig.claims().runnable.load(SeqCst) == 0);
    assert!(os::now() >= end, "with work in flight");
}

#[test]
fn turns_beginning_close_the_word_and_hold_launches() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(10_000_000, SeqCst);
    rig.launch(1, 0, US);
    assert_eq!(rig.gate.word.load(SeqCst), OPEN);
    rig.page().lane[0].mode.store(MODE_TURNS, SeqCst);
    rig.page().gated.store(1, SeqCst);
    rig.turn(2, 0);
    eventually("the word closes", || rig.gate.word.load(SeqCst) == CLOSED);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| rig.launch(1, 0, US));
        eventually("a launch waits", || rig.gate.lane(0).waiting == 1);
        assert!(!held.is_finished());
        rig.turn(3, 5_000 * US);
        held.join().expect("launches after the grant");
    });
    assert_eq!(rig.claims().active.load(SeqCst), 3);
    rig.turn(4, 0);
    eventually("the drain is reported", || rig.claims().drained.load(SeqCst) == 3);
}

#[test]
fn a_drain_is_reported_only_after_the_work_is_done() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 10_000 * US);
    for _ in 0..20 {
        rig.launch(1, 0, 2_000 * US);
    }
    rig.turn(2, 0);
    eventually("the drain is reported", || rig.claims().drained.load(SeqCst) == 1);
    assert!(os::now() >= rig.fake.gpu().busy_until, "reported while work was in flight");
}

#[test]
fn an_idle_process_gives_its_turn_back_and_a_new_launch_claims_it_again() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 60_000_000 * US);
    rig.launch(1, 0, US);
    eventually("runnable is cleared", || rig.claims().runnable.load(SeqCst) == 0);
    assert_eq!(rig.claims().drained.load(SeqCst), 1);
    rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
    rig.gate.stop(); // from here on, no other thread can end it
    rig.launch(1, 0, US);
    assert_eq!(rig.claims().runnable.load(SeqCst), 1);
    assert_ne!(rig.claims().drained.load(SeqCst), 1, "active again, yet reported as drained");
}

/// A kernel longer than the idle time does not end its turn: idling starts at the kernel's end, with turns
/// and without.
#[test]
fn idling_starts_at_the_end_of_the_work() {
    for mode in [MODE_TURNS, MODE_OPEN] {
        let rig = Rig::new(mode);
        rig.page().lane[0].idle_us.store(100_000, SeqCst);
        rig.turn(1, 60_000_000 * US);
        for _ in 0..3 {
            rig.launch(1, 5, 300_000 * US);
            let end = rig.fake.gpu().busy_until;
            eventually("runnable is cleared", || rig.claims().runnable.load(SeqCst) == 0);
            // The end is known from the last check before it, which may be a little earlier.
            assert!(os::now() >= end + 50_000 * US, "too early, in mode {mode}");
        }
    }
}

/// Near a turn's end no more than the window is queued, once the kernel's length is known.
#[test]
fn the_window_limits_the_queue_near_the_end_of_a_turn() {
    let rig = Rig::new(MODE_TURNS);
    rig.page().lane[0].window_us.store(2_000, SeqCst);
    rig.turn(1, 60_000_000 * US);
    for _ in 0..8 {
        rig.launch(1, 0, 1_000 * US);
        eventually("it is done", || os::now() > rig.fake.gpu().busy_until);
    }
    rig.turn(2, 0);
    rig.turn(3, 0); // A turn that is over by the clock but not closed yet.
    for _ in 0..20 {
        rig.launch(1, 0, 1_000 * US);
        let queued = rig.fake.gpu().busy_until.saturating_sub(os::now());
        assert!(queued < 6_000 * US, "{queued} ns in flight with a window of 2 ms");
    }
}

#[test]
fn a_stale_heartbeat_lets_fair_launches_go_and_starts_reconnecting() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(2, 0);
    rig.page().heartbeat_ns.store(1, SeqCst);
    rig.launch(1, 0, US);
    eventually("a reconnect is tried", || rig.fake.reconnects.load(SeqCst) > 0);
}

/// The driver does not hold back every call of a suspended process. A daemon that is gone does not end the wait.
#[test]
fn a_wait_of_a_suspended_process_lasts_until_the_resume() {
    let rig = Rig::new(MODE_OPEN);
    super::wait_for_resume(rig.fake);
    let word = &rig.page().suspended;
    word.store(1, SeqCst);
    rig.page().heartbeat_ns.store(1, SeqCst);
    let fake = rig.fake;
    let held = std::thread::spawn(|| super::wait_for_resume(fake));
    eventually("a reconnect is tried", || fake.reconnects.load(SeqCst) > 1);
    assert!(!held.is_finished());
    word.store(0, SeqCst);
    os::wake(word);
    held.join().expect("no panic");
}

#[test]
fn a_lost_context_does_not_hold_a_turn() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(1, 60_000_000 * US);
    rig.launch(1, 0, 60_000_000 * US);
    rig.fake.gpu().lost = true;
    rig.turn(2, 0);
    eventually("drained", || rig.claims().drained.load(SeqCst) == 1);
}

/// Two containers of two threads each take turns by the protocol of the page: their work never overlaps.
#[test]
fn turns_exclude_each_other() {
    let rigs = [Rig::new(MODE_TURNS), Rig::new(MODE_TURNS)];
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for rig in &rigs {
            for stream in 0..2 {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(SeqCst) {
                        rig.launch(stream as u64 | 1, stream + 10, 150 * US);
                    }
                });
            }
        }
        for round in 0..30_u32 {
            let (mine, other) = (&rigs[round as usize % 2], &rigs[(round as usize + 1) % 2]);
            let turn = round | 1; // 1, 1, 3, 3: each container's own turns
            mine.turn(turn, 3_000 * US);
            std::thread::sleep(Duration::from_millis(3));
            assert!(other.fake.gpu().busy_until <= os::now(), "the other still runs");
            mine.turn(turn + 1, 0);
            let claims = mine.claims();
            eventually("drained", || {
                claims.active.load(SeqCst) != turn || claims.drained.load(SeqCst) == turn
            });
            assert!(mine.fake.gpu().busy_until <= os::now(), "reported too early");
        }
        stop.store(true, SeqCst);
        for rig in &rigs {
            rig.page().lane[0].mode.store(MODE_OPEN, SeqCst);
            rig.page().gated.store(0, SeqCst);
            rig.turn(100, 0);
        }
    });
}

/// A process that becomes idle on one of its GPUs reports that, although it stays busy on the other.
#[test]
fn each_lane_is_runnable_by_itself() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lanes.store(2, SeqCst);
    for lane in 0..2 {
        rig.page().lane[lane].idle_us.store(5_000, SeqCst);
    }
    let runnable = |lane: usize| {
        let client = rig.fake.pages.lock().expect("unpoisoned").client;
        client.lane[lane].runnable.load(SeqCst)
    };
    rig.fake.lane.store(1, SeqCst);
    // The word may be open already because of lane 0; in the end lane 1 is observed too.
    eventually("lane 1 is runnable", || {
        rig.launch(1, 0, US);
        runnable(1) == 1
    });
    rig.fake.lane.store(0, SeqCst);
    eventually("lane 1 is not runnable while lane 0 is busy", || {
        rig.launch(1, 0, US);
        runnable(0) == 1 && runnable(1) == 0
    });
}

/// Work that bypassed the gate on one GPU keeps the process runnable there, although the word stays open for launches
/// on another one. The open word is no proof that no more work follows, so no drain is reported.
#[test]
fn work_on_the_fast_path_of_one_gpu_keeps_it_runnable_while_another_opens_the_word() {
    const SHORT_IDLE_US: u32 = 5_000;
    let in_time = (0..ROUNDS).any(|_| {
        let rig = Rig::new(MODE_OPEN);
        rig.page().lanes.store(2, SeqCst);
        (0..2).for_each(|lane| rig.page().lane[lane].idle_us.store(SHORT_IDLE_US, SeqCst));
        let client = rig.fake.pages.lock().expect("unpoisoned").client;
        let (claims, since) = (&client.lane[1], Cell::new(0));
        rig.fake.lane.store(1, SeqCst);
        eventually("GPU 1 is runnable", || {
            since.set(os::now());
            rig.launch(1, 5, US);
            claims.runnable.load(SeqCst) == 1
        });
        rig.fake.launch(Stream(5), 500_000 * US);
        // Later than that, the gate thread may rightly have seen an idle GPU just before.
        if os::now() - since.get() >= u64::from(SHORT_IDLE_US) * US {
            return false;
        }
        let end = std::mem::take(&mut rig.fake.gpu().busy_until); // GPU 0 runs beside it
        rig.fake.lane.store(0, SeqCst);
        eventually("GPU 1 is not runnable", || {
            rig.launch(1, 0, US);
            claims.runnable.load(SeqCst) == 0
        });
        assert!(os::now() >= end, "with work in flight");
        assert_ne!(claims.active.load(SeqCst), claims.drained.load(SeqCst));
        true
    });
    assert!(in_time, "this thread was late in each round");
}

/// Its launches are not seen while another GPU keeps the word open, so a short time without any tells nothing.
#[test]
fn a_gpu_stays_runnable_for_a_while_though_no_launch_is_seen() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lanes.store(2, SeqCst);
    (0..2).for_each(|lane| rig.page().lane[lane].idle_us.store(60_000_000, SeqCst));
    rig.launch(1, 0, US);
    eventually("the work is over", || os::now() > rig.fake.gpu().busy_until);
    rig.fake.recalls.store(3, SeqCst);
    rig.gate.start_thread();
    eventually("the gate thread has looked", || rig.fake.recalls.load(SeqCst) == 0);
    assert_eq!((rig.gate.word.load(SeqCst), rig.claims().runnable.load(SeqCst)), (OPEN, 1));
}

#[test]
fn a_launch_during_the_start_of_the_gate_thread_starts_no_other() {
    let rig = Rig::new(MODE_OPEN);
    let gate = rig.gate;
    *rig.fake.meanwhile.lock().expect("unpoisoned") = Some(Box::new(|| gate.start_thread()));
    rig.gate.start_thread();
    assert_eq!(rig.fake.threads.load(SeqCst), 1);
}

#[test]
fn a_turn_drains_only_after_the_work_launched_before_turns() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(10_000_000, SeqCst);
    rig.launch(1, 5, 50 * US); // observed, so that its stream is known
    assert_eq!(rig.gate.word.load(SeqCst), OPEN);
    rig.fake.launch(Stream(5), 200_000 * US); // and a launch that bypassed the gate
    // others run beside it
    let free_until = std::mem::take(&mut rig.fake.gpu().busy_until) - 50_000 * US;
    rig.page().lane[0].mode.store(MODE_TURNS, SeqCst);
    rig.page().gated.store(1, SeqCst);
    rig.gate.word.store(CLOSED, SeqCst);
    rig.turn(1, 1_000 * US);
    rig.launch(2, 6, 10 * US);
    rig.turn(2, 0);
    let claims = rig.claims();
    while claims.drained.load(SeqCst) != claims.active.load(SeqCst) {
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(os::now() >= free_until, "the drain was reported too early");
}

/// Work launched without turns drains before the first turn: the daemon increments the word and waits for the
/// report.
#[test]
fn the_open_mode_drains_before_the_first_turn() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(10_000_000, SeqCst);
    rig.launch(1, 5, 50 * US); // observed, so that its stream is known
    let claims = rig.claims();
    let (active, drained) = (&claims.active, &claims.drained);
    assert_ne!(active.load(SeqCst), drained.load(SeqCst));
    rig.fake.launch(Stream(5), 200_000 * US); // and a launch that bypassed the gate
    let free_until = rig.fake.gpu().busy_until - 50_000 * US;
    rig.page().lane[0].mode.store(MODE_TURNS, SeqCst);
    rig.page().gated.store(1, SeqCst);
    rig.turn(2, 0);
    eventually("drained", || active.load(SeqCst) == drained.load(SeqCst));
    assert!(os::now() >= free_until, "the drain was reported too early");
    assert_eq!(rig.gate.word.load(SeqCst), CLOSED);
}

/// A process that is no longer runnable has nothing in flight, including launches that bypassed the gate.
#[test]
fn a_process_without_turns_is_runnable_until_it_has_drained() {
    let rig = Rig::new(MODE_OPEN);
    rig.page().lane[0].idle_us.store(10_000_000, SeqCst);
    rig.launch(1, 5, 50 * US);
    rig.fake.launch(Stream(5), 300_000 * US);
    let free_until = rig.fake.gpu().busy_until - 50_000 * US;
    rig.page().lane[0].idle_us.store(20_000, SeqCst);
    eventually("runnable is cleared", || rig.claims().runnable.load(SeqCst) == 0);
    assert!(os::now() >= free_until, "runnable was cleared too early");
    let claims = rig.claims();
    assert_eq!(claims.active.load(SeqCst), claims.drained.load(SeqCst));
}

#[test]
fn a_recall_that_cannot_be_answered_yet_is_retried() {
    let rig = Rig::new(MODE_OPEN);
    rig.fake.recalls.store(20, SeqCst);
    rig.gate.start_thread();
    let deadline = Instant::now() + Duration::from_secs(60);
    while rig.fake.recalls.load(SeqCst) > 0 {
        assert!(Instant::now() < deadline, "retried too rarely");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A copy over the bus may go without a turn; the process has drained only when it is finished.
#[test]
fn copies_over_the_bus_are_tracked() {
    let in_time = (0..ROUNDS).any(|_| {
        let rig = Rig::new(MODE_TURNS);
        rig.turn(1, 60_000_000 * US);
        rig.start(1, 5, 500_000 * US, true);
        let end = rig.fake.gpu().busy_until;
        rig.turn(2, 0);
        rig.start(1, 6, 20_000 * US, true);
        let drained = rig.claims().drained.load(SeqCst);
        // A second copy after the first one's end comes to a process that has rightly drained.
        if os::now() >= end {
            return false;
        }
        assert_ne!(drained, 1);
        eventually("the drain is reported", || rig.claims().drained.load(SeqCst) == 1);
        assert!(os::now() >= rig.fake.gpu().busy_until, "reported too early");
        true
    });
    assert!(in_time, "this thread was late in each round");
}

/// A call that waited for the GPU returns as the work ends, however long that was expected to take. One that did not
/// wait says nothing about the end.
#[test]
fn the_end_of_work_is_known_from_a_call_that_waited_for_it() {
    for waits in [true, false] {
        let rig = Rig::new(MODE_TURNS);
        rig.gate.stop(); // the gate thread would see the end too
        rig.turn(1, 60_000_000 * US);
        rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
        let since = os::now();
        rig.launch(1, 5, 20_000 * US); // an unknown kernel, which is expected to be far shorter
        let end = rig.fake.gpu().busy_until;
        eventually("it is done", || os::now() > end);
        // A begin that is still to come stands for a call that took no time.
        rig.gate.waited(if waits { since } else { u64::MAX });
        let lane = rig.gate.lane(0);
        assert!(lane.fences.in_flight.empty());
        assert_eq!(lane.fences.in_flight.ended() >= end, waits);
    }
}

/// A launch that was woken for its turn counts as waiting until it goes, however late its thread runs: the gate
/// thread does not end the turn meanwhile.
#[test]
fn a_launch_that_was_just_woken_still_waits() {
    let rig = Rig::new(MODE_TURNS);
    rig.turn(2, 0);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| rig.launch(1, 5, US));
        eventually("it waits", || rig.gate.lane(0).waiting == 1);
        let lane = &rig.page().lane[0];
        // The launch reads the pages before it goes on.
        let pages = rig.fake.pages.lock().expect("unpoisoned");
        lane.turn_end_ns.store(os::now() + 60_000_000 * US, SeqCst);
        lane.turn.store(3, SeqCst);
        os::wake(&lane.turn);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(rig.gate.lane(0).waiting, 1, "it is not counted any more");
        drop(pages);
        held.join().expect("it launches");
    });
    assert_eq!(rig.gate.lane(0).waiting, 0);
}
