//! Memory: the calls that allocate it, describe it, and copy and fill it in the order of streams.
//!
//! A call checks its arguments, then enters or removes an allocation ([`allocations`]) with memory of
//! [`vram`](crate::vram), or hands an operation on bytes to [`exec`](crate::exec). A call that frees
//! waits for queued work first: a queued copy must still find its memory. Modules:
//! - `device`, `host`, `array`, `vmm`, `ipc`, `external`: the kinds of allocations;
//! - `limits`: memory that the driver takes for a context;
//! - `pointer`, `advise`: attributes and hints;
//! - `copy`, `fill`: operations on bytes.

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
    pub use super::advise::*;
    pub use super::array::imp::*;
    pub use super::copy::imp::*;
    pub use super::device::*;
    pub use super::external::*;
    pub use super::fill::*;
    pub use super::host::*;
    pub use super::ipc::*;
    pub use super::limits::*;
    pub use super::pointer::*;
    pub use super::vmm::imp::*;
}
