//! The primary context of a device: one for all libraries of a process, counted.

use super::{begin, end};
use crate::context::{Context, check_flags};
use crate::driver::process;
use crate::entry::{Out, Outcome};
use gpuslice_nvabi::types::{CUcontext, CUdevice, CUresult};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The state of a device's primary context.
#[derive(Default)]
struct Primary {
    context: Option<&'static Context>,
    retained: u32,
    flags: u32,
}

/// The primary context of a device.
fn of(device: CUdevice) -> Result<MutexGuard<'static, Primary>, CUresult> {
    static PRIMARIES: OnceLock<Vec<Mutex<Primary>>> = OnceLock::new();
    let gpus = &process()?.gpus;
    let all = PRIMARIES.get_or_init(|| gpus.iter().map(|_| Mutex::default()).collect());
    let ordinal = usize::try_from(device).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
    let primary = all.get(ordinal).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    Ok(primary.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Primary {
    /// Takes the context out for its end, which happens after the lock is gone.
    fn deactivate(&mut self) -> Option<&'static Context> {
        self.retained = 0;
        self.context.take()
    }
}

pub fn cuDevicePrimaryCtxRetain(pctx: Out<CUcontext>, dev: CUdevice) -> Outcome {
    pctx.require()?;
    let mut primary = of(dev)?;
    let context = match primary.context {
        Some(context) => context,
        None => begin(dev, primary.flags, true)?,
    };
    primary.context = Some(context);
    primary.retained += 1;
    pctx.set(context.handle())
}

pub fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Outcome {
    let mut primary = of(dev)?;
    if primary.retained == 0 {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    primary.retained -= 1;
    let ended = if primary.retained == 0 { primary.deactivate() } else { None };
    drop(primary);
    ended.map_or(Ok(()), end)
}
pub use cuDevicePrimaryCtxRelease_v2 as cuDevicePrimaryCtxRelease;

pub fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> Outcome {
    let mut primary = of(dev)?;
    let ended = primary.deactivate();
    primary.flags = 0;
    drop(primary);
    ended.map_or(Ok(()), end)
}
pub use cuDevicePrimaryCtxReset_v2 as cuDevicePrimaryCtxReset;

pub fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> Outcome {
    let mut primary = of(dev)?;
    check_flags(flags)?;
    primary.flags = flags;
    if let Some(context) = primary.context {
        context.set_flags(flags);
    }
    Ok(())
}
pub use cuDevicePrimaryCtxSetFlags_v2 as cuDevicePrimaryCtxSetFlags;

pub fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: Out<u32>, active: Out<i32>) -> Outcome {
    active.require()?;
    let primary = of(dev)?;
    flags.set(primary.flags)?;
    active.set(i32::from(primary.context.is_some()))
}
