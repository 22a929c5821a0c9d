//! Graphs: work described once and launched many times, and its capture from streams.
//!
//! `model` is the graph itself, `plan` its order in time, `exec` its executable form. `capture` turns
//! calls of streams into nodes, `memory` is the memory that graphs allocate, `user` the objects that
//! a graph keeps alive. `params` reads and writes the driver's descriptions of nodes. All of it is
//! behind one lock, which is never held while work is queued.

mod calls;
mod capture;
mod capture_calls;
mod exec;
mod exec_calls;
mod memory;
mod model;
mod node_calls;
mod params;
mod plan;
mod user;

pub use capture::{
    capture, capture_alloc, capture_record, capture_wait, context_ends, forget_event,
    forget_stream, is_capturing, refuse_captured, refuse_capturing, refuse_capturing_in,
};
pub use capture_calls::refuse_unsafe;
pub use memory::{Memory, Queued, end_use, free};
pub use model::GraphKey;

use super::named;
use super::task::Task;
use crate::handles::{Key, Named, Table};
use exec::Exec;
use gpuslice_nvabi::types::CUresult;
use model::{Graphs, Refusal};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

type Node = model::Node<Task>;
type NodeKey = Key<Node>;
type ExecKey = Key<Exec>;

impl Named for Exec {
    const KIND: u8 = 11;
}

/// Everything about graphs.
struct State {
    graphs: Graphs<Task>,
    execs: Table<Exec>,
    captures: capture::Captures,
    users: user::Users,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        graphs: Graphs::new(),
        execs: Table::new(),
        captures: capture::Captures::default(),
        users: user::Users::default(),
    })
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Refusal> for CUresult {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown | Refusal::Edge => Self::ERROR_INVALID_VALUE,
            Refusal::Unsupported => Self::ERROR_NOT_SUPPORTED,
            Refusal::TooMany => Self::ERROR_OUT_OF_MEMORY,
        }
    }
}

/// Entry points.
pub mod imp {
    pub use super::calls::*;
    pub use super::capture_calls::*;
    pub use super::exec_calls::*;
    pub use super::memory::*;
    pub use super::node_calls::*;
    pub use super::user::*;
}
