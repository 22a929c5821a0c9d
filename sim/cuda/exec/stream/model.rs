//! The decisions about streams: which operations may be placed on the device, are due, or wait.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuslice_sim_device::limits::MAX_QUEUES;
use gpuslice_sim_device::{ContextId, DeviceError, Kind, Seq, Status, Work};

use super::{Body, Call, Effect, Event, EventKey, Fault, Manner, Mark, Nanos, Ring, StreamKey};
use crate::driver::device_error;
use crate::handles::Table;

/// Work of a context on the device: its queue, and its number.
pub(super) type Place = (u16, Seq);

/// An operation in a stream.
pub(super) struct Op {
    /// Points of other streams that must be reached first.
    pub(super) after: Vec<Mark>,
    pub(super) body: Body,
    /// The device work that must have ended; `None` until placed or when nothing came before.
    pub(super) seq: Option<Seq>,
    /// Numbers the operations of all streams.
    order: u64,
    /// The device's clock when it was placed; known for recordings only.
    placed_at: Nanos,
}

/// A stream. Operations are numbered from 0 over its whole life.
pub struct Stream {
    pub context: ContextId,
    pub manner: Manner,
    pub priority: i32,
    /// Its hardware queue.
    queue: u16,
    pub(super) ops: VecDeque<Op>,
    /// Number of the first operation in `ops`.
    pub(super) first: u64,
    /// How many of `ops` are placed.
    pub(super) placed: usize,
    /// How many of `ops` need a thread of this process.
    pub(super) attention: usize,
    /// Waits that were placed because their words were right, by number; see `retract.rs`.
    pub(super) passing: VecDeque<u64>,
    /// The first operation's effect is being run by some thread.
    pub(super) running: bool,
    /// Destroyed by the program; goes when its operations have ended.
    dying: bool,
    /// The device work behind which the next one is placed.
    pub(super) last: Option<Seq>,
}

impl Stream {
    fn next(&self) -> u64 {
        self.first + self.ops.len() as u64
    }
    /// Its first operation that the device has not been given.
    fn next_to_place(&self) -> Option<&Op> {
        self.ops.get(self.placed)
    }
    /// Operations queued and not known to have ended.
    pub fn backlog(&self) -> usize {
        self.ops.len()
    }
    /// Whether the device alone brings everything queued to its end.
    pub fn settled(&self) -> bool {
        self.attention == 0 && self.placed == self.ops.len()
    }
}

/// What an operation is to the device: its time, behind the awaited work of other queues, one piece for each.
fn pieces(body: &Body, queue: u16, awaited: Vec<Place>) -> Vec<Work> {
    let (kind, duration_ns, blocks) = match body {
        Body::Work { kind, ns, blocks, .. } => (*kind, *ns, *blocks),
        _ => (Kind::Marker, 0, 0),
    };
    let wait =
        |after| Work { kind: Kind::Marker, duration_ns: 0, blocks: 0, queue, after: Some(after) };
    let mut all: Vec<Work> = awaited.into_iter().map(wait).collect();
    if duration_ns > 0 {
        let after = all.pop().and_then(|last| last.after);
        all.push(Work { kind, duration_ns, blocks, queue, after });
    }
    all
}

/// Something that must be done outside the lock; then call [`Model::finish`] with the stream.
pub enum Due {
    /// Does not block for long: any thread may run it.
    Effect(StreamKey, Effect),
    /// Foreign code, which may block: for a thread of its own.
    Host(StreamKey, Call),
}

/// The model's view of a context's queue on the device.
#[derive(Default)]
struct Lane {
    /// By queue: all work up to this one has ended.
    done: [Option<Seq>; MAX_QUEUES as usize],
    fault: Option<Fault>,
}

