//! Memory: everything with an address, and copies and fills of it.
//!
//! A device pointer is an address of this process: the GPU's memory is a file, and an allocation
//! is a shared mapping of pieces of it. So bytes are real, copies are copies, and other processes
//! can map the same pieces. Modules, from the bottom up:
//! - `map`: the system's mmap; `space`: the range of addresses device pointers come from;
//! - `chunk`: physical memory of a GPU, counted; `buddy`, `heap`: small allocations share it;
//! - `registry`: the allocations of the process, so that bad pointers are refused, not followed;
//! - `device`, `host`, `array`, `vmm`, `ipc`: the kinds of allocations;
//! - `pointer`, `advise`: their attributes and hints;
//! - `copy`, `fill`: moving bytes, in the order of streams.

mod advise;
mod array;
mod copy;
mod device;
mod external;
mod fill;
mod host;
mod ipc;
mod limits;
mod pointer;
mod vmm;

use crate::allocations;
use crate::context::Context;

/// Takes everything that belongs to a context from it. Nothing of it is queued any more.
pub fn context_ends(context: &'static Context) {
    allocations::array::context_ends(context);
    ipc::context_ends(context);
    for (base, allocation) in allocations::remove_of(context) {
        allocation.release(base);
    }
    context.heap.clear();
}

/// Entry points of this room.
pub mod imp {
    pub use super::advise::imp::*;
    pub use super::array::imp::*;
    pub use super::copy::imp::*;
    pub use super::device::imp::*;
    pub use super::external::imp::*;
    pub use super::fill::imp::*;
    pub use super::host::imp::*;
    pub use super::ipc::imp::*;
    pub use super::limits::imp::*;
    pub use super::pointer::imp::*;
    pub use super::vmm::imp::*;
}
