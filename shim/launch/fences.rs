//! One lane's streams and the fences in them: how the gate learns which work the GPU has finished.
//!
//! A *fence* is an event behind launches (see `window.rs`). In front of the first launch into an idle stream
//! goes a *base*. The time from base to fence, or from fence to fence, is the run time of the launches
//! between them. Events are pooled per context. Streams are known by an index.
//!
//! # Nothing is put into a stream later
//! An event in a stream can order the program's work. One in the legacy default stream is a barrier among all
//! blocking streams of its context: if it comes between a stream that waits for a word and another one that
//! writes it, they deadlock. One in a blocking stream waits for the legacy stream, and so does the host when
//! it waits for that blocking stream. Hence two rules:
//! * Events are recorded in the calls that launch, by the launching thread. A correct program must expect its
//!   launch at any moment of that call, so an event there orders nothing that the launch could not have
//!   ordered. In front of a launch they are recorded only if one like it has succeeded before: a launch that
//!   the driver refuses orders nothing, and neither may the gate.
//! * Whether work behind the last fence has finished is queried: `cuStreamQuery` puts nothing into a stream. A
//!   per-thread stream cannot be queried by another thread, so it is fenced at every launch.
//!
//! Nothing is put into a stream under capture, nor is one queried. Work for which the driver refuses a call
//! counts as finished, or as finished well after its estimated time: a broken context must not hold a turn.
#![forbid(unsafe_code)]

use super::backend::{Context, DriverBackend, Event, Progress, Stream};
use super::estimate::Estimates;
use super::window::{InFlight, LaunchGroup, STREAMS_MAX, StreamIndex};

/// A stream of a context, and for a per-thread stream also its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    /// The context.
    pub context: Context,
    /// The stream in it.
    pub stream: Stream,
    /// The thread, for [`Stream::PER_THREAD`]; else 0.
    pub thread: u64,
}

impl StreamId {
    /// Whether any thread may query the stream. A destroyed stream has its last fence.
    fn can_be_asked(&self) -> bool {
        self.thread == 0 && self.stream != Stream::GONE
    }

    /// Whether all work in the stream has finished; `None` if it cannot be queried.
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

/// Time from the launch of `group` to its start on the GPU: other containers' work and the context switch.
/// `previous` is the event behind the work in flight before. The GPU's clock gives the time from there to the
/// group's own fence. It consists of the time with nothing in flight (known by the host's clock), of this
/// stall, and of the group's run time.
fn stall(backend: &dyn DriverBackend, group: &LaunchGroup, previous: Option<Event>) -> Option<u64> {
    let (last, ended) = group.after?;
    let (from, to) = (previous.filter(|_| last == group.stream_index)?, group.fence?);
    let idle = group.span.0.saturating_sub(ended);
    backend.elapsed(from, to)?.checked_sub(idle + group.expected)
}

#[derive(Debug)]
struct TrackedStream {
    stream_id: Option<StreamId>,
    /// The fence of the group retired last: the base of the next.
    last: Option<Event>,
    /// The round of the last gate; see `gates.rs`.
    round: u32,
}

/// Unused events kept per lane.
const SPARE_MAX: usize = 256;

/// The tracked work of one lane, protected by the lane's lock.
#[derive(Debug, Default)]
pub struct Fences {
    /// The work in flight.
    pub in_flight: InFlight,
    /// Estimated durations.
    pub estimates: Estimates,
    /// The current round of gates, and the expected time of its launches over all streams, ns.
    round: (u32, u64),
    streams: Vec<TrackedStream>,
    spare: Vec<(Context, Event)>,
    /// A turn began, and its first group has not been evaluated yet.
    opening: bool,
    /// Time until the GPU started that group, ns.
    stall: u64,
}

impl Fences {
    /// The index of `stream_id`; `None` when too many streams are busy at once.
    pub fn stream_index(
        &mut self,
        backend: &dyn DriverBackend,
        stream_id: StreamId,
    ) -> Option<StreamIndex> {
        let known = self.streams.iter().position(|stream| stream.stream_id == Some(stream_id));
        let index = match known {
            Some(index) => index,
            None => self.fresh(backend, stream_id)?,
        };
        StreamIndex::try_from(index).ok()
    }

