//! Events: points in streams that carry the device's time.
//!
//! An event names its latest recording only. A recording that is overtaken by another one before
//! it ended must not set the newer one's time, so recordings are counted in turns.

#![forbid(unsafe_code)]

use gpuslice_sim_device::ContextId;

use super::{Body, Mark, Model, Nanos, Ring, StreamKey};
use crate::handles::{Key, Named};

/// Names an event.
pub type EventKey = Key<Event>;

impl Named for Event {
    const KIND: u8 = 2;
}

/// An event of a context.
pub struct Event {
    pub context: ContextId,
    /// False for events made with CU_EVENT_DISABLE_TIMING.
    pub timing: bool,
    turn: u64,
    mark: Option<Mark>,
    time: Option<Nanos>,
}

impl Event {
    pub(super) fn recorded(&mut self, turn: u64, time: Nanos) {
        if turn == self.turn {
            self.time = Some(time);
        }
    }
}

/// The time between two events, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elapsed {
    Milliseconds(f32),
    /// One of them was recorded and not reached yet.
    NotReady,
    /// One of them does not exist, has no timing or was never recorded.
    Invalid,
}

impl Model {
    /// `None` when there are too many events.
    pub fn create_event(&mut self, context: ContextId, timing: bool) -> Option<EventKey> {
        self.events.insert(Event { context, timing, turn: 0, mark: None, time: None })
    }

    pub fn destroy_event(&mut self, key: EventKey) -> bool {
        self.events.remove(key).is_some()
    }

    pub fn event(&self, key: EventKey) -> Option<&Event> {
        self.events.get(key)
    }

    /// Records the event behind the work queued in the stream; false if event or stream does not exist.
    pub fn record(
        &mut self,
        ring: &impl Ring,
        key: EventKey,
        stream: StreamKey,
        after: Vec<Mark>,
    ) -> bool {
        let Some(turn) = self.events.get(key).map(|event| event.turn + 1) else {
            return false;
        };
        if self.stream(stream).is_none() {
            return false;
        }
        // The event's state first: the pushed operation may end at once.
        if let Some(event) = self.events.get_mut(key) {
            (event.turn, event.time) = (turn, None);
        }
        let mark = self.push(ring, stream, after, Body::Record { event: key, turn });
        if let Some(event) = self.events.get_mut(key) {
            event.mark = mark;
        }
        mark.is_some()
    }

    /// The point the event's latest recording stands for; `None` where it has none or the point
    /// was reached.
    pub fn pending(&self, key: EventKey) -> Option<Mark> {
        let event = self.events.get(key)?;
        event.mark.filter(|mark| event.time.is_none() && !self.reached(*mark))
    }

    /// Time from the first event's recording to the second's.
    pub fn elapsed(&self, start: EventKey, end: EventKey) -> Elapsed {
        let (Some(start_event), Some(end_event)) = (self.event(start), self.event(end)) else {
            return Elapsed::Invalid;
        };
        let recorded = |event: &Event| event.timing && event.turn > 0;
        if !recorded(start_event) || !recorded(end_event) {
            return Elapsed::Invalid;
        }
        if self.pending(start).is_some() || self.pending(end).is_some() {
            return Elapsed::NotReady;
        }
        match (start_event.time, end_event.time) {
            (Some(start), Some(end)) => {
                let nanos = i128::from(end) - i128::from(start);
                Elapsed::Milliseconds((nanos as f64 / 1e6) as f32)
            }
            // The context died before the recording was reached.
            _ => Elapsed::Invalid,
        }
    }
}
