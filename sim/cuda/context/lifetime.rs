//! Creation and destruction of contexts.
//!
//! A context is first made on the device, which may have no memory for another one. At its end it
//! waits for its queued work, releases everything that belongs to it, and ends on the device last.

use super::{Context, current, limits, table};
use crate::driver::{device_error, process};
use crate::{exec, memory};
use gpuslice_nvabi::types::{CUdevice, CUresult};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// CU_CTX_SCHED_* (of which one), MAP_HOST, LMEM_RESIZE_TO_MAX, COREDUMP_*, SYNC_MEMOPS.
const FLAGS: u32 = 0xff;
const SCHEDULES: [u32; 4] = [0, 1, 2, 4];

/// Whether these are flags a context can have.
pub fn check_flags(flags: u32) -> Result<(), CUresult> {
    let known = flags & !FLAGS == 0 && SCHEDULES.contains(&(flags & 7));
    if known {
        Ok(())
    } else {
        Err(CUresult::ERROR_INVALID_VALUE)
    }
}

/// Makes a context, on the device and here; it is not current anywhere yet.
pub fn begin(device: CUdevice, flags: u32, primary: bool) -> Result<&'static Context, CUresult> {
    let process = process()?;
    let gpu = process.gpu(device)?;
    check_flags(flags)?;
    let create = || process.machine.context_create(gpu.index);
    let id = memory::sparing(gpu.index, || create().map_err(device_error))?;
    let serial = table::next_serial();
    if let Some(client) = &process.client {
        client.context_begins(process.machine, id, serial);
    }
    Ok(table::enter(Context {
        serial,
        device,
        id,
        peers: Default::default(),
        heap: Default::default(),
        primary,
        flags: AtomicU32::new(flags),
        alive: AtomicBool::new(true),
        attached: AtomicU32::new(1),
        settings: limits::Settings::default(),
    }))
}

/// Ends a context with everything that belongs to it.
pub fn end(context: &'static Context) -> Result<(), CUresult> {
    if !context.alive.swap(false, Ordering::AcqRel) {
        return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED);
    }
    table::leave(context);
    exec::context_ends(context);
    memory::context_ends(context);
    context.settings.end();
    let process = process()?;
    if let Some(client) = &process.client {
        client.context_ends(context.serial);
    }
    process
        .machine
        .context_destroy(context.id)
        .map_err(device_error)
}

/// The same, and off the stack of the calling thread; a primary context stays there.
fn end_and_pop(context: &'static Context) -> Result<(), CUresult> {
    end(context)?;
    current::pop_if_top(context);
    Ok(())
}

/// Entry points.
#[allow(non_snake_case)]
pub mod imp {
    use super::*;
    use crate::entry::{In, Out, Outcome};
    use gpuslice_nvabi::types::{CUcontext, CUctxCreateParams, CUexecAffinityParam};

    pub fn cuCtxCreate_v2(pctx: Out<CUcontext>, flags: u32, dev: CUdevice) -> Outcome {
        pctx.require()?;
        let context = begin(dev, flags, false)?;
        current::push(context);
        pctx.set(context.handle())
    }
    pub use cuCtxCreate_v2 as cuCtxCreate;

    pub fn cuCtxCreate_v3(
        pctx: Out<CUcontext>,
        affinity: In<CUexecAffinityParam>,
        count: i32,
        flags: u32,
        dev: CUdevice,
    ) -> Outcome {
        if count != 0 || !affinity.pointer().is_null() {
            // Limits on the multiprocessors of a context need MPS, which there is none of.
            return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        cuCtxCreate_v2(pctx, flags, dev)
    }

    pub fn cuCtxCreate_v4(
        pctx: Out<CUcontext>,
        params: In<CUctxCreateParams>,
        flags: u32,
        dev: CUdevice,
    ) -> Outcome {
        if !params.pointer().is_null() {
            let params = params.get()?;
            if params.num_exec_affinity_params != 0 {
                return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
            }
            if !params.cig_params.is_null() {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
        }
        cuCtxCreate_v2(pctx, flags, dev)
    }

    pub fn cuCtxDestroy_v2(ctx: CUcontext) -> Outcome {
        let context = table::find(ctx)?;
        if context.primary {
            // A primary context is released, never destroyed.
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        end_and_pop(context)
    }
    pub use cuCtxDestroy_v2 as cuCtxDestroy;

    pub fn cuCtxAttach(pctx: Out<CUcontext>, flags: u32) -> Outcome {
        pctx.require()?;
        let context = super::super::current()?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        context.attached.fetch_add(1, Ordering::AcqRel);
        pctx.set(context.handle())
    }

    pub fn cuCtxDetach(ctx: CUcontext) -> Outcome {
        let context = table::find(ctx)?;
        let is_current = super::super::current().is_ok_and(|top| top.serial == context.serial);
        if context.primary || !is_current {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        if context.attached.fetch_sub(1, Ordering::AcqRel) == 1 {
            end_and_pop(context)
        } else {
            Ok(())
        }
    }
}
