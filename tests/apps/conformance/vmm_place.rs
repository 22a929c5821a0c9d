//! Physical memory elsewhere: of the host, or of another device. It is not charged to this device.

use crate::vmm::{create, map, open, reserve, wanted};
use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::types::*;

family!("vmm_place":
    on_the_host, mapped_on_the_host, no_device, nowhere, on_another_device;
);

/// Memory of the host, by handle.
fn of_host(gpu: Gpu, bytes: usize) -> Outcome<u64> {
    let kind = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    let location = CUmemLocation { kind, id: 0 };
    let (props, mut handle) = (CUmemAllocationProp { location, ..wanted(gpu) }, 0);
    match calls::cuMemCreate(&mut handle, bytes, &props, 0) {
        SUCCESS => Ok(handle),
        other => skip(format_args!("memory of the host by handle: {other:?}")),
    }
}

fn release(handle: u64) -> Outcome {
    ok!(cuMemRelease(handle));
    Ok(())
}

fn on_the_host(gpu: Gpu) -> Outcome {
    let all: Vec<_> = (0..4).map(|_| of_host(gpu, 8 * GRAIN)).collect::<Outcome<_>>()?;
    gpu.back()?;
    all.into_iter().try_for_each(release)?;
    gpu.back()
}

fn mapped_on_the_host(gpu: Gpu) -> Outcome {
    let bytes = 4 * GRAIN;
    let (handle, at) = (of_host(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    open(gpu, at, bytes)?;
    release(handle)?;
    gpu.usable(at, bytes)?;
    ok!(cuMemUnmap(at, bytes));
    gpu.back()
}

fn on_another_device(gpu: Gpu) -> Outcome {
    let mut count = 0;
    ok!(cuDeviceGetCount(&mut count));
    if count < 2 {
        return skip("there is one device only");
    }
    let bytes = gpu.part(8)?;
    let handle = create(Gpu { device: 1, ..gpu }, bytes)?;
    gpu.back()?;
    release(handle)?;
    gpu.back()
}

fn no_device(gpu: Gpu) -> Outcome {
    let mut handle = 0;
    for id in [99, -1] {
        let location = CUmemLocation { id, ..gpu.location() };
        let there = CUmemAllocationProp { location, ..wanted(gpu) };
        says!(
            [INVALID, CUresult::ERROR_INVALID_DEVICE],
            cuMemCreate(&mut handle, GRAIN, &there, 0)
        );
    }
    gpu.back()
}

fn nowhere(gpu: Gpu) -> Outcome {
    let mut handle = 0;
    for kind in [CU_MEM_LOCATION_TYPE_NONE, 77] {
        let location = CUmemLocation { kind, id: 0 };
        let there = CUmemAllocationProp { location, ..wanted(gpu) };
        says!(INVALID, cuMemCreate(&mut handle, GRAIN, &there, 0));
    }
    gpu.back()
}
