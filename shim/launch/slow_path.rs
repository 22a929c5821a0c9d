//! The gate's slow path: a launch while the fast path is closed.
//!
//! # The word
//! Launches read one word ([`super::word`]) and go if it is open. It is open only while no turns are taken and
//! this process has reported itself runnable. The gate thread closes it periodically; the next launch takes the
//! slow path, is observed there, and opens it again. A process without a launch between two closings is idle. This
//! is the second-chance bit of page replacement, at the cost of one slow launch in 20 ms.
//!
//! # Locks
//! Each lane has one lock. It is held while events are recorded and queried, never during the launch itself
//! and never while waiting for a turn or for room in the window. So the gate thread can always take it and
//! report that the process has drained.

use super::backend::{Context, DriverBackend, Event, Pages, Stream};
use super::captures;
use super::claim::ClaimWords;
use super::estimate::{Estimate, Task};
use super::fences::{Fences, StreamId};
use super::gaps::Gaps;
use super::gates::Gates;
use super::in_flight_limit::InFlightLimit;
use super::os;
use super::releases::{BEHIND_MAX_NS, Releases};
use super::turn::{Claimed, LaneFacts, Verdict};
use super::window::{Admission, HELD_MAX_NS, StreamIndex};
use super::word;
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::page::{ClientLane, MODE_OPEN, RUNNABLE_PARKED};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Longest sleep at the gate between two checks of the heartbeat.
const LOOK_NS: u64 = 50_000_000;
/// Without turns, launches are fenced at most this often.
const SAMPLE_NS: u64 = 5_000_000;
/// Queue depth with gates in the streams, whatever is left of the turn: the gates stop the queue.
const DEPTH_NS: u64 = 2_000_000;
/// With several GPUs the word stays closed this long, so that launches on each GPU are observed.
const SEEN_NS: u64 = 1_000_000;

/// States of the gate thread: none, or it could not be created.
const NO_THREAD: u32 = 0;
/// A launch creates it.
const STARTING: u32 = 1;
/// It closes the word when turns begin.
const RUNNING: u32 = 2;

/// A launch.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Its expected cost.
    pub task: Task,
    /// Its stream.
    pub stream: Stream,
    /// A copy between host and device.
    pub over_bus: bool,
}

/// The state of one GPU in the gate.
#[derive(Debug, Default)]
pub struct Lane {
    /// Streams, fences, estimates.
    pub fences: Fences,
    /// Time of the last observed launch, ns.
    pub seen: u64,
    /// Launches held at the gate now.
    pub waiting: u32,
    /// Start of watching the end of a drain, ns; 0 while none is watched.
    pub watched_since: u64,
    /// Since when all streams have been blocked at gates, ns; 0 while they are not.
    pub blocked: u64,
    /// The process has reported itself drained, with work behind closed gates.
    pub parked: bool,
    /// Limit of work in flight near a turn's end.
    pub limit: InFlightLimit,
    /// The pauses between the end of the work in flight and the next launch.
    pub gaps: Gaps,
    /// Launches that went without a turn.
    pub releases: Releases,
    /// When the gate thread will look at this lane next, ns.
    pub next_look: u64,
    /// The last turn for which the gate thread was woken.
    woken_turn: u32,
    /// Time of the last fenced launch without turns, ns.
    sampled: u64,
    /// Launches have gone without turns and were not tracked.
    untracked: bool,
}

impl Lane {
    /// Tracks from now on the work launched without turns, if there is any.
    pub(super) fn track(&mut self, now: u64) {
        if std::mem::take(&mut self.untracked) {
            self.fences.untracked(now);
        }
    }

    /// Notes that a launch arrives at the gate: the gap since the end of earlier work is over.
    fn arrives(&mut self, backend: &dyn DriverBackend, words: &LaneFacts, now: u64) {
        if words.mode == MODE_OPEN {
            return self.gaps.forget();
        }
        if self.waiting > 0 {
            return;
        }
        if self.fences.in_flight.may_be_over(now) {
            self.fences.collect(backend, now, true);
        }
        if self.fences.in_flight.empty() {
            self.gaps.over(self.fences.in_flight.ended(), now, words.idle_ns);
        }
    }

    /// Resumes parked work: a turn has begun, or no turns are taken any more.
    pub fn unpark(&mut self, claims: &ClientLane, now: u64) {
        if std::mem::take(&mut self.parked) {
            self.fences.in_flight.resumed(now);
            claims.runnable.fetch_and(!RUNNABLE_PARKED, SeqCst);
        }
        self.blocked = 0;
    }
}

