//! Settings of a context: limits, cache and shared-memory preferences, flags.
//!
//! A program reads back what it has set. Three of the limits are sizes of device memory the driver
//! keeps: the stacks of all threads the GPU can run at once, the buffer of `printf`, the heap of
//! `malloc` in kernels. `memory` takes and releases it when a program sets one of them. An H200 (driver
//! 580.159.04) took nothing when a program set the heap or the buffer to 64 MiB, and no kernel used them. It took the
//! stacks of all threads when a program set 4096 and then 16384 bytes, and gave all back when it set 1024 again.

use super::{current, named_or_current};
use crate::entry::{Out, Outcome, refuse_if};
use crate::vram::Chunk;
use gpuslice_nvabi::types::{CUcontext, CUfunc_cache, CUlimit, CUresult, CUsharedconfig};
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
/// Default and largest value of each limit.
pub const LIMITS: [(u64, u64); 7] = [
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
    /// The present value of a limit.
    pub fn limit(&self, limit: CUlimit) -> Result<&AtomicU64, CUresult> {
        let limit = self.limits.get(limit as usize);
        limit.ok_or(CUresult::ERROR_UNSUPPORTED_LIMIT)
    }

    /// The pieces that the first limits have taken.
    pub fn growth(&self) -> MutexGuard<'_, [Vec<Arc<Chunk>>; SIZES]> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what limits have taken.
    pub fn end(&self) {
        let given_back = std::mem::take(&mut *self.growth());
        drop(given_back);
    }
}

/// CU_CTX_SCHED_* (of which one), MAP_HOST, LMEM_RESIZE_TO_MAX, COREDUMP_*, SYNC_MEMOPS.
const FLAGS: u32 = 0xff;
const SCHEDULES: [u32; 4] = [0, 1, 2, 4];

/// Whether these are flags a context can have.
pub fn check_flags(flags: u32) -> Result<(), CUresult> {
    let known = flags & !FLAGS == 0 && SCHEDULES.contains(&(flags & 7));
    if known { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// The oldest driver interface whose contexts behave like ours.
const API_VERSION: u32 = 3020;

pub fn cuCtxGetLimit(pvalue: Out<usize>, limit: CUlimit) -> Outcome {
    pvalue.require()?;
    let value = current()?.settings.limit(limit)?;
    pvalue.set(value.load(Ordering::Relaxed) as usize)
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
    refuse_if(!(0..=most).contains(&value))?;
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
    let context = current()?;
    check_flags(flags)?;
    context.set_flags(flags);
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
