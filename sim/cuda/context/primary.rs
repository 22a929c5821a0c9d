//! The primary context of a device: one for all libraries of a process, counted.

use super::{Context, lifetime};
use gpuslice_nvabi::types::CUresult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of a device's primary context.
#[derive(Default)]
pub struct Primary(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    context: Option<&'static Context>,
    retained: u32,
    flags: u32,
}

impl Primary {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes the context out for its end, which happens after the lock is gone.
    fn deactivate(&mut self) -> Option<&'static Context> {
        self.retained = 0;
        self.context.take()
    }
}

/// Entry points.
#[allow(non_snake_case)]
pub mod imp {
    use super::*;
    use crate::driver::process;
    use crate::entry::{Out, Outcome};
    use gpuslice_nvabi::types::{CUcontext, CUdevice};
    use std::sync::atomic::Ordering;

    pub fn cuDevicePrimaryCtxRetain(pctx: Out<CUcontext>, dev: CUdevice) -> Outcome {
        pctx.require()?;
        let mut primary = process()?.gpu(dev)?.primary.lock();
        let context = match primary.context {
            Some(context) => context,
            None => lifetime::begin(dev, primary.flags, true)?,
        };
        primary.context = Some(context);
        primary.retained += 1;
        pctx.set(context.handle())
    }

    pub fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Outcome {
        let mut primary = process()?.gpu(dev)?.primary.lock();
        if primary.retained == 0 {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        primary.retained -= 1;
        let ended = if primary.retained == 0 {
            primary.deactivate()
        } else {
            None
        };
        drop(primary);
        ended.map_or(Ok(()), lifetime::end)
    }
    pub use cuDevicePrimaryCtxRelease_v2 as cuDevicePrimaryCtxRelease;

    pub fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> Outcome {
        let mut primary = process()?.gpu(dev)?.primary.lock();
        let ended = primary.deactivate();
        primary.flags = 0;
        drop(primary);
        ended.map_or(Ok(()), lifetime::end)
    }
    pub use cuDevicePrimaryCtxReset_v2 as cuDevicePrimaryCtxReset;

    pub fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> Outcome {
        let mut primary = process()?.gpu(dev)?.primary.lock();
        lifetime::check_flags(flags)?;
        primary.flags = flags;
        if let Some(context) = primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }
    pub use cuDevicePrimaryCtxSetFlags_v2 as cuDevicePrimaryCtxSetFlags;

    pub fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: Out<u32>, active: Out<i32>) -> Outcome {
        active.require()?;
        let primary = process()?.gpu(dev)?.primary.lock();
        flags.set(primary.flags)?;
        active.set(i32::from(primary.context.is_some()))
    }
}
