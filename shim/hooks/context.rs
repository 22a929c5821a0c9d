//! Contexts: noted when they are made, and taking their memory with them when they end.

use super::physical;
use crate::gate;
use crate::guard::{Outcome, guard};
use crate::lane::{admitted, key};
use crate::link;
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

/// Destroys `context` by `call`, unless `alive` says otherwise of the result, and with it all memory
/// that was allocated in it. That is taken out of the books before: afterwards another thread's new
/// context may have the same handle, whose memory it must not be.
fn ending(
    context: CUcontext,
    call: impl FnOnce() -> CUresult,
    alive: impl FnOnce(CUresult) -> bool,
) -> Outcome {
    let Some(session) = link::attached() else {
        return Ok(call());
    };
    let closing = session.contexts.remove(context);
    let removed = session.book.remove_context(key(context));
    let closed = physical::pieces(session).close(key(context));
    let result = gate::context_closing(context, call);
    if alive(result) {
        session.book.restore(removed);
        physical::pieces(session).reopen(closed);
        session.contexts.restore(closing);
    } else {
        for held in removed.charges() {
            super::given_back(session, held);
        }
        physical::drop_references(session, closed.pieces());
    }
    Ok(result)
}

fn refused(result: CUresult) -> bool {
    result != CUresult::SUCCESS
}

pub unsafe extern "C" fn cuCtxDestroy(ctx: CUcontext) -> CUresult {
    guard(|| ending(ctx, || real!(cuCtxDestroy(ctx)), refused))
}

pub unsafe extern "C" fn cuCtxDestroy_v2(ctx: CUcontext) -> CUresult {
    guard(|| ending(ctx, || real!(cuCtxDestroy_v2(ctx)), refused))
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
    let contexts = link::attached().map(|session| &session.contexts);
    let primary = contexts.and_then(|contexts| contexts.primary(device));
    let last = contexts.and_then(|contexts| contexts.release_primary(device));
    let result = match last {
        Some(context) => ending(context, call, |result| refused(result) || active(device))?,
        None => call(),
    };
    if let (true, Some(contexts), Some(context)) = (refused(result), contexts, primary) {
        contexts.insert_primary(context, device);
    }
    Ok(result)
}

/// Whether the device's primary context lives, perhaps because somebody else has retained it.
fn active(device: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 1);
    let (flags, state) = (&raw mut flags, &raw mut active);
    real!(cuDevicePrimaryCtxGetState(device, flags, state)) != CUresult::SUCCESS || active != 0
}

/// Resets the primary context of `device` by `call`, which ends it at once.
fn resetting(device: CUdevice, call: impl FnOnce() -> CUresult) -> Outcome {
    match link::attached().and_then(|session| session.contexts.primary(device)) {
        Some(context) => ending(context, call, refused),
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

/// A green context is part of a GPU; it retains the primary context by itself.
pub unsafe extern "C" fn cuGreenCtxCreate(
    ph_ctx: *mut CUgreenCtx,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> CUresult {
    guard(|| {
        admitted(dev)?;
        Ok(real!(cuGreenCtxCreate(ph_ctx, desc, dev, flags)))
    })
}

/// Launches into a green context name it by the context that stands for it.
pub unsafe extern "C" fn cuGreenCtxDestroy(h_ctx: CUgreenCtx) -> CUresult {
    guard(|| {
        let call = || real!(cuGreenCtxDestroy(h_ctx));
        let mut context = CUcontext::NULL;
        if gate::used() && !refused(real!(cuCtxFromGreenCtx(&raw mut context, h_ctx))) {
            return Ok(gate::context_closing(context, call));
        }
        Ok(call())
    })
}
