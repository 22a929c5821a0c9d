//! Managed memory. A device may allocate more of it than it has, by using host memory: then it does not
//! refuse. A refusal has the device's code. Either way all memory is back at the end.

use crate::words::*;
use gpuslice_nvabi::types::*;

family!("managed":
    given_back, within_the_device, over_the_device, refusals_change_nothing, for_the_host,
    attached_to_a_stream, written_by_the_host, prefetched, advised, is_managed, bad_flags, zero,
    largest_number, null_out, free_twice, a_thousand_rounds;
);

fn managed(bytes: usize) -> Outcome<CUdeviceptr> {
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, bytes, CU_MEM_ATTACH_GLOBAL));
    Ok(at)
}

fn given_back(gpu: Gpu) -> Outcome {
    let at = managed(gpu.part(8)?)?;
    gpu.release(at)?;
    gpu.back()
}

fn within_the_device(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(16)?;
    let all: Vec<_> = (0..8).map(|_| managed(bytes)).collect::<Outcome<_>>()?;
    gpu.usable(all[7], bytes)?;
    gpu.release_all(all)?;
    gpu.back()
}

fn over_the_device(gpu: Gpu) -> Outcome {
    let (total, mut at) = (gpu.total()?, 0);
    let code =
        says!([SUCCESS, OOM], cuMemAllocManaged(&mut at, total + GRAIN, CU_MEM_ATTACH_GLOBAL));
    note(format!("cuMemAllocManaged={code:?}"));
    if code == SUCCESS {
        gpu.release(at)?;
    }
    gpu.back()
}

fn refusals_change_nothing(gpu: Gpu) -> Outcome {
    let mut at = 0;
    for _ in 0..50 {
        says!(OOM, cuMemAllocManaged(&mut at, usize::MAX / 2, CU_MEM_ATTACH_GLOBAL));
    }
    gpu.back()
}

fn for_the_host(gpu: Gpu) -> Outcome {
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, gpu.part(16)?, CU_MEM_ATTACH_HOST));
    gpu.release(at)?;
    gpu.back()
}

fn attached_to_a_stream(gpu: Gpu) -> Outcome {
    let stream = gpu.stream()?;
    let at = managed(gpu.part(16)?)?;
    ok!(cuStreamAttachMemAsync(stream, at, 0, CU_MEM_ATTACH_SINGLE));
    ok!(cuStreamSynchronize(stream));
    gpu.release(at)?;
    gpu.back()
}

fn written_by_the_host(gpu: Gpu) -> Outcome {
    let (at, mut read) = (managed(1 << 20)?, 0u32);
    gpu.synchronize()?;
    // SAFETY: managed memory is the host's to write while the device does nothing.
    unsafe { (at as *mut u32).write(41) };
    ok!(cuMemcpyDtoH_v2((&raw mut read).cast(), at, 4));
    that!(read == 41, "{read} is read");
    gpu.release(at)
}

fn prefetched(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(16)?;
    let at = managed(bytes)?;
    for place in [gpu.device, CU_DEVICE_CPU, gpu.device] {
        ok!(cuMemPrefetchAsync(at, bytes, place, CUstream::NULL));
        gpu.synchronize()?;
    }
    gpu.release(at)?;
    gpu.back()
}

fn advised(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(16)?;
    let at = managed(bytes)?;
    for advice in [
        CU_MEM_ADVISE_SET_READ_MOSTLY,
        CU_MEM_ADVISE_UNSET_READ_MOSTLY,
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
    ] {
        ok!(cuMemAdvise(at, bytes, advice, gpu.device));
    }
    gpu.release(at)?;
    gpu.back()
}

fn is_managed(gpu: Gpu) -> Outcome {
    for (at, want) in [(managed(GRAIN)?, 1u32), (gpu.alloc(GRAIN)?, 0)] {
        let mut is = 7u32;
        let to = (&raw mut is).cast();
        ok!(cuPointerGetAttribute(to, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
        that!(is & 0xff == want, "{is} instead of {want}");
    }
    Ok(())
}

fn bad_flags(gpu: Gpu) -> Outcome {
    let mut at = 0;
    for flags in [0, CU_MEM_ATTACH_SINGLE, 3, 8, u32::MAX] {
        says!(INVALID, cuMemAllocManaged(&mut at, GRAIN, flags));
    }
    gpu.back()
}

fn zero(gpu: Gpu) -> Outcome {
    let mut at = 0;
    says!(INVALID, cuMemAllocManaged(&mut at, 0, CU_MEM_ATTACH_GLOBAL));
    gpu.back()
}

fn largest_number(gpu: Gpu) -> Outcome {
    let mut at = 0;
    says!(OOM, cuMemAllocManaged(&mut at, usize::MAX, CU_MEM_ATTACH_GLOBAL));
    says!(OOM, cuMemAllocManaged(&mut at, usize::MAX - 4096, CU_MEM_ATTACH_GLOBAL));
    gpu.back()
}

fn null_out(gpu: Gpu) -> Outcome {
    says!(INVALID, cuMemAllocManaged(std::ptr::null_mut(), GRAIN, CU_MEM_ATTACH_GLOBAL));
    gpu.back()
}

fn free_twice(gpu: Gpu) -> Outcome {
    let at = managed(gpu.part(16)?)?;
    gpu.release(at)?;
    says!(INVALID, cuMemFree_v2(at));
    gpu.back()
}

fn a_thousand_rounds(gpu: Gpu) -> Outcome {
    for round in 0..1000 {
        let at = managed(1 + round * 4096)?;
        gpu.release(at)?;
    }
    gpu.back()
}