/// All streams and events of the process.
pub struct Model {
    pub(super) streams: Table<Stream>,
    pub(super) events: Table<Event>,
    lanes: HashMap<ContextId, Lane>,
    /// Hardware queues of a context; 0: each stream has its own.
    queues: u32,
    /// Whether work of a context's queues runs at the same time on the device, or all of it in order.
    overlap: bool,
    /// Operations ever queued.
    orders: u64,
    /// Streams that have operations.
    pub(super) active: Vec<StreamKey>,
    /// Operations that have ended: shows whether anything has moved.
    pub ended: u64,
    /// Whether any context has ever been killed, for threads without the model's lock.
    pub any_fault: Arc<AtomicBool>,
}

impl Model {
    pub fn new(queues: u32, overlap: bool) -> Self {
        let (streams, events) = (Table::new(), Table::new());
        Self {
            streams,
            events,
            lanes: HashMap::new(),
            queues,
            overlap,
            orders: 0,
            active: Vec::new(),
            ended: 0,
            any_fault: Arc::default(),
        }
    }

    /// `None` when there are too many streams.
    pub fn create(&mut self, context: ContextId, manner: Manner, prio: i32) -> Option<StreamKey> {
        let queue = self.freest_queue(context);
        self.streams.insert(Stream {
            context,
            manner,
            priority: prio,
            queue,
            ops: VecDeque::new(),
            first: 0,
            placed: 0,
            attention: 0,
            passing: VecDeque::new(),
            running: false,
            dying: false,
            last: None,
        })
    }

    /// The hardware queue of a context that has the fewest streams. Where each stream is to have its own there are as
    /// many as the device has, and streams beyond them share queues for the device's work alone.
    fn freest_queue(&self, context: ContextId) -> u16 {
        let mut streams = [0u32; MAX_QUEUES as usize];
        for (_, stream) in self.streams.iter().filter(|(_, stream)| stream.context == context) {
            streams[usize::from(stream.queue)] += 1;
        }
        let all = if self.queues == 0 { MAX_QUEUES } else { self.queues };
        (0..all as u16).min_by_key(|queue| streams[usize::from(*queue)]).unwrap_or(0)
    }

    /// The queue on the device in which a stream's work is.
    fn queue_on_device(&self, stream: &Stream) -> u16 {
        if self.overlap { stream.queue } else { 0 }
    }

    /// Whether a thread of this process must bring any operation to its end.
    pub fn is_unsettled(&self) -> bool {
        let mut active = self.active.iter().filter_map(|key| self.streams.get(*key));
        active.any(|stream| !stream.settled())
    }

    /// A living stream.
    pub fn stream(&self, key: StreamKey) -> Option<&Stream> {
        self.streams.get(key).filter(|stream| !stream.dying)
    }

