//! The gate thread: one per process, from the first launch or the first memory credit on.
//!
//! It closes the word when turns begin, reports the process as drained after a turn, clears `runnable` when the
//! process will not launch again soon (`gaps.rs`). A call of the program that waits for the GPU does the last
//! two sooner, see [`Gate::waited`]. The thread also returns recalled memory credit, and notices a daemon that
//! went away. It waits on the page's futex, and never inside the driver. Regular turn changes do not wake it:
//! the first launch of a turn does, after the driver's call, and the thread sleeps no longer than to the turn's
//! end.
//!
//! When the process exits, the driver shuts itself down in an exit handler, and a thread that queries events
//! at that time can crash the process. So the gate's exit handler runs before, and stops the thread. The
//! thread does not exist in a forked child; the child creates a new gate.

use super::backend::{DriverBackend, Pages};
use super::claim::ClaimWords;
use super::os;
use super::slow_path::{Gate, Lane};
use super::turn::LaneFacts;
use super::word;
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::page::{ClientLane, GATE_CLOSED, MODE_OPEN, RUNNABLE_PARKED, may_launch};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{PoisonError, TryLockError};

/// Sleep while no lane needs service.
const REST_NS: u64 = 250_000_000;
/// Sleep while a launch is held or a turn may come: a stale heartbeat must be noticed.
const LOOK_NS: u64 = 50_000_000;
/// Shortest and longest sleep while waiting for the GPU to drain.
const DRAIN_NS: (u64, u64) = (30_000, 500_000);
/// The last part of a drain is watched without sleeping: the GPU is idle until the report, and a sleep ends
/// this much late on many machines. Sleeps follow again if the estimate was wrong.
const WATCH_NS: u64 = 60_000;
/// Number and length of waits for the gate thread to leave the driver when the process ends.
const STOP_LOOKS: u32 = 500;
const STOP_NS: u64 = 100_000;
/// Pause before a recall is tried again while the connection is busy.
const RECALL_NS: u64 = 500_000;
/// Sleeps of at least this length leave time for background updates.
const SETTLE_NS: u64 = 1_000_000;
/// Shortest and longest sleep in the middle of the process's own turn.
const TURN_NS: (u64, u64) = (50_000, 5_000_000);
/// Time from the first sight of a turn to the first check in it: the launches need the lane's lock more.
const BEGUN_NS: u64 = 200_000;
/// A call that took this long has waited for the GPU.
const BLOCKED_NS: u64 = 5_000;
/// The gate thread may end a turn this much late.
const LATE_NS: u64 = 100_000;
/// Shortest pause between checks while work is in flight that is not due.
const CHECK_NS: u64 = 500_000;
/// Streams are queried only after a pause of this length in launches: a thread inside a launch may hold a lock
/// that a query would wait for.
const ASK_NS: u64 = 250_000;
/// The GPU may have read a gate just before it closed, and pass it only now.
const PASSING_NS: u64 = 10_000;
/// Work that runs while other streams are blocked at gates, and exceeds twice its expected time by this much,
/// is assumed to wait for them.
const TIED_NS: u64 = 1_000_000;

impl Lane {
    /// Time with nothing in flight, ns; 0 while work is. It starts at the end of the last work and not at its
    /// launch, since a program that waits for its kernel launches the next one after that.
    fn idle(&self, now: u64) -> u64 {
        let in_flight = &self.fences.in_flight;
        match in_flight.empty() {
            true => now.saturating_sub(self.seen.max(in_flight.ended())),
            false => 0,
        }
    }

    /// How long the process keeps its turn with nothing in flight, ns.
    fn hold(&self, words: &LaneFacts) -> u64 {
        self.gaps.hold(self.fences.in_flight.ended(), words.idle_ns)
    }

