//! Settings of a context: limits, cache and shared-memory preferences, flags.
//!
//! A program reads back what it has set. Three of the limits are sizes of device memory the driver
//! keeps: the stacks of all threads the GPU can run at once, the buffer of `printf`, the heap of
//! `malloc` in kernels. Their defaults are part of every context's memory; raising one takes the
//! difference as one piece, and lowering it releases the last pieces that are no longer needed.

use super::lifetime::check_flags;
use super::{Context, current, named_or_current};
use crate::memory;
use crate::vram::Chunk;
use gpuslice_nvabi::types::CUresult;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Settings of one context.
pub struct Settings {
    /// By `CUlimit`: stack bytes, printf FIFO, malloc heap, sync depth, pending launches, L2
    /// fetch granularity, persisting L2 bytes, shared-memory size, CIG, CIG shared.
    limits: [AtomicU64; LIMITS.len()],
    /// Memory beyond the default's, of each of the first limits.
    growth: Mutex<[Vec<Arc<Chunk>>; SIZES]>,
    cache: AtomicI32,
    shared: AtomicI32,
}

/// As many limits from the first on are sizes of memory.
const SIZES: usize = 3;
/// Threads a multiprocessor can run at once, each with its stack.
const THREADS: u64 = 2048;

/// Default and largest value of each limit.
const LIMITS: [(u64, u64); 7] = [
    (1024, 512 << 10),
    (1 << 20, 1 << 40),
    (8 << 20, 1 << 40),
    (2, 24),
    (2048, 1 << 20),
    (64, 128),
    (0, 32 << 20),
];

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: LIMITS.map(|(default, _)| AtomicU64::new(default)),
            growth: Mutex::default(),
            cache: AtomicI32::new(0),
            shared: AtomicI32::new(0),
        }
    }
}

impl Settings {
    fn limit(&self, limit: u32) -> Result<(&AtomicU64, u64), CUresult> {
        let place = self
            .limits
            .get(limit as usize)
            .ok_or(CUresult::ERROR_UNSUPPORTED_LIMIT)?;
        Ok((place, LIMITS[limit as usize].1))
    }

    fn growth(&self) -> MutexGuard<'_, [Vec<Arc<Chunk>>; SIZES]> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what limits have taken.
    pub fn end(&self) {
        let given_back = std::mem::take(&mut *self.growth());
        drop(given_back);
    }
}

/// Entry points.
#[allow(non_snake_case)]
pub mod imp {
    use super::*;
    use crate::entry::{Out, Outcome};
    use gpuslice_nvabi::types::{
        CU_LIMIT_STACK_SIZE, CUcontext, CUfunc_cache, CUlimit, CUsharedconfig,
    };

    /// The oldest driver interface whose contexts behave like ours.
    const API_VERSION: u32 = 3020;

    pub fn cuCtxSetLimit(limit: CUlimit, value: usize) -> Outcome {
        let context = current()?;
        let (place, most) = context.settings.limit(limit)?;
        if value as u64 > most {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut growth = context.settings.growth();
        if let Some(pieces) = growth.get_mut(limit as usize) {
            resize(
                context,
                pieces,
                beyond_default(context, limit, value as u64)?,
            )?;
        }
        place.store(value as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Device memory a limit takes beyond what its default does.
    fn beyond_default(context: &Context, limit: CUlimit, value: u64) -> Result<u64, CUresult> {
        let more = value.saturating_sub(LIMITS[limit as usize].0);
        if limit != CU_LIMIT_STACK_SIZE {
            return Ok(more);
        }
        let threads = u64::from(context.gpu().info.multiprocessors) * THREADS;
        more.checked_mul(threads)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Makes the pieces at least `bytes` together, and no piece too many; refused, they are as
    /// they were.
    fn resize(context: &Context, pieces: &mut Vec<Arc<Chunk>>, bytes: u64) -> Outcome {
        let mut held: u64 = pieces.iter().map(|piece| piece.bytes()).sum();
        if held < bytes {
            pieces.push(memory::take_unseen(context.gpu().index, bytes - held)?);
            return Ok(());
        }
        while let Some(last) = pieces.last().filter(|last| held - last.bytes() >= bytes) {
            held -= last.bytes();
            pieces.pop();
        }
        Ok(())
    }

    pub fn cuCtxGetLimit(pvalue: Out<usize>, limit: CUlimit) -> Outcome {
        pvalue.require()?;
        let (place, _) = current()?.settings.limit(limit)?;
        pvalue.set(place.load(Ordering::Relaxed) as usize)
    }

    pub fn cuCtxGetCacheConfig(config: Out<CUfunc_cache>) -> Outcome {
        config.set(current()?.settings.cache.load(Ordering::Relaxed) as CUfunc_cache)
    }

    pub fn cuCtxSetCacheConfig(config: CUfunc_cache) -> Outcome {
        store(&current()?.settings.cache, config as i32, 3)
    }

    pub fn cuCtxGetSharedMemConfig(config: Out<CUsharedconfig>) -> Outcome {
        config.set(current()?.settings.shared.load(Ordering::Relaxed) as CUsharedconfig)
    }

    pub fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> Outcome {
        store(&current()?.settings.shared, config as i32, 2)
    }

    fn store(place: &AtomicI32, value: i32, most: i32) -> Outcome {
        if !(0..=most).contains(&value) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        place.store(value, Ordering::Relaxed);
        Ok(())
    }

    pub fn cuCtxGetApiVersion(ctx: CUcontext, version: Out<u32>) -> Outcome {
        named_or_current(ctx)?;
        version.set(API_VERSION)
    }

    pub fn cuCtxGetFlags(flags: Out<u32>) -> Outcome {
        flags.set(current()?.flags())
    }

    pub fn cuCtxSetFlags(flags: u32) -> Outcome {
        let context: &Context = current()?;
        check_flags(flags)?;
        context.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    pub fn cuCtxGetId(ctx: CUcontext, id: Out<u64>) -> Outcome {
        id.set(named_or_current(ctx)?.serial)
    }

    pub fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Outcome {
        current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    pub fn cuCtxResetPersistingL2Cache() -> Outcome {
        current().map(|_| ())
    }
}
