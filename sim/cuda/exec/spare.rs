//! Memory that this process keeps for later: empty slabs of heaps, unused pieces of pools.
//!
//! It is given up when the device has no memory left for something else.

use super::pool;
use crate::context;
use crate::vram::Chunk;
use gpuslice_nvabi::types::CUresult;
use std::sync::Arc;

/// Does `take`; should there be no room, what this process keeps for later is given up, and it is
/// done again.
pub fn sparing<R>(gpu: usize, take: impl Fn() -> Result<R, CUresult>) -> Result<R, CUresult> {
    match take() {
        Err(CUresult::ERROR_OUT_OF_MEMORY) if give_back(gpu) => take(),
        other => other,
    }
}

/// Takes memory of a GPU (by the machine's index) that has no address yet, or never gets one.
pub fn take_chunk(gpu: usize, bytes: u64) -> Result<Arc<Chunk>, CUresult> {
    sparing(gpu, || Chunk::new(gpu, bytes))
}

/// Releases the memory kept for later on a GPU (the machine's index); returns whether there was any.
pub fn give_back(gpu: usize) -> bool {
    let on = context::living().into_iter().filter(|context| context.gpu().index == gpu);
    let heaps = on.fold(false, |any, context| context.heap.trim() | any);
    pool::trim_unused(gpu) | heaps
}