    /// Pause before the next check whether the GPU has drained; 0 for none. With gates the pause is short.
    fn drain_pause(&mut self, now: u64, gates: bool) -> u64 {
        let in_flight = &self.fences.in_flight;
        let left = if gates || in_flight.due(now) { 0 } else { in_flight.outstanding(now) };
        if left > WATCH_NS {
            return (left - WATCH_NS).clamp(DRAIN_NS.0, DRAIN_NS.1);
        }
        if self.watched_since == 0 {
            self.watched_since = now;
        }
        let fresh = now.saturating_sub(self.watched_since) < 2 * WATCH_NS;
        if fresh { 0 } else { DRAIN_NS.0 }
    }

    /// Pause before the next check in the process's own turn, of which `rest` is left if nothing is in flight, ns.
    fn turn_pause(&self, words: &LaneFacts, now: u64, rest: u64) -> u64 {
        let in_flight = &self.fences.in_flight;
        let pause = match (in_flight.empty(), in_flight.due(now)) {
            (true, _) => rest,
            // The end is known only as exactly as the last check before it.
            (false, true) => ASK_NS.min(words.idle_ns / 2),
            (false, false) => in_flight.outstanding(now).max(CHECK_NS.min(words.idle_ns)),
        };
        pause.clamp(TURN_NS.0, TURN_NS.1).min(words.left(now))
    }

    /// Whether all work in flight is blocked at closed gates, which counts as drained.
    fn is_blocked(&mut self, backend: &dyn DriverBackend, claims: &ClientLane, now: u64) -> bool {
        let closed = claims.gate.load(SeqCst) == GATE_CLOSED;
        let blocked =
            closed.then(|| self.fences.in_flight.blocked(|event| backend.progress(event)));
        let late = |ns: u64| {
            let since = now.saturating_sub(self.watched_since);
            self.watched_since > 0 && since > ns.saturating_mul(2).saturating_add(TIED_NS)
        };
        let is_blocked = blocked.is_some_and(|it| it.parked && it.running.is_none_or(late));
        self.blocked = match (is_blocked, self.blocked) {
            (false, _) => 0,
            (true, 0) => now,
            (true, since) => since,
        };
        is_blocked && now.saturating_sub(self.blocked) >= PASSING_NS
    }
}

