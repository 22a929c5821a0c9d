//! Takes placed operations back when the word of a wait before them changes.
//!
//! A device's front end reads a word when its stream gets there, and passes one that is right in no
//! time. To have that without a thread at every wait, the operations behind it are placed as if the
//! word stayed right, and each `advance` checks those words too. A check is late by some
//! microseconds: work that has begun by then goes on, as if the word had changed a moment later.

#![forbid(unsafe_code)]

use gpuslice_sim_device::{ContextId, Seq};

use super::model::Op;
use super::{Body, Model, Ring, StreamKey};

impl Model {
    /// Takes back the operations placed behind waits whose words are wrong by now.
    pub(super) fn retract(&mut self, ring: &impl Ring) {
        let wrong = |key: &StreamKey| {
            let stream = self.streams.get(*key)?;
            let at = stream.passing.iter().map(|at| (at - stream.first) as usize);
            let mut waits = at.filter_map(|at| Some((at, stream.ops.get(at)?)));
            waits.find_map(|(at, op)| match &op.body {
                Body::Wait(condition) if !condition() => Some((stream.context, *key, at, op.seq)),
                _ => None,
            })
        };
        let wrong: Vec<_> = self.active.iter().filter_map(wrong).collect();
        for (context, key, at, seq) in wrong {
            self.take_back(ring, context, key, at, seq);
        }
    }

    /// The wait at `at` in a stream holds after all, unless what is behind it has begun. All of the
    /// context's work behind it that has not begun is placed anew, where nothing holds it.
    fn take_back(
        &mut self,
        ring: &impl Ring,
        context: ContextId,
        key: StreamKey,
        at: usize,
        seq: Option<Seq>,
    ) {
        let Some(next) = seq.map_or(Some(0), |seq| seq.0.checked_add(1)) else {
            return;
        };
        let recalled = ring.recall(context, Seq(next));
        let keys: Vec<_> = self.of_context(context).collect();
        let has_begun = |op: &Op| {
            let works = matches!(op.body, Body::Work { ns, .. } if ns > 0);
            works && op.seq.is_some_and(|seq| seq.0 >= next && !recalled.has(seq))
        };
        let is_past = keys.iter().any(|other| self.has_dependant(*other, (key, at), has_begun));
        for other in &keys {
            let Some(stream) = self.streams.get(*other) else {
                continue;
            };
            let mut placed = stream.ops.iter().take(stream.placed);
            let first = placed.position(|op| op.seq.is_some_and(|seq| recalled.has(seq)));
            let mut keep = first.unwrap_or(stream.placed);
            if *other == key {
                // Something behind the wait has begun: the device was past it when the word changed.
                let mut behind = stream.ops.iter().take(keep).skip(at + 1);
                if is_past || behind.any(has_begun) {
                    self.end_wait(key, at);
                } else {
                    keep = keep.min(at);
                }
            }
            self.unplace(*other, keep);
        }
        self.unplace_dependants(&keys, context);
        for key in keys {
            self.place(ring, key);
        }
    }

    /// Whether a stream has placed an operation of this kind behind a point of another stream that is after its `at`th
    /// operation.
    fn has_dependant(
        &self,
        key: StreamKey,
        (other, at): (StreamKey, usize),
        kind: impl Fn(&Op) -> bool,
    ) -> bool {
        let (Some(stream), Some(awaited)) = (self.streams.get(key), self.streams.get(other)) else {
            return false;
        };
        let number = awaited.first + at as u64;
        let awaits = |op: &Op| op.after.iter().any(|it| it.stream == other && it.number > number);
        let mut placed = stream.ops.iter().take(stream.placed).skip_while(|op| !awaits(op));
        placed.any(kind)
    }

    /// The device has passed this wait, which no longer holds anything.
    fn end_wait(&mut self, key: StreamKey, at: usize) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        let number = stream.first + at as u64;
        stream.passing.retain(|wait| *wait != number);
        if let Some(op) = stream.ops.get_mut(at) {
            op.body = Body::nothing();
            stream.attention -= 1;
        }
    }

    /// Operations of a stream from `keep` on are placed no more.
    fn unplace(&mut self, key: StreamKey, keep: usize) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if keep >= stream.placed {
            return;
        }
        for op in stream.ops.iter_mut().take(stream.placed).skip(keep) {
            op.seq = None;
        }
        stream.placed = keep;
        stream.last = keep.checked_sub(1).and_then(|last| stream.ops[last].seq);
        let until = stream.first + keep as u64;
        stream.passing.retain(|wait| *wait < until);
    }

    /// Also takes back operations placed behind points of other streams that are no longer placed.
    fn unplace_dependants(&mut self, keys: &[StreamKey], context: ContextId) {
        loop {
            let dependant = |key: &StreamKey| {
                let stream = self.streams.get(*key)?;
                let mut placed = stream.ops.iter().take(stream.placed);
                let waits = |mark| self.placed_seq(mark, context).is_err();
                let at = placed.position(|op| op.after.iter().copied().any(waits))?;
                Some((*key, at))
            };
            let Some((key, at)) = keys.iter().find_map(dependant) else {
                return;
            };
            self.unplace(key, at);
        }
    }
}
