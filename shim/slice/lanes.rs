//! The lane of the current context and of a memory location, and the device of a stream's work.
//!
//! On an error the application gets the error instead of an unlimited call. [`crate::memory::devices`] has the
//! lane of a device.

use super::attach;
use super::state::Slice;
use crate::memory::contexts::key;
use crate::memory::devices::{code, decode, device_at};
use crate::real;
use crate::resolve::call::check;
use core::sync::atomic::Ordering;
use gpuslice_nvabi::types::{
    CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUmemLocation, CUresult, CUstream,
};
use gpuslice_wire::ids::Lane;

/// Position of the lane in [`crate::memory::contexts::Contexts`]'s `last`; addresses of a process do not reach it.
const LAST_SHIFT: u32 = 56;

/// The target of the calling thread's work.
#[derive(Clone, Copy, Debug)]
pub struct Here {
    /// The current context.
    pub context: CUcontext,
    /// Its GPU's lane.
    pub lane: Option<Lane>,
}

impl Slice {
    /// The calling thread's current context and its lane.
    ///
    /// # Errors
    /// The driver's, `CUDA_ERROR_INVALID_CONTEXT` when there is no current context.
    #[inline]
    pub fn here(&self) -> Result<Here, CUresult> {
        let mut context = CUcontext::NULL;
        check(real!(cuCtxGetCurrent(&raw mut context)))?;
        let last = self.contexts.last.load(Ordering::Relaxed);
        let lane = match (last >> LAST_SHIFT) as u8 {
            found if found != 0 && last << 8 == key(context) << 8 => decode(found),
            _ => self.remember(context)?,
        };
        Ok(Here { context, lane })
    }

    /// Determines the current context's lane and caches it.
    #[cold]
    fn remember(&self, context: CUcontext) -> Result<Option<Lane>, CUresult> {
        let lane = self.lane_of_current()?;
        if key(context) >> LAST_SHIFT == 0 {
            let last = u64::from(code(lane)) << LAST_SHIFT | key(context);
            self.contexts.last.store(last, Ordering::Relaxed);
        }
        Ok(lane)
    }

    /// The lane of the calling thread's current context.
    ///
    /// # Errors
    /// As [`Slice::here`].
    #[inline]
    pub fn lane_of_current(&self) -> Result<Option<Lane>, CUresult> {
        let mut device = 0;
        check(real!(cuCtxGetDevice(&raw mut device)))?;
        self.lane_of(device)
    }

    /// The lane of a device.
    ///
    /// # Errors
    /// The driver's, for an ordinal it does not know.
    #[inline]
    pub fn lane_of(&self, device: CUdevice) -> Result<Option<Lane>, CUresult> {
        self.devices.lane(&self.daemon, device)
    }

    /// The lane to which memory of a location is charged; `None` for host memory.
    ///
    /// # Errors
    /// As [`crate::memory::devices::Devices::limited`].
    pub fn lane_at(&self, place: CUmemLocation) -> Result<Option<Lane>, CUresult> {
        device_at(place).map(|device| self.devices.limited(&self.daemon, device)).transpose()
    }

    /// The context and the device of a stream's work. The special streams belong to the current context; any
    /// other may belong to another context, whose device was recorded at its creation.
    ///
    /// # Errors
    /// As [`Slice::here`].
    pub fn of_stream(&self, stream: CUstream) -> Result<(CUcontext, CUdevice), CUresult> {
        let mut context = CUcontext::NULL;
        if stream > CU_STREAM_PER_THREAD {
            let found = real!(cuStreamGetCtx(stream, &raw mut context));
            if found == CUresult::SUCCESS
                && let Some(device) = self.contexts.device(context)
            {
                return Ok((context, device));
            }
        }
        let mut device = 0;
        check(real!(cuCtxGetCurrent(&raw mut context)))?;
        check(real!(cuCtxGetDevice(&raw mut device)))?;
        Ok((context, device))
    }
}

/// The slice and the lane of `device`, on which a context is about to be created; `None` outside of a slice. A
/// process may use no device outside the slice.
///
/// # Errors
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`, the driver's own for an ordinal it does not know, or
/// `CUDA_ERROR_SYSTEM_NOT_READY` when there is a slice and its daemon does not answer.
pub fn admitted(device: CUdevice) -> Result<Option<(&'static Slice, Lane)>, CUresult> {
    let Some(slice) = attach::get()? else {
        return Ok(None);
    };
    let lane = slice.devices.limited(&slice.daemon, device)?;
    Ok(Some((slice, lane)))
}
