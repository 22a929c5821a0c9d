//! One lane's streams and the events in them: how the gate learns what the GPU has finished.
//!
//! A *tail* is a stream of a context the process launches into. Behind its launches go marks
//! (see `window.rs`); in front of the first launch into an idle stream goes a base, so that base to
//! mark, or mark to mark, is the time the launches between them ran. Events are pooled per context.
//!
//! # Nothing is put into a stream later
//! An event in a stream can order the program's work. One in the legacy default stream is a barrier among all
//! blocking streams of its context: a stream that waits for a word, and another one that writes it, are a
//! deadlock if the event comes between them. One in a blocking stream waits for the legacy stream, and the host
//! that waits for that blocking stream then does too. Hence two rules:
//! * Events are recorded in the calls that launch, by the launching thread. A correct program may meet its launch
//!   at any moment of that call, so an event there orders nothing that the launch could not have ordered.
//!   Before a launch they are recorded only if its like has succeeded before: a launch that the driver refuses
//!   orders nothing, and nor may we.
//! * Whether work behind the last mark has finished is asked: `cuStreamQuery` puts nothing into a stream. A
//!   per-thread stream cannot be asked by another thread, so it is marked at every launch.
//!
//! Nothing is put into a stream that is being captured, nor is one asked. Whatever the driver refuses counts as
//! finished, or as finished once its estimated time is well over: a broken context must not hold a turn.
#![forbid(unsafe_code)]

use super::backend::{Context, DriverBackend, Event, Progress, Stream};
use super::estimate::Estimates;
use super::window::{Flight, Group, TAILS_MAX, Tail};

/// A stream of a context, and of a thread where it is a per-thread one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The context.
    pub context: Context,
    /// The stream in it.
    pub stream: Stream,
    /// Which thread's, for [`Stream::PER_THREAD`]; else 0.
    pub thread: u64,
}

impl Line {
    /// Whether any thread may ask how far the stream is. One that was destroyed has its last mark.
    fn can_be_asked(&self) -> bool {
        self.thread == 0 && self.stream != Stream::GONE
    }

    /// Whether everything in the stream has finished; `None` where that cannot be asked.
    fn finished(&self, backend: &dyn DriverBackend) -> Option<Progress> {
        if !self.can_be_asked() {
            return None;
        }
        if backend.context() == Some(self.context) {
            return backend.finished(self.stream);
        }
        let mut answer = None;
        let there = backend.within(self.context, &mut || answer = backend.finished(self.stream));
        if there { answer } else { Some(Progress::Done) }
    }
}

/// How long the GPU took from the launch of `group` to its beginning: it had others' work, and another context.
///
/// `previous` is the event behind what was in flight before. From there to the group's own mark is known by the
/// GPU's clock, and consists of what nothing was in flight, known by ours, of this, and of the group's run time.
fn stall(backend: &dyn DriverBackend, group: &Group, previous: Option<Event>) -> Option<u64> {
    let (last, ended) = group.after?;
    let (from, to) = (previous.filter(|_| last == group.tail)?, group.mark?);
    let idle = group.span.0.saturating_sub(ended);
    backend
        .elapsed(from, to)?
        .checked_sub(idle + group.expected)
}

#[derive(Debug)]
struct Slot {
    line: Option<Line>,
    /// The mark of the group retired last: the base of the next.
    last: Option<Event>,
    /// The round of the last gate; see `gates.rs`.
    round: u32,
}

/// Unused events kept per lane.
const SPARE_MAX: usize = 256;

/// What one lane knows of its work. Lives behind the lane's lock.
#[derive(Debug, Default)]
pub struct Marks {
    /// What is in flight.
    pub flight: Flight,
    /// How long things take.
    pub estimates: Estimates,
    /// Launches of one distance between gates, over all streams, and what is expected of them, ns.
    round: (u32, u64),
    slots: Vec<Slot>,
    spare: Vec<(Context, Event)>,
    /// A turn began, and the first group launched in it has not been learned from.
    opening: bool,
    /// How long the GPU took to come to that group, ns.
    stall: u64,
}

