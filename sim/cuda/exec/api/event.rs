//! Events.

use super::super::stream::{EventKey, shared};
use super::super::task::Task;
use super::super::{graph, hold, key, pool, resolve, submit};
use crate::entry::{Out, Outcome, refuse_if};
use crate::exec::working;
use gpuslice_nvabi::types::{
    CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS,
    CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL, CUevent, CUipcEventHandle, CUresult,
    CUstream,
};

fn living(event: CUevent) -> Result<EventKey, CUresult> {
    let event = key(event.0)?;
    let lives = shared()?.with(|model| model.event(event).is_some());
    if lives { Ok(event) } else { Err(CUresult::ERROR_INVALID_HANDLE) }
}

pub fn cuEventCreate(ph_event: Out<CUevent>, flags: u32) -> Outcome {
    ph_event.require()?;
    let context = working()?;
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    let timing = flags & CU_EVENT_DISABLE_TIMING == 0;
    // Events between processes carry no time.
    if flags & !known != 0 || (flags & CU_EVENT_INTERPROCESS != 0 && timing) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let event = shared()?.with(|model| model.create_event(context.id, timing));
    ph_event.set(CUevent(event.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.to_pointer()))
}

pub fn cuEventRecord(h_event: CUevent, h_stream: CUstream) -> Outcome {
    cuEventRecordWithFlags(h_event, h_stream, 0)
}
pub use cuEventRecord as cuEventRecord_ptsz;

pub fn cuEventRecordWithFlags(h_event: CUevent, h_stream: CUstream, flags: u32) -> Outcome {
    let (event, stream) = (living(h_event)?, resolve(h_stream)?);
    refuse_if(flags & !CU_EVENT_RECORD_EXTERNAL != 0)?;
    let external = flags & CU_EVENT_RECORD_EXTERNAL != 0;
    if !external && graph::capture_record(event, stream)? {
        return Ok(());
    }
    refuse_if(external && !graph::is_capturing(stream))?;
    let owner = shared()?.with(|model| model.event(event).map(|event| event.context));
    let streams = shared()?.with(|model| model.stream(stream).map(|stream| stream.context));
    if owner != streams {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    submit(stream, Task::Record(event))
}
pub use cuEventRecordWithFlags as cuEventRecordWithFlags_ptsz;

pub fn cuEventQuery(h_event: CUevent) -> Outcome {
    let event = living(h_event)?;
    graph::refuse_captured(event)?;
    graph::refuse_unsafe()?;
    let run = shared()?;
    let Some(context) = run.with(|model| model.event(event).map(|event| event.context)) else {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    };
    let _held = hold(context);
    let pending: Vec<_> = run.with(|model| model.pending(event)).into_iter().collect();
    if run.reached(context, &pending)? { Ok(()) } else { Err(CUresult::ERROR_NOT_READY) }
}

pub fn cuEventSynchronize(h_event: CUevent) -> Outcome {
    let event = living(h_event)?;
    graph::refuse_captured(event)?;
    graph::refuse_unsafe()?;
    let run = shared()?;
    let Some(context) = run.with(|model| model.event(event).map(|event| event.context)) else {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    };
    let pending: Vec<_> = run.with(|model| model.pending(event)).into_iter().collect();
    run.wait(context, &pending)?;
    pool::synchronized();
    Ok(())
}

pub fn cuEventDestroy_v2(h_event: CUevent) -> Outcome {
    let event = living(h_event)?;
    graph::forget_event(event);
    shared()?.with(|model| model.destroy_event(event));
    Ok(())
}
pub use cuEventDestroy_v2 as cuEventDestroy;

pub fn cuEventElapsedTime_v2(
    p_milliseconds: Out<f32>,
    h_start: CUevent,
    h_end: CUevent,
) -> Outcome {
    p_milliseconds.require()?;
    let (start, end) = (living(h_start)?, living(h_end)?);
    p_milliseconds.set(shared()?.elapsed(start, end)?)
}
pub use cuEventElapsedTime_v2 as cuEventElapsedTime;

pub fn cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: u32) -> Outcome {
    let (event, stream) = (living(h_event)?, resolve(h_stream)?);
    refuse_if(flags & !CU_EVENT_WAIT_EXTERNAL != 0)?;
    let external = flags & CU_EVENT_WAIT_EXTERNAL != 0;
    if !external && graph::capture_wait(event, stream)? {
        return Ok(());
    }
    let pending = shared()?.with(|model| model.pending(event).is_some());
    if pending || external { submit(stream, Task::Await(event)) } else { Ok(()) }
}
pub use cuStreamWaitEvent as cuStreamWaitEvent_ptsz;

/// Events between processes would need a clock of their own on the device.
pub fn cuIpcGetEventHandle(_handle: Out<CUipcEventHandle>, event: CUevent) -> Outcome {
    living(event)?;
    Err(CUresult::ERROR_NOT_SUPPORTED)
}

pub fn cuIpcOpenEventHandle(_event: Out<CUevent>, _handle: CUipcEventHandle) -> Outcome {
    Err(CUresult::ERROR_NOT_SUPPORTED)
}