/// Resumes parked work. In a turn of this container it continues, and the process takes part in the turn. For
/// a turn that began and ended unseen, the process owes a report.
fn resume_parked(
    lane: &mut Lane,
    (claims, race): (&ClientLane, &ClaimWords<'_>),
    words: &LaneFacts,
    now: u64,
) {
    let goes = words.is_open(now) || may_launch(words.turn);
    if goes && (race.take(words.turn) || words.stale(now)) {
        lane.unpark(claims, now);
    } else if !may_launch(words.turn) {
        race.took_before(words.turn);
    }
}

impl Gate {
    /// Stops the gate thread for the end of the process: it must leave the driver and not return. Opens all
    /// gates, since no work waits for a turn any more.
    pub fn stop(&self) {
        self.gates.open(self.backend, true);
        for _ in 0..STOP_LOOKS {
            match self.driving.try_lock() {
                Ok(mut over) => return *over = true,
                Err(TryLockError::Poisoned(_)) => return, // poisoned by the end of the thread
                Err(TryLockError::WouldBlock) => crate::daemon::sys::nap(STOP_NS),
            }
        }
    }

    /// Body of the gate thread.
    pub fn run(&self) {
        let (mut gated_before, mut seen_turn) = (0, [0; LANES_MAX]);
        loop {
            let pages = self.backend.pages();
            let over = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
            if *over {
                return;
            }
            let futex = pages.container.futex.load(SeqCst);
            let recalls = if self.backend.answer_recalls() { REST_NS } else { RECALL_NS };
            let gated = word::close_for_turns(self.word, &pages.container.gated);
            let lanes = (pages.container.lanes.load(Relaxed) as usize).min(LANES_MAX);
            if gated < gated_before {
                // Launches wait on their turn word, which need not change when turns end altogether.
                (0..lanes).for_each(|lane| os::wake(&pages.container.lane[lane].turn));
            }
            gated_before = gated;
            let now = os::now();
            let tend = |lane| self.service(&pages, lane, now, &mut seen_turn[lane]);
            let rest = (0..lanes).map(tend).min();
            let runnable = |lane: usize| pages.client.lane[lane].runnable.load(SeqCst) != 0;
            if !(0..lanes).any(runnable) {
                // The next launch must report the process as runnable. The word may still be open here after
                // an attach to a restarted daemon, which provides a blank page of claims.
                word::close(self.word);
            }
            let words = pages.facts(0);
            if words.stale(now) {
                self.backend.reconnect();
            }
            self.gates.open(self.backend, words.is_open(now));
            let rest = rest.unwrap_or(REST_NS).min(recalls);
            if rest >= SETTLE_NS {
                self.backend.settle();
            }
            drop(over);
            match rest {
                0 => std::hint::spin_loop(),
                rest => os::wait(&pages.container.futex, futex, rest),
            }
        }
    }

    /// Services one lane. Returns the time until the next service, ns. `seen_turn` is the last turn whose
    /// beginning was observed.
    fn service(&self, pages: &Pages, index: usize, now: u64, seen_turn: &mut u32) -> u64 {
        let claims = &pages.client.lane[index];
        let race = pages.claim(index);
        let runnable = claims.runnable.load(SeqCst);
        let free = pages.container.lane[index].mode.load(SeqCst) == MODE_OPEN;
        let owes_report = race.owes_report(free);
        if runnable == 0 && !owes_report {
            return REST_NS;
        }
        let words = pages.facts(index);
        let parked = runnable & RUNNABLE_PARKED != 0;
        let begins = !owes_report && !parked && may_launch(words.turn);
        if begins && std::mem::replace(seen_turn, words.turn) != words.turn {
            return words.idle_ns.min(BEGUN_NS).min(words.left(now));
        }
        let mut lane = self.lane(index);
        if lane.parked {
            resume_parked(&mut lane, (claims, &race), &words, now);
        }
        let owes_report = race.owes_report(free);
        if owes_report {
            lane.track(now);
        }
        let asleep = owes_report || now.saturating_sub(lane.seen) >= ASK_NS.min(words.idle_ns / 2);
        let ask = asleep && lane.fences.in_flight.inside() == 0;
        lane.fences.collect_elsewhere(self.backend, now, ask);
        let drained = lane.fences.in_flight.empty();
        if owes_report && !self.report_if_drained(&mut lane, (claims, &race), &words, now) {
            return lane.drain_pause(now, words.gates() > 0);
        }
        lane.watched_since = 0;
        if words.is_open(now) {
            return self.service_open(pages, index, &mut lane, &words, now);
        }
        if lane.waiting > 0 {
            return LOOK_NS.min(words.left(now));
        }
        let (idle, hold) = (lane.idle(now), lane.hold(&words));
        if drained && idle >= hold {
            self.give_up(&lane, claims, &race);
            return REST_NS;
        }
        if !may_launch(words.turn) && !drained {
            let waits = words.patience(now).min(LOOK_NS);
            return if lane.parked { waits } else { DRAIN_NS.1 };
        }
        let pause = lane.turn_pause(&words, now, hold.saturating_sub(idle));
        lane.next_look = now.saturating_add(pause);
        pause
    }

    /// Ends this process's part in the turn: it has nothing in flight, and its next launch is not near.
    fn give_up(&self, lane: &Lane, claims: &ClientLane, race: &ClaimWords<'_>) {
        race.report_drained(lane.fences.in_flight.ended());
        claims.runnable.store(0, SeqCst);
        self.backend.ring();
    }

    /// A thread of the program waited for the GPU from `since` on, ns, and has its answer. If nothing is in flight
    /// any more, this is known sooner and more exactly than by the gate thread's checks.
    pub fn waited(&self, since: u64) {
        let Some(index) = self.backend.lane().filter(|index| *index < LANES_MAX) else {
            return;
        };
        let (pages, now) = (self.backend.pages(), os::now());
        let words = pages.facts(index);
        let mut lane = self.lane(index);
        if words.is_open(now) || lane.parked || !lane.fences.in_flight.may_be_over(now) {
            return;
        }
        lane.fences.collect(self.backend, now, true);
        if !lane.fences.in_flight.empty() {
            return;
        }
        if now.saturating_sub(since) >= BLOCKED_NS {
            lane.fences.in_flight.ended_at(now);
        }
        let claims = &pages.client.lane[index];
        let race = pages.claim(index);
        if race.owes_report(false) {
            self.report_if_drained(&mut lane, (claims, &race), &words, now);
        } else if lane.waiting == 0 && claims.runnable.load(SeqCst) != 0 {
            match lane.hold(&words) {
                0 => self.give_up(&lane, claims, &race),
                // The gate thread ends the turn, and may be asleep for as long as the work was expected to last.
                hold if lane.next_look > now.saturating_add(hold).saturating_add(LATE_NS) => {
                    os::wake(&pages.container.futex);
                }
                _ => {}
            }
        }
    }

    /// Reports a turn as drained if its work is finished or blocked at gates. Returns whether it reported.
    fn report_if_drained(
        &self,
        lane: &mut Lane,
        (claims, race): (&ClientLane, &ClaimWords<'_>),
        words: &LaneFacts,
        now: u64,
    ) -> bool {
        if lane.fences.in_flight.empty() {
            if !may_launch(words.turn) && words.turn == claims.active.load(SeqCst).wrapping_add(1) {
                let took = now.saturating_sub(words.turn_end_ns);
                lane.limit.drained(took, words.window_ns);
            }
            lane.releases.drained();
            lane.unpark(claims, now);
        } else if lane.is_blocked(self.backend, claims, now) {
            lane.parked = true;
            claims.runnable.fetch_or(RUNNABLE_PARKED, SeqCst);
        } else {
            return false;
        }
        let stalled = lane.fences.stalled();
        claims.began_ns.fetch_add(stalled, Relaxed);
        let parked = lane.parked.then_some(now);
        race.report_drained(parked.unwrap_or(lane.fences.in_flight.ended()));
        self.backend.ring();
        true
    }

    /// Whether nothing is in flight, although launches go past the open word untracked. They may go on doing so:
    /// the lane still has untracked work.
    fn is_idle_while_open(&self, lane: &mut Lane, now: u64) -> bool {
        if !lane.fences.in_flight.empty() {
            return false;
        }
        lane.fences.untracked(now);
        lane.fences.collect_elsewhere(self.backend, now, true);
        lane.fences.in_flight.empty()
    }

    /// Without turns: closes the word to observe launches, and clears `runnable` when none came.
    fn service_open(
        &self,
        pages: &Pages,
        index: usize,
        lane: &mut Lane,
        words: &LaneFacts,
        now: u64,
    ) -> u64 {
        let claims = &pages.client.lane[index];
        if word::is_open(self.word) {
            let open = now.saturating_sub(self.opened.load(Relaxed));
            // With several GPUs the others keep the word open; this one was checked several times.
            let several = pages.container.lanes.load(Relaxed) > 1;
            let unseen = now.saturating_sub(lane.seen) >= 4 * words.idle_ns;
            if several && unseen && lane.waiting == 0 && self.is_idle_while_open(lane, now) {
                // No drain is reported: work may still come past the open word, and it must drain before turns.
                claims.runnable.store(0, SeqCst);
                self.backend.ring();
                return REST_NS;
            }
            if open < words.idle_ns {
                return (words.idle_ns - open).min(LOOK_NS);
            }
            self.closed.store(now, Relaxed);
            word::close(self.word);
            return words.idle_ns.min(LOOK_NS);
        }
        let closed = now.saturating_sub(self.closed.load(Relaxed));
        let idle = lane.idle(now).min(closed);
        if idle >= words.idle_ns && lane.waiting == 0 {
            lane.track(now); // most launches were not fenced
            if !lane.fences.in_flight.empty() {
                return DRAIN_NS.1;
            }
            pages.claim(index).report_drained(lane.fences.in_flight.ended());
            claims.runnable.store(0, SeqCst);
            self.backend.ring();
            return REST_NS;
        }
        words.idle_ns.saturating_sub(idle).clamp(1_000_000, LOOK_NS)
    }
}

#[cfg(test)]
mod tests;
