//! All copies.
//!
//! The driver has some sixty entry points that copy; each copies a box of bytes to one of the same
//! size. So every call is first converted to the most general form, `CUDA_MEMCPY3D` (`forms`), then
//! checked once: its addresses, whether they are allowed, whether it crosses the bus (`plan`). The
//! rest is a loop over rows.
//!
//! Whether a copy may run later depends on its host memory. Pinned memory is accessed when the
//! stream gets there. The program may change or free pageable memory as soon as the call has
//! returned: a small source is buffered at once, for a large one the call waits; a call that writes
//! to pageable memory always waits. The real driver documents this, and programs rely on it.

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

/// Largest read from pageable memory that is buffered at once, as in the real driver.
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
