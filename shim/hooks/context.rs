//! Contexts: noted when they are made, and taking their memory with them when they end.

use crate::gate;
use crate::guard::{Outcome, guard};
use crate::lane::{admitted, key};
use crate::link::{self, Session};
use crate::real;
use gpuslice_nvabi::types::*;

/// Notes the context that the driver has just written to `pctx`.
///
/// # Safety
/// `pctx` was handed to the driver, which answered `result`.
unsafe fn made(result: CUresult, pctx: *const CUcontext, device: CUdevice) -> CUresult {
    if result == CUresult::SUCCESS
        && let Some(session) = link::attached()
    {
        // SAFETY: written by the driver, which answered success.
        session.contexts.insert(unsafe { *pctx }, device);
    }
    result
}

/// A context is gone, and all memory that was allocated in it.
fn gone(session: &Session, context: CUcontext) {
    session.contexts.remove(context);
    for held in session.book.remove_context(key(context)) {
        session.release(held.lane, held.bytes);
    }
}

pub unsafe extern "C" fn cuCtxCreate(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> CUresult {
    guard(|| {
        admitted(dev)?;
        // SAFETY: the application's own arguments.
        Ok(unsafe { made(real!(cuCtxCreate(pctx, flags, dev)), pctx, dev) })
    })
}

pub unsafe extern "C" fn cuCtxCreate_v2(
    pctx: *mut CUcontext,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    guard(|| {
        admitted(dev)?;
        // SAFETY: the application's own arguments.
        Ok(unsafe { made(real!(cuCtxCreate_v2(pctx, flags, dev)), pctx, dev) })
    })
}

pub unsafe extern "C" fn cuCtxCreate_v3(
    pctx: *mut CUcontext,
    params_array: *mut CUexecAffinityParam,
    num_params: i32,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    guard(|| {
        admitted(dev)?;
        let result = real!(cuCtxCreate_v3(pctx, params_array, num_params, flags, dev));
        // SAFETY: the application's own arguments.
        Ok(unsafe { made(result, pctx, dev) })
    })
}

pub unsafe extern "C" fn cuCtxCreate_v4(
    pctx: *mut CUcontext,
    ctx_create_params: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    guard(|| {
        admitted(dev)?;
        let result = real!(cuCtxCreate_v4(pctx, ctx_create_params, flags, dev));
        // SAFETY: the application's own arguments.
        Ok(unsafe { made(result, pctx, dev) })
    })
}

/// Destroys `context` by `call`.
fn ending(context: CUcontext, call: impl FnOnce() -> CUresult) -> Outcome {
    let result = gate::context_closing(context, call);
    if result == CUresult::SUCCESS
        && let Some(session) = link::attached()
    {
        gone(session, context);
    }
    Ok(result)
}

pub unsafe extern "C" fn cuCtxDestroy(ctx: CUcontext) -> CUresult {
    guard(|| ending(ctx, || real!(cuCtxDestroy(ctx))))
}

pub unsafe extern "C" fn cuCtxDestroy_v2(ctx: CUcontext) -> CUresult {
    guard(|| ending(ctx, || real!(cuCtxDestroy_v2(ctx))))
}

pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    guard(|| {
        admitted(dev)?;
        let result = real!(cuDevicePrimaryCtxRetain(pctx, dev));
        if result == CUresult::SUCCESS
            && let Some(session) = link::attached()
        {
            // SAFETY: written by the driver, which answered success.
            session.contexts.insert_primary(unsafe { *pctx }, dev);
        }
        Ok(result)
    })
}

/// Releases the primary context of `device` by `call`: the last release ends it, one before does not.
fn releasing(device: CUdevice, call: impl FnOnce() -> CUresult) -> Outcome {
    let primary = link::attached().and_then(|session| session.contexts.primary(device));
    let Some(context) = primary else {
        return Ok(call());
    };
    let result = gate::context_closing(context, call);
    let (mut flags, mut active) = (0, 1);
    if result == CUresult::SUCCESS
        && let Some(session) = link::attached()
        && real!(cuDevicePrimaryCtxGetState(
            device,
            &raw mut flags,
            &raw mut active
        )) == CUresult::SUCCESS
        && active == 0
    {
        gone(session, context);
    }
    Ok(result)
}

/// Resets the primary context of `device` by `call`, which ends it at once.
fn resetting(device: CUdevice, call: impl FnOnce() -> CUresult) -> Outcome {
    match link::attached().and_then(|session| session.contexts.primary(device)) {
        Some(context) => ending(context, call),
        None => Ok(call()),
    }
}

pub unsafe extern "C" fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> CUresult {
    guard(|| releasing(dev, || real!(cuDevicePrimaryCtxRelease(dev))))
}

pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult {
    guard(|| releasing(dev, || real!(cuDevicePrimaryCtxRelease_v2(dev))))
}

pub unsafe extern "C" fn cuDevicePrimaryCtxReset(dev: CUdevice) -> CUresult {
    guard(|| resetting(dev, || real!(cuDevicePrimaryCtxReset(dev))))
}

pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CUresult {
    guard(|| resetting(dev, || real!(cuDevicePrimaryCtxReset_v2(dev))))
}