    /// Takes the handle away; queued operations still run. False where there is no such stream.
    pub fn destroy(&mut self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.dying) else {
            return false;
        };
        stream.dying = true;
        if stream.ops.is_empty() {
            self.streams.remove(key);
        }
        true
    }

    /// Forgets a context with all its streams; their queued operations are dropped.
    pub fn drop_context(&mut self, context: ContextId) {
        self.drop_ops(context);
        let gone: Vec<_> = self.of_context(context).collect();
        for key in gone {
            self.streams.remove(key);
        }
        self.active.retain(|key| self.streams.get(*key).is_some());
        self.lanes.remove(&context);
    }

    pub(super) fn of_context(&self, context: ContextId) -> impl Iterator<Item = StreamKey> + '_ {
        let of_it = move |stream: &Stream| stream.context == context;
        self.streams.iter().filter_map(move |(key, stream)| of_it(stream).then_some(key))
    }

    fn drop_ops(&mut self, context: ContextId) {
        let keys: Vec<_> = self.of_context(context).collect();
        for key in keys {
            if let Some(stream) = self.streams.get_mut(key) {
                stream.first = stream.next();
                stream.ops.clear();
                stream.passing.clear();
                (stream.placed, stream.attention, stream.running) = (0, 0, false);
            }
        }
    }

    /// What killed the context, if something did.
    pub fn fault(&self, context: ContextId) -> Option<Fault> {
        self.lanes.get(&context).and_then(|lane| lane.fault)
    }

    /// Kills a context: nothing queued in it happens any more.
    pub fn set_fault(&mut self, context: ContextId, fault: Fault) {
        self.lanes.entry(context).or_default().fault.get_or_insert(fault);
        self.any_fault.store(true, Ordering::Release);
        self.drop_ops(context);
    }

    /// Queues an operation behind the stream's others, after the given points of other streams and
    /// after what the legacy default stream's rules demand. `None` where there is no such stream.
    pub fn push(
        &mut self,
        ring: &impl Ring,
        key: StreamKey,
        mut after: Vec<Mark>,
        body: Body,
    ) -> Option<Mark> {
        let stream = self.stream(key)?;
        let (context, manner) = (stream.context, stream.manner);
        self.legacy_rules(key, context, manner, &mut after);
        let stream = self.streams.get_mut(key)?;
        let mark = Mark { stream: key, number: stream.next() };
        if stream.ops.is_empty() && !self.active.contains(&key) {
            self.active.push(key);
        }
        stream.attention += usize::from(body.wants_attention());
        let ready = stream.placed == stream.ops.len();
        self.orders += 1;
        stream.ops.push_back(Op { after, body, seq: None, order: self.orders, placed_at: 0 });
        if ready {
            self.place(ring, key);
        }
        Some(mark)
    }

    /// The legacy default stream waits for every blocking stream of its context, and they for it.
    fn legacy_rules(
        &self,
        key: StreamKey,
        context: ContextId,
        manner: Manner,
        after: &mut Vec<Mark>,
    ) {
        let wanted = match manner {
            Manner::NonBlocking => return,
            Manner::Blocking => Manner::Legacy,
            Manner::Legacy => Manner::Blocking,
        };
        for other in self.active.iter().filter(|other| **other != key) {
            let stream = self.streams.get(*other);
            let meant = |stream: &&Stream| stream.context == context && stream.manner == wanted;
            if let Some(stream) = stream.filter(meant).filter(|stream| !stream.ops.is_empty()) {
                after.push(Mark { stream: *other, number: stream.next() - 1 });
            }
        }
    }

    /// Where the stream stands: reached when all that is queued now has ended.
    pub fn mark(&self, key: StreamKey) -> Option<Mark> {
        let stream = self.streams.get(key)?;
        stream.next().checked_sub(1).map(|number| Mark { stream: key, number })
    }

    /// Marks to wait for to have waited for the stream: of the legacy default stream also those of
    /// every blocking stream of its context.
    pub fn mark_of_all(&self, key: StreamKey) -> Vec<Mark> {
        let Some(stream) = self.streams.get(key) else {
            return Vec::new();
        };
        if stream.manner != Manner::Legacy {
            return self.mark(key).into_iter().collect();
        }
        let meant = |key: &StreamKey| {
            self.streams.get(*key).is_some_and(|stream| stream.manner != Manner::NonBlocking)
        };
        self.of_context(stream.context).filter(meant).filter_map(|key| self.mark(key)).collect()
    }

    /// The mark of the `ahead`th operation still queued.
    pub fn oldest(&self, key: StreamKey, ahead: usize) -> Option<Mark> {
        let stream = self.streams.get(key)?;
        Some(Mark { stream: key, number: stream.first + ahead as u64 })
    }

    /// Marks that together are reached when all that is queued in the context now has ended.
    pub fn marks(&self, context: ContextId) -> Vec<Mark> {
        self.of_context(context).filter_map(|key| self.mark(key)).collect()
    }

    /// Whether the operation has ended, its effect included, as far as was looked.
    pub fn reached(&self, mark: Mark) -> bool {
        self.streams.get(mark.stream).is_none_or(|stream| mark.number < stream.first)
    }

    /// The device work behind a mark of the same context, and its queue: `Err` where it is not placed yet.
    pub(super) fn placed_seq(&self, mark: Mark, context: ContextId) -> Result<Option<Place>, ()> {
        if self.reached(mark) {
            return Ok(None);
        }
        let stream = self.streams.get(mark.stream).ok_or(())?;
        let index = (mark.number - stream.first) as usize;
        let placed = stream.context == context && index < stream.placed;
        let seq = stream.ops.get(index).filter(|_| placed).map(|op| op.seq).ok_or(())?;
        Ok(seq.map(|seq| (self.queue_on_device(stream), seq)))
    }

    /// Whether the next operation of a stream is behind one of another stream in their hardware queue, which is in
    /// order: a false dependency.
    fn is_behind(&self, key: StreamKey, stream: &Stream, op: &Op) -> bool {
        if self.queues == 0 {
            return false;
        }
        self.active.iter().filter(|other| **other != key).any(|other| {
            self.streams.get(*other).is_some_and(|other| {
                (other.context, other.queue) == (stream.context, stream.queue)
                    && other.next_to_place().is_some_and(|first| first.order < op.order)
            })
        })
    }

    /// The device work behind which an operation is: that of its stream's queue, and that of others. `Err` where some
    /// is not placed yet.
    fn behind(&self, stream: &Stream, op: &Op) -> Result<(Option<Seq>, Vec<Place>), ()> {
        let (own, mut seq, mut others) =
            (self.queue_on_device(stream), stream.last, BTreeMap::new());
        for mark in &op.after {
            match self.placed_seq(*mark, stream.context)? {
                Some((queue, other)) if queue == own => seq = seq.max(Some(other)),
                Some((queue, other)) => {
                    let last = others.entry(queue).or_insert(other);
                    *last = other.max(*last);
                }
                None => {}
            }
        }
        Ok((seq, others.into_iter().collect()))
    }

    /// Gives the device the time of every operation of the stream that nothing can delay.
    pub(super) fn place(&mut self, ring: &impl Ring, key: StreamKey) {
        loop {
            let Some(stream) = self.streams.get(key) else {
                return;
            };
            let (context, queue) = (stream.context, self.queue_on_device(stream));
            let Some(op) = stream.next_to_place() else {
                return;
            };
            if self.is_behind(key, stream, op) {
                return;
            }
            let passes = match &op.body {
                Body::Wait(condition) => !stream.running && condition(),
                body => !body.holds(),
            };
            if !passes {
                return;
            }
            let Ok((mut seq, awaited)) = self.behind(stream, op) else {
                return;
            };
            let is_record = matches!(op.body, Body::Record { .. });
            for work in pieces(&op.body, queue, awaited) {
                match ring.submit(context, work) {
                    Ok(place) => seq = Some(place),
                    Err(DeviceError::QueueFull) => return,
                    Err(error) => return self.set_fault(context, device_error(error)),
                }
            }
            let placed_at = if is_record { ring.now() } else { 0 };
            let Some(stream) = self.streams.get_mut(key) else {
                return;
            };
            let index = stream.placed;
            stream.placed += 1;
            if matches!(stream.ops[index].body, Body::Wait(_)) {
                stream.passing.push_back(stream.first + index as u64);
            }
            stream.last = seq;
            (stream.ops[index].seq, stream.ops[index].placed_at) = (seq, placed_at);
        }
    }

    /// Takes note of all that has ended, until something is due or nothing more has.
    pub fn advance(&mut self, ring: &impl Ring) -> Option<Due> {
        self.retract(ring);
        loop {
            let mut moved = false;
            let mut index = 0;
            while let Some(key) = self.active.get(index).copied() {
                let (due, some) = self.advance_stream(ring, key);
                if due.is_some() {
                    return due;
                }
                moved |= some;
                let empty = self.streams.get(key).is_none_or(|stream| stream.ops.is_empty());
                if empty {
                    self.active.swap_remove(index);
                    if self.streams.get(key).is_some_and(|stream| stream.dying) {
                        self.streams.remove(key);
                    }
                } else {
                    index += 1;
                }
            }
            if !moved {
                return None;
            }
        }
    }

    fn advance_stream(&mut self, ring: &impl Ring, key: StreamKey) -> (Option<Due>, bool) {
        let mut moved = false;
        loop {
            self.place(ring, key);
            let Some(stream) = self.streams.get(key).filter(|stream| !stream.running) else {
                return (None, moved);
            };
            let Some(op) = stream.ops.front() else {
                return (None, moved);
            };
            let waits = op.after.iter().any(|mark| !self.reached(*mark));
            if waits || (stream.placed == 0 && !op.body.holds()) {
                return (None, moved);
            }
            let (context, queue) = (stream.context, self.queue_on_device(stream));
            let (work, placed_at) = (op.seq.map(|seq| (queue, seq)), op.placed_at);
            match &op.body {
                Body::Wait(condition) if !condition() => return (None, moved),
                Body::Wait(_) => {}
                Body::Host(_) => return (self.start(key), true),
                Body::Record { event, turn } => {
                    let (event, turn) = (*event, *turn);
                    let Some(end) = self.ended(ring, context, work, true) else {
                        return (None, moved);
                    };
                    self.recorded(event, turn, end.max(placed_at));
                }
                Body::Work { effect, .. } => {
                    let effect = effect.is_some();
                    if self.ended(ring, context, work, false).is_none() {
                        return (None, moved);
                    }
                    if effect {
                        return (self.start(key), true);
                    }
                }
            }
            self.pop(key);
            moved = true;
        }
    }

    /// When the device work ended, if it has; the time is exact only where `exact`.
    fn ended(
        &mut self,
        ring: &impl Ring,
        context: ContextId,
        work: Option<Place>,
        exact: bool,
    ) -> Option<Nanos> {
        let Some((queue, seq)) = work else { return Some(0) };
        let queue = usize::from(queue);
        let known = self.lanes.get(&context).is_some_and(|lane| lane.done[queue] >= Some(seq));
        if known && !exact {
            return Some(0);
        }
        match ring.status(context, seq) {
            Status::Done { end_ns, .. } => {
                let lane = self.lanes.entry(context).or_default();
                lane.done[queue] = lane.done[queue].max(Some(seq));
                Some(end_ns)
            }
            Status::Pending { .. } => None,
            Status::Faulted { xid } => {
                self.set_fault(context, device_error(DeviceError::Faulted { xid }));
                None
            }
        }
    }

    /// Hands out the first operation's effect; it stays in the queue until [`Model::finish`].
    fn start(&mut self, key: StreamKey) -> Option<Due> {
        let stream = self.streams.get_mut(key)?;
        let op = stream.ops.front_mut()?;
        stream.running = true;
        // Until it is finished its place keeps holding back what it held back before.
        let never = Body::Wait(Box::new(|| false));
        match std::mem::replace(&mut op.body, never) {
            Body::Work { effect, .. } => Some(Due::Effect(key, effect?)),
            Body::Host(call) => Some(Due::Host(key, call)),
            Body::Record { .. } | Body::Wait(_) => None,
        }
    }

    /// Ends the stream's first operation, whose effect has run; an error kills its context.
    pub fn finish(&mut self, key: StreamKey, result: Result<(), Fault>) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if !std::mem::replace(&mut stream.running, false) {
            return;
        }
        let context = stream.context;
        self.pop(key);
        if let Err(fault) = result {
            self.set_fault(context, fault);
        }
    }

    fn pop(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if let Some(op) = stream.ops.pop_front() {
            self.ended += 1;
            stream.attention -= usize::from(op.body.wants_attention());
            stream.first += 1;
            while stream.passing.front().is_some_and(|at| *at < stream.first) {
                stream.passing.pop_front();
            }
            stream.placed = stream.placed.saturating_sub(1);
        }
    }

    fn recorded(&mut self, event: EventKey, turn: u64, time: Nanos) {
        if let Some(event) = self.events.get_mut(event) {
            event.recorded(turn, time);
        }
    }
}
