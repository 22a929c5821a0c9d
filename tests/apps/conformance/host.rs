//! Host memory that the device can use: it is not charged as device memory.

use crate::words::*;
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;

family!("host":
    costs_nothing, every_flag, old_alloc, registered_costs_nothing, registered_twice,
    more_than_is_free, device_pointer, bad_flags, zero, null_out, free_null, free_twice,
    free_device_memory, unregister_nothing, register_nothing, a_thousand_rounds;
);

fn alloc(bytes: usize, flags: u32) -> Outcome<*mut c_void> {
    let mut at = null_mut();
    ok!(cuMemHostAlloc(&mut at, bytes, flags));
    that!(!at.is_null(), "no address");
    Ok(at)
}

fn free(at: *mut c_void) -> Outcome {
    ok!(cuMemFreeHost(at));
    Ok(())
}

fn costs_nothing(gpu: Gpu) -> Outcome {
    let all: Vec<_> = (0..8).map(|_| alloc(4 * GRAIN, 0)).collect::<Outcome<_>>()?;
    gpu.back()?;
    all.into_iter().try_for_each(free)?;
    gpu.back()
}

fn every_flag(gpu: Gpu) -> Outcome {
    for flags in 0..8 {
        free(alloc(GRAIN, flags)?)?;
    }
    gpu.back()
}

fn old_alloc(gpu: Gpu) -> Outcome {
    let mut at = null_mut();
    ok!(cuMemAllocHost_v2(&mut at, GRAIN));
    gpu.back()?;
    free(at)
}

/// Whole pages of our own.
fn pages(bytes: usize) -> Vec<u8> {
    vec![1; bytes + 4096]
}

fn aligned(own: &mut [u8]) -> *mut c_void {
    let skip = own.as_ptr().align_offset(4096);
    (&raw mut own[skip]).cast()
}

fn registered_costs_nothing(gpu: Gpu) -> Outcome {
    let mut own = pages(8 * GRAIN);
    let at = aligned(&mut own);
    ok!(cuMemHostRegister_v2(at, 8 * GRAIN, 0));
    gpu.back()?;
    ok!(cuMemHostUnregister(at));
    gpu.back()
}

fn registered_twice(gpu: Gpu) -> Outcome {
    let mut own = pages(GRAIN);
    let at = aligned(&mut own);
    ok!(cuMemHostRegister_v2(at, GRAIN, 0));
    says!(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(at, GRAIN, 0));
    ok!(cuMemHostUnregister(at));
    gpu.back()
}

/// A full device does not stop it.
fn more_than_is_free(gpu: Gpu) -> Outcome {
    let step = gpu.part(32)?;
    let all = gpu.fill(step)?;
    let at = alloc(step.min(64 << 20) * 2, 0)?;
    free(at)?;
    gpu.release_all(all)
}

fn device_pointer(gpu: Gpu) -> Outcome {
    let (at, mut device) = (alloc(GRAIN, CU_MEMHOSTALLOC_DEVICEMAP)?, 0);
    ok!(cuMemHostGetDevicePointer_v2(&mut device, at, 0));
    gpu.usable(device, GRAIN)?;
    free(at)
}

fn bad_flags(gpu: Gpu) -> Outcome {
    let mut at = null_mut();
    for flags in [1 << 20, u32::MAX] {
        says!(INVALID, cuMemHostAlloc(&mut at, GRAIN, flags));
    }
    gpu.back()
}

fn zero(gpu: Gpu) -> Outcome {
    let mut at = null_mut();
    // Drivers differ: some give a null pointer.
    says!([INVALID, SUCCESS], cuMemHostAlloc(&mut at, 0, 0));
    gpu.back()
}

fn null_out(gpu: Gpu) -> Outcome {
    says!(INVALID, cuMemHostAlloc(null_mut(), GRAIN, 0));
    says!(INVALID, cuMemAllocHost_v2(null_mut(), GRAIN));
    gpu.back()
}

fn free_null(_: Gpu) -> Outcome {
    says!([SUCCESS, INVALID], cuMemFreeHost(null_mut()));
    Ok(())
}

fn free_twice(gpu: Gpu) -> Outcome {
    let at = alloc(GRAIN, 0)?;
    free(at)?;
    says!(INVALID, cuMemFreeHost(at));
    gpu.back()
}

fn free_device_memory(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(gpu.part(8)?)?;
    says!(INVALID, cuMemFreeHost(at as *mut c_void));
    gpu.took(gpu.part(8)?, GRAIN)?;
    gpu.release(at)
}

fn unregister_nothing(_: Gpu) -> Outcome {
    let mut own = pages(GRAIN);
    says!(
        [CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED, INVALID],
        cuMemHostUnregister(aligned(&mut own))
    );
    Ok(())
}

fn register_nothing(gpu: Gpu) -> Outcome {
    let mut own = pages(GRAIN);
    says!(INVALID, cuMemHostRegister_v2(null_mut(), GRAIN, 0));
    says!(INVALID, cuMemHostRegister_v2(aligned(&mut own), 0, 0));
    says!(INVALID, cuMemHostRegister_v2(aligned(&mut own), GRAIN, 1 << 20));
    gpu.back()
}

fn a_thousand_rounds(gpu: Gpu) -> Outcome {
    let mut own = pages(GRAIN);
    let at = aligned(&mut own);
    for _ in 0..500 {
        free(alloc(GRAIN, 0)?)?;
        ok!(cuMemHostRegister_v2(at, GRAIN, 0));
        ok!(cuMemHostUnregister(at));
    }
    gpu.back()
}
