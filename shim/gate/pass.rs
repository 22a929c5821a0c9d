//! The way of one launch through the gate when the fast path is closed.
//!
//! # The word
//! Launches look at one word and go if it is [`OPEN`]. It is open only while nobody takes turns and
//! this process has said that it wants the GPU. The gate thread closes it every now and then; the
//! next launch comes through here, is seen, and opens it again. A process nobody saw between two
//! closings is idle: the second-chance bit of page replacement, at the cost of one slow launch in
//! 20 ms.
//!
//! # Locks
//! Each lane has one lock. It is held for events put into streams and asked about, never for the
//! launch itself, nor while waiting for a turn or for room in the window, so the gate thread can
//! always get it and report that all is quiet.

use super::backend::{Context, DriverBackend, Event, Pages, Stream};
use super::breadth::Breadth;
use super::captures;
use super::claim;
use super::estimate::{Estimate, Task};
use super::gates::Gates;
use super::marks::{Line, Marks};
use super::os;
use super::turn::{Verdict, Words};
use super::window::{Admission, HELD_MAX_NS, Tail};
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::page::{ClientLane, MODE_OPEN, WANT_PARKED};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The word's bit that is set while launches need not stop.
pub const OPEN: u32 = 1;
/// The word's value while they must.
pub const CLOSED: u32 = 0;
/// The word's bit that is set once graphs of this process allocate: their launches go a longer way, which
/// sees to the memory. The gate leaves it alone.
pub const METERED: u32 = 2;

/// Longest sleep at the gate between two looks at the heartbeat.
const LOOK_NS: u64 = 50_000_000;
/// How long a launch is held whose stream is busy while what is in flight is stuck, and how long a copy over
/// the bus while nothing is in flight here: a sibling's work may wait for it.
const BEHIND_MAX_NS: u64 = 5_000_000_000;
/// Without turns, launches are marked at most this often.
const SAMPLE_NS: u64 = 5_000_000;
/// With gates in the streams so much may be queued whatever is left of the turn: it stops when it must.
const DEPTH_NS: u64 = 2_000_000;
/// With several GPUs the word stays closed this long, so that launches on each are seen.
const SEEN_NS: u64 = 1_000_000;

/// What is about to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What is expected of it.
    pub task: Task,
    /// Where it is launched into.
    pub stream: Stream,
    /// A copy between host and device.
    pub over_bus: bool,
}

/// What the gate knows of one GPU.
#[derive(Debug, Default)]
pub struct Lane {
    /// Streams, marks, estimates.
    pub marks: Marks,
    /// When a launch was last seen, ns.
    pub seen: u64,
    /// Launches held at the gate now.
    pub waiting: u32,
    /// Since when the end of a drain is being watched, ns; 0 while none is.
    pub watched: u64,
    /// Since when all streams are seen to stand at gates, ns; 0 while they do not.
    pub standing: u64,
    /// It was said that all is quiet, with work behind closed gates.
    pub parked: bool,
    /// How much may be in flight near a turn's end.
    pub breadth: Breadth,
    /// The last turn for which the gate thread was woken.
    roused: u32,
    /// When a launch without turns was last marked, ns.
    sampled: u64,
    /// Launches have gone without turns, and were not followed.
    unfollowed: bool,
}

impl Lane {
    /// Follows from now on what went without turns, if anything did.
    pub(super) fn follow(&mut self, now: u64) {
        if std::mem::take(&mut self.unfollowed) {
            self.marks.unfollowed(now);
        }
    }

    /// A turn has begun, or there are none any more: what stood at gates goes on.
    pub fn unpark(&mut self, claims: &ClientLane, now: u64) {
        if std::mem::take(&mut self.parked) {
            self.marks.flight.resumed(now);
            claims.want.fetch_and(!WANT_PARKED, SeqCst);
        }
        self.standing = 0;
    }
}

/// The gate of one process.
pub struct Gate {
    /// Driver and link.
    pub backend: &'static dyn DriverBackend,
    /// What the fast path looks at.
    pub word: &'static AtomicU32,
    lanes: [Mutex<Lane>; LANES_MAX],
    /// What the GPU looks at.
    pub gates: Gates,
    thread: AtomicBool,
    /// Held by the gate thread while it may be inside the driver; true when it may not be any more.
    pub(super) driving: Mutex<bool>,
    /// When the word was last opened and closed, ns.
    pub opened: AtomicU64,
    /// See `opened`.
    pub closed: AtomicU64,
}

/// A launch that was let in and must be told to [`Gate::leave`].
#[derive(Debug)]
pub struct Ticket {
    lane: usize,
    tail: Tail,
    task: Task,
    ns: u64,
    base: Option<Event>,
    mark: bool,
    now: u64,
    /// The first launch in a turn wakes the gate thread, which has time until it is made.
    rouse: Rouse,
}

