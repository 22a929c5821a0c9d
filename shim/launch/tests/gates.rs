//! Gates in streams: put at the requested distance; work blocked at them counts as drained.

use super::super::backend::Context;
use super::super::gates::Gates;
use super::*;
use gpuslice_wire::page::{GATE_CLOSED, GATE_OPEN, MODE_GATES, RUNNABLE_PARKED};

/// A rig in a turn that may end at any moment, with gates a third of 1500 µs apart and kernels known to take
/// 500 µs.
fn gated() -> Rig {
    let rig = Rig::new(MODE_GATES);
    rig.page().gated.store(1, SeqCst);
    rig.page().lane[0].window_us.store(1_500, SeqCst);
    rig.turn(1, 60_000_000 * US);
    for _ in 0..8 {
        rig.launch(1, 5, 500 * US);
        eventually("it is done", || os::now() > rig.fake.gpu().busy_until);
    }
    rig
}

impl Rig {
    fn gate(&self, word: u32) {
        self.claims().gate.store(word, SeqCst);
    }
    /// The turn ends, and another container's begins.
    fn close(&self, turn: u32) {
        self.gate(GATE_CLOSED);
        self.turn(turn, 0);
    }
    fn grant(&self, turn: u32) {
        self.gate(GATE_OPEN);
        self.turn(turn, 60_000_000 * US);
    }
    fn reported(&self) -> (bool, u32, u32) {
        let claims = self.claims();
        let parked = claims.runnable.load(SeqCst) & RUNNABLE_PARKED != 0;
        let (active, drained) = (claims.active.load(SeqCst), claims.drained.load(SeqCst));
        (parked, active, drained)
    }
}

#[test]
fn the_distance_between_gates_counts_all_streams() {
    let rig = gated();
    rig.fake.gpu().held.clear();
    for _ in 0..10 {
        rig.launch(1, 5, 500 * US);
        rig.launch(1, 6, 500 * US);
    }
    let held = std::mem::take(&mut rig.fake.gpu().held);
    let of = |stream| held.iter().filter(|it| **it == Stream(stream)).count();
    assert!((9..=11).contains(&of(5)), "{held:?}");
    assert!((9..=11).contains(&of(6)), "{held:?}");
    // Without a container of a higher class there are no gates.
    rig.page().lane[0].mode.store(MODE_TURNS, SeqCst);
    (0..10).for_each(|_| rig.launch(1, 5, 500 * US));
    assert!(rig.fake.gpu().held.is_empty());
}

/// Work queued when the gates close counts as drained, and runs in the next turn although no thread launches.
#[test]
fn work_blocked_at_gates_counts_as_drained_and_runs_in_the_next_turn() {
    let rig = gated();
    rig.gate(GATE_CLOSED);
    for _ in 0..6 {
        rig.launch(1, 5, 500 * US);
    }
    let before = rig.fake.gpu().busy_until;
    rig.close(2);
    eventually("drained", || rig.reported() == (true, 1, 1));
    rig.grant(3);
    eventually("it takes part", || rig.reported().1 == 3);
    eventually("it runs", || rig.fake.gpu().busy_until > before);
    rig.close(4);
    eventually("drained again", || rig.reported() == (false, 3, 3));
    assert!(os::now() >= rig.fake.gpu().busy_until, "reported too early");
}

/// A turn began and ended while no thread of the process ran: the process reports for that turn too.
#[test]
fn an_unseen_turn_is_reported_as_drained() {
    let rig = gated();
    rig.gate(GATE_CLOSED);
    (0..6).for_each(|_| rig.launch(1, 5, 500 * US));
    rig.close(2);
    eventually("drained", || rig.reported() == (true, 1, 1));
    rig.turn(4, 0);
    eventually("drained in the next turn", || rig.reported() == (true, 3, 3));
}

#[test]
fn running_work_is_not_drained_beside_a_blocked_stream() {
    let rig = gated();
    for _ in 0..4 {
        rig.launch(2, 7, 300_000 * US);
        eventually("it is done", || os::now() > rig.fake.gpu().busy_until);
    }
    rig.launch(2, 7, 300_000 * US);
    rig.gate(GATE_CLOSED);
    (0..6).for_each(|_| rig.launch(1, 5, 500 * US));
    rig.close(2);
    let end = rig.fake.gpu().busy_until;
    eventually("drained", || rig.reported() == (true, 1, 1));
    assert!(os::now() >= end, "reported too early");
}

