//! Which lane of the slice is this? From device, context or stream to the daemon's number for a GPU.
//!
//! A slice's lanes are GPUs by UUID. A process numbers its devices as `CUDA_VISIBLE_DEVICES` says,
//! and may see GPUs that are not in the slice at all, so a lane is never guessed: each ordinal's UUID is
//! asked of the driver once. `None` is a GPU without a lane: no context can be made on it
//! ([`admitted`]) and, should there be one all the same, no memory taken ([`limited`]), so that "not in
//! the slice" never comes to mean "no limit". An error is handed to the application instead of an
//! unlimited call.

use crate::link::Session;
use crate::real;
use core::sync::atomic::{AtomicU8, Ordering};
use gpuslice_nvabi::types::{
    CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUresult, CUstream, CUuuid,
};
use gpuslice_wire::ids::{GpuUuid, Lane};

/// Devices whose lanes are remembered; higher ordinals are asked for every time.
const REMEMBERED: usize = 64;
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const FIRST: u8 = 2;

/// Lanes by device ordinal.
#[derive(Debug)]
pub struct Devices([AtomicU8; REMEMBERED]);

impl Default for Devices {
    fn default() -> Devices {
        Devices([const { AtomicU8::new(UNKNOWN) }; REMEMBERED])
    }
}

/// Where the lane begins in [`crate::contexts::Contexts`]'s `last`; no address of a process reaches that far.
const LAST_SHIFT: u32 = 56;

/// The key of a context in the allocation tables.
#[must_use]
pub fn key(context: CUcontext) -> u64 {
    context.0 as u64
}

/// Where the calling thread's work goes.
#[derive(Clone, Copy, Debug)]
pub struct Here {
    /// The current context.
    pub context: CUcontext,
    /// Its GPU's lane.
    pub lane: Option<Lane>,
}

/// The calling thread's current context and its lane.
///
/// # Errors
/// The driver's, `CUDA_ERROR_INVALID_CONTEXT` when there is no current context.
#[inline]
pub fn current(session: &Session) -> Result<Here, CUresult> {
    let mut context = CUcontext::NULL;
    check(real!(cuCtxGetCurrent(&raw mut context)))?;
    let last = session.contexts.last.load(Ordering::Relaxed);
    let lane = match (last >> LAST_SHIFT) as u8 {
        found if found >= NONE && last << 8 == key(context) << 8 => {
            found.checked_sub(FIRST).map(Lane)
        }
        _ => remember(session, context)?,
    };
    Ok(Here { context, lane })
}

/// Finds out the current context's lane and keeps it for the next question.
#[cold]
fn remember(session: &Session, context: CUcontext) -> Result<Option<Lane>, CUresult> {
    let mut device = 0;
    check(real!(cuCtxGetDevice(&raw mut device)))?;
    let lane = of_device(session, device)?;
    if key(context) >> LAST_SHIFT == 0 {
        let code = u64::from(lane.map_or(NONE, |lane| FIRST + lane.0));
        session
            .contexts
            .last
            .store(code << LAST_SHIFT | key(context), Ordering::Relaxed);
    }
    Ok(lane)
}

/// The lane of the calling thread's current context.
///
/// # Errors
/// As [`current`].
#[inline]
pub fn of_current(session: &Session) -> Result<Option<Lane>, CUresult> {
    let mut device = 0;
    check(real!(cuCtxGetDevice(&raw mut device)))?;
    of_device(session, device)
}

/// The lane of a device.
///
/// # Errors
/// The driver's, for an ordinal it does not know.
#[inline]
pub fn of_device(session: &Session, device: CUdevice) -> Result<Option<Lane>, CUresult> {
    let known = session
        .devices
        .0
        .get(device as usize)
        .map(|lane| lane.load(Ordering::Relaxed));
    match known {
        Some(NONE) => Ok(None),
        Some(lane) if lane >= FIRST => Ok(Some(Lane(lane - FIRST))),
        _ => ask(session, device),
    }
}

/// Whether a context may be made on a device: one that is not in the slice is not the process's to use.
///
/// # Errors
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`, the driver's own for an ordinal it does not know, or
/// `CUDA_ERROR_SYSTEM_NOT_READY` when there is a slice and its daemon does not answer.
pub fn admitted(device: CUdevice) -> Result<(), CUresult> {
    let Some(session) = crate::link::session()? else {
        return Ok(());
    };
    match of_device(session, device)? {
        Some(_) => Ok(()),
        None => Err(CUresult::ERROR_DEVICE_UNAVAILABLE),
    }
}

/// The lane that memory is charged to: on a GPU without one there is none to be had.
///
/// # Errors
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
#[inline(always)]
pub fn limited(lane: Option<Lane>) -> Result<Lane, CUresult> {
    lane.ok_or(CUresult::ERROR_DEVICE_UNAVAILABLE)
}

#[cold]
fn ask(session: &Session, device: CUdevice) -> Result<Option<Lane>, CUresult> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // The first form names the GPU, also where a MIG instance has a UUID of its own.
    match real!(cuDeviceGetUuid(&raw mut uuid, device)) {
        CUresult::ERROR_NOT_SUPPORTED => check(real!(cuDeviceGetUuid_v2(&raw mut uuid, device)))?,
        result => check(result)?,
    }
    let lane = session.lane_of(GpuUuid(uuid.bytes.map(|byte| byte as u8)));
    if let Some(known) = session.devices.0.get(device as usize) {
        known.store(lane.map_or(NONE, |lane| FIRST + lane.0), Ordering::Relaxed);
    }
    Ok(lane)
}

/// The context and the device that a stream's work runs on. The special streams belong to the current
/// context; any other may belong to another one, whose device was noted when it was made.
///
/// # Errors
/// As [`current`].
pub fn of_stream(session: &Session, stream: CUstream) -> Result<(CUcontext, CUdevice), CUresult> {
    let mut context = CUcontext::NULL;
    if stream > CU_STREAM_PER_THREAD {
        let found = real!(cuStreamGetCtx(stream, &raw mut context));
        if found == CUresult::SUCCESS
            && let Some(device) = session.contexts.device(context)
        {
            return Ok((context, device));
        }
    }
    let mut device = 0;
    check(real!(cuCtxGetCurrent(&raw mut context)))?;
    check(real!(cuCtxGetDevice(&raw mut device)))?;
    Ok((context, device))
}

/// Turns the driver's answer into a `Result`.
///
/// # Errors
/// Anything but success.
#[inline]
pub fn check(result: CUresult) -> Result<(), CUresult> {
    if result == CUresult::SUCCESS {
        Ok(())
    } else {
        Err(result)
    }
}
