//! Streams.

use super::super::stream::{Manner, Stream, StreamKey, shared};
use super::super::task::{HostCall, Task};
use super::super::{context_of, graph, hold, key, pool, resolve, settle, submit};
use crate::context::{self, Context, current};
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Priorities a stream can have; the lower number is the more urgent.
const MOST_URGENT: i32 = -5;

/// Attributes the program has set on streams; they change nothing but are read back.
type Attributes = HashMap<(u64, CUlaunchAttributeID), CUlaunchAttributeValue>;
static ATTRIBUTES: Mutex<Option<Attributes>> = Mutex::new(None);

fn attributes() -> MutexGuard<'static, Option<Attributes>> {
    ATTRIBUTES.lock().unwrap_or_else(PoisonError::into_inner)
}

const SETTABLE: [CUlaunchAttributeID; 5] = [
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
    CU_LAUNCH_ATTRIBUTE_PRIORITY,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
];

fn look<T>(stream: StreamKey, look: impl FnOnce(&Stream) -> T) -> Result<T, CUresult> {
    let found = shared()?.with(|model| model.stream(stream).map(look));
    found.ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Waits for the work queued on a stream; refused while it is captured.
pub fn synchronize(stream: StreamKey) -> Outcome {
    graph::refuse_capturing(stream)?;
    let run = shared()?;
    let (context, mark) = run.with(|model| {
        (model.stream(stream).map(|stream| stream.context), model.mark_of_all(stream))
    });
    run.wait(context.ok_or(CUresult::ERROR_INVALID_HANDLE)?, &mark)?;
    pool::synchronized();
    Ok(())
}

fn create(out: Out<CUstream>, flags: u32, priority: i32) -> Outcome {
    out.require()?;
    let context = current()?;
    let manner = match flags {
        CU_STREAM_DEFAULT => Manner::Blocking,
        CU_STREAM_NON_BLOCKING => Manner::NonBlocking,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    let priority = priority.clamp(MOST_URGENT, 0);
    let stream = shared()?.create(context.id, manner, priority)?;
    out.set(CUstream(stream.to_pointer()))
}

fn host(stream: CUstream, call: HostCall) -> Outcome {
    submit(resolve(stream)?, Task::Host(call))
}

pub fn cuStreamCreate(ph_stream: Out<CUstream>, flags: u32) -> Outcome {
    create(ph_stream, flags, 0)
}

pub fn cuStreamCreateWithPriority(ph_stream: Out<CUstream>, flags: u32, priority: i32) -> Outcome {
    create(ph_stream, flags, priority)
}

pub fn cuStreamDestroy_v2(h_stream: CUstream) -> Outcome {
    let stream = key(h_stream.0)?;
    graph::forget_stream(stream);
    if !shared()?.destroy(stream) {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    if let Some(set) = attributes().as_mut() {
        set.retain(|(of, _), _| *of != stream.id());
    }
    Ok(())
}
pub use cuStreamDestroy_v2 as cuStreamDestroy;

pub fn cuStreamQuery(h_stream: CUstream) -> Outcome {
    let stream = resolve(h_stream)?;
    graph::refuse_capturing(stream)?;
    let run = shared()?;
    let context = look(stream, |stream| stream.context)?;
    let _held = hold(context);
    let marks = run.with(|model| model.mark_of_all(stream));
    if run.reached(context, &marks)? { Ok(()) } else { Err(CUresult::ERROR_NOT_READY) }
}
pub use cuStreamQuery as cuStreamQuery_ptsz;

pub fn cuStreamSynchronize(h_stream: CUstream) -> Outcome {
    synchronize(resolve(h_stream)?)
}
pub use cuStreamSynchronize as cuStreamSynchronize_ptsz;

pub fn cuCtxSynchronize() -> Outcome {
    synchronize_context(current()?)
}

pub fn cuCtxSynchronize_v2(ctx: CUcontext) -> Outcome {
    synchronize_context(context::named_or_current(ctx)?)
}

fn synchronize_context(context: &'static Context) -> Outcome {
    graph::refuse_capturing_in(context.id)?;
    settle(context)?;
    pool::synchronized();
    Ok(())
}

pub fn cuStreamGetPriority(h_stream: CUstream, priority: Out<i32>) -> Outcome {
    priority.set(look(resolve(h_stream)?, |stream| stream.priority)?)
}
pub use cuStreamGetPriority as cuStreamGetPriority_ptsz;

pub fn cuStreamGetFlags(h_stream: CUstream, flags: Out<u32>) -> Outcome {
    let manner = look(resolve(h_stream)?, |stream| stream.manner)?;
    flags.set(match manner {
        Manner::NonBlocking => CU_STREAM_NON_BLOCKING,
        Manner::Blocking | Manner::Legacy => CU_STREAM_DEFAULT,
    })
}
pub use cuStreamGetFlags as cuStreamGetFlags_ptsz;

pub fn cuStreamGetId(h_stream: CUstream, stream_id: Out<u64>) -> Outcome {
    stream_id.set(resolve(h_stream)?.id())
}
pub use cuStreamGetId as cuStreamGetId_ptsz;

pub fn cuStreamGetDevice(h_stream: CUstream, device: Out<CUdevice>) -> Outcome {
    device.set(context_of(resolve(h_stream)?)?.device)
}
pub use cuStreamGetDevice as cuStreamGetDevice_ptsz;

pub fn cuStreamGetCtx(h_stream: CUstream, pctx: Out<CUcontext>) -> Outcome {
    pctx.set(context_of(resolve(h_stream)?)?.handle())
}
pub use cuStreamGetCtx as cuStreamGetCtx_ptsz;

pub fn cuStreamGetCtx_v2(
    h_stream: CUstream,
    p_ctx: Out<CUcontext>,
    p_green_ctx: Out<CUgreenCtx>,
) -> Outcome {
    p_green_ctx.set(CUgreenCtx::NULL)?;
    cuStreamGetCtx(h_stream, p_ctx)
}
pub use cuStreamGetCtx_v2 as cuStreamGetCtx_v2_ptsz;

pub fn cuStreamAddCallback(
    h_stream: CUstream,
    callback: CUstreamCallback,
    user_data: *mut c_void,
    flags: u32,
) -> Outcome {
    refuse_if(callback.is_none() || flags != 0)?;
    graph::refuse_capturing(resolve(h_stream)?)?;
    host(h_stream, HostCall::Callback(callback, h_stream, user_data as usize))
}
pub use cuStreamAddCallback as cuStreamAddCallback_ptsz;

pub fn cuLaunchHostFunc(h_stream: CUstream, func: CUhostFn, user_data: *mut c_void) -> Outcome {
    refuse_if(func.is_none())?;
    host(h_stream, HostCall::Function(func, user_data as usize))
}
pub use cuLaunchHostFunc as cuLaunchHostFunc_ptsz;

pub fn cuLaunchHostFunc_v2(
    h_stream: CUstream,
    func: CUhostFn,
    user_data: *mut c_void,
    _sync_mode: u32,
) -> Outcome {
    cuLaunchHostFunc(h_stream, func, user_data)
}
pub use cuLaunchHostFunc_v2 as cuLaunchHostFunc_v2_ptsz;

pub fn cuStreamAttachMemAsync(
    h_stream: CUstream,
    dptr: CUdeviceptr,
    _length: usize,
    flags: u32,
) -> Outcome {
    let stream = resolve(h_stream)?;
    let known = [CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE];
    if !known.contains(&flags) || crate::allocations::find(dptr).is_none() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // All memory of the simulated GPU can be reached from everywhere at all times.
    submit(stream, Task::Empty)
}
pub use cuStreamAttachMemAsync as cuStreamAttachMemAsync_ptsz;

pub fn cuStreamSetAttribute(
    h_stream: CUstream,
    attr: CUlaunchAttributeID,
    value: In<CUlaunchAttributeValue>,
) -> Outcome {
    let (stream, value) = (resolve(h_stream)?, value.get()?);
    refuse_if(!SETTABLE.contains(&attr))?;
    attributes().get_or_insert_default().insert((stream.id(), attr), value);
    Ok(())
}
pub use cuStreamSetAttribute as cuStreamSetAttribute_ptsz;

pub fn cuStreamGetAttribute(
    h_stream: CUstream,
    attr: CUlaunchAttributeID,
    value: Out<CUlaunchAttributeValue>,
) -> Outcome {
    let stream = resolve(h_stream)?;
    refuse_if(!SETTABLE.contains(&attr))?;
    let set = attributes().as_ref().and_then(|all| all.get(&(stream.id(), attr)).copied());
    value.set(set.unwrap_or(CUlaunchAttributeValue { bytes: [0; 64] }))
}
pub use cuStreamGetAttribute as cuStreamGetAttribute_ptsz;

pub fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> Outcome {
    let (dst, src) = (resolve(dst)?, resolve(src)?);
    let mut all = attributes();
    let all = all.get_or_insert_default();
    for attr in SETTABLE {
        if let Some(value) = all.get(&(src.id(), attr)).copied() {
            all.insert((dst.id(), attr), value);
        }
    }
    Ok(())
}
pub use cuStreamCopyAttributes as cuStreamCopyAttributes_ptsz;