/// A stream that waits for a blocked one makes no progress before the next turn.
#[test]
fn work_far_too_late_beside_gates_counts_as_blocked() {
    let rig = gated();
    // The gate is passed, and the kernel behind it never ends.
    rig.launch(1, 7, 3_600_000_000 * US);
    rig.gate(GATE_CLOSED);
    (0..6).for_each(|_| rig.launch(1, 5, 500 * US));
    rig.close(2);
    eventually("drained", || rig.reported() == (true, 1, 1));
}

#[test]
fn without_stream_waits_there_are_no_gates() {
    let rig = Rig::new(MODE_GATES);
    rig.page().gated.store(1, SeqCst);
    rig.fake.gpu().no_waits = true;
    rig.turn(1, 60_000_000 * US);
    (0..20).for_each(|_| rig.launch(1, 5, 500 * US));
    rig.turn(2, 0);
    eventually("drained", || rig.reported() == (false, 1, 1));
    assert!(os::now() >= rig.fake.gpu().busy_until, "reported too early");
    assert!(rig.fake.gpu().held.is_empty());
    let context = Context(1);
    assert_eq!(rig.gate.gates.word(rig.fake, context, 0), None, "it is asked again");
}

#[test]
fn gates_open_without_a_daemon_and_at_the_end_of_the_process() {
    let rig = gated();
    rig.gate(GATE_CLOSED);
    (0..6).for_each(|_| rig.launch(1, 5, 500 * US));
    rig.close(2);
    eventually("drained", || rig.reported() == (true, 1, 1));
    rig.page().heartbeat_ns.store(1, SeqCst);
    rig.page().futex.fetch_add(1, SeqCst);
    os::wake(&rig.page().futex);
    let gate = &rig.claims().gate;
    eventually("they are open", || gate.load(SeqCst) == GATE_OPEN);
    gate.store(GATE_CLOSED, SeqCst);
    rig.gate.stop();
    assert_eq!(gate.load(SeqCst), GATE_OPEN);
}

/// Destroying a context does not wait for a turn.
#[test]
fn a_context_is_destroyed_without_a_turn() {
    let rig = gated();
    rig.gate(GATE_CLOSED);
    (0..6).for_each(|_| rig.launch(1, 5, 500 * US));
    rig.close(2);
    let context = Context(1);
    rig.gate.context_closing(context, || {
        assert_eq!(rig.claims().gate.load(SeqCst), GATE_OPEN);
    });
    eventually("drained", || rig.reported().2 == 1);
}

#[test]
fn each_lane_has_a_word_of_its_own() {
    let (fake, gates) = (Fake::new(), Gates::default());
    let context = Context(1);
    let [first, second, third] =
        [0, 1, 2].map(|lane| gates.word(fake, context, lane).expect("a page"));
    let size = size_of::<ClientLane>() as u64;
    assert_eq!([second - first, third - second], [size; 2]);
}

/// A driver that refuses once in a context is not asked again there, until that context is gone.
#[test]
fn each_context_has_gates_of_its_own() {
    let (fake, gates) = (Fake::new(), Gates::default());
    let contexts = [1, 2].map(Context);
    let there = || contexts.map(|context| gates.word(fake, context, 0).is_some());
    assert_eq!(there(), [true, true]);
    gates.refused(contexts[0]);
    assert_eq!(there(), [false, true]);
    gates.forget(contexts[1]);
    assert_eq!(there(), [false, true], "pinned anew");
    gates.forget(contexts[0]);
    assert_eq!(there(), [true, true]);
}

/// During a pin the process attaches again, or another thread pins the page for the same context.
#[test]
fn a_page_is_pinned_once_for_each_context_and_attach_and_64_in_all() {
    let (fake, gates): (_, &Gates) = (Fake::new(), Box::leak(Box::default()));
    let gated = move |context| gates.word(fake, Context(context), 0).is_some();
    let others: [Box<dyn FnOnce() + Send>; 2] =
        [Box::new(|| fake.generation.store(2, SeqCst)), Box::new(move || assert!(gated(1)))];
    for (context, other) in others.into_iter().enumerate() {
        *fake.meanwhile.lock().expect("unpoisoned") = Some(other);
        assert_eq!([gated(context), gated(context)], [false, true], "{context}");
    }
    assert_eq!((2..100).filter(|context| gated(*context)).count(), 62);
}
