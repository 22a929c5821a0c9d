//! The memory of GPUs as this process holds it: addresses, and the physical memory behind them.
//!
//! A device pointer is an address of this process: the GPU's memory is a file, and a piece of it is
//! used by mapping it. So bytes are real, and other processes can map the same pieces. From the
//! bottom up:
//! - `map`: the system's mmap; `ranges`, `space`: the range of addresses that device pointers come from;
//! - `chunk`: physical memory, counted; `pages`: a chunk mapped at addresses of its own;
//! - `buddy`, `heap`: pages that the small allocations of a context share.

mod buddy;
mod chunk;
mod heap;
pub mod map;
mod pages;
mod ranges;
pub mod space;

pub use buddy::{SLAB, order};
pub use chunk::Chunk;
pub use heap::Heap;
pub use pages::{Pages, map_part, unmap};
pub use ranges::FreeRanges;
pub use space::STEP;
