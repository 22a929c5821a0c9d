//! Beginning and end of contexts.
//!
//! A context is first made on the device, which may have no memory for another one. At its end it
//! waits for its queued work, releases everything that belongs to it, and ends on the device last.
//! This module also has the contexts that a program makes itself; `primary` has those that the
//! libraries of a process share, `green` those over a part of a GPU.

mod green;
mod primary;

use crate::context::{self, Context, check_flags, current, find};
use crate::driver::{device_error, process, strict};
use crate::entry::refuse_if;
use crate::{exec, memory};
use gpuslice_nvabi::types::{CUdevice, CUresult};
use std::sync::atomic::Ordering;

/// Makes a context, on the device and here; it is not current anywhere yet.
pub fn begin(device: CUdevice, flags: u32, primary: bool) -> Result<&'static Context, CUresult> {
    let process = process()?;
    let gpu = process.gpu(device)?;
    check_flags(flags)?;
    let (machine, properties) = (process.machine, strict::properties());
    let part = properties.part_bytes;
    if part > 0 {
        let begin = || machine.context_begin(gpu.index, part).map_err(device_error);
        let begun = exec::sparing(gpu.index, begin)?;
        strict::block(properties.create);
        machine.context_destroy(begun).map_err(device_error)?;
    }
    let create = || machine.context_create(gpu.index).map_err(device_error);
    let id = exec::sparing(gpu.index, create)?;
    if part == 0 {
        strict::block(properties.create);
    }
    let context = Context::new(device, id, flags, primary);
    if let Some(client) = &process.client {
        client.context_begins(process.machine, id, context.serial);
    }
    Ok(context::enter(context))
}

/// Ends a context with everything that belongs to it.
pub fn end(context: &'static Context) -> Result<(), CUresult> {
    if !context.leave() {
        return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED);
    }
    exec::context_ends(context);
    memory::context_ends(context);
    context.settings.end();
    let process = process()?;
    if let Some(client) = &process.client {
        client.context_ends(context.serial);
    }
    process.machine.context_destroy(context.id).map_err(device_error)
}

/// The same, and off the stack of the calling thread; a primary context stays there.
fn end_and_pop(context: &'static Context) -> Result<(), CUresult> {
    end(context)?;
    context::pop_if_top(context);
    Ok(())
}

/// Entry points.
pub mod imp {
    use super::*;
    use crate::entry::{In, Out, Outcome};
    use gpuslice_nvabi::types::{CUcontext, CUctxCreateParams, CUexecAffinityParam};

    pub use super::green::*;
    pub use super::primary::*;

    pub fn cuCtxCreate_v2(pctx: Out<CUcontext>, flags: u32, dev: CUdevice) -> Outcome {
        pctx.require()?;
        let context = begin(dev, flags, false)?;
        context::push(context);
        pctx.set(context.handle())
    }

    /// The form of before CUDA 3.2, with which a card's driver makes no context.
    pub fn cuCtxCreate(pctx: Out<CUcontext>, _flags: u32, dev: CUdevice) -> Outcome {
        pctx.require()?;
        process()?.gpu(dev)?;
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    }

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
        let context = find(ctx)?;
        if context.primary {
            // A primary context is released, never destroyed.
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        end_and_pop(context)
    }
    pub use cuCtxDestroy_v2 as cuCtxDestroy;

    pub fn cuCtxAttach(pctx: Out<CUcontext>, flags: u32) -> Outcome {
        pctx.require()?;
        let context = current()?;
        refuse_if(flags != 0)?;
        context.attached.fetch_add(1, Ordering::AcqRel);
        pctx.set(context.handle())
    }

    pub fn cuCtxDetach(ctx: CUcontext) -> Outcome {
        let context = find(ctx)?;
        let is_current = current().is_ok_and(|top| top.serial == context.serial);
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
