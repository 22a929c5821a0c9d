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
mod pointer;
mod registry;
mod vmm;

pub use copy::{check_copy, copy_now, crosses_bus};
pub use device::{release, sparing, take_unseen};
pub use fill::{check_fill, fill_now};
pub use registry::{Allocation, Home, Kind, check, find, insert, remove};

use crate::context::{self, Context};
use crate::exec;

/// Releases the memory kept for later on a GPU (the machine's index); returns whether there was any.
pub fn give_spare_back(gpu: usize) -> bool {
    let on = context::living()
        .into_iter()
        .filter(|context| context.gpu().index == gpu);
    let heaps = on.fold(false, |any, context| context.heap.trim() | any);
    exec::give_spare_back(gpu) | heaps
}

/// Waits for all that is queued in the process, and so may still use addresses that go.
pub fn settle_all() {
    for context in context::living() {
        // A context that has failed uses nothing any more.
        let _ = exec::settle(context);
    }
}

/// Takes everything that belongs to a context from it. Nothing of it is queued any more.
pub fn context_ends(context: &'static Context) {
    array::context_ends(context);
    ipc::context_ends(context);
    for (base, allocation) in registry::remove_of(context) {
        device::release(base, allocation);
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
    pub use super::pointer::imp::*;
    pub use super::vmm::imp::*;
}
