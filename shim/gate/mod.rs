//! The gate: every launch of the process passes it, and nearly always without noticing.
//!
//! GPU time is shared in turns: at most one container at a time launches, for some milliseconds,
//! and the daemon bills it from the grant until all is quiet again. The gate is the process's side
//! of that, and it has three duties: hold launches while it is not our turn; keep so little in
//! flight towards a turn's end that quiet comes soon; say when it has come. While nobody else wants
//! the GPU there are no turns, and a launch costs one load and one branch ([`open`]).
//!
//! * [`turn`], [`claim`], [`window`], [`in_flight_limit`], [`estimate`] decide, without any effect: may a launch
//!   go, does the claim hold, is there room and how much, how long will it run;
//! * [`gates`] are for turns that end at any moment: the GPU itself stops at them;
//! * [`fences`] puts events behind launches to learn what has finished; `captures` keeps what the gate asks apart
//!   from stream captures; [`slow_path`] takes one launch through; `thread` looks after the rest; [`backend`] is what they
//!   need of driver and daemon.
//!
//! A *launch* is whatever puts work on the GPU: kernels, graphs, fills, copies. Not gated are launches
//! that are captured into a graph (they run when the graph is launched) and those on a GPU that is not of
//! the slice. Calls that wait for the GPU, and what only orders streams (waits, writes, host functions),
//! are never held: they start nothing.
//!
//! # Nothing is held for ever
//! Work in flight may itself wait for a launch that the gate holds: a host function that launches, a
//! stream that waits for a word that another one writes, a kernel that polls for what a copy brings. Then
//! the turn cannot get quiet, no other one comes, and the launch would never go. So a launch that was held
//! for 100 ms is let go, out of turn, while what is in flight is far later than expected; for 5 s, if its
//! own stream is busy. A copy over the bus, which leaves the multiprocessors alone, is held for 100 ms if
//! anything is in flight, however late, and else for 5 s. Work behind closed gates waits for its turn,
//! which comes; nothing is let go for it.
#![deny(missing_docs)]

pub mod backend;
mod captures;
pub mod claim;
pub mod estimate;
#[cfg(test)]
mod fake;
pub mod fences;
pub mod gates;
pub mod in_flight_limit;
mod os;
mod real;
pub mod slow_path;
#[cfg(test)]
mod tests;
mod thread;
pub mod turn;
pub mod window;

pub use captures::{begin as capture_begins, join as stream_joins};
pub(crate) use real::relaxed;
pub use slow_path::Work;

use estimate::{Key, Task};
use gpuslice_nvabi::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUfunction, CUgraphExec, CUresult, CUstream,
};
use slow_path::{CLOSED, Gate, METERED, OPEN};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// What every launch looks at.
static WORD: AtomicU32 = AtomicU32::new(CLOSED);
/// The gate; made by the first launch in a slice, never freed, forgotten in a forked child.
static GATE: AtomicPtr<Gate> = AtomicPtr::new(std::ptr::null_mut());
static BACKEND: real::CudaBackend = real::CudaBackend;

/// Whether a launch may go straight to the driver. Otherwise it goes through [`launch`].
#[inline(always)]
#[must_use]
pub fn open() -> bool {
    WORD.load(Relaxed) & OPEN != 0
}

/// Whether a graph may be launched straight away: the gate is open, and no graph needs memory.
#[inline(always)]
#[must_use]
pub fn open_to_graphs() -> bool {
    WORD.load(Relaxed) == OPEN
}

/// From now on launches of graphs go the longer kind.
pub fn meter_graphs() {
    WORD.fetch_or(METERED, SeqCst);
}

/// Which default stream a null stream handle means: that of all threads, or (in the `_ptsz` forms
/// of the functions) the calling thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// One default stream per context.
    Legacy,
    /// One default stream per thread.
    PerThread,
}

/// What bytes are moved through: each kind has a speed of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Written in the device's own memory.
    Fill = 1,
    /// Within the device, to another one, or who knows where.
    Device = 2,
    /// Between host and device.
    Bus = 3,
    /// Pages that move to where they are wanted.
    Pages = 4,
    /// Unpacked.
    Decompression = 5,
}

