//! The gate's interface to its surroundings: the driver, and the pages shared with the daemon.
//!
//! The gate's decisions must be testable without a GPU or a daemon, so all its calls to the outside go
//! through [`DriverBackend`]. The production one is in `cuda.rs`; tests provide their own. Handles are
//! plain numbers here: the gate never dereferences them.

use super::claim::ClaimWords;
use super::os;
use super::turn::{LaneFacts, LaneWords};
use crate::daemon::sys::SecondMapping;
use gpuslice_nvabi::types::{CUcontext, CUstream};
use gpuslice_wire::page::{ClientPage, ContainerPage};

/// A driver context (`CUcontext`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(pub usize);

/// A driver stream (`CUstream`), including the special handles 0, 1 (legacy) and 2 (per thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    /// The legacy default stream, under either of its handles: a barrier among all blocking streams of its
    /// context.
    pub const LEGACY: Stream = Stream(0);
    /// `CU_STREAM_PER_THREAD`: a separate stream in every thread, so no thread can fence it for another.
    pub const PER_THREAD: Stream = Stream(2);
    /// A stream that was destroyed while it had work in flight; no handle has this value.
    pub const GONE: Stream = Stream(usize::MAX);
}

impl From<CUstream> for Stream {
    fn from(stream: CUstream) -> Stream {
        Stream(stream.0.expose_provenance())
    }
}

impl From<CUcontext> for Context {
    fn from(context: CUcontext) -> Context {
        Context(context.0.expose_provenance())
    }
}

/// A driver event (`CUevent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub usize);

/// The state of the work in front of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not finished.
    Pending,
    /// Finished, or ended with its context.
    Done,
}

/// The two shared pages of the process; once mapped, they stay mapped.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// Facts, written by the daemon.
    pub container: &'static ContainerPage,
    /// Claims, written by this process.
    pub client: &'static ClientPage,
}

impl Pages {
    /// What the daemon says about a lane now.
    #[must_use]
    pub fn facts(&self, lane: usize) -> LaneFacts {
        let shown = &self.container.lane[lane];
        LaneFacts::read(&LaneWords {
            mode: &shown.mode,
            turn: &shown.turn,
            turn_end_ns: &shown.turn_end_ns,
            window_us: &shown.window_us,
            idle_us: &shown.idle_us,
            heartbeat_ns: &self.container.heartbeat_ns,
            hard: &self.container.hard,
        })
    }

    /// The words with which this process takes part in turns of a lane.
    #[must_use]
    pub fn claim(&self, lane: usize) -> ClaimWords<'static> {
        let (shown, claims) = (&self.container.lane[lane], &self.client.lane[lane]);
        ClaimWords {
            turn: &shown.turn,
            mode: &shown.mode,
            active: &claims.active,
            drained: &claims.drained,
            drained_ns: &claims.drained_ns,
        }
    }
}

/// The process's page as the GPU reads it.
#[derive(Debug)]
pub struct Pinned {
    /// The page, mapped at an address of its own.
    pub page: SecondMapping<ClientPage>,
    /// Its address on the GPU, in the context for which it was pinned.
    pub address: u64,
}

/// The driver and the session with the daemon, as far as the gate uses them. Failures are silent: a method that
/// fails returns `None`, `false` or [`Progress::Done`].
pub trait DriverBackend: Send + Sync {
    /// The pages of the present connection.
    fn pages(&self) -> Pages;
    /// Lane of the calling thread's current context.
    fn lane(&self) -> Option<usize>;
    /// Notifies the daemon that the claims changed.
    fn ring(&self);
    /// Starts the gate thread; `false` if no thread can be created now.
    fn spawn(&self, work: Box<dyn FnOnce() + Send>) -> bool {
        os::spawn(work)
    }
    /// Reconnects if the daemon is back, after its heartbeat was stale. Called repeatedly.
    fn reconnect(&self);
    /// Returns credit that the daemon recalls; `false` if the caller must retry soon.
    fn answer_recalls(&self) -> bool;
    /// Updates what launches do not depend on: claims, and idle credit.
    fn settle(&self);

    /// The calling thread's current context.
    fn context(&self) -> Option<Context>;
    /// The context of `stream`, which has a handle of its own, and its lane; `None` if it is the `current` one, or
    /// unknown.
    fn foreign(&self, stream: Stream, current: Option<Context>)
    -> Option<(Context, Option<usize>)>;
    /// Runs `work` with `context` current and restores the thread's own; `false` if the context is gone.
    fn within(&self, context: Context, work: &mut dyn FnMut()) -> bool;
    /// Whether a launch into `stream` would be captured into a graph instead of executed.
    fn capturing(&self, stream: Stream) -> bool;
    /// A new event with timing, in the current context.
    fn event(&self) -> Option<Event>;
    /// Records `event` into `stream`.
    fn record(&self, event: Event, stream: Stream) -> bool;
    /// Whether the work in front of `event` has finished.
    fn progress(&self, event: Event) -> Progress;
    /// Whether all work in `stream` of the current context has finished; `None` if the query would invalidate
    /// a capture. Orders nothing.
    fn finished(&self, stream: Stream) -> Option<Progress>;
    /// Time between two finished events, ns.
    fn elapsed(&self, from: Event, to: Event) -> Option<u64>;
    /// Number of attaches of the process: each comes with a new page.
    fn generation(&self) -> u32;
    /// Makes the process's page readable by the GPU in the current context.
    fn pin(&self) -> Option<Pinned>;
    /// Puts into `stream` a wait for the word at the GPU's `address` to be [`GATE_OPEN`].
    ///
    /// [`GATE_OPEN`]: gpuslice_wire::page::GATE_OPEN
    fn hold(&self, stream: Stream, address: u64) -> bool;
    /// Destroys an event.
    fn discard(&self, event: Event);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::fake::Fake;
    use gpuslice_wire::page::{MODE_OPEN, MODE_TURNS};
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn the_facts_of_a_lane_are_its_own_in_ns_with_defaults_for_zeros() {
        let pages = Fake::new().pages();
        let shown = &pages.container.lane[1];
        pages.container.heartbeat_ns.store(7, SeqCst);
        let blank = pages.facts(1);
        assert_eq!(
            (blank.mode, blank.turn, blank.turn_end_ns, blank.hard),
            (MODE_OPEN, 0, 0, false)
        );
        assert_eq!((blank.heartbeat_ns, blank.window_ns, blank.idle_ns), (7, 500_000, 20_000_000));
        shown.mode.store(MODE_TURNS, SeqCst);
        assert_eq!(pages.facts(1).idle_ns, 2_000_000, "turns are kept for a shorter time");
        for (word, value) in [(&shown.turn, 5), (&shown.window_us, 300), (&shown.idle_us, 40)] {
            word.store(value, SeqCst);
        }
        shown.turn_end_ns.store(9, SeqCst);
        pages.container.hard.store(1, SeqCst);
        let facts = pages.facts(1);
        assert_eq!(
            (facts.mode, facts.turn, facts.turn_end_ns, facts.hard),
            (MODE_TURNS, 5, 9, true)
        );
        assert_eq!((facts.window_ns, facts.idle_ns), (300_000, 40_000));
        assert_eq!(pages.facts(0).turn, 0, "another lane has its own");
    }
}