impl Marks {
    /// The tail of `line`; `None` when too many streams are busy at once.
    pub fn tail(&mut self, backend: &dyn DriverBackend, line: Line) -> Option<Tail> {
        let known = self.slots.iter().position(|slot| slot.line == Some(line));
        let index = match known {
            Some(index) => index,
            None => self.fresh(backend, line)?,
        };
        Tail::try_from(index).ok()
    }

    /// A stream was made. What goes into it past the gate is found too, as long as there is room for it.
    pub fn made(&mut self, backend: &dyn DriverBackend, line: Line) {
        let known = self.slots.iter().any(|slot| slot.line == Some(line));
        if !known && self.slots.len() < TAILS_MAX {
            self.fresh(backend, line);
        }
    }

    fn fresh(&mut self, backend: &dyn DriverBackend, line: Line) -> Option<usize> {
        let slot = Slot {
            line: Some(line),
            last: None,
            round: self.round.0.wrapping_sub(1), // its first launch gets a gate
        };
        if self.slots.len() < TAILS_MAX {
            self.slots.push(slot);
            return Some(self.slots.len() - 1);
        }
        let idle = |(index, slot): &(usize, &Slot)| {
            slot.line.is_none() || !self.flight.busy(*index as Tail)
        };
        let index = self.slots.iter().enumerate().find(idle)?.0;
        let old = std::mem::replace(&mut self.slots[index], slot);
        if let (Some(line), Some(event)) = (old.line, old.last) {
            self.recycle(backend, line.context, event);
        }
        Some(index)
    }

    /// Whether anything of `line` is in flight.
    #[must_use]
    pub fn busy(&self, line: Line) -> bool {
        let known = self.slots.iter().position(|slot| slot.line == Some(line));
        known.is_some_and(|index| self.flight.busy(index as Tail))
    }

    fn line(&self, tail: Tail) -> Option<Line> {
        self.slots.get(usize::from(tail))?.line
    }

    /// The stream of `tail`.
    #[must_use]
    pub fn stream(&self, tail: Tail) -> Option<Stream> {
        Some(self.line(tail)?.stream)
    }

    /// An event put into the stream of `tail` now; its context is current.
    fn put(&mut self, backend: &dyn DriverBackend, line: Line) -> Option<Event> {
        let kept = self
            .spare
            .iter()
            .rposition(|(context, _)| *context == line.context);
        let event = match kept {
            Some(index) => self.spare.swap_remove(index).1,
            None => backend.event()?,
        };
        if backend.record(event, line.stream) {
            return Some(event);
        }
        backend.discard(event);
        None
    }

    /// The base for a launch into `tail`, if its stream is idle and therefore needs one. For a launch whose like
    /// has succeeded.
    pub fn base(&mut self, backend: &dyn DriverBackend, tail: Tail) -> Option<Event> {
        let line = self.line(tail)?;
        if self.flight.busy(tail) {
            None
        } else {
            self.put(backend, line)
        }
    }

    /// A launch of `ns` goes into `tail` next: puts the gate before it that is due where gates are to be
    /// `distance` apart, and answers whether it is there; `None` where the driver puts none.
    pub fn gate(
        &mut self,
        backend: &dyn DriverBackend,
        now: u64,
        (tail, ns): (Tail, u64),
        (word, distance): (u64, u64),
    ) -> Option<bool> {
        let (round, launched) = self.round;
        self.round = match launched.saturating_add(ns) {
            sum if launched == 0 || sum <= distance => (round, sum),
            _ => (round.wrapping_add(1), ns),
        };
        let Some(line) = self.line(tail) else {
            return Some(false);
        };
        if self.slots[usize::from(tail)].round == self.round.0 {
            return Some(false);
        }
        self.close(backend, now, tail);
        if !backend.hold(line.stream, word) {
            return None;
        }
        self.slots[usize::from(tail)].round = self.round.0;
        let base = self.put(backend, line);
        self.flight.gate(now, tail, base);
        Some(true)
    }

