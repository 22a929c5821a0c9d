//! What the gate needs of its surroundings: the driver behind it and the pages beside it.
//!
//! The gate's decisions must be tried without a GPU, a daemon or luck, so everything it asks of the
//! outside goes through [`DriverBackend`]. The real one is `real.rs`; tests bring their own. Handles are
//! plain numbers here: the gate never follows them, it only hands them back.

use crate::link::sys::SecondMapping;
use gpuslice_wire::page::{ClientPage, ContainerPage};

/// A driver context (`CUcontext`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(pub usize);

/// A driver stream (`CUstream`), the special handles 0, 1 (legacy) and 2 (per thread) included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    /// The legacy default stream, under either of its handles: a barrier among all blocking streams of its
    /// context.
    pub const LEGACY: Stream = Stream(0);
    /// `CU_STREAM_PER_THREAD`: another stream in every thread, so no thread can fence it for
    /// another.
    pub const PER_THREAD: Stream = Stream(2);
    /// A stream that was destroyed while work of it was in flight; no handle has this value.
    pub const GONE: Stream = Stream(usize::MAX);
}

/// A driver event (`CUevent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub usize);

/// How far the work before an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not finished.
    Pending,
    /// Finished, or its context is gone, which ends work just as well.
    Done,
}

/// The two shared pages of the process; a mapping, once made, is never taken away.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// Facts, written by the daemon.
    pub container: &'static ContainerPage,
    /// Claims, written by this process.
    pub client: &'static ClientPage,
}

/// The process's page, where the GPU reads it.
#[derive(Debug)]
pub struct Pinned {
    /// The page, at an address of its own.
    pub page: SecondMapping<ClientPage>,
    /// Its address on the GPU, in the context for which it was pinned.
    pub address: u64,
}

/// The driver and the link to the daemon, as far as the gate uses them. None of these may fail
/// loudly: what cannot be done answers `None`, `false` or [`Progress::Done`].
pub trait DriverBackend: Send + Sync {
    /// The pages of the present connection; `None` where no daemon governs this process.
    fn pages(&self) -> Option<Pages>;
    /// Lane of the calling thread's current context.
    fn lane(&self) -> Option<usize>;
    /// Tells the daemon that the claims changed.
    fn ring(&self);
    /// The daemon's heartbeat is stale: connects anew if it came back. Called again and again.
    fn reconnect(&self);
    /// Gives up credit that siblings are short of; `false` if that must be tried again soon.
    fn answer_recalls(&self) -> bool;
    /// Brings what launches do not depend on up to date: claims, and credit that lies idle.
    fn settle(&self);

    /// The calling thread's current context.
    fn context(&self) -> Option<Context>;
    /// Runs `work` with `context` current, and puts the thread's own back; `false` if it is gone.
    fn within(&self, context: Context, work: &mut dyn FnMut()) -> bool;
    /// Whether a launch into `stream` would be captured into a graph instead of run.
    fn capturing(&self, stream: Stream) -> bool;
    /// A new event with timing, in the current context.
    fn event(&self) -> Option<Event>;
    /// Puts `event` behind everything launched into `stream` so far.
    fn record(&self, event: Event, stream: Stream) -> bool;
    /// Whether everything before `event` has finished.
    fn progress(&self, event: Event) -> Progress;
    /// Whether everything in `stream` of the current context has finished; `None` where that cannot be asked,
    /// because a capture would end by it. Orders nothing.
    fn finished(&self, stream: Stream) -> Option<Progress>;
    /// Time between two finished events, ns.
    fn elapsed(&self, from: Event, to: Event) -> Option<u64>;
    /// How often the process has attached: with another number its page is another one.
    fn generation(&self) -> u32;
    /// Lets the GPU read the process's page in the current context.
    fn pin(&self) -> Option<Pinned>;
    /// Puts into `stream` a wait for the word at `address` of the GPU to be [`GATE_OPEN`].
    ///
    /// [`GATE_OPEN`]: gpuslice_wire::page::GATE_OPEN
    fn hold(&self, stream: Stream, address: u64) -> bool;
    /// Destroys an event.
    fn discard(&self, event: Event);
}
