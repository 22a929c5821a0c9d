//! The memory that a context's limits take.
//!
//! The defaults are part of every context's memory. Raising a limit takes the difference as one
//! piece, and lowering it releases the last pieces that are no longer needed.

use crate::context::{Context, LIMITS, current};
use crate::entry::{Outcome, refuse_if};
use crate::exec::take_chunk;
use crate::vram::Chunk;
use gpuslice_nvabi::types::{CU_LIMIT_STACK_SIZE, CUlimit, CUresult};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Threads a multiprocessor can run at once, each with its stack.
const THREADS: u64 = 2048;

/// Device memory a limit takes beyond what its default does.
fn beyond_default(context: &Context, limit: CUlimit, value: u64) -> Result<u64, CUresult> {
    let more = value.saturating_sub(LIMITS[limit as usize].0);
    if limit != CU_LIMIT_STACK_SIZE {
        return Ok(more);
    }
    let threads = u64::from(context.gpu().multiprocessors) * THREADS;
    more.checked_mul(threads).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Makes the pieces at least `bytes` together, and no piece too many; refused, they are as
/// they were.
fn resize(context: &Context, pieces: &mut Vec<Arc<Chunk>>, bytes: u64) -> Outcome {
    let mut held: u64 = pieces.iter().map(|piece| piece.bytes()).sum();
    if held < bytes {
        pieces.push(take_chunk(context.gpu().index, bytes - held)?);
        return Ok(());
    }
    while let Some(last) = pieces.last().filter(|last| held - last.bytes() >= bytes) {
        held -= last.bytes();
        pieces.pop();
    }
    Ok(())
}

pub fn cuCtxSetLimit(limit: CUlimit, value: usize) -> Outcome {
    let context = current()?;
    let place = context.settings.limit(limit)?;
    refuse_if(value as u64 > LIMITS[limit as usize].1)?;
    let mut growth = context.settings.growth();
    if let Some(pieces) = growth.get_mut(limit as usize) {
        resize(context, pieces, beyond_default(context, limit, value as u64)?)?;
    }
    place.store(value as u64, Ordering::Relaxed);
    Ok(())
}