/// The gate of one process.
pub struct Gate {
    /// Driver and daemon.
    pub backend: &'static dyn DriverBackend,
    /// The word that the fast path reads.
    pub word: &'static AtomicU32,
    lanes: [Mutex<Lane>; LANES_MAX],
    /// The words that the GPU reads.
    pub gates: Gates,
    /// The state of the gate thread.
    thread: AtomicU32,
    /// Held by the gate thread while it may be inside the driver; true once it must stay outside.
    pub(super) driving: Mutex<bool>,
    /// Times at which the word was last opened and closed, ns.
    pub opened: AtomicU64,
    /// See `opened`.
    pub closed: AtomicU64,
}

/// An admitted launch, which must be passed to [`Gate::leave`].
#[derive(Debug)]
pub struct Ticket {
    lane: usize,
    stream_index: StreamIndex,
    task: Task,
    expected: Estimate,
    base: Option<Event>,
    fence: bool,
    now: u64,
    /// The context of its stream, if that is not the current one.
    foreign: Option<Context>,
    /// The first launch in a turn wakes the gate thread, after the driver's call.
    pub(super) wake: WakeOnDrop,
}

/// Wakes the gate thread, which waits on the futex, when dropped.
#[derive(Debug, Default)]
pub(super) struct WakeOnDrop(pub(super) Option<&'static AtomicU32>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(os::wake);
    }
}

/// The last step of a launch at the gate.
enum Stage {
    /// It arrived.
    Arrives,
    /// It counts as waiting.
    Waits,
    /// It goes, or looks again at once.
    Goes,
}

/// A launch on the slow path.
struct PendingLaunch<'a> {
    pages: Pages,
    index: usize,
    work: &'a Work,
    stream_id: StreamId,
    /// The gate word's address on the GPU, and the distance between gates, ns.
    gates: Option<(u64, u64)>,
}

impl PendingLaunch<'_> {
    fn claims(&self) -> &'static ClientLane {
        &self.pages.client.lane[self.index]
    }

    fn words(&self) -> ClaimWords<'static> {
        self.pages.claim(self.index)
    }
}

impl PendingLaunch<'_> {
    /// Notes the start of the turn's work, if this is the `first` launch of a turn, and that of a stretch of work.
    fn begins(&self, lane: &mut Lane, now: u64, first: bool) {
        if first {
            self.claims().began_ns.store(now, Relaxed);
            lane.fences.turn_begins();
        }
        if lane.fences.in_flight.empty() {
            lane.gaps.begins(lane.fences.in_flight.ended(), now);
        }
    }
}

/// Counts a launch that goes.
fn count(pending: &PendingLaunch<'_>) {
    pending.claims().launches.fetch_add(1, Relaxed);
}

impl Gate {
    /// A closed gate.
    pub fn new(backend: &'static dyn DriverBackend, word: &'static AtomicU32) -> Gate {
        Gate {
            backend,
            word,
            lanes: Default::default(),
            gates: Gates::default(),
            thread: AtomicU32::new(NO_THREAD),
            driving: Mutex::new(false),
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }
    }

