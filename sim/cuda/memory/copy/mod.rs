//! Copies, all of them.
//!
//! The driver has some sixty entry points that copy; each of them is a box of bytes in one place
//! and one of the same size in another. So every call is first written as the most general
//! form, `CUDA_MEMCPY3D` (`forms`), then looked through once: which addresses, are they allowed,
//! does it cross the bus (`plan`). What is left is a loop over rows.
//!
//! When a copy may run later depends on the host's side of it. Pinned memory is used when the
//! stream gets there. Pageable memory may be changed or freed by the program as soon as the call
//! has returned: what is read is set aside at once if it is small, else the call waits; a call that
//! writes to it always waits. That is what the real driver documents, and programs rely on it.

mod forms;
mod linear;
mod plan;
mod shaped;

use crate::context;
use crate::entry::Outcome;
use crate::exec;
use crate::work::{Operation, OperationKind};
use gpuslice_nvabi::types::{CUDA_MEMCPY3D, CUresult, CUstream};
use plan::Plan;
use std::sync::Arc;

/// Up to here what is read from pageable memory is set aside, as the real driver does.
const SET_ASIDE_MOST: u64 = 64 << 10;

/// Does a copy at once; `Err` is what the context is to be told.
pub fn copy_now(copy: &CUDA_MEMCPY3D) -> Outcome {
    Plan::of(copy)
        .map_err(|_| CUresult::ERROR_ILLEGAL_ADDRESS)?
        .run()
}

/// Whether a copy is one that could be done.
pub fn check_copy(copy: &CUDA_MEMCPY3D) -> Outcome {
    Plan::of(copy).map(drop)
}

/// Whether a copy goes between the host and a device.
pub fn crosses_bus(copy: &CUDA_MEMCPY3D) -> bool {
    Plan::of(copy).is_ok_and(|plan| plan.crosses_bus())
}

/// When the caller wants to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// When it is queued on this stream.
    Queued(CUstream),
    /// When it is done, in the order of the default stream.
    Done,
}

/// Queues a copy in the current context.
fn submit(copy: CUDA_MEMCPY3D, until: Until) -> Outcome {
    context::working()?;
    let plan = Plan::of(&copy)?;
    let stream = match until {
        Until::Queued(stream) => stream,
        Until::Done => {
            exec::refuse_waiting()?;
            CUstream::NULL
        }
    };
    if plan.bytes() == 0 {
        return Ok(());
    }
    let ns = exec::cost::copy(plan.bytes(), plan.crosses_bus());
    let captured = exec::is_capturing(stream);
    let small = plan.bytes() <= SET_ASIDE_MOST;
    let aside = if plan.source_is_pageable() && small && until != Until::Done && !captured {
        Some(plan.set_aside())
    } else {
        None
    };
    let waits = plan.target_is_pageable() || (plan.source_is_pageable() && aside.is_none());
    let run: Arc<dyn Fn() -> Outcome + Send + Sync> = match aside {
        Some((plan, bytes)) => Arc::new(move || plan.run_from(&bytes)),
        // Looked through again when it is its turn: what it names may be gone by then.
        None => {
            let again = Again(copy);
            Arc::new(move || again.run())
        }
    };
    exec::queue(
        stream,
        Operation {
            kind: OperationKind::Copy(copy),
            ns,
            run,
        },
    )?;
    let waits = until == Until::Done || plan.syncs() || (waits && !captured);
    if waits { exec::wait(stream) } else { Ok(()) }
}

/// A copy to be done by another thread.
struct Again(CUDA_MEMCPY3D);

// SAFETY: the pointers in it are addresses, looked up in the registry when the copy is done; those
// of the host stay valid until then by the driver API's contract.
unsafe impl Send for Again {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Again {}

impl Again {
    fn run(&self) -> Outcome {
        copy_now(&self.0)
    }
}

/// Entry points.
pub mod imp {
    pub use super::linear::imp::*;
    pub use super::shaped::imp::*;
}