    /// Puts a mark behind the open group of `tail`, from a thread that has its context current.
    pub fn mark(&mut self, backend: &dyn DriverBackend, now: u64, tail: Tail) {
        let Some(line) = self.line(tail) else { return };
        match self.put(backend, line) {
            Some(event) => {
                if let Some(unused) = self.flight.mark(tail, event) {
                    self.recycle(backend, line.context, unused);
                }
            }
            None => self.forget_tail(backend, now, tail),
        }
    }

    /// Marks the open group of `tail`, if there is one, from a thread that has its context current and launches
    /// there next what has succeeded before.
    pub fn close(&mut self, backend: &dyn DriverBackend, now: u64, tail: Tail) {
        if self.flight.is_open(tail) {
            self.mark(backend, now, tail);
        }
    }

    /// Turns begin: launches of before were not followed, so every known stream may have work in it.
    pub fn unfollowed(&mut self, now: u64) {
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.line.as_ref().is_some_and(Line::can_be_asked) {
                self.flight.unfollowed(now, index as Tail);
            }
        }
    }

    /// Takes out what has finished, and learns from it. Streams are asked only if `ask` says so.
    pub fn collect(&mut self, backend: &dyn DriverBackend, now: u64, ask: bool) {
        // Each stream is asked once.
        let mut unfinished = [false; TAILS_MAX];
        loop {
            let slots = &self.slots;
            let look = |group: &Group| match group.mark {
                Some(mark) => Some(backend.progress(mark)),
                None if !ask || unfinished[usize::from(group.tail) % TAILS_MAX] => None,
                None => {
                    let line = slots[usize::from(group.tail)].line;
                    let finished = line.map_or(Some(Progress::Done), |line| line.finished(backend));
                    let late = finished.is_none() && now > group.given_up();
                    let finished = if late { Some(Progress::Done) } else { finished };
                    unfinished[usize::from(group.tail) % TAILS_MAX] =
                        finished != Some(Progress::Done);
                    finished
                }
            };
            let Some(group) = self.flight.retire(now, look) else {
                return;
            };
            self.learn(backend, group);
        }
    }

    /// [`Marks::collect`] from a thread without a context of its own.
    pub fn collect_elsewhere(&mut self, backend: &dyn DriverBackend, now: u64, ask: bool) {
        let Some(context) = self.flight.oldest().and_then(|tail| self.line(tail)) else {
            return;
        };
        if !backend.within(context.context, &mut || self.collect(backend, now, ask)) {
            self.forget(backend, now, |line| line.context == context.context);
        }
    }

    /// The measured time of a group updates its kernels' estimates. A group whose launches came
    /// apart holds idle time between them, so it only bounds them from above.
    fn learn(&mut self, backend: &dyn DriverBackend, group: Group) {
        let Some(line) = self.line(group.tail) else {
            return;
        };
        let slot = &mut self.slots[usize::from(group.tail)];
        let previous = std::mem::replace(&mut slot.last, group.mark);
        if std::mem::take(&mut self.opening) {
            self.stall = stall(backend, &group, previous).unwrap_or(0);
        }
        let base = group.base.or(previous.filter(|_| group.follows));
        if let (Some(from), Some(to)) = (base, group.mark)
            && let Some(ns) = backend.elapsed(from, to)
        {
            let dense = (group.span.1 - group.span.0).saturating_mul(2) <= ns;
            match group.keys[..] {
                [key] if dense => self.estimates.observe(key, group.parts, ns),
                [key] => self.estimates.observe_at_most(key, group.parts, ns),
                _ if dense => {
                    for key in group.keys {
                        self.estimates.scale(key, ns, group.expected);
                    }
                }
                _ => {}
            }
        }
        for event in [group.base, previous].into_iter().flatten() {
            self.recycle(backend, line.context, event);
        }
    }

    /// The next launch is the first of a turn.
    pub fn turn_begins(&mut self) {
        (self.opening, self.stall) = (true, 0);
    }

    /// How long the GPU took to come to the first launch of the turn, ns, where that could be told; told once.
    pub fn stalled(&mut self) -> u64 {
        std::mem::take(&mut self.stall)
    }

    /// Keeps an event for later use.
    pub fn recycle(&mut self, backend: &dyn DriverBackend, context: Context, event: Event) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push((context, event));
        } else {
            backend.discard(event);
        }
    }

    /// Hands back a base whose launch failed.
    pub fn unused(&mut self, backend: &dyn DriverBackend, tail: Tail, base: Option<Event>) {
        if let (Some(line), Some(event)) = (self.line(tail), base) {
            self.recycle(backend, line.context, event);
        }
    }

    fn forget_tail(&mut self, backend: &dyn DriverBackend, now: u64, tail: Tail) {
        while let Some(group) = self.flight.forget(now, tail) {
            for event in [group.base, group.mark].into_iter().flatten() {
                backend.discard(event);
            }
        }
    }

    /// Forgets every stream `gone` names, and what is in flight there. Events are left behind only
    /// in a context that dies with them.
    pub fn forget(&mut self, backend: &dyn DriverBackend, now: u64, gone: impl Fn(&Line) -> bool) {
        for index in 0..self.slots.len() {
            let Some(line) = self.slots[index].line.filter(&gone) else {
                continue;
            };
            self.forget_tail(backend, now, index as Tail);
            self.slots[index].line = None;
            if let Some(event) = self.slots[index].last.take() {
                self.recycle(backend, line.context, event);
            }
        }
    }

    /// The streams `gone` names are about to be destroyed: puts their last marks, and never touches
    /// the streams again. Nothing can wait for such a stream any more, so its mark orders nothing.
    pub fn bury(&mut self, backend: &dyn DriverBackend, now: u64, gone: impl Fn(&Line) -> bool) {
        for index in 0..self.slots.len() {
            let Some(line) = self.slots[index].line.filter(&gone) else {
                continue;
            };
            let tail = index as Tail;
            let close = &mut || {
                if !backend.capturing(line.stream) {
                    self.close(backend, now, tail);
                }
            };
            if !backend.within(line.context, close) {
                self.forget_tail(backend, now, tail);
            }
            self.slots[index].line = Some(Line {
                stream: Stream::GONE,
                ..line
            });
        }
    }

    /// Drops the pool of a context about to be destroyed.
    pub fn drop_context(&mut self, backend: &dyn DriverBackend, now: u64, context: Context) {
        self.forget(backend, now, |line| line.context == context);
        self.spare.retain(|(owner, event)| {
            if *owner == context {
                backend.discard(*event);
            }
            *owner != context
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::backend::Progress;
    use crate::gate::estimate::{Key, Task};
    use crate::gate::fake::Fake;

    const US: u64 = 1_000;

    /// Work of 50 µs ended at 100 by both clocks, the GPU's 7 ms ahead; more of it is launched at 900 µs and ends at
    /// `end`.
    fn stalled(end: u64, last: Tail) -> Option<u64> {
        let (fake, mut flight) = (Fake::new(), Flight::default());
        for (event, at) in [(1, 100), (2, end)] {
            fake.gpu().events.insert(event, (7_000 + at) * US);
        }
        for (tail, at, event) in [(last, 50, 1), (3, 900, 2)] {
            flight.launched(at * US, tail, Task::launch(Key(1)), 50 * US, None);
            flight.mark(tail, Event(event));
            if event == 1 {
                flight.retire(200 * US, |_| Some(Progress::Done));
            }
        }
        let group = flight.retire(2_000 * US, |_| Some(Progress::Done));
        stall(fake, &group.expect("done"), Some(Event(1)))
    }

    #[test]
    fn how_long_the_gpu_took_to_come_is_told_by_both_clocks() {
        assert_eq!(stalled(950, 3), Some(0));
        assert_eq!(stalled(1_000, 3), Some(50 * US), "another context's");
        assert_eq!(stalled(949, 3), None, "faster than expected");
        assert_eq!(
            stalled(1_000, 4),
            None,
            "another stream's work was the last"
        );
    }
}
