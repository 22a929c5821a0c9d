//! Ordered work: streams, events, modules, launches, graphs, and memory that is allocated in the
//! order of a stream.
//!
//! A call makes a [`task::Task`] and hands it to [`submit`], which either adds it to the graph
//! being captured from the stream ([`graph`]) or queues it ([`stream`]). `module` has the kernels,
//! `ptx` reads their declarations, `pool` has the stream-ordered memory, `spare` what the process
//! keeps of it, `cost` the durations. `memory` and `lifetime` call the functions below.

mod api;
pub mod cost;
mod graph;
mod module;
mod pool;
mod ptx;
mod spare;
mod stream;
mod task;
mod threads;

pub use graph::refuse_unsafe;
pub use spare::{sparing, take_chunk};
pub use task::{Operation, OperationKind};

use crate::context::{self, Context, current};
use crate::driver::strict;
use crate::entry::{In, Outcome, per_thread_default, refuse_if};
use crate::handles::{Key, Named};
use gpuslice_nvabi::types::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream};
use gpuslice_sim_device::ContextId;
use std::ffi::{CStr, CString, c_char};
use std::sync::MutexGuard;
use stream::{StreamKey, shared};
use task::Task;

/// Entry points of this room.
pub mod imp {
    pub use super::api::imp::*;
    pub use super::graph::imp::*;
    pub use super::module::imp::*;
    pub use super::pool::imp::*;
}

/// The object a handle names, or says it names.
fn key<T: Named>(pointer: *mut std::ffi::c_void) -> Result<Key<T>, CUresult> {
    Key::from_pointer(pointer).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// The same where the driver calls a wrong handle a wrong value.
fn named<T: Named>(pointer: *mut std::ffi::c_void) -> Result<Key<T>, CUresult> {
    Key::from_pointer(pointer).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// A copy of a text of the program's.
fn cstr(text: In<c_char>) -> Result<CString, CUresult> {
    refuse_if(text.is_null())?;
    // SAFETY: not null, and a text ended by a zero byte by the program's promise.
    Ok(unsafe { CStr::from_ptr(text.pointer()) }.to_owned())
}

/// The stream a handle means; null and the special values mean default streams of the current
/// context.
fn resolve(stream: CUstream) -> Result<StreamKey, CUresult> {
    let per_thread = match stream {
        CUstream::NULL => per_thread_default(),
        CU_STREAM_LEGACY => false,
        CU_STREAM_PER_THREAD => true,
        _ => {
            let stream = key(stream.0)?;
            let lives = shared()?.with(|model| model.stream(stream).is_some());
            return if lives { Ok(stream) } else { Err(CUresult::ERROR_INVALID_HANDLE) };
        }
    };
    shared()?.default_stream(current()?.id, per_thread)
}

/// Keeps other threads' calls out of a context; see [`Context::hold`].
fn hold(context: ContextId) -> Option<MutexGuard<'static, ()>> {
    if strict::properties().lock == 0 {
        return None;
    }
    let found = context::living().into_iter().find(|one| one.id == context);
    found.and_then(Context::hold)
}

/// Queues a task on a stream, or adds it to the graph that is captured from the stream.
fn submit(stream: StreamKey, task: Task) -> Outcome {
    if graph::capture(stream, &task)? {
        return Ok(());
    }
    let ns = task.time().saturating_add(task.moves());
    shared()?.push(stream, Vec::new(), task.requests(ns)).map(|_| ())
}

/// Queues a copy or a fill behind the operations of a stream of the current context; a stream that
/// is being captured records a graph node instead.
pub fn queue(stream: CUstream, operation: Operation) -> Outcome {
    submit(resolve(stream)?, Task::Move(operation))
}

/// Waits for the work queued on a stream.
pub fn wait(stream: CUstream) -> Outcome {
    api::synchronize(resolve(stream)?)
}

/// For a call that is done when it returns: refused where it may not wait for the default stream.
pub fn refuse_waiting() -> Outcome {
    graph::refuse_capturing(resolve(CUstream::NULL)?)?;
    graph::refuse_unsafe()
}

/// Whether a stream is being captured.
pub fn is_capturing(stream: CUstream) -> bool {
    resolve(stream).is_ok_and(graph::is_capturing)
}

/// The current context, for a call that gives it something to do or takes of its memory: every such
/// call fails with the error that killed a context until the program has destroyed it.
pub fn working() -> Result<&'static Context, CUresult> {
    let context = current()?;
    shared()?.check(context.id)?;
    Ok(context)
}

/// The context a stream belongs to.
fn context_of(stream: StreamKey) -> Result<&'static Context, CUresult> {
    let id = shared()?.with(|model| model.stream(stream).map(|stream| stream.context));
    let id = id.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if let Ok(current) = current()
        && current.id == id
    {
        return Ok(current);
    }
    let living = context::living();
    living.into_iter().find(|one| one.id == id).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
}

/// Waits for all that is queued in a context.
pub fn settle(context: &'static Context) -> Outcome {
    let run = shared()?;
    let marks = run.with(|model| model.marks(context.id));
    run.wait(context.id, &marks)
}

/// Waits for all that is queued in the process, and so may still use addresses that go.
pub fn settle_all() {
    for context in context::living() {
        // A context that has failed uses nothing any more.
        let _ = settle(context);
    }
}

/// Ends a context: waits a bounded time for the queued work that the device can still do; the rest
/// is dropped.
pub fn context_ends(context: &'static Context) {
    let Ok(run) = shared() else { return };
    run.drain(context.id);
    graph::context_ends(context.id);
    run.drop_context(context.id);
    pool::context_ends(context);
    module::context_ends(context.id);
}

/// Frees memory that came from a pool or a graph, at once.
pub fn free_ordered(address: u64) -> Outcome {
    if pool::free(address, None)? { Ok(()) } else { graph::free(address) }
}