/// Wakes who sleeps on the bell when dropped: whoever looks after what was launched.
#[derive(Debug, Default)]
struct Rouse(Option<&'static AtomicU32>);

impl Drop for Rouse {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(os::wake);
    }
}

/// One launch on its way.
struct Visit<'a> {
    pages: Pages,
    index: usize,
    work: &'a Work,
    line: Line,
    /// The gate word's address on the GPU, and how far apart gates are to be, ns.
    gates: Option<(u64, u64)>,
}

impl Visit<'_> {
    fn claims(&self) -> &'static ClientLane {
        &self.pages.client.lane[self.index]
    }

    fn words(&self) -> claim::Words<'static> {
        claim::Words {
            turn: &self.pages.container.lane[self.index].turn,
            claims: self.claims(),
        }
    }
}

impl Visit<'_> {
    /// The first launch of a turn is made, if it is made now.
    fn begins(&self, lane: &mut Lane, now: Option<u64>) {
        if let Some(now) = now {
            self.claims().began_ns.store(now, Relaxed);
            lane.marks.turn_begins();
        }
    }

    /// Claims part in the freedom that `words` say; whether it still holds then. A daemon that is away
    /// ends none.
    fn freed(&self, words: &Words, now: u64) -> bool {
        let taken = self.words().take(words.turn);
        let mode = &self.pages.container.lane[self.index].mode;
        words.stale(now) || (taken && mode.load(SeqCst) == MODE_OPEN)
    }
}

/// A launch goes.
fn count(visit: &Visit<'_>) {
    visit.claims().launches.fetch_add(1, Relaxed);
}

impl Gate {
    /// A closed gate.
    pub fn new(backend: &'static dyn DriverBackend, word: &'static AtomicU32) -> Gate {
        Gate {
            backend,
            word,
            lanes: Default::default(),
            gates: Gates::default(),
            thread: AtomicBool::new(false),
            driving: Mutex::new(false),
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }
    }

