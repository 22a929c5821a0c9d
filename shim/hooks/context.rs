//! Contexts: charged when they are created; their memory is released when they end.
//!
//! The cost of a context is known only afterwards. So the smallest cost observed on that GPU is reserved
//! before the driver creates a first one. Then the daemon measures what the driver has taken, the charge is
//! corrected, and a context that does not fit is destroyed again. A process creates one context at a time on
//! a GPU, or the measured costs would mix. NVML's figures may be older than the context, which then seems to cost
//! nothing; no context does, so the daemon is asked again until one costs something, for a bounded time. One of
//! which the driver tells no cost is charged the smallest cost observed. Where the daemon stays away for 30 s, the
//! context is destroyed again.
//!
//! A first context is not created while the container's memory is on the host. The memory that is promised to the
//! container may be lent: then the driver refuses the context, and is asked again when as much as a context can take
//! is there.

use crate::channels;
use crate::guard::Outcome;
use crate::launch;
use crate::memory::allocations::Removed;
use crate::memory::contexts::{Closing, ContextCharge, Green, key};
use crate::memory::physical::Closed;
use crate::real;
use crate::slice::{self, Slice, admitted};
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_nvabi::types::*;
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::CONTEXT_BYTES_MAX;
use gpuslice_wire::units::KIB;

fn refused(result: CUresult) -> bool {
    result != CUresult::SUCCESS
}

/// Creates an object by `call`, which `undo` can end again. Returns its cost with the driver's result.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`, and nothing is made.
fn priced(
    (slice, lane): (&Slice, Lane),
    (device, green): (CUdevice, bool),
    call: impl Fn() -> CUresult,
    undo: impl FnOnce() -> CUresult,
) -> Result<(CUresult, ContextCharge), CUresult> {
    let first = !slice.contexts.any(device);
    // A green context is a part of the primary one, if that exists.
    let free = green && slice.contexts.primary(device).is_some();
    let guess = u64::from(slice.daemon.facts(lane).context_kib.load(Relaxed)) * KIB;
    if first && guess == 0 {
        slice.daemon.await_resume(lane);
    }
    let mut reservation = slice.daemon.reserve(lane, if first { guess } else { 0 })?;
    let mut apart = reservation.bytes;
    // If the process ends before the charge, its claim tells the daemon that there may be a context.
    let others = slice.contexts.count(device);
    slice.daemon.hold_contexts(lane, others + usize::from(!free));
    let mut result = channels::on(lane, &call);
    // The page may not show yet what was just reserved.
    let most = slice.daemon.facts(lane).cap.load(Relaxed).min(CONTEXT_BYTES_MAX);
    let room = (apart + slice.daemon.left(lane)).min(most);
    if result == CUresult::ERROR_OUT_OF_MEMORY && room > apart && reservation.adjust(room).is_ok() {
        apart = reservation.bytes;
        result = channels::on(lane, &call);
    }
    slice.groups.report(&slice.daemon);
    if refused(result) {
        slice.daemon.hold_contexts(lane, others);
        return Ok((result, ContextCharge::default()));
    }
    let cost = slice.unaccounted_once(lane, apart, |cost| cost != Some(0) || free);
    let charged = cost.and_then(|cost| {
        let cost = cost.filter(|&cost| cost > 0 || free);
        reservation.adjust(cost.unwrap_or(if free { 0 } else { guess }))
    });
    if let Err(refused) = charged {
        let _ = undo();
        slice.daemon.hold_contexts(lane, others);
        return Err(refused.into());
    }
    let (own, limits) = (reservation.bytes, Default::default());
    reservation.commit();
    slice.hold(lane, Family::Contexts, own);
    Ok((result, ContextCharge { own, limits }))
}

/// Creates a context on `device` by `call`.
///
/// # Safety
/// `call` writes the context to `pctx` when it answers success.
unsafe fn created(
    pctx: *const CUcontext,
    device: CUdevice,
    call: impl Fn() -> CUresult,
) -> Outcome {
    let Some((slice, lane)) = admitted(device)? else {
        return Ok(call());
    };
    let _alone = slice.contexts.alone(lane);
    // SAFETY: read after the driver wrote it and answered success.
    let made = || unsafe { *pctx };
    let undo = || real!(cuCtxDestroy_v2(made()));
    let (result, charge) = priced((slice, lane), (device, false), call, undo)?;
    if !refused(result) {
        // A context with the same handle ended unseen.
        let gone = slice.contexts.insert(made(), device, charge);
        take(slice, gone.keys()).release_charges(slice, &gone);
        slice.daemon.hold_contexts(lane, slice.contexts.count(device));
    }
    Ok(result)
}

