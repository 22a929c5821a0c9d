//! The interface between `memory` and `exec`.
//!
//! `memory` knows what a copy or a fill does to bytes and how long it takes; `exec` knows streams
//! and their order. So memory describes an [`Operation`], and `exec` runs it in order, or records
//! it where the stream is being captured. `memory` and `context` call:
//! - `exec::queue(stream, operation) -> Outcome`: behind the operations queued on the stream of the
//!   current context (null and the special values are default streams, see
//!   [`crate::entry::per_thread_default`]); a capturing stream records a graph node instead;
//! - `exec::wait(stream) -> Outcome`: until everything queued on it is over;
//! - `exec::is_capturing(stream) -> bool`: false also for a stream that does not exist;
//! - `exec::settle(context) -> Outcome`: until everything queued in the context is over;
//! - `exec::free_ordered(pointer) -> Outcome`: `cuMemFree` of memory from a pool or a graph, whose
//!   context has settled;
//! - `exec::context_ends(context)`: everything queued in it is dropped, its objects go.

use crate::entry::Outcome;
use gpuslice_nvabi::types::{CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS_v2};
use std::sync::Arc;

/// The kind of an operation, for a graph node made of it.
#[derive(Clone, Copy)]
pub enum OperationKind {
    /// `memory::copy_now` does the same.
    Copy(CUDA_MEMCPY3D),
    /// `memory::fill_now` does the same.
    Fill(CUDA_MEMSET_NODE_PARAMS_v2),
    /// Has no form of its own in a graph.
    Hint,
}

/// A copy or a fill: its duration and its effect. A captured one runs at each launch of its graph.
#[derive(Clone)]
pub struct Operation {
    pub kind: OperationKind,
    /// Simulated nanoseconds.
    pub ns: u64,
    /// The effect; its error is an error of the context.
    pub run: Arc<dyn Fn() -> Outcome + Send + Sync>,
}