    /// Notes a new stream, as long as there is room: work that bypasses the gate is then found too.
    pub fn made(&mut self, backend: &dyn DriverBackend, now: u64, stream_id: StreamId) {
        if self.streams.iter().any(|stream| stream.stream_id == Some(stream_id)) {
            return;
        }
        if !self.has_room() {
            self.collect(backend, now, false); // of destroyed streams
        }
        if self.has_room() {
            self.fresh(backend, stream_id);
        }
    }

    fn has_room(&self) -> bool {
        self.streams.len() < STREAMS_MAX || self.unused_index().is_some()
    }

    /// The index of a stream that is gone and has nothing in flight.
    fn unused_index(&self) -> Option<usize> {
        let gone = |stream: &TrackedStream| {
            stream.stream_id.is_none_or(|stream_id| stream_id.stream == Stream::GONE)
        };
        let mut streams = self.streams.iter().enumerate();
        let unused = |(index, stream): &(usize, &TrackedStream)| {
            gone(stream) && !self.in_flight.busy(*index as StreamIndex)
        };
        Some(streams.find(unused)?.0)
    }

    fn fresh(&mut self, backend: &dyn DriverBackend, stream_id: StreamId) -> Option<usize> {
        let stream = TrackedStream {
            stream_id: Some(stream_id),
            last: None,
            round: self.round.0.wrapping_sub(1), // its first launch gets a gate
        };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
            return Some(self.streams.len() - 1);
        }
        let is_idle = |index: &usize| !self.in_flight.busy(*index as StreamIndex);
        let index = self.unused_index().or_else(|| (0..STREAMS_MAX).find(is_idle))?;
        let old = std::mem::replace(&mut self.streams[index], stream);
        if let (Some(stream_id), Some(event)) = (old.stream_id, old.last) {
            self.recycle(backend, stream_id.context, event);
        }
        Some(index)
    }

    /// Whether any work of `stream_id` is in flight.
    #[must_use]
    pub fn busy(&self, stream_id: StreamId) -> bool {
        let known = self.streams.iter().position(|stream| stream.stream_id == Some(stream_id));
        known.is_some_and(|index| self.in_flight.busy(index as StreamIndex))
    }

    fn stream_id(&self, stream_index: StreamIndex) -> Option<StreamId> {
        self.streams.get(usize::from(stream_index))?.stream_id
    }

    /// The stream with this index.
    #[must_use]
    pub fn stream(&self, stream_index: StreamIndex) -> Option<Stream> {
        Some(self.stream_id(stream_index)?.stream)
    }

    /// Records an event into the stream now; its context is current.
    fn put(&mut self, backend: &dyn DriverBackend, stream_id: StreamId) -> Option<Event> {
        let kept = self.spare.iter().rposition(|(context, _)| *context == stream_id.context);
        let event = match kept {
            Some(index) => self.spare.swap_remove(index).1,
            None => backend.event()?,
        };
        if backend.record(event, stream_id.stream) {
            return Some(event);
        }
        backend.discard(event);
        None
    }

    /// The base for a launch into an idle stream; `None` for a busy stream. Only for a launch like one that
    /// has succeeded.
    pub fn base(
        &mut self,
        backend: &dyn DriverBackend,
        stream_index: StreamIndex,
    ) -> Option<Event> {
        let stream_id = self.stream_id(stream_index)?;
        if self.in_flight.busy(stream_index) { None } else { self.put(backend, stream_id) }
    }

