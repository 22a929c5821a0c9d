//! Device and managed memory.
//!
//! The names without a version are those of CUDA before 3.2, with sizes and addresses of 32 bits. Drivers
//! still export them, so they are charged as well.

use crate::guard::Outcome;
use crate::memory::allocations::Kind;
use crate::real;
use crate::slice::{Charging, charged, charged_here, freed};
use gpuslice_nvabi::types::*;

/// No driver pads rows by more than this; the estimate is corrected after the driver's answer.
const PITCH: usize = 512;

hooks! {
    quick cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) as |call| {
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { charged_here(bytesize, dptr, call) }
    };

    /// Managed memory is charged by its size, wherever its pages are: a page on the host may move to the GPU with
    /// the next kernel.
    guard cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: u32) as |call| {
        let mut charging = Charging::here(bytesize)?;
        if let Some(charging) = &mut charging {
            charging.kind = Kind::Unseen;
        }
        // SAFETY: as in `cuMemAlloc_v2`.
        unsafe { charged(charging, dptr, call) }
    };

    guard cuMemAllocPitch_v2(
        dptr: *mut CUdeviceptr, p_pitch: *mut usize, width_in_bytes: usize, height: usize,
        element_size_bytes: u32,
    ) as |call| {
        let guess = width_in_bytes
            .checked_next_multiple_of(PITCH)
            .unwrap_or(usize::MAX);
        let charging = Charging::here(guess.saturating_mul(height))?;
        let result = call();
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
            return Err(refused.into());
        }
        charging.commit(pointer);
        Ok(result)
    };

    quick cuMemFree_v2(dptr: CUdeviceptr) as |call| freed(dptr, call);
}

/// Finishes an allocation of the 32-bit names.
///
/// # Safety
/// `call` writes the address at `pointer` when it answers success.
unsafe fn charged_narrow(
    bytes: usize,
    pointer: *const CUdeviceptr_v1,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let charging = Charging::here(bytes)?;
    let result = call();
    if let (CUresult::SUCCESS, Some(charging)) = (result, charging) {
        // SAFETY: the driver has just written there and answered success.
        charging.commit(u64::from(unsafe { *pointer }));
    }
    Ok(result)
}

hooks! {
    guard cuMemAlloc(dptr: *mut CUdeviceptr_v1, bytesize: u32) as |call| {
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { charged_narrow(bytesize as usize, dptr, call) }
    };

    guard cuMemAllocPitch(
        dptr: *mut CUdeviceptr_v1, p_pitch: *mut u32, width_in_bytes: u32, height: u32,
        element_size_bytes: u32,
    ) as |call| {
        let row = (width_in_bytes as usize).next_multiple_of(PITCH);
        // SAFETY: as in `cuMemAlloc`.
        unsafe { charged_narrow(row.saturating_mul(height as usize), dptr, call) }
    };

    guard cuMemFree(dptr: CUdeviceptr_v1) as |call| freed(u64::from(dptr), call);
}
