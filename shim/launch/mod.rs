//! The gate: every launch of the process passes it, nearly always on a fast path.
//!
//! GPU time is shared in turns: at most one container at a time launches, for some milliseconds, and the
//! daemon charges it from the grant until it has drained. The gate is the process's side of that. It has
//! three duties: hold launches during other containers' turns; keep so little in flight near a turn's end
//! that the process drains soon; report when it has drained. While no other container has work for the GPU
//! there are no turns, and a launch costs one load and one branch ([`open`]).
//!
//! * [`turn`], [`claim`], [`window`], [`in_flight_limit`], [`estimate`], [`gaps`] decide, without side effects: may
//!   a launch go, does the claim hold, how much room is there, how long will the launch run, how long does the
//!   process keep its turn when it has nothing in flight;
//! * [`gates`] are for turns that end at any moment: the GPU itself stops at them;
//! * [`fences`] puts events behind launches to learn which work has finished; `captures` keeps the gate's
//!   queries apart from stream captures; [`slow_path`] handles one launch; `thread` handles the rest;
//!   [`backend`] is their interface to driver and daemon.
//!
//! A *launch* is any call that puts work on the GPU: kernels, graphs, fills, copies. Not gated are launches
//! that are captured into a graph (they run when the graph is launched) and those on a GPU outside the
//! slice. Calls that wait for the GPU, and calls that only order streams (waits, writes, host functions),
//! are never held: they start no work. Some of those that wait are held while the container is suspended
//! ([`wait_for_resume`]).
//!
//! # Every wait is bounded
//! Work in flight may itself wait for a launch that the gate holds: a host function that launches, a
//! stream that waits for a word that another one writes, a kernel that polls for the result of a copy. Then
//! the process cannot drain, no further turn comes, and the launch would never go. So a launch held for
//! 100 ms goes without a turn while the work in flight is far later than expected; after 5 s, if its
//! own stream is busy. Releases in vain are followed by ever later ones ([`releases`]). A copy over the bus, which
//! occupies no multiprocessor, is held for 100 ms if any work is in flight, however late, and otherwise for 5 s.
//! Work behind closed gates waits for its turn, which comes; no launch goes early for it.
#![deny(missing_docs)]

mod atomic;
pub mod backend;
pub mod captures;
pub mod claim;
pub mod estimate;
#[cfg(test)]
mod fake;
pub mod fences;
pub mod gaps;
pub mod gates;
pub mod in_flight_limit;
mod os;
pub mod releases;
pub mod slow_path;
#[cfg(test)]
mod tests;
mod thread;
pub mod turn;
pub mod window;
pub mod word;

pub use slow_path::Work;

use backend::DriverBackend;
use estimate::{Key, Task};
use gpuslice_nvabi::types::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUfunction, CUgraphExec, CUresult, CUstream,
};
use slow_path::Gate;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use word::{CLOSED, METERED};

/// The word that every launch reads.
static WORD: AtomicU32 = AtomicU32::new(CLOSED);
/// The gate; created by the first launch or the first credit in a slice, never freed, dropped in a forked
/// child.
static GATE: AtomicPtr<Gate> = AtomicPtr::new(std::ptr::null_mut());

/// Whether a launch may go straight to the driver. Otherwise it goes through [`launch`].
#[inline(always)]
#[must_use]
pub fn open() -> bool {
    word::is_open(&WORD)
}

/// Whether a graph may be launched straight away: the gate is open, and no graph needs memory.
#[inline(always)]
#[must_use]
pub fn open_to_graphs() -> bool {
    word::is_open_to_graphs(&WORD)
}

/// Sends launches of graphs through the longer path from now on.
pub fn meter_graphs() {
    WORD.fetch_or(METERED, SeqCst);
}

/// The default stream that a null stream handle means: that of all threads, or (in the `_ptsz` forms of the
/// functions) the calling thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// One default stream per context.
    Legacy,
    /// One default stream per thread.
    PerThread,
}

/// Kinds of transfers; each has its own speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Fills of the device's own memory.
    Fill = 1,
    /// Copies within the device, to another device, or of unknown direction.
    Device = 2,
    /// Copies between host and device.
    Bus = 3,
    /// Page migration.
    Pages = 4,
    /// Decompression.
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
        Work { task: Task::launch(key), stream: named(stream, default_stream), over_bus: false }
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

/// Takes a launch through the gate: runs `call` when the turn allows it, and returns its result. Blocks
/// during other containers' turns, holding no lock.
#[inline(never)]
pub fn launch(
    backend: &'static dyn DriverBackend,
    work: Work,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let gate = present(backend);
    let Some(ticket) = gate.enter(&work) else {
        return call();
    };
    let result = call();
    gate.leave(ticket, result == CUresult::SUCCESS);
    result
}

/// Whether this process may be taking turns: launches pass its gate, one by one.
#[inline(always)]
#[must_use]
pub fn takes_turns() -> bool {
    !open() && !GATE.load(Relaxed).is_null()
}

/// Runs `call`, which waits for the GPU, holding no lock; afterwards the turn may be over.
#[inline(never)]
pub fn wait(call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(gate) = existing() else {
        return call();
    };
    let since = os::now();
    let result = call();
    gate.waited(since);
    result
}

/// Waits while the container is suspended. The driver holds back calls of a process whose memory it has moved to the
/// host, but not those that wait for a context or a stream: such a call ends the process.
///
/// A daemon that is gone does not end the wait: the memory is still on the host.
#[cold]
pub fn wait_for_resume(backend: &dyn DriverBackend) {
    let pages = backend.pages();
    let word = &pages.container.suspended;
    loop {
        match word.load(SeqCst) {
            0 => return,
            suspended => {
                // The gate thread, which does this otherwise, may wait in the driver.
                if pages.facts(0).stale(os::now()) {
                    backend.reconnect();
                }
                os::wait(word, suspended, u64::MAX);
            }
        }
    }
}

/// Starts the gate thread, because the process holds memory: it must return recalled credit, and notice a
/// restarted daemon, which would otherwise not learn of that memory before the next launch.
pub fn watch(backend: &'static dyn DriverBackend) {
    present(backend).start_thread();
}

/// To be called after the driver has created a stream in the current context.
pub fn stream_made(backend: &'static dyn DriverBackend, stream: CUstream) {
    present(backend).stream_made(stream.into());
}

/// To be called before the driver destroys `stream`; its handle is never used afterwards.
pub fn stream_closing(stream: CUstream) {
    if let Some(gate) = existing() {
        gate.stream_closing(stream.into());
    }
}

/// Destroys, resets or releases `context` by `call`; its objects are never used afterwards.
pub fn context_closing<R>(context: CUcontext, call: impl FnOnce() -> R) -> R {
    match existing() {
        Some(gate) => gate.context_closing(context.into(), call),
        None => call(),
    }
}

/// Resets the gate in the child of a fork, which has no gate thread. Async-signal-safe.
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

/// The gate, created if there is none.
fn present(backend: &'static dyn DriverBackend) -> &'static Gate {
    if let Some(gate) = existing() {
        return gate;
    }
    let fresh = Box::into_raw(Box::new(Gate::new(backend, &WORD)));
    match GATE.compare_exchange(std::ptr::null_mut(), fresh, AcqRel, Acquire) {
        Ok(_) => {
            // The driver is in use by now, so its own exit handlers run after ours.
            os::at_exit(at_exit);
            // SAFETY: leaked above.
            unsafe { &*fresh }
        }
        Err(earlier) => {
            // SAFETY: made above and not shared; another thread's gate came first.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: leaked by that thread.
            unsafe { &*earlier }
        }
    }
}