    /// Puts a gate in front of a launch of `ns` if one is due, where gates are `distance` apart. Returns
    /// `false` if the driver refused.
    pub fn gate(
        &mut self,
        backend: &dyn DriverBackend,
        now: u64,
        (stream_index, ns): (StreamIndex, u64),
        (word, distance): (u64, u64),
    ) -> bool {
        let (round, launched) = self.round;
        self.round = match launched.saturating_add(ns) {
            sum if sum <= distance => (round, sum),
            _ => (round.wrapping_add(1), ns),
        };
        let Some(stream_id) = self.stream_id(stream_index) else {
            return true;
        };
        if self.streams[usize::from(stream_index)].round == self.round.0 {
            return true;
        }
        self.close(backend, now, stream_index);
        if !backend.hold(stream_id.stream, word) {
            return false;
        }
        self.streams[usize::from(stream_index)].round = self.round.0;
        let base = self.put(backend, stream_id);
        self.in_flight.gate(now, stream_index, base);
        true
    }

    /// Puts a fence behind the stream's open group. The stream's context is current.
    pub fn fence(&mut self, backend: &dyn DriverBackend, now: u64, stream_index: StreamIndex) {
        let Some(stream_id) = self.stream_id(stream_index) else {
            return;
        };
        match self.put(backend, stream_id) {
            Some(event) => {
                if let Some(unused) = self.in_flight.fence(stream_index, event) {
                    self.recycle(backend, stream_id.context, unused);
                }
            }
            None => self.forget_tail(backend, now, stream_index),
        }
    }

    /// Fences the stream's open group, if there is one. The stream's context is current, and the caller
    /// launches next into it work like one that has succeeded.
    pub fn close(&mut self, backend: &dyn DriverBackend, now: u64, stream_index: StreamIndex) {
        if self.in_flight.is_open(stream_index) {
            self.fence(backend, now, stream_index);
        }
    }

    /// Notes that turns begin: earlier launches were not tracked, so every known stream may have work in it. Per-thread
    /// streams are left out: only their threads can tell, and a thread that launches nothing more never does. Waiting
    /// for it would delay the other containers' first turn each time, mostly for no work.
    pub fn untracked(&mut self, now: u64) {
        for (index, stream) in self.streams.iter().enumerate() {
            if stream.stream_id.as_ref().is_some_and(StreamId::can_be_asked) {
                self.in_flight.untracked(now, index as StreamIndex);
            }
        }
    }

    /// Retires finished groups and learns from them. Streams are queried only if `ask` is true.
    pub fn collect(&mut self, backend: &dyn DriverBackend, now: u64, ask: bool) {
        // Each stream is queried once.
        let mut unfinished = [false; STREAMS_MAX];
        loop {
            let streams = &self.streams;
            let look = |group: &LaunchGroup| {
                if let Some(fence) = group.fence {
                    return Some(backend.progress(fence));
                }
                let index = usize::from(group.stream_index);
                if !ask || unfinished[index] {
                    return None;
                }
                let finished = streams[index]
                    .stream_id
                    .map_or(Some(Progress::Done), |stream_id| stream_id.finished(backend));
                let late = finished.is_none() && now >= group.given_up();
                let finished = if late { Some(Progress::Done) } else { finished };
                unfinished[index] = finished != Some(Progress::Done);
                finished
            };
            let Some(group) = self.in_flight.retire(now, look) else {
                return;
            };
            self.learn(backend, group);
        }
    }

    /// [`Fences::collect`] from a thread without a context of its own.
    pub fn collect_elsewhere(&mut self, backend: &dyn DriverBackend, now: u64, ask: bool) {
        let Some(context) =
            self.in_flight.oldest().and_then(|stream_index| self.stream_id(stream_index))
        else {
            return;
        };
        if !backend.within(context.context, &mut || self.collect(backend, now, ask)) {
            self.forget(backend, now, |stream_id| stream_id.context == context.context);
        }
    }

