//! Virtual memory management: separate addresses and memory.
//!
//! A program reserves addresses, creates memory, maps the memory at the addresses and sets the
//! devices that may access it. Memory lives as long as any handle or mapping of it: releasing the
//! handle of mapped memory frees nothing yet. All of this is in steps of 2 MiB.

mod backing;
mod handle;
mod range;
mod share;

pub use share::named;

use crate::vram::{Chunk, STEP};
use backing::Backing;
use gpuslice_nvabi::types::{CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult};
use std::sync::Arc;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Memory with a handle.
#[derive(Clone)]
struct Physical {
    backing: Backing,
    prop: CUmemAllocationProp,
}

// SAFETY: the one pointer in the properties belongs to Windows, is null here and never followed.
unsafe impl Send for Physical {}
// SAFETY: as above.
unsafe impl Sync for Physical {}

/// The memory of a handle, for callers that map it elsewhere than at an address.
pub fn chunk_of(handle: CUmemGenericAllocationHandle) -> Result<Arc<Chunk>, CUresult> {
    handle::physical(handle)?.backing.chunk().cloned()
}

/// Whether these are sizes or addresses in whole steps, and not zero.
fn whole(values: &[u64]) -> Result<(), CUresult> {
    let good = values.iter().all(|value| *value > 0 && value.is_multiple_of(STEP));
    if good { Ok(()) } else { Err(INVALID) }
}

/// Entry points.
pub mod imp {
    pub use super::handle::*;
    pub use super::range::*;
    pub use super::share::*;
}
