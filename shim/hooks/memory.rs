//! Device and managed memory.

use super::{Charging, charged, charged_here, freed};
use crate::guard::guard;
use crate::real;
use gpuslice_nvabi::types::*;

/// No driver pads rows by more than this; the guess is put right once the driver has answered.
const PITCH: usize = 512;

pub unsafe extern "C" fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult {
    guard(|| {
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { charged_here(bytesize, dptr, || real!(cuMemAlloc_v2(dptr, bytesize))) }
    })
}

/// Managed memory is charged by its size, wherever its pages happen to be: what is on the host now
/// can be on the GPU at the next kernel.
pub unsafe extern "C" fn cuMemAllocManaged(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    guard(|| {
        let charging = Charging::here(bytesize)?;
        // SAFETY: as in `cuMemAlloc_v2`.
        unsafe {
            charged(charging, dptr, || {
                real!(cuMemAllocManaged(dptr, bytesize, flags))
            })
        }
    })
}

pub unsafe extern "C" fn cuMemAllocPitch_v2(
    dptr: *mut CUdeviceptr,
    p_pitch: *mut usize,
    width_in_bytes: usize,
    height: usize,
    element_size_bytes: u32,
) -> CUresult {
    guard(|| {
        let guess = width_in_bytes
            .checked_next_multiple_of(PITCH)
            .unwrap_or(usize::MAX);
        let charging = Charging::here(guess.saturating_mul(height))?;
        let result = real!(cuMemAllocPitch_v2(
            dptr,
            p_pitch,
            width_in_bytes,
            height,
            element_size_bytes
        ));
        let (CUresult::SUCCESS, Some(mut charging)) = (result, charging) else {
            return Ok(result);
        };
        // SAFETY: the driver has just written both and answered success.
        let (pointer, pitch) = unsafe { (*dptr, *p_pitch) };
        if let Err(refused) = charging
            .reservation
            .adjust(pitch.saturating_mul(height) as u64)
        {
            let _ = real!(cuMemFree_v2(pointer));
            return Err(refused);
        }
        charging.commit(pointer);
        Ok(result)
    })
}

pub unsafe extern "C" fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    guard(|| freed(dptr, || real!(cuMemFree_v2(dptr))))
}