    /// Updates the estimates of a group's kernels by its measured time. A group whose launches were spread
    /// out contains idle time, so it gives only an upper bound.
    fn learn(&mut self, backend: &dyn DriverBackend, group: LaunchGroup) {
        let Some(stream_id) = self.stream_id(group.stream_index) else {
            return;
        };
        let stream = &mut self.streams[usize::from(group.stream_index)];
        let previous = std::mem::replace(&mut stream.last, group.fence);
        if std::mem::take(&mut self.opening) {
            self.stall = stall(backend, &group, previous).unwrap_or(0);
        }
        let base = group.base.or(previous.filter(|_| group.follows));
        if let (Some(from), Some(to)) = (base, group.fence)
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
            self.recycle(backend, stream_id.context, event);
        }
    }

    /// Notes that the next launch is the first of a turn.
    pub fn turn_begins(&mut self) {
        (self.opening, self.stall) = (true, 0);
    }

    /// Time until the GPU started the first launch of the turn, ns, if it could be measured; returned once.
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

    /// Returns the base of a failed launch.
    pub fn unused(
        &mut self,
        backend: &dyn DriverBackend,
        stream_index: StreamIndex,
        base: Option<Event>,
    ) {
        if let (Some(stream_id), Some(event)) = (self.stream_id(stream_index), base) {
            self.recycle(backend, stream_id.context, event);
        }
    }

    fn forget_tail(&mut self, backend: &dyn DriverBackend, now: u64, stream_index: StreamIndex) {
        while let Some(group) = self.in_flight.forget(now, stream_index) {
            for event in [group.base, group.fence].into_iter().flatten() {
                backend.discard(event);
            }
        }
    }

    /// Drops every stream for which `gone` is true, and its work in flight. Its events are leaked only in a
    /// context that ends too.
    pub fn forget(
        &mut self,
        backend: &dyn DriverBackend,
        now: u64,
        gone: impl Fn(&StreamId) -> bool,
    ) {
        for index in 0..self.streams.len() {
            let Some(stream_id) = self.streams[index].stream_id.filter(&gone) else {
                continue;
            };
            self.forget_tail(backend, now, index as StreamIndex);
            self.streams[index].stream_id = None;
            if let Some(event) = self.streams[index].last.take() {
                self.recycle(backend, stream_id.context, event);
            }
        }
    }

    /// Puts the last fences into streams that are about to be destroyed, those for which `gone` is true, and
    /// never uses the streams again. With `untracked`, they may hold work that was not tracked. No work can wait for
    /// such a stream any more, so its fence orders nothing.
    pub fn close_streams(
        &mut self,
        backend: &dyn DriverBackend,
        now: u64,
        untracked: bool,
        gone: impl Fn(&StreamId) -> bool,
    ) {
        for index in 0..self.streams.len() {
            let Some(stream_id) = self.streams[index].stream_id.filter(&gone) else {
                continue;
            };
            let stream_index = index as StreamIndex;
            let close = &mut || {
                if backend.capturing(stream_id.stream) {
                    return;
                }
                // An idle stream gets no fence, which would count as work that ends now.
                if untracked && stream_id.finished(backend) == Some(Progress::Pending) {
                    self.in_flight.untracked(now, stream_index);
                }
                self.close(backend, now, stream_index);
            };
            if !backend.within(stream_id.context, close) {
                self.forget_tail(backend, now, stream_index);
            }
            self.streams[index].stream_id = Some(StreamId { stream: Stream::GONE, ..stream_id });
        }
    }

    /// Drops the streams and events of a context that is about to be destroyed.
    pub fn drop_context(&mut self, backend: &dyn DriverBackend, now: u64, context: Context) {
        self.forget(backend, now, |stream_id| stream_id.context == context);
        self.spare.retain(|(owner, event)| {
            if *owner == context {
                backend.discard(*event);
            }
            *owner != context
        });
    }
}

#[cfg(test)]
mod tests;