hooks! {
    guard cuCtxCreate(pctx: *mut CUcontext, flags: u32, dev: CUdevice) as |call| {
        // SAFETY: the application's own arguments.
        unsafe { created(pctx, dev, call) }
    };

    guard cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) as |call| {
        // SAFETY: the application's own arguments.
        unsafe { created(pctx, dev, call) }
    };

    guard cuCtxCreate_v3(
        pctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: i32, flags: u32,
        dev: CUdevice,
    ) as |call| {
        // SAFETY: the application's own arguments.
        unsafe { created(pctx, dev, call) }
    };

    guard cuCtxCreate_v4(
        pctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: u32, dev: CUdevice,
    ) as |call| {
        // SAFETY: the application's own arguments.
        unsafe { created(pctx, dev, call) }
    };
}

/// The table entries of contexts that end.
struct Taken(Vec<(Removed, Closed)>);

/// Removes the allocations of contexts that end from the tables.
fn take(slice: &Slice, contexts: impl Iterator<Item = u64>) -> Taken {
    let all = |key| {
        let closed = slice.physical().close(key);
        (slice.allocations.remove_context(key), closed)
    };
    Taken(contexts.map(all).collect())
}

impl Taken {
    /// Restores the entries of contexts that did not end.
    fn put_back(self, slice: &Slice) {
        for (removed, closed) in self.0 {
            slice.allocations.restore(removed);
            slice.physical().reopen(closed);
        }
    }

    /// Releases the charges of contexts that ended and of their memory.
    fn release_charges(self, slice: &Slice, contexts: &Closing) {
        for (removed, closed) in self.0 {
            for held in removed.charges() {
                slice.release_charge(held);
            }
            slice.drop_references(closed.allocations());
        }
        for (device, bytes) in contexts.charges() {
            if let Ok(Some(lane)) = slice.lane_of(device) {
                slice.release_of(lane, Family::Contexts, bytes);
                slice.daemon.hold_contexts(lane, slice.contexts.count(device));
            }
        }
    }
}

/// Destroys `context` and all memory allocated in it by `call`, unless `alive` denies it for the result.
/// Their entries are removed first: afterwards another thread's new context may have the same handle.
fn ending(
    context: CUcontext,
    call: impl FnOnce() -> CUresult,
    alive: impl FnOnce(CUresult) -> bool,
) -> Outcome {
    let Some(slice) = slice::attached().filter(|_| !context.is_null()) else {
        return Ok(call());
    };
    let closing = slice.contexts.remove(context);
    let others = closing.keys().filter(|&other| other != key(context));
    let taken = take(slice, others.chain([key(context)]));
    let result = launch::context_closing(context, call);
    slice.groups.report(&slice.daemon);
    if alive(result) {
        taken.put_back(slice);
        slice.contexts.restore(closing);
    } else {
        taken.release_charges(slice, &closing);
        slice.settle_all();
    }
    Ok(result)
}

hooks! {
    guard cuCtxDestroy(ctx: CUcontext) as |call| ending(ctx, call, refused);

    guard cuCtxDestroy_v2(ctx: CUcontext) as |call| ending(ctx, call, refused);

    guard cuCtxAttach(pctx: *mut CUcontext, flags: u32) as |call| {
        let result = call();
        if let (false, Some(slice)) = (refused(result) || pctx.is_null(), slice::attached()) {
            // SAFETY: written by the driver, which answered success.
            slice.contexts.attach(unsafe { *pctx });
        }
        Ok(result)
    };

    /// Ends a context when it was detached as often as created and attached.
    guard cuCtxDetach(ctx: CUcontext) as |call| {
        let contexts = slice::attached().map(|slice| &slice.contexts);
        if contexts.is_some_and(|contexts| contexts.detach(ctx)) {
            let result = ending(ctx, call, refused)?;
            if let (true, Some(contexts)) = (refused(result), contexts) {
                contexts.attach(ctx);
            }
            return Ok(result);
        }
        let result = call();
        if let (true, Some(contexts)) = (refused(result), contexts) {
            contexts.attach(ctx);
        }
        Ok(result)
    };

    guard cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) as |call| {
        let Some((slice, lane)) = admitted(dev)? else {
            return Ok(call());
        };
        let _alone = slice.contexts.alone(lane);
        let (result, charge) = match slice.contexts.primary(dev) {
            Some(_) => (call(), ContextCharge::default()),
            None => {
                let undo = || real!(cuDevicePrimaryCtxRelease_v2(dev));
                priced((slice, lane), (dev, false), call, undo)?
            }
        };
        if !refused(result) {
            // SAFETY: written by the driver, which answered success.
            let context = unsafe { *pctx };
            slice.contexts.retain_primary(context, dev);
            slice.contexts.charge(context, dev, charge);
            slice.daemon.hold_contexts(lane, slice.contexts.count(dev));
        }
        Ok(result)
    };
}

