//! The gate thread: one per process, from the first launch or the first memory credit on. It closes the
//! word when turns begin, reports when all is quiet after a turn, takes `want` back when the process
//! is idle, gives up memory credit that siblings are short of, and notices a daemon that went away. It
//! sleeps on the page's futex, and never inside the driver. For what happens in every turn nobody wakes it: at
//! the beginning the first launch does, on its way back from the driver, and it sleeps no longer than to the end.
//!
//! When the process exits, the driver tears itself down among the exit handlers, and a thread that asks
//! it about events just then can bring the process down. So ours is the first of these handlers, and
//! the thread goes no further. In a forked child it does not exist; the child's gate starts anew.

use super::backend::{DriverBackend, Pages};
use super::claim;
use super::os;
use super::slow_path::{Gate, Lane, OPEN};
use super::turn::LaneFacts;
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::page::{ClientLane, GATE_CLOSED, MODE_OPEN, RUNNABLE_PARKED, may_launch};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{PoisonError, TryLockError};

/// Sleep while there is nothing to look after.
const REST_NS: u64 = 250_000_000;
/// Sleep while a launch is held or a turn may come: a stale heartbeat must be noticed.
const LOOK_NS: u64 = 50_000_000;
/// Shortest and longest sleep while waiting for the GPU to fall quiet.
const DRAIN_NS: (u64, u64) = (30_000, 500_000);
/// The last stretch of that is watched without sleeping: the GPU is idle until the report, and a
/// sleep ends this much late on many machines. Then again longer, if the estimate was wrong.
const WATCH_NS: u64 = 60_000;
/// At the process's end the gate thread is given so many times so long to leave the driver.
const STOP_LOOKS: u32 = 500;
const STOP_NS: u64 = 100_000;
/// Until the next look at a recall while the connection is busy.
const RECALL_NS: u64 = 500_000;
/// Before sleeps from this length on there is time for what nobody waits for.
const SETTLE_NS: u64 = 1_000_000;
/// Shortest and longest sleep in the middle of one's own turn.
const TURN_NS: (u64, u64) = (50_000, 5_000_000);
/// The GPU may have looked at a gate just before it closed, and go on only now.
const PASSING_NS: u64 = 10_000;
/// What runs while other streams stand at gates, and is later by so much than twice what was expected of it,
/// is taken to wait for them.
const TIED_NS: u64 = 1_000_000;

impl Lane {
    /// How long nothing has been in flight, ns; 0 while something is. A program that waits for its kernel launches
    /// the next one when that has ended, so its time starts there and not with the launch.
    fn idle(&self, now: u64) -> u64 {
        let in_flight = &self.fences.in_flight;
        match in_flight.empty() {
            true => now.saturating_sub(self.seen.max(in_flight.ended())),
            false => 0,
        }
    }

    /// How long to wait before looking again whether the GPU is quiet; 0 for not at all. With gates, that is
    /// soon.
    fn drain_pause(&mut self, now: u64, gates: bool) -> u64 {
        let in_flight = &self.fences.in_flight;
        let left = if gates || in_flight.due(now) {
            0
        } else {
            in_flight.outstanding(now)
        };
        if left > WATCH_NS {
            return (left - WATCH_NS).clamp(DRAIN_NS.0, DRAIN_NS.1);
        }
        if self.watched_since == 0 {
            self.watched_since = now;
        }
        let fresh = now.saturating_sub(self.watched_since) < 2 * WATCH_NS;
        if fresh { 0 } else { DRAIN_NS.0 }
    }

