//! Determines the lane (the daemon's number for a GPU) of a device, context or stream.
//!
//! A slice's lanes are GPUs by UUID. A process numbers its devices by `CUDA_VISIBLE_DEVICES`,
//! and may see GPUs outside the slice, so a lane is never guessed: the driver is asked once for each
//! ordinal's UUID. `None` is a GPU without a lane: no context can be created on it
//! ([`admitted`]) and, should one exist anyway, no memory allocated ([`limited`]). So "not in
//! the slice" never means "no limit". On an error the application gets the error instead of an
//! unlimited call.

use crate::link::Session;
use crate::real;
use core::sync::atomic::{AtomicU8, Ordering};
use gpuslice_nvabi::types::{
    CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUresult, CUstream, CUuuid,
};
use gpuslice_wire::ids::{GpuUuid, Lane};

/// Devices whose lanes are cached; higher ordinals are queried each time.
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

/// Position of the lane in [`crate::contexts::Contexts`]'s `last`; addresses of a process do not reach it.
const LAST_SHIFT: u32 = 56;

/// The key of a context in the allocation tables.
#[must_use]
pub fn key(context: CUcontext) -> u64 {
    context.0 as u64
}

/// The target of the calling thread's work.
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

/// Determines the current context's lane and caches it.
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

/// Whether a context may be created on a device: a process may use no device outside the slice.
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

/// The lane to which memory is charged; without a lane the allocation fails.
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
    // The first form returns the GPU's UUID, even where a MIG instance has one of its own.
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

/// The context and the device of a stream's work. The special streams belong to the current context; any
/// other may belong to another context, whose device was recorded at its creation.
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

/// Converts the driver's status into a `Result`.
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
