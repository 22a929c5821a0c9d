//! All copies, in the order of streams.
//!
//! The driver has some sixty entry points that copy; each copies a box of bytes to one of the same
//! size. So every call is first converted to the most general form, `CUDA_MEMCPY3D` (`forms`), then
//! checked once: its addresses, whether they are allowed, whether it crosses the bus
//! ([`Plan`]). The rest is a loop over rows.
//!
//! Whether a copy may run later depends on its host memory. Pinned memory is accessed when the
//! stream gets there. The program may change or free pageable memory as soon as the call has
//! returned: a small source is buffered at once, for a large one the call waits; a call that writes
//! to pageable memory always waits. The real driver documents this, and programs rely on it.

mod forms;
mod linear;
mod shaped;

use crate::allocations::copy::Plan;
use crate::entry::Outcome;
use crate::exec::{self, Operation, OperationKind};
use gpuslice_nvabi::types::{CUDA_MEMCPY3D, CUstream};
use std::sync::Arc;

/// Largest read from pageable memory that is buffered at once, as in the real driver.
const SET_ASIDE_MOST: u64 = 64 << 10;

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
    exec::working()?;
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
    let kind = OperationKind::Copy(copy);
    let operation = match aside {
        Some((plan, bytes)) => Operation { kind, ns, run: Arc::new(move || plan.run_from(&bytes)) },
        None => Operation::later(kind, ns),
    };
    exec::queue(stream, operation)?;
    let waits = until == Until::Done || plan.syncs() || (waits && !captured);
    if waits { exec::wait(stream) } else { Ok(()) }
}

/// Entry points.
pub mod imp {
    pub use super::linear::*;
    pub use super::shaped::*;
}