    /// Whether what is in flight stands at gates that are closed, and so is as good as quiet.
    fn is_blocked(&mut self, backend: &dyn DriverBackend, claims: &ClientLane, now: u64) -> bool {
        let closed = claims.gate.load(SeqCst) == GATE_CLOSED;
        let blocked = closed.then(|| {
            self.fences
                .in_flight
                .blocked(|event| backend.progress(event))
        });
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

/// Work stands at gates. In a turn of ours it goes on, and we take part in that turn; one that began and ended
/// before we came here is one that we owe an answer for.
fn resume_parked(lane: &mut Lane, race: &claim::ClaimWords<'_>, words: &LaneFacts, now: u64) {
    let goes = words.is_open(now) || may_launch(words.turn);
    if goes && (race.take(words.turn) || words.stale(now)) {
        lane.unpark(race.claims, now);
    } else if !may_launch(words.turn) {
        race.claims.active.store(words.turn.wrapping_sub(1), SeqCst);
    }
}

impl Gate {
    /// The process is ending: the gate thread must leave the driver, and will not come back. Nothing waits for
    /// a turn any more.
    pub fn stop(&self) {
        self.gates.open(self.backend, true);
        for _ in 0..STOP_LOOKS {
            match self.driving.try_lock() {
                Ok(mut over) => return *over = true,
                Err(TryLockError::Poisoned(_)) => return, // by the thread's own end
                Err(TryLockError::WouldBlock) => crate::link::sys::nap(STOP_NS),
            }
        }
    }

    /// Body of the gate thread.
    pub fn run(&self) {
        let (mut gated_before, mut seen_turn) = (0, [0; LANES_MAX]);
        loop {
            let Some(pages) = self.backend.pages() else {
                std::thread::sleep(std::time::Duration::from_nanos(REST_NS));
                continue;
            };
            let over = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
            if *over {
                return;
            }
            let futex = pages.container.futex.load(SeqCst);
            let recalls = if self.backend.answer_recalls() {
                REST_NS
            } else {
                RECALL_NS
            };
            let gated = pages.container.gated.load(SeqCst);
            if gated != 0 {
                self.word.fetch_and(!OPEN, SeqCst);
            }
            let lanes = (pages.container.lanes.load(Relaxed) as usize).min(LANES_MAX);
            if gated < gated_before {
                // Launches sleep on their turn, which need not change when turns end altogether.
                (0..lanes).for_each(|lane| os::wake(&pages.container.lane[lane].turn));
            }
            gated_before = gated;
            let now = os::now();
            let tend = |lane| self.service(&pages, lane, now, &mut seen_turn[lane]);
            let rest = (0..lanes).map(tend).min();
            let wanted = |lane: usize| pages.client.lane[lane].runnable.load(SeqCst) != 0;
            if !(0..lanes).any(wanted) {
                // The next launch must say that it wants. The word is still open here when the
                // daemon came back and with it a blank page of claims.
                self.word.fetch_and(!OPEN, SeqCst);
            }
            let words = LaneFacts::read(pages.container, 0);
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

    /// Looks after one lane; answers for how long it can be left alone, ns. `seen_turn` is the last
    /// turn whose beginning it saw.
    fn service(&self, pages: &Pages, index: usize, now: u64, seen_turn: &mut u32) -> u64 {
        let claims = &pages.client.lane[index];
        let race = claim::ClaimWords {
            turn: &pages.container.lane[index].turn,
            claims,
        };
        let want = claims.runnable.load(SeqCst);
        let free = pages.container.lane[index].mode.load(SeqCst) == MODE_OPEN;
        let owes_report = race.owes_report(free);
        if want == 0 && !owes_report {
            return REST_NS;
        }
        let words = LaneFacts::read(pages.container, index);
        let parked = want & RUNNABLE_PARKED != 0;
        let begins = !owes_report && !parked && may_launch(words.turn);
        if begins && std::mem::replace(seen_turn, words.turn) != words.turn {
            // Our turn just begins: the launches need the lane's lock more than we do.
            return words.idle_ns.min(LOOK_NS).min(words.left(now));
        }
        let mut lane = self.lane(index);
        if lane.parked {
            resume_parked(&mut lane, &race, &words, now);
        }
        let owes_report = race.owes_report(free);
        if owes_report {
            lane.track(now);
        }
        // A thread in the middle of a launch may hold what a question would wait for.
        let asleep = owes_report || now.saturating_sub(lane.seen) >= words.idle_ns / 2;
        let ask = asleep && lane.fences.in_flight.inside() == 0;
        lane.fences.collect_elsewhere(self.backend, now, ask);
        let quiet = lane.fences.in_flight.empty();
        if owes_report && !self.report_if_drained(&mut lane, &race, &words, now) {
            return lane.drain_pause(now, words.gates() > 0);
        }
        lane.watched_since = 0;
        if words.is_open(now) {
            return self.service_open(pages, index, &mut lane, &words, now);
        }
        if lane.waiting > 0 {
            return LOOK_NS.min(words.left(now));
        }
        let idle = lane.idle(now);
        if idle >= words.idle_ns {
            race.report_drained(lane.fences.in_flight.ended());
            claims.runnable.store(0, SeqCst);
            self.backend.ring();
            return REST_NS;
        }
        if !may_launch(words.turn) && !quiet {
            let waits = words.patience(now).min(LOOK_NS);
            return if lane.parked { waits } else { DRAIN_NS.1 };
        }
        let in_flight = &lane.fences.in_flight;
        let pause = match in_flight.due(now) {
            // Its end is known no better than by the last look before it.
            true => words.idle_ns / 2,
            false => in_flight
                .outstanding(now)
                .max(words.idle_ns.saturating_sub(idle)),
        };
        pause.clamp(TURN_NS.0, TURN_NS.1).min(words.left(now))
    }

    /// Reports that all of a turn is over, or stands at gates; `false` if neither is so.
    fn report_if_drained(
        &self,
        lane: &mut Lane,
        race: &claim::ClaimWords<'_>,
        words: &LaneFacts,
        now: u64,
    ) -> bool {
        let claims = race.claims;
        if lane.fences.in_flight.empty() {
            if !may_launch(words.turn) && words.turn == claims.active.load(SeqCst).wrapping_add(1) {
                let took = now.saturating_sub(words.turn_end_ns);
                lane.limit.drained(took, words.window_ns);
            }
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

    /// Without turns: closes the word to see whether anybody comes through, and takes `want` back
    /// when nobody did.
    fn service_open(
        &self,
        pages: &Pages,
        index: usize,
        lane: &mut Lane,
        words: &LaneFacts,
        now: u64,
    ) -> u64 {
        let claims = &pages.client.lane[index];
        if self.word.load(SeqCst) & OPEN != 0 {
            let open = now.saturating_sub(self.opened.load(Relaxed));
            // With several GPUs the others keep the word open; this one was looked for several times.
            let several = pages.container.lanes.load(Relaxed) > 1;
            let unseen = now.saturating_sub(lane.seen) >= 4 * words.idle_ns;
            if several && unseen && lane.waiting == 0 && lane.fences.in_flight.empty() {
                claims.runnable.store(0, SeqCst);
                self.backend.ring();
                return REST_NS;
            }
            if open < words.idle_ns {
                return (words.idle_ns - open).min(LOOK_NS);
            }
            self.closed.store(now, Relaxed);
            self.word.fetch_and(!OPEN, SeqCst);
            return words.idle_ns.min(LOOK_NS);
        }
        let closed = now.saturating_sub(self.closed.load(Relaxed));
        let idle = lane.idle(now).min(closed);
        if idle >= words.idle_ns && lane.waiting == 0 {
            lane.track(now); // most launches were not fenced
            if !lane.fences.in_flight.empty() {
                return DRAIN_NS.1;
            }
            let turn = &pages.container.lane[index].turn;
            claim::ClaimWords { turn, claims }.report_drained(lane.fences.in_flight.ended());
            claims.runnable.store(0, SeqCst);
            self.backend.ring();
            return REST_NS;
        }
        words.idle_ns.saturating_sub(idle).clamp(1_000_000, LOOK_NS)
    }
}