    /// The state of a lane, alone.
    pub fn lane(&self, index: usize) -> MutexGuard<'_, Lane> {
        self.lanes[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a launch on its way; `None` if it needs no gate.
    fn visit<'a>(&self, work: &'a Work) -> Option<Visit<'a>> {
        let pages = self.backend.pages()?;
        if self.backend.capturing(work.stream) {
            return None; // Becomes a node of a graph; the graph's launch is work.
        }
        let index = self.backend.lane().filter(|index| *index < LANES_MAX)?;
        let context = self.backend.context()?;
        let thread = if work.stream == Stream::PER_THREAD {
            os::thread_mark()
        } else {
            0
        };
        let line = Line {
            context,
            stream: work.stream,
            thread,
        };
        Some(Visit {
            pages,
            index,
            work,
            line,
            gates: None,
        })
    }

    /// The gates that are to be put into streams now.
    fn gates(&self, visit: &Visit<'_>) -> Option<(u64, u64)> {
        let distance = Words::read(visit.pages.container, visit.index).gates();
        let word = |_| {
            self.gates
                .word(self.backend, visit.line.context, visit.index)
        };
        let word = Some(distance).filter(|ns| *ns > 0).and_then(word)?;
        Some((word, distance))
    }

    /// Waits until the launch may go. With a ticket, [`Gate::leave`] must follow it.
    pub fn enter(&'static self, work: &Work) -> Option<Ticket> {
        let visit = self.visit(work)?;
        let index = visit.index;
        self.start_thread();
        // Time spent waiting for turns, and held back by a full window, ns.
        let (mut waited, mut held) = (0, 0);
        loop {
            let now = os::now();
            // The daemon may have come back with other pages while this launch waited.
            let pages = self.backend.pages()?;
            let visit = Visit {
                gates: self.gates(&visit),
                pages,
                ..visit
            };
            let mut lane = self.lane(index);
            self.want(&visit);
            lane.seen = now;
            let words = Words::read(visit.pages.container, index);
            let (turn, pause, clock) = match words.judge(now) {
                Verdict::Free if !visit.freed(&words, now) => continue,
                Verdict::Free => {
                    lane.unpark(visit.claims(), now);
                    count(&visit);
                    return self.pass_free(&visit, lane, now);
                }
                Verdict::Wait { .. } if self.cannot_wait(&mut lane, &visit, now, waited) => {
                    count(&visit);
                    return self.ticket(&visit, lane, now, false);
                }
                Verdict::Wait { turn } => (turn, words.patience(now).min(LOOK_NS), &mut waited),
                Verdict::Turn { turn, .. } if !visit.words().take(turn) => {
                    // It has just ended, we have claimed part in it, and owe an answer.
                    os::wake(&visit.pages.container.bell);
                    continue;
                }
                Verdict::Turn { turn, end_ns } => {
                    lane.unpark(visit.claims(), now);
                    lane.follow(now);
                    let left = end_ns.saturating_sub(now);
                    let first = std::mem::replace(&mut lane.roused, turn) != turn;
                    let bell = first.then_some(&visit.pages.container.bell);
                    match self.admit(&visit, &mut lane, now, left, words.window_ns) {
                        Admission::Full(ns) if held < HELD_MAX_NS => {
                            bell.into_iter().for_each(os::wake);
                            (turn, ns, &mut held)
                        }
                        _ => {
                            if held > 0 && lane.marks.flight.empty() {
                                lane.breadth.ran_dry();
                            }
                            count(&visit);
                            visit.begins(&mut lane, first.then_some(now));
                            let rouse = Rouse(bell);
                            // What a turn ends with is told exactly, and so is what the next one waits for.
                            let last = left <= words.window_ns;
                            let ticket = self.ticket(&visit, lane, now, last)?;
                            return Some(Ticket { rouse, ..ticket });
                        }
                    }
                }
            };
            lane.waiting += 1;
            drop(lane);
            os::wait(&visit.pages.container.lane[index].turn, turn, pause);
            *clock += os::now().saturating_sub(now);
            self.lane(index).waiting -= 1;
        }
    }

    /// Whether a launch that was held for its turn so long must go without one: because it cannot be
    /// ruled out that what is in flight waits for it.
    ///
    /// What is behind others in its stream cannot be what they wait for, unless the stream itself has
    /// called back: that is rare enough to be waited for much longer. A copy over the bus takes no
    /// multiprocessor from anybody and goes sooner.
    fn cannot_wait(&self, lane: &mut Lane, visit: &Visit<'_>, now: u64, waited: u64) -> bool {
        if waited < HELD_MAX_NS {
            return false;
        }
        if visit.work.over_bus {
            let may_help = !lane.parked && !lane.marks.flight.empty();
            return waited >= BEHIND_MAX_NS || may_help;
        }
        if lane.parked {
            return false; // What is in flight waits for its turn, as this does.
        }
        let helps = |marks: &Marks| {
            marks.flight.stuck(now) && (waited >= BEHIND_MAX_NS || !marks.busy(visit.line))
        };
        if !helps(&lane.marks) {
            return false;
        }
        lane.marks.collect(self.backend, now, true);
        helps(&lane.marks)
    }

    /// The launch came back from the driver; `done` says whether it was made.
    pub fn leave(&self, ticket: Ticket, done: bool) {
        drop(ticket.rouse);
        let mut lane = self.lane(ticket.lane);
        let marks = &mut lane.marks;
        marks.flight.leave(ticket.ns);
        if !done {
            return marks.unused(self.backend, ticket.tail, ticket.base);
        }
        let Ticket {
            tail,
            task,
            ns,
            base,
            now,
            ..
        } = ticket;
        marks.estimates.accepted(task.key);
        let due = marks.flight.launched(now, tail, task, ns, base) || ticket.mark;
        if due && !marks.stream(tail).is_some_and(|it| self.captured(it)) {
            marks.mark(self.backend, now, tail);
        }
    }

    /// Tells the daemon that this process wants the GPU, if it does not know yet.
    fn want(&self, visit: &Visit<'_>) {
        if visit.claims().want.load(Relaxed) == 0 {
            visit.claims().want.store(1, SeqCst);
            self.backend.ring();
            os::wake(&visit.pages.container.bell); // The gate thread must look after us again.
        }
    }

    /// Nobody takes turns: opens the word, and marks a launch now and then to see when it is done.
    fn pass_free(
        &self,
        visit: &Visit<'_>,
        mut lane: MutexGuard<'_, Lane>,
        now: u64,
    ) -> Option<Ticket> {
        let container = visit.pages.container;
        lane.unfollowed = true;
        let seen = now.saturating_sub(self.closed.load(Relaxed)) >= SEEN_NS;
        if container.gated.load(SeqCst) == 0 && (seen || container.lanes.load(Relaxed) <= 1) {
            self.opened.store(now, Relaxed);
            self.word.fetch_or(OPEN, SeqCst);
            // The gate thread may have closed it for turns just before: look again after opening.
            if container.gated.load(SeqCst) != 0 {
                self.word.fetch_and(!OPEN, SeqCst);
            }
        }
        if now.saturating_sub(lane.sampled) < SAMPLE_NS {
            return None;
        }
        lane.sampled = now;
        self.ticket(visit, lane, now, true)
    }

    /// Is there room in the window, with `left` ns of the turn left and `bound` where that is less? Looks
    /// at what has finished only if the estimate says no.
    fn admit(
        &self,
        visit: &Visit<'_>,
        lane: &mut Lane,
        now: u64,
        left: u64,
        bound: u64,
    ) -> Admission {
        let (window, left) = match visit.gates {
            Some(_) => (DEPTH_NS, left),
            None => (
                lane.breadth.within(bound),
                lane.breadth.of_rest(left, bound),
            ),
        };
        let marks = &mut lane.marks;
        let ns = marks.estimates.expect(visit.work.task).ns;
        if marks.flight.admit(now, ns, window, left) == Admission::Go {
            return Admission::Go;
        }
        marks.collect(self.backend, now, true);
        marks.flight.admit(now, ns, window, left)
    }

    /// Lets the launch in; with `mark`, a mark follows it in any case. An unknown kernel gets a group of its own,
    /// to be measured exactly, once its like has succeeded.
    fn ticket(
        &self,
        visit: &Visit<'_>,
        mut lane: MutexGuard<'_, Lane>,
        now: u64,
        mark: bool,
    ) -> Option<Ticket> {
        let marks = &mut lane.marks;
        if marks.flight.due(now) {
            marks.collect(self.backend, now, false);
        }
        let tail = marks.tail(self.backend, visit.line)?;
        let expected = marks.estimates.expect(visit.work.task);
        let base = match expected.tried && !self.captured(visit.line.stream) {
            true => self.before(visit, marks, now, (tail, expected)),
            false => None,
        };
        marks.flight.enter(expected.ns);
        lane.breadth.let_in(expected.ns);
        let mark = mark || !expected.known || visit.line.stream == Stream::PER_THREAD;
        let (task, ns, lane) = (visit.work.task, expected.ns, visit.index);
        Some(Ticket {
            lane,
            tail,
            task,
            ns,
            base,
            mark,
            now,
            rouse: Rouse::default(),
        })
    }

    /// Whether a stream has come to be captured while a launch into it was held here, by another thread.
    fn captured(&self, stream: Stream) -> bool {
        captures::ever() && self.backend.capturing(stream)
    }

    /// Puts into the stream what comes before a launch: the end of another group, a gate, the base. Answers for
    /// the base, if that is not behind a gate.
    fn before(
        &self,
        visit: &Visit<'_>,
        marks: &mut Marks,
        now: u64,
        (tail, expected): (Tail, Estimate),
    ) -> Option<Event> {
        if !expected.known {
            marks.close(self.backend, now, tail);
        }
        let put = visit.gates.map(|gates| {
            let next = (tail, expected.ns);
            marks.gate(self.backend, now, next, gates)
        });
        match put {
            Some(Some(true)) => return None,
            Some(None) => self.gates.refused(visit.line.context),
            _ => {}
        }
        marks.base(self.backend, tail)
    }

    /// A stream was made in the current context. Perhaps nothing that goes into it is ever seen here: one
    /// launch opens the word, and the next, into this stream, runs for hours.
    pub fn stream_made(&self, stream: Stream) {
        let index = self.backend.pages().and_then(|_| self.backend.lane());
        let index = index.filter(|index| *index < LANES_MAX);
        if let (Some(index), Some(context)) = (index, self.backend.context()) {
            let line = Line {
                context,
                stream,
                thread: 0,
            };
            self.lane(index).marks.made(self.backend, line);
        }
    }

    /// The stream is about to be destroyed: its last launches get their mark while it can be put.
    pub fn stream_closing(&self, stream: Stream) {
        let now = os::now();
        for index in self.used() {
            self.lane(index)
                .marks
                .bury(self.backend, now, |line| line.stream == stream);
        }
    }

    /// The context is about to be destroyed by `call`, which waits for its work. Meanwhile the
    /// process is not quiet, and after it nothing of the context is left.
    pub fn context_closing<R>(&self, context: Context, call: impl FnOnce() -> R) -> R {
        let now = os::now();
        self.gates.open(self.backend, true);
        for index in self.used() {
            let mut lane = self.lane(index);
            lane.marks.drop_context(self.backend, now, context);
            lane.marks.flight.enter(0);
        }
        let result = call();
        for index in self.used() {
            self.lane(index).marks.flight.leave(0);
        }
        self.gates.forget(context);
        result
    }

    /// The lanes this process may have used.
    fn used(&self) -> std::ops::Range<usize> {
        let lanes = self
            .backend
            .pages()
            .map_or(0, |pages| pages.container.lanes.load(Relaxed));
        0..(lanes as usize).min(LANES_MAX)
    }

    /// Starts the gate thread with the first launch. Where that fails, launches still take turns,
    /// but the daemon has to wait for its own deadlines to believe that all is quiet.
    pub(super) fn start_thread(&'static self) {
        if !self.thread.load(Relaxed) && !self.thread.swap(true, SeqCst) {
            os::spawn(|| self.tend_for_ever());
        }
    }
}
