//! Whole pages of device memory with addresses of their own.

use super::chunk::Chunk;
use super::{map, space};
use crate::driver::process;
use gpuslice_nvabi::types::CUresult;
use std::sync::Arc;

/// Physical memory mapped at an address; unmapped when dropped, then let go.
pub struct Pages {
    pub address: u64,
    pub chunk: Arc<Chunk>,
}

impl Pages {
    /// New memory of a GPU (by the machine's index), at least `bytes` of it.
    pub fn new(gpu: usize, bytes: u64) -> Result<Self, CUresult> {
        Self::of(Chunk::new(gpu, bytes)?)
    }

    /// Existing memory, mapped as a whole.
    pub fn of(chunk: Arc<Chunk>) -> Result<Self, CUresult> {
        let len = chunk.bytes();
        let address = space::take(len, space::STEP, 0).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if let Err(error) = map_part(&chunk, 0, len, address, true) {
            space::give(address, len);
            return Err(error);
        }
        Ok(Self { address, chunk })
    }

    pub fn bytes(&self) -> u64 {
        self.chunk.bytes()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let len = self.bytes();
        unmap(self.address, len);
        space::give(self.address, len);
    }
}

/// Maps `len` bytes of a chunk from `offset` on at an address taken from `space`.
pub fn map_part(
    chunk: &Chunk,
    offset: u64,
    len: u64,
    address: u64,
    access: bool,
) -> Result<(), CUresult> {
    let file = process()?.machine.vram(chunk.gpu()).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    let (mut before, mut done) = (0, 0);
    for extent in &chunk.memory.extents {
        let skip = (offset + done).saturating_sub(before).min(extent.len);
        let take = (extent.len - skip).min(len - done);
        before += extent.len;
        if take == 0 {
            continue;
        }
        // SAFETY: the addresses were taken from the reserved range for this mapping alone.
        let mapped = unsafe { map::over(address + done, file, extent.offset + skip, take, access) };
        if mapped.is_err() {
            unmap(address, done);
            return Err(CUresult::ERROR_MAP_FAILED);
        }
        done += take;
    }
    if done == len { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Takes away what [`map_part`] has mapped.
pub fn unmap(address: u64, len: u64) {
    if len > 0 {
        // SAFETY: the range was mapped by `map_part` and its owner gives it up. Should the system
        // refuse, the old mapping stays until the addresses are used again, which does no harm.
        let _ = unsafe { map::empty(address, len, false) };
    }
}
