//! What can be set on a context: limits, cache and shared-memory preferences, flags. None of it
//! changes what the simulated device does, but a program reads back what it has set.

use super::lifetime::check_flags;
use super::{Context, current, named_or_current};
use gpuslice_nvabi::types::CUresult;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Settings of one context.
pub struct Settings {
    /// By `CUlimit`: stack bytes, printf FIFO, malloc heap, sync depth, pending launches, L2
    /// fetch granularity, persisting L2 bytes, shared-memory size, CIG, CIG shared.
    limits: [AtomicU64; LIMITS.len()],
    cache: AtomicI32,
    shared: AtomicI32,
}

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
}

/// Entry points.
#[allow(non_snake_case)]
pub mod imp {
    use super::*;
    use crate::entry::{Out, Outcome};
    use gpuslice_nvabi::types::{CUcontext, CUfunc_cache, CUlimit, CUsharedconfig};

    /// The oldest driver interface whose contexts behave like ours.
    const API_VERSION: u32 = 3020;

    pub fn cuCtxSetLimit(limit: CUlimit, value: usize) -> Outcome {
        let (place, most) = current()?.settings.limit(limit)?;
        if value as u64 > most {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        place.store(value as u64, Ordering::Relaxed);
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
