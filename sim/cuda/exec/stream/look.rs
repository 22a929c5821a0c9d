//! When a thread must advance the streams again.
//!
//! No thread is needed while the device works through placed operations without effects. A waiting
//! thread advances the streams when the operation it waits for, or the nearest effect of any stream,
//! may be due; a condition on memory has no due time and is polled.

#![forbid(unsafe_code)]

use gpuslice_sim_device::{ContextId, Seq, Status};

use super::{Mark, Model, Nanos, Ring, Stream};

/// When to call [`Model::advance`] again, soonest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// After a moment: it depends on something that cannot be foretold.
    Poll,
    /// Not before this time of the device's clock.
    At(Nanos),
    /// Only when something new is queued, or another thread has finished an effect.
    Never,
}

impl Model {
    /// When any stream's next effect or hold may be due.
    pub fn next_effect(&self, ring: &impl Ring) -> Look {
        let streams = self.active.iter().filter_map(|key| self.streams.get(*key));
        streams.map(|stream| self.look_of(ring, stream)).min().unwrap_or(Look::Never)
    }

    fn look_of(&self, ring: &impl Ring, stream: &Stream) -> Look {
        let Some(front) = stream.ops.front().filter(|_| !stream.running) else {
            return Look::Never;
        };
        let all_placed = stream.placed == stream.ops.len();
        if stream.attention == 0 && all_placed {
            return Look::Never;
        }
        if !stream.passing.is_empty() {
            return Look::Poll;
        }
        if let Some(mark) = front.after.iter().find(|mark| !self.reached(**mark)) {
            return self.next_reached(ring, *mark);
        }
        if stream.attention == 0 {
            return Look::Poll;
        }
        let wanted = stream.ops.iter().take(stream.placed);
        let first = wanted.into_iter().find(|op| op.body.wants_attention());
        match (first, stream.placed) {
            (Some(op), _) => due(ring, stream.context, op.seq),
            (None, 0) => Look::Poll,
            (None, placed) => due(ring, stream.context, stream.ops[placed - 1].seq),
        }
    }

    /// When the mark may be reached, as far as the device alone decides.
    pub fn next_reached(&self, ring: &impl Ring, mark: Mark) -> Look {
        let Some(stream) = self.streams.get(mark.stream).filter(|_| !self.reached(mark)) else {
            return Look::Poll;
        };
        let index = (mark.number - stream.first) as usize;
        match stream.ops.get(index).filter(|_| index < stream.placed) {
            Some(op) => due(ring, stream.context, op.seq),
            None if stream.placed > 0 => {
                due(ring, stream.context, stream.ops[stream.placed - 1].seq)
            }
            // Another stream's or another thread's effect comes first.
            None => Look::Never,
        }
    }
}

fn due(ring: &impl Ring, context: ContextId, seq: Option<Seq>) -> Look {
    match seq.map(|seq| ring.status(context, seq)) {
        Some(Status::Pending { earliest_ns }) => Look::At(earliest_ns),
        _ => Look::Poll,
    }
}
