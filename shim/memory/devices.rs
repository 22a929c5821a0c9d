//! The lane (the daemon's number for a GPU) of each device.
//!
//! A slice's lanes are GPUs by UUID. A process numbers its devices by `CUDA_VISIBLE_DEVICES`, and may see GPUs
//! outside the slice, so a lane is never guessed: the driver is asked once for each ordinal's UUID. `None` is
//! a GPU without a lane: no context can be created on it and, should one exist anyway, no memory allocated
//! ([`limited`]). So "not in the slice" never means "no limit".

use crate::daemon::Session;
use crate::real;
use crate::resolve::call::check;
use core::sync::atomic::{AtomicU8, Ordering};
use gpuslice_nvabi::types::{
    CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, CUdevice,
    CUmemLocation, CUresult, CUuuid,
};
use gpuslice_wire::ids::{GpuUuid, Lane};

/// Devices whose lanes are cached; higher ordinals are queried each time.
const REMEMBERED: usize = 64;
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const FIRST: u8 = 2;

/// A lane, or its absence, as a number that is not 0.
#[must_use]
pub fn code(lane: Option<Lane>) -> u8 {
    lane.map_or(NONE, |lane| FIRST + lane.0)
}

/// The reverse of [`code`].
#[inline(always)]
#[must_use]
pub fn decode(code: u8) -> Option<Lane> {
    code.checked_sub(FIRST).map(Lane)
}

/// The device of a location; none for the host's memory.
#[must_use]
pub fn device_at(place: CUmemLocation) -> Option<CUdevice> {
    match place.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => Some(place.id),
        // The two low bytes name the device of a locality domain.
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => Some(place.id & 0xffff),
        _ => None,
    }
}

/// Lanes by device ordinal.
#[derive(Debug)]
pub struct Devices([AtomicU8; REMEMBERED]);

impl Default for Devices {
    fn default() -> Devices {
        Devices([const { AtomicU8::new(UNKNOWN) }; REMEMBERED])
    }
}

impl Devices {
    /// The lane of a device.
    ///
    /// # Errors
    /// The driver's, for an ordinal it does not know.
    #[inline]
    pub fn lane(&self, daemon: &Session, device: CUdevice) -> Result<Option<Lane>, CUresult> {
        let known = self.0.get(device as usize);
        match known.map(|lane| lane.load(Ordering::Relaxed)) {
            Some(code) if code != UNKNOWN => Ok(decode(code)),
            _ => self.ask(daemon, device),
        }
    }

    /// The lane to which memory of a device is charged.
    ///
    /// # Errors
    /// As [`Devices::lane`] and [`limited`].
    pub fn limited(&self, daemon: &Session, device: CUdevice) -> Result<Lane, CUresult> {
        limited(self.lane(daemon, device)?)
    }

    #[cold]
    fn ask(&self, daemon: &Session, device: CUdevice) -> Result<Option<Lane>, CUresult> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // The first form returns the GPU's UUID, even where a MIG instance has one of its own.
        match real!(cuDeviceGetUuid(&raw mut uuid, device)) {
            CUresult::ERROR_NOT_SUPPORTED => {
                check(real!(cuDeviceGetUuid_v2(&raw mut uuid, device)))?;
            }
            result => check(result)?,
        }
        let lane = daemon.lane_of(GpuUuid(uuid.bytes.map(|byte| byte as u8)));
        if let Some(known) = self.0.get(device as usize) {
            known.store(code(lane), Ordering::Relaxed);
        }
        Ok(lane)
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