impl Work {
    /// A kernel, cooperative or not, with `shared` bytes of dynamic shared memory.
    #[must_use]
    pub fn kernel(
        function: CUfunction,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        (stream, default_stream): (CUstream, DefaultStream),
    ) -> Work {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let key = Key::of(&[
            function.0 as u64,
            pair(grid[0], grid[1]),
            pair(grid[2], block[0]),
            pair(block[1], block[2]),
            u64::from(shared),
        ]);
        Work {
            task: Task::launch(key),
            stream: named(stream, default_stream),
            over_bus: false,
        }
    }

    /// A whole graph.
    #[must_use]
    pub fn graph(graph: CUgraphExec, stream: CUstream, default_stream: DefaultStream) -> Work {
        Work {
            task: Task::launch(Key::of(&[graph.0 as u64])),
            stream: named(stream, default_stream),
            over_bus: false,
        }
    }

    /// A copy or a fill.
    #[must_use]
    pub fn bytes(
        kind: TransferKind,
        bytes: u64,
        stream: CUstream,
        default_stream: DefaultStream,
    ) -> Work {
        Work {
            task: Task::of_bytes(kind as u64, bytes),
            stream: named(stream, default_stream),
            over_bus: kind == TransferKind::Bus,
        }
    }
}

fn named(stream: CUstream, default_stream: DefaultStream) -> backend::Stream {
    match default_stream {
        DefaultStream::PerThread if stream.is_null() => CU_STREAM_PER_THREAD.into(),
        _ if stream == CU_STREAM_LEGACY => backend::Stream::LEGACY,
        _ => stream.into(),
    }
}

/// Takes a launch through the gate: `call` runs when the turn allows it, and its answer is
/// the launch's. Blocks while it is somebody else's turn, holding no lock.
#[inline(never)]
pub fn launch(work: Work, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some((gate, ticket)) = present().and_then(|gate| Some((gate, gate.enter(&work)?))) else {
        return call();
    };
    let result = call();
    gate.leave(ticket, result == CUresult::SUCCESS);
    result
}

/// The process holds memory: from now on somebody must notice a daemon that went and came back, or
/// the new one would not know of that memory before the next launch.
pub fn watch() {
    if let Some(gate) = present() {
        gate.start_thread();
    }
}

/// To be called when the driver has made a stream in the current context.
pub fn stream_made(stream: CUstream) {
    if let Some(gate) = present() {
        gate.stream_made(stream.into());
    }
}

/// To be called before `stream` is destroyed by the driver; afterwards its handle is never used.
pub fn stream_closing(stream: CUstream) {
    if let Some(gate) = existing() {
        gate.stream_closing(stream.into());
    }
}

/// Whether the gate knows of any launch, and so perhaps of a context's.
#[must_use]
pub fn used() -> bool {
    existing().is_some()
}

/// Destroys, resets or releases `context` by `call`; afterwards nothing in it is ever used.
pub fn context_closing<R>(context: CUcontext, call: impl FnOnce() -> R) -> R {
    match existing() {
        Some(gate) => gate.context_closing(context.into(), call),
        None => call(),
    }
}

/// In the child of a fork: there is no gate and no gate thread. Async-signal-safe.
pub fn in_child() {
    captures::in_child();
    GATE.store(std::ptr::null_mut(), SeqCst);
    WORD.store(CLOSED, SeqCst);
}

extern "C" fn at_exit() {
    if let Some(gate) = existing() {
        gate.stop();
    }
}

fn existing() -> Option<&'static Gate> {
    // SAFETY: null, or a gate leaked by `present`.
    unsafe { GATE.load(Acquire).as_ref() }
}

/// The gate, made if this process is in a slice.
fn present() -> Option<&'static Gate> {
    if let Some(gate) = existing() {
        return Some(gate);
    }
    crate::link::attached()?;
    let fresh = Box::into_raw(Box::new(Gate::new(&BACKEND, &WORD)));
    if GATE
        .compare_exchange(std::ptr::null_mut(), fresh, AcqRel, Acquire)
        .is_ok()
    {
        // By now the driver is in use, so that its own handlers come after ours.
        os::at_exit(at_exit);
    } else {
        // SAFETY: made above and shown to nobody; another thread's gate came first.
        drop(unsafe { Box::from_raw(fresh) });
    }
    existing()
}