    /// The state of a lane, locked.
    pub fn lane(&self, index: usize) -> MutexGuard<'_, Lane> {
        self.lanes[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes a launch on the GPU of `index` into a stream of the current `context`; `None` if it needs no gate.
    fn describe<'a>(
        &self,
        work: &'a Work,
        (context, index): (Context, usize),
    ) -> Option<PendingLaunch<'a>> {
        let pages = self.backend.pages();
        if self.backend.capturing(work.stream) {
            return None; // Becomes a node of a graph; the launch of that graph is gated.
        }
        let thread = if work.stream == Stream::PER_THREAD { os::thread_id() } else { 0 };
        let stream_id = StreamId { context, stream: work.stream, thread };
        let index = Some(index).filter(|index| *index < LANES_MAX)?;
        Some(PendingLaunch { pages, index, work, stream_id, gates: None })
    }

    /// The gate word and distance, if gates are to be put into streams now.
    fn gates(&self, pending: &PendingLaunch<'_>) -> Option<(u64, u64)> {
        let distance = pending.pages.facts(pending.index).gates();
        let word = |_| self.gates.word(self.backend, pending.stream_id.context, pending.index);
        let word = Some(distance).filter(|ns| *ns > 0).and_then(word)?;
        Some((word, distance))
    }

    /// Waits until the launch may go. A ticket must be passed to [`Gate::leave`]. The driver may take a launch into a
    /// stream of another context than the current one, and runs it on that context's GPU.
    pub fn enter(&'static self, work: &Work) -> Option<Ticket> {
        let current = self.backend.context();
        let own_handle = work.stream.0 > Stream::PER_THREAD.0;
        let foreign = own_handle.then(|| self.backend.foreign(work.stream, current)).flatten();
        if let Some((context, lane)) = foreign {
            let (lane, mut ticket) = (lane?, None);
            let mut enter = || ticket = self.enter_current(work, (context, lane));
            if self.backend.within(context, &mut enter) {
                return Some(Ticket { foreign: Some(context), ..ticket? });
            }
        }
        self.enter_current(work, (current?, self.backend.lane()?))
    }

    /// [`Gate::enter`] into a stream of the current context.
    fn enter_current(&'static self, work: &Work, target: (Context, usize)) -> Option<Ticket> {
        let pending = self.describe(work, target)?;
        let index = pending.index;
        self.start_thread();
        // Time spent waiting for turns, and held back by a full window, ns.
        let (mut waited, mut held) = (0, 0);
        let mut stage = Stage::Arrives;
        loop {
            let now = os::now();
            // The daemon may have returned with other pages while this launch waited.
            let pages = self.backend.pages();
            let pending = PendingLaunch { gates: self.gates(&pending), pages, ..pending };
            let mut lane = self.lane(index);
            let words = self.looks(&pending, &mut lane, now, &mut stage);
            let verdict = match words.claim(&pending.words(), now) {
                Claimed::Kept(verdict) => verdict,
                Claimed::OpenEnded => continue,
                Claimed::TurnEnded => {
                    os::wake(&pending.pages.container.futex); // a report is owed
                    continue;
                }
            };
            let (turn, pause, clock) = match verdict {
                Verdict::Open => {
                    lane.unpark(pending.claims(), now);
                    count(&pending);
                    return self.enter_open(&pending, lane, now);
                }
                Verdict::Wait { .. } if self.cannot_wait(&mut lane, &pending, now, waited) => {
                    count(&pending);
                    return self.ticket(&pending, lane, now, false);
                }
                Verdict::Wait { turn } => (turn, words.patience(now).min(LOOK_NS), &mut waited),
                Verdict::Turn { turn, end_ns } => {
                    lane.unpark(pending.claims(), now);
                    lane.track(now);
                    let left = end_ns.saturating_sub(now);
                    let first = std::mem::replace(&mut lane.woken_turn, turn) != turn;
                    let futex = first.then_some(&pending.pages.container.futex);
                    match self.admit(&pending, &mut lane, now, left, words.window_ns) {
                        Admission::Full(ns) if held < HELD_MAX_NS => {
                            futex.into_iter().for_each(os::wake);
                            (turn, ns, &mut held)
                        }
                        _ => {
                            if held > 0 && lane.fences.in_flight.empty() {
                                lane.limit.underran();
                            }
                            count(&pending);
                            pending.begins(&mut lane, now, first);
                            let wake = WakeOnDrop(futex);
                            // The end of a turn is reported exactly, since the next turn waits for it.
                            let last = left <= words.window_ns;
                            let ticket = self.ticket(&pending, lane, now, last)?;
                            return Some(Ticket { wake, ..ticket });
                        }
                    }
                }
            };
            lane.waiting += 1;
            stage = Stage::Waits;
            drop(lane);
            os::wait(&pending.pages.container.lane[index].turn, turn, pause);
            *clock += os::now().saturating_sub(now);
        }
    }

    /// One look of a launch at the page, at the time `now`.
    fn looks(
        &self,
        pending: &PendingLaunch<'_>,
        lane: &mut Lane,
        now: u64,
        stage: &mut Stage,
    ) -> LaneFacts {
        self.set_runnable(pending);
        let words = pending.pages.facts(pending.index);
        match std::mem::replace(stage, Stage::Goes) {
            Stage::Arrives => lane.arrives(self.backend, &words, now),
            // Until here it counts, so that the gate thread does not end the turn for which it was woken.
            Stage::Waits => lane.waiting -= 1,
            Stage::Goes => {}
        }
        lane.seen = now;
        words
    }

    /// Whether a launch held for its turn for `waited` ns must go without one, because the work in flight may
    /// wait for it: see [`super::releases`]. A copy over the bus occupies no multiprocessor and goes sooner.
    fn cannot_wait(
        &self,
        lane: &mut Lane,
        pending: &PendingLaunch<'_>,
        now: u64,
        waited: u64,
    ) -> bool {
        if waited < HELD_MAX_NS {
            return false;
        }
        if pending.work.over_bus {
            let may_help = !lane.parked && !lane.fences.in_flight.empty();
            return waited >= BEHIND_MAX_NS || may_help;
        }
        if lane.parked {
            return false; // The work in flight waits for its turn, as this launch does.
        }
        let may_help = |lane: &Lane| {
            let busy = lane.fences.busy(pending.stream_id);
            lane.releases.allow(&lane.fences.in_flight, now, waited, busy).then_some(busy)
        };
        if may_help(lane).is_none() {
            return false;
        }
        lane.fences.collect(self.backend, now, true);
        let Some(busy) = may_help(lane) else {
            return false;
        };
        lane.releases.released(&lane.fences.in_flight, busy);
        true
    }

    /// Ends a launch after the driver's call; `done` is true if the driver accepted it.
    pub fn leave(&self, ticket: Ticket, done: bool) {
        let Some(context) = ticket.foreign else {
            return self.leave_current(ticket, done);
        };
        let mut ticket = Some(ticket);
        let mut leave =
            |done| ticket.take().into_iter().for_each(|it| self.leave_current(it, done));
        if !self.backend.within(context, &mut || leave(done)) {
            leave(false); // its work has ended with the context
        }
    }

    /// [`Gate::leave`] from a stream of the current context.
    fn leave_current(&self, ticket: Ticket, done: bool) {
        drop(ticket.wake);
        let mut lane = self.lane(ticket.lane);
        let fences = &mut lane.fences;
        fences.in_flight.leave(ticket.expected.ns);
        if !done {
            return fences.unused(self.backend, ticket.stream_index, ticket.base);
        }
        let Ticket { stream_index, task, expected, base, now, .. } = ticket;
        fences.estimates.accepted(task.key);
        let due =
            fences.in_flight.launched(now, stream_index, task, expected, base) || ticket.fence;
        if due && !fences.stream(stream_index).is_some_and(|it| self.captured(it)) {
            fences.fence(self.backend, now, stream_index);
        }
    }

    /// Reports this process as runnable, unless it is already.
    fn set_runnable(&self, pending: &PendingLaunch<'_>) {
        if pending.claims().runnable.load(Relaxed) == 0 {
            pending.claims().runnable.store(1, SeqCst);
            self.backend.ring();
            os::wake(&pending.pages.container.futex); // The gate thread must service the lanes again.
        }
    }

    /// Without turns: opens the word, and fences a launch now and then to observe its end.
    fn enter_open(
        &self,
        pending: &PendingLaunch<'_>,
        mut lane: MutexGuard<'_, Lane>,
        now: u64,
    ) -> Option<Ticket> {
        let container = pending.pages.container;
        lane.untracked = true;
        let seen = now.saturating_sub(self.closed.load(Relaxed)) >= SEEN_NS;
        let closes = self.thread.load(Relaxed) == RUNNING;
        if closes && (seen || container.lanes.load(Relaxed) <= 1) {
            self.opened.store(now, Relaxed);
            word::open(self.word, &container.gated);
        }
        if now.saturating_sub(lane.sampled) < SAMPLE_NS {
            return None;
        }
        lane.sampled = now;
        self.ticket(pending, lane, now, true)
    }

    /// Whether the window has room, with `left` ns of the turn left and `bound` as the lower limit. Collects
    /// finished work only if the estimate denies it.
    fn admit(
        &self,
        pending: &PendingLaunch<'_>,
        lane: &mut Lane,
        now: u64,
        left: u64,
        bound: u64,
    ) -> Admission {
        let (window, left) = match pending.gates {
            Some(_) => (DEPTH_NS, left),
            None => (lane.limit.current(bound), lane.limit.share_of_rest(left, bound)),
        };
        let fences = &mut lane.fences;
        let next = fences.estimates.expect(pending.work.task);
        if fences.in_flight.admit(now, next, window, left) == Admission::Go {
            return Admission::Go;
        }
        fences.collect(self.backend, now, true);
        fences.in_flight.admit(now, next, window, left)
    }

    /// Admits the launch; with `fence`, a fence follows it in any case. An unknown kernel gets a group of its
    /// own, to be measured exactly, once the driver has accepted one like it.
    fn ticket(
        &self,
        pending: &PendingLaunch<'_>,
        mut lane: MutexGuard<'_, Lane>,
        now: u64,
        fence: bool,
    ) -> Option<Ticket> {
        let fences = &mut lane.fences;
        if fences.in_flight.due(now) {
            fences.collect(self.backend, now, false);
        }
        let stream_index = fences.stream_index(self.backend, pending.stream_id)?;
        let expected = fences.estimates.expect(pending.work.task);
        let base = match expected.tried && !self.captured(pending.stream_id.stream) {
            true => self.before(pending, fences, now, (stream_index, expected)),
            false => None,
        };
        fences.in_flight.enter(expected.ns);
        lane.limit.admitted(expected.ns);
        let fence = fence || !expected.known || pending.stream_id.stream == Stream::PER_THREAD;
        let (task, lane, wake) = (pending.work.task, pending.index, WakeOnDrop::default());
        Some(Ticket { lane, stream_index, task, expected, base, fence, now, foreign: None, wake })
    }

    /// Whether another thread began to capture the stream while a launch into it was held here.
    fn captured(&self, stream: Stream) -> bool {
        captures::ever() && self.backend.capturing(stream)
    }

    /// Puts the fence of another group, a gate and the base into the stream, in front of a launch. Returns
    /// the base, unless it is behind a gate.
    fn before(
        &self,
        pending: &PendingLaunch<'_>,
        fences: &mut Fences,
        now: u64,
        (stream_index, expected): (StreamIndex, Estimate),
    ) -> Option<Event> {
        if !expected.known {
            fences.close(self.backend, now, stream_index);
        }
        if let Some(gates) = pending.gates
            && !fences.gate(self.backend, now, (stream_index, expected.ns), gates)
        {
            self.gates.refused(pending.stream_id.context);
        }
        // A gate has its own base behind it, and makes the stream a busy one.
        fences.base(self.backend, stream_index)
    }

    /// Notes a stream created in the current context. The gate may never see a launch into it: one launch
    /// opens the word, and the next, into this stream, may run for hours.
    pub fn stream_made(&self, stream: Stream) {
        let index = self.backend.lane().filter(|index| *index < LANES_MAX);
        if let (Some(index), Some(context)) = (index, self.backend.context()) {
            let stream_id = StreamId { context, stream, thread: 0 };
            self.lane(index).fences.made(self.backend, os::now(), stream_id);
        }
    }

    /// Fences the last launches of a stream that is about to be destroyed.
    pub fn stream_closing(&self, stream: Stream) {
        let now = os::now();
        for index in self.used() {
            let mut lane = self.lane(index);
            let untracked = lane.untracked;
            lane.fences.close_streams(self.backend, now, untracked, |stream_id| {
                stream_id.stream == stream
            });
        }
    }

    /// Destroys a context by `call`, which waits for its work. The process does not count as drained
    /// meanwhile; afterwards no state of the context is left.
    pub fn context_closing<R>(&self, context: Context, call: impl FnOnce() -> R) -> R {
        let now = os::now();
        self.gates.open(self.backend, true);
        for index in self.used() {
            let mut lane = self.lane(index);
            lane.fences.drop_context(self.backend, now, context);
            lane.fences.in_flight.enter(0);
        }
        let result = call();
        for index in self.used() {
            self.lane(index).fences.in_flight.leave(0);
        }
        self.gates.forget(context);
        result
    }

    /// The lanes that this process may have used.
    fn used(&self) -> std::ops::Range<usize> {
        let lanes = self.backend.pages().container.lanes.load(Relaxed);
        0..(lanes as usize).min(LANES_MAX)
    }

    /// Starts the gate thread with the first launch. If that fails, the next launch tries again. Until then the
    /// word stays closed, since no thread would close it when turns begin: launches take turns, but the daemon
    /// learns of most drains only from its own deadlines.
    pub(super) fn start_thread(&'static self) {
        let begins = |from, to| self.thread.compare_exchange(from, to, SeqCst, Relaxed).is_ok();
        if self.thread.load(Relaxed) == NO_THREAD && begins(NO_THREAD, STARTING) {
            let started = self.backend.spawn(Box::new(|| self.run()));
            self.thread.store(if started { RUNNING } else { NO_THREAD }, SeqCst);
        }
    }
}
