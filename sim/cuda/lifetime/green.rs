//! Green contexts: contexts over a part of the multiprocessors.
//!
//! The simulated device runs one context at a time and does not divide its multiprocessors, so the
//! part is only remembered. The memory is real: a green context costs as much as a context, and
//! releases what was made in it when it ends.

use super::{begin, end};
use crate::context::{Context, find};
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::handles::{Key, Named, Table};
use gpuslice_nvabi::types::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CU_DEV_RESOURCE_TYPE_SM`: the one kind there is.
const MULTIPROCESSORS: CUdevResourceType = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which is required.
const DEFAULT_STREAM: u32 = 1;
/// Multiprocessors are parted in steps of this.
const PART: u32 = 8;

/// `CUdevResource` as far as it is used: kind, padding, and of its union the count.
#[repr(C)]
#[derive(Clone, Copy)]
struct Resource {
    kind: CUdevResourceType,
    padding: [u8; 92],
    multiprocessors: u32,
    part: u32,
    step: u32,
    flags: u32,
    union_rest: [u8; 32],
}

/// Resources put together for a context.
struct Desc;

impl Named for Desc {
    const KIND: u8 = 0x44;
}

/// A green context.
struct Green(&'static Context);

impl Named for Green {
    const KIND: u8 = 0x45;
}

fn descs() -> MutexGuard<'static, Table<Desc>> {
    static DESCS: Mutex<Table<Desc>> = Mutex::new(Table::new());
    DESCS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn greens() -> MutexGuard<'static, Table<Green>> {
    static GREENS: Mutex<Table<Green>> = Mutex::new(Table::new());
    GREENS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(green: CUgreenCtx) -> Result<Key<Green>, CUresult> {
    Key::from_pointer(green.0).ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

pub fn cuDeviceGetDevResource(
    device: CUdevice,
    resource: Out<c_void>,
    kind: CUdevResourceType,
) -> Outcome {
    resource.require()?;
    let multiprocessors = process()?.gpu(device)?.multiprocessors;
    if kind != MULTIPROCESSORS {
        return Err(CUresult::ERROR_INVALID_RESOURCE_TYPE);
    }
    resource.cast().set(Resource {
        kind,
        padding: [0; 92],
        multiprocessors,
        part: PART,
        step: PART,
        flags: 0,
        union_rest: [0; 32],
    })
}

pub fn cuDevResourceGenerateDesc(
    desc: Out<CUdevResourceDesc>,
    resources: In<c_void>,
    count: u32,
) -> Outcome {
    desc.require()?;
    let resource = resources.cast::<Resource>().get()?;
    let some = resource.multiprocessors > 0;
    refuse_if(count != 1 || resource.kind != MULTIPROCESSORS || !some)?;
    let entered = descs().insert(Desc).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    desc.set(CUdevResourceDesc(entered.to_pointer()))
}

pub fn cuGreenCtxCreate(
    green: Out<CUgreenCtx>,
    desc: CUdevResourceDesc,
    device: CUdevice,
    flags: u32,
) -> Outcome {
    green.require()?;
    process()?.gpu(device)?;
    let known = Key::from_pointer(desc.0).is_some_and(|key| descs().get(key).is_some());
    refuse_if(!known || flags != DEFAULT_STREAM)?;
    // Like a primary context it is ended by its own call only, not by `cuCtxDestroy`.
    let context = begin(device, 0, true)?;
    let entered = greens().insert(Green(context));
    green.set(CUgreenCtx(entered.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.to_pointer()))
}

pub fn cuGreenCtxDestroy(green: CUgreenCtx) -> Outcome {
    let gone = greens().remove(key(green)?);
    let Green(context) = gone.ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    end(find(context.handle())?)
}

pub fn cuCtxFromGreenCtx(context: Out<CUcontext>, green: CUgreenCtx) -> Outcome {
    context.require()?;
    let greens = greens();
    let green = greens.get(key(green)?);
    context.set(green.ok_or(CUresult::ERROR_INVALID_CONTEXT)?.0.handle())
}