/// Releases the primary context of `device` by `call`: only the last release ends it.
fn releasing(device: CUdevice, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(slice) = slice::attached() else {
        return Ok(call());
    };
    let lane = slice.lane_of(device).ok().flatten();
    let _alone = lane.map(|lane| slice.contexts.alone(lane));
    let contexts = &slice.contexts;
    let primary = contexts.primary(device);
    let result = match contexts.release_primary(device) {
        Some(context) => ending(context, call, |result| refused(result) || active(device))?,
        None => call(),
    };
    if let (true, Some(context)) = (refused(result), primary) {
        contexts.retain_primary(context, device);
    }
    Ok(result)
}

/// Whether the device's primary context is active, perhaps because another library has retained it.
fn active(device: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 1);
    let (flags, state) = (&raw mut flags, &raw mut active);
    real!(cuDevicePrimaryCtxGetState(device, flags, state)) != CUresult::SUCCESS || active != 0
}

/// Resets the primary context of `device` by `call`, which ends it immediately.
fn resetting(device: CUdevice, call: impl FnOnce() -> CUresult) -> Outcome {
    match slice::attached().and_then(|slice| slice.contexts.primary(device)) {
        Some(context) => ending(context, call, refused),
        None => Ok(call()),
    }
}

hooks! {
    guard cuDevicePrimaryCtxRelease(dev: CUdevice) as |call| releasing(dev, call);

    guard cuDevicePrimaryCtxRelease_v2(dev: CUdevice) as |call| releasing(dev, call);

    guard cuDevicePrimaryCtxReset(dev: CUdevice) as |call| resetting(dev, call);

    guard cuDevicePrimaryCtxReset_v2(dev: CUdevice) as |call| resetting(dev, call);

    /// A green context is part of a GPU; it retains the primary context, which owns its memory.
    guard cuGreenCtxCreate(
        ph_ctx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: u32,
    ) as |call| {
        let Some((slice, lane)) = admitted(dev)? else {
            return Ok(call());
        };
        let _alone = slice.contexts.alone(lane);
        // SAFETY: read after the driver wrote it and answered success.
        let made = || unsafe { *ph_ctx };
        let undo = || real!(cuGreenCtxDestroy(made()));
        let (result, charge) = priced((slice, lane), (dev, true), call, undo)?;
        if refused(result) {
            return Ok(result);
        }
        let mut context = CUcontext::NULL;
        let _ = real!(cuCtxFromGreenCtx(&raw mut context, made()));
        let green = Green {
            device: dev,
            context,
        };
        match slice.contexts.primary(dev).or_else(|| primary(dev)) {
            Some(primary) => {
                slice.contexts.retain_primary(primary, dev);
                slice.contexts.charge(primary, dev, charge);
            }
            None => slice.contexts.charge(context, dev, charge),
        }
        slice.contexts.insert_green(made(), green);
        slice.daemon.hold_contexts(lane, slice.contexts.count(dev));
        Ok(result)
    };
}

/// The active primary context of a device; only retaining it returns it.
fn primary(device: CUdevice) -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    if refused(real!(cuDevicePrimaryCtxRetain(&raw mut context, device))) {
        return None;
    }
    let _ = real!(cuDevicePrimaryCtxRelease_v2(device));
    Some(context)
}

hooks! {
    /// Launches into a green context name it by its context handle.
    guard cuGreenCtxDestroy(h_ctx: CUgreenCtx) as |call| {
        let Some(slice) = slice::attached() else {
            return Ok(call());
        };
        let Some(green) = slice.contexts.remove_green(h_ctx) else {
            return Ok(call());
        };
        let result = releasing(green.device, || {
            launch::context_closing(green.context, call)
        })?;
        if refused(result) {
            slice.contexts.insert_green(h_ctx, green);
        }
        Ok(result)
    };
}
