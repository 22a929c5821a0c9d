//! Streams: queues of operations, each of which begins when the one before it has ended.
//!
//! The problem: a process queues work and does other things, yet the simulated device must go on at
//! its own pace. Events must carry the device's time, not the time of the next call. A stream that
//! waits (for a value in memory, for a host function) must not delay the others.
//!
//! The idea: an operation is split in two. Its *time* goes into the context's queue on the shared
//! device as soon as nothing can delay it (`place`). So kernels follow each other without a gap and
//! without this process. Its *effect* (bytes moved, a value written, a callback) is due when the
//! device's clock has passed it; the next thread that calls `advance` runs due effects in order.
//! Only operations of unknown length, *holds*, keep the operations behind them from being placed.
//!
//! A wait whose word is already right when it could be placed holds nothing: the device's front end
//! would pass it without a pause, and so the operations behind it are placed. If the word changes
//! before the device gets there, those that have not begun are taken back ([`Model::retract`]).
//!
//! `model` decides and has no effects of its own; it takes the device as a [`Ring`] and returns the
//! due effects. `event` is the model's events, `look` decides when to advance again. `run` is the
//! process's one model behind a lock, with the threads that wait and work.

mod event;
mod look;
mod model;
#[cfg(test)]
mod model_tests;
mod retract;
mod run;

use gpuslice_nvabi::types::CUresult;
use gpuslice_sim_device::{ContextId, DeviceError, Kind, Recalled, Seq, Status, Work};

use super::cost::Nanos;
use crate::handles::{Key, Named};

pub use event::{Elapsed, Event, EventKey};
pub use look::Look;
pub use model::{Due, Model, Stream};
pub use run::shared;

/// Names a stream.
pub type StreamKey = Key<Stream>;

impl Named for Stream {
    const KIND: u8 = 1;
}

/// What a context cannot survive: every later call in it fails with this driver error code.
pub type Fault = CUresult;

/// The part of the shared device that streams need.
pub trait Ring {
    /// The device's clock.
    fn now(&self) -> Nanos;
    /// Queues work behind all earlier work of its queue in the context.
    fn submit(&self, context: ContextId, work: Work) -> Result<Seq, DeviceError>;
    /// Takes back a context's work from the given one on, as far as it has not begun.
    fn recall(&self, context: ContextId, from: Seq) -> Recalled;
    /// Where that work stands.
    fn status(&self, context: ContextId, seq: Seq) -> Status;
}

/// The effect of an operation, run once its time has passed; an error kills the context.
pub type Effect = Box<dyn FnOnce() -> Result<(), Fault> + Send>;

/// A function of the program's.
pub type Call = Box<dyn FnOnce() + Send>;

/// An operation, as it is queued.
pub enum Body {
    /// Takes time, and of a kernel so many blocks of the device, then has an effect. Each may be absent.
    Work { kind: Kind, ns: Nanos, blocks: u16, effect: Option<Effect> },
    /// Notes the time for an event; `turn` is which of the event's recordings this is.
    Record { event: EventKey, turn: u64 },
    /// Holds the stream until the condition is true.
    Wait(Box<dyn Fn() -> bool + Send>),
    /// Holds the stream until the function has returned.
    Host(Call),
}

/// A request to a stream.
pub enum Request {
    Body(Body),
    Record(EventKey),
    /// Go on only when the event's latest recording is reached.
    Await(EventKey),
}

impl Body {
    /// A point in the stream that does nothing.
    pub fn nothing() -> Self {
        Self::Work { kind: Kind::Marker, ns: 0, blocks: 0, effect: None }
    }

    /// No time of its own, only an effect.
    pub fn effect(effect: Effect) -> Self {
        Self::Work { kind: Kind::Marker, ns: 0, blocks: 0, effect: Some(effect) }
    }

    /// Whether it keeps the operations behind it from being placed.
    fn holds(&self) -> bool {
        matches!(self, Self::Wait(_) | Self::Host(_))
    }

    /// Whether a thread of this process must act for it.
    fn wants_attention(&self) -> bool {
        self.holds() || matches!(self, Self::Work { effect: Some(_), .. })
    }
}

/// A point in a stream: reached once the operation of that number has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub stream: StreamKey,
    pub number: u64,
}

/// How a stream stands to the context's legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// The legacy default stream itself: waits for all blocking streams, and they for it.
    Legacy,
    Blocking,
    NonBlocking,
}
