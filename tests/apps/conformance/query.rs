//! Attributes of a device: present, sensible, and the same each time.

use crate::words::*;
use gpuslice_nvabi::types::*;

family!("query":
    attributes, properties, capability, bad_device, pointer_of_memory, pointer_of_nothing,
    stream_priorities, name, name_too_long, uuid, uuids_agree, bus_id, bad_attribute;
    bare: count, version, kernel_runs,
);

fn count() -> Outcome {
    let (mut count, mut device) = (0, 0);
    ok!(cuInit(0));
    ok!(cuDeviceGetCount(&mut count));
    that!(count >= 1, "{count} devices");
    says!(CUresult::ERROR_INVALID_DEVICE, cuDeviceGet(&mut device, count));
    says!(CUresult::ERROR_INVALID_DEVICE, cuDeviceGet(&mut device, -1));
    Ok(())
}

fn text<const N: usize>(bytes: &[c_char; N]) -> String {
    bytes.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char).collect()
}

fn name(gpu: Gpu) -> Outcome {
    let mut name = [1; 128];
    ok!(cuDeviceGetName(name.as_mut_ptr(), 128, gpu.device));
    that!(!text(&name).is_empty(), "no name");
    Ok(())
}

fn name_too_long(gpu: Gpu) -> Outcome {
    let mut name = [1; 128];
    ok!(cuDeviceGetName(name.as_mut_ptr(), 5, gpu.device));
    that!(name[4] == 0 && name[5] == 1, "five bytes are not five bytes");
    Ok(())
}

fn uuid(gpu: Gpu) -> Outcome {
    let (mut one, mut other) = (CUuuid { bytes: [0; 16] }, CUuuid { bytes: [1; 16] });
    ok!(cuDeviceGetUuid(&mut one, gpu.device));
    ok!(cuDeviceGetUuid(&mut other, gpu.device));
    that!(one.bytes == other.bytes && one.bytes != [0; 16], "{one:?} and {other:?}");
    Ok(())
}

fn uuids_agree(gpu: Gpu) -> Outcome {
    let (mut one, mut other) = (CUuuid { bytes: [0; 16] }, CUuuid { bytes: [1; 16] });
    ok!(cuDeviceGetUuid(&mut one, gpu.device));
    ok!(cuDeviceGetUuid_v2(&mut other, gpu.device));
    that!(one.bytes == other.bytes, "{one:?} and {other:?}");
    Ok(())
}

fn bus_id(gpu: Gpu) -> Outcome {
    let (mut id, mut device) = ([0; 64], 7);
    ok!(cuDeviceGetPCIBusId(id.as_mut_ptr(), 64, gpu.device));
    ok!(cuDeviceGetByPCIBusId(&mut device, id.as_ptr()));
    that!(device == gpu.device, "{} is device {device}", text(&id));
    Ok(())
}

fn attributes(gpu: Gpu) -> Outcome {
    for (attribute, least) in [
        (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1),
        (CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 512),
        (CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 3),
        (CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 16384),
    ] {
        let (one, other) = (gpu.attribute(attribute)?, gpu.attribute(attribute)?);
        that!(one == other && one >= least, "attribute {attribute}: {one}, then {other}");
    }
    Ok(())
}

fn properties(gpu: Gpu) -> Outcome {
    let mut major = 0;
    let mut minor = 0;
    ok!(cuDeviceComputeCapability(&mut major, &mut minor, gpu.device));
    let by_attribute = gpu.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    that!(major == by_attribute, "{major}.{minor} and {by_attribute}");
    Ok(())
}

fn capability(gpu: Gpu) -> Outcome {
    let pools = gpu.attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?;
    let mut pool = CUmemoryPool::NULL;
    let code = gpuslice_apps::api::calls::cuDeviceGetDefaultMemPool(&mut pool, gpu.device);
    that!((pools == 1) == (code == SUCCESS), "pools: {pools}, and {code:?}");
    Ok(())
}

fn version() -> Outcome {
    let (mut before, mut after) = (0, 0);
    ok!(cuDriverGetVersion(&mut before));
    gpu()?;
    ok!(cuDriverGetVersion(&mut after));
    that!(before == after && before >= 11000, "{before}, then {after}");
    Ok(())
}

fn bad_attribute(gpu: Gpu) -> Outcome {
    let mut value = 0;
    says!(INVALID, cuDeviceGetAttribute(&mut value, 99_999, gpu.device));
    says!(
        INVALID,
        cuDeviceGetAttribute(std::ptr::null_mut(), CU_DEVICE_ATTRIBUTE_WARP_SIZE, gpu.device)
    );
    Ok(())
}

fn bad_device(_: Gpu) -> Outcome {
    let (mut value, mut name) = (0, [0; 16]);
    let bad = CUresult::ERROR_INVALID_DEVICE;
    says!(bad, cuDeviceGetAttribute(&mut value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99));
    says!(bad, cuDeviceGetName(name.as_mut_ptr(), 16, 99));
    Ok(())
}

fn pointer_of_memory(gpu: Gpu) -> Outcome {
    let (at, mut kind, mut owner) = (gpu.alloc(GRAIN)?, 0u32, CUcontext::NULL);
    let (kind_to, owner_to) = ((&raw mut kind).cast(), (&raw mut owner).cast());
    ok!(cuPointerGetAttribute(kind_to, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    ok!(cuPointerGetAttribute(owner_to, CU_POINTER_ATTRIBUTE_CONTEXT, at));
    that!(kind == CU_MEMORYTYPE_DEVICE, "memory of kind {kind}");
    that!(owner == gpu.context, "memory of another context");
    Ok(())
}

fn pointer_of_nothing(gpu: Gpu) -> Outcome {
    let (at, mut kind) = (gpu.alloc(GRAIN)?, 0u32);
    gpu.release(at)?;
    let to = (&raw mut kind).cast();
    says!(INVALID, cuPointerGetAttribute(to, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    Ok(())
}

fn stream_priorities(_: Gpu) -> Outcome {
    let (mut least, mut greatest) = (-99, 99);
    ok!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    that!(greatest <= least, "from {least} to {greatest}");
    Ok(())
}

/// A kernel that spins, and a word of memory that counts it.
pub struct Spin {
    module: CUmodule,
    function: CUfunction,
    counter: CUdeviceptr,
}

impl Spin {
    pub fn load(gpu: Gpu) -> Outcome<Spin> {
        use gpuslice_apps::spin::{SPIN_NAME, SPIN_PTX};
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        let counter = gpu.alloc(256)?;
        ok!(cuMemsetD32_v2(counter, 0, 64));
        ok!(cuModuleLoadData(&mut module, SPIN_PTX.as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut function, module, SPIN_NAME.as_ptr()));
        Ok(Spin { module, function, counter })
    }

    /// Launches it for so many ns.
    pub fn launch(&self, mut ns: u64, stream: CUstream) -> Outcome {
        let mut at = self.counter;
        let mut params = [(&raw mut ns).cast(), (&raw mut at).cast()];
        let (function, params, none) = (self.function, params.as_mut_ptr(), std::ptr::null_mut());
        ok!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, none));
        Ok(())
    }
}

fn kernel_runs() -> Outcome {
    let gpu = gpu()?;
    let (spin, mut count) = (Spin::load(gpu)?, 0u32);
    for _ in 0..100 {
        spin.launch(10_000, CUstream::NULL)?;
    }
    gpu.synchronize()?;
    ok!(cuMemcpyDtoH_v2((&raw mut count).cast(), spin.counter, 4));
    that!(count == 100, "{count} of 100 kernels ran");
    ok!(cuModuleUnload(spin.module));
    Ok(())
}
