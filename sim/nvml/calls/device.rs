//! Which devices there are, and what never changes about them.

use crate::abi::Outcome;
use crate::abi::{In, Out};
use crate::session::{gpu, handle, machine};
use core::ffi::c_char;
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::GpuInfo;

/// Forms of the UUID that `nvmlDeviceGetHandleByUUIDV` takes (nvml.h, `nvmlUUIDType_t`).
const UUID_ASCII: u32 = 1;
const UUID_BINARY: u32 = 2;

fn find(wanted: impl Fn(&GpuInfo) -> bool, device: Out<nvmlDevice_t>) -> Outcome {
    let found = machine()?.gpus().iter().find(|gpu| wanted(gpu));
    open(found.ok_or(nvmlReturn_t::ERROR_NOT_FOUND)?, device)
}

/// Gives a handle, unless the GPU has fallen off the bus.
fn open(gpu: &GpuInfo, device: Out<nvmlDevice_t>) -> Outcome {
    match machine()?.properties().lost >> gpu.index & 1 {
        0 => device.put(handle(gpu.index)),
        _ => Err(nvmlReturn_t::ERROR_GPU_IS_LOST),
    }
}

pub(crate) fn nvmlDeviceGetCount(count: Out<u32>) -> Outcome {
    count.put(machine()?.gpus().len() as u32)
}

pub(crate) fn nvmlDeviceGetCount_v2(count: Out<u32>) -> Outcome {
    nvmlDeviceGetCount(count)
}

pub(crate) fn nvmlDeviceGetHandleByIndex(index: u32, device: Out<nvmlDevice_t>) -> Outcome {
    match machine()?.gpus().get(index as usize) {
        Some(found) => open(found, device),
        None => Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<nvmlDevice_t>) -> Outcome {
    nvmlDeviceGetHandleByIndex(index, device)
}

pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: In<c_char>, device: Out<nvmlDevice_t>) -> Outcome {
    let wanted = uuid.text()?;
    find(|gpu| gpu.uuid_text() == wanted, device)
}

pub(crate) fn nvmlDeviceGetHandleByUUIDV(
    uuid: In<nvmlUUID_t>,
    device: Out<nvmlDevice_t>,
) -> Outcome {
    let uuid = uuid.get()?;
    if uuid.version != nvmlUUID_v1 {
        return Err(nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    match uuid.kind {
        UUID_BINARY => find(|gpu| gpu.uuid == uuid.value[..16], device),
        UUID_ASCII => {
            let end = uuid.value.iter().position(|&byte| byte == 0).unwrap_or(uuid.value.len());
            find(|gpu| gpu.uuid_text().as_bytes() == &uuid.value[..end], device)
        }
        _ => Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetHandleBySerial(
    serial: In<c_char>,
    device: Out<nvmlDevice_t>,
) -> Outcome {
    let wanted = serial.text()?;
    find(|gpu| serial_text(gpu) == wanted, device)
}

fn serial_text(gpu: &GpuInfo) -> String {
    let hash = gpu.uuid.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31) + u64::from(byte));
    format!("{:013}", hash % 10_000_000_000_000)
}

pub(crate) fn nvmlDeviceGetSerial(
    device: nvmlDevice_t,
    serial: Out<c_char>,
    length: u32,
) -> Outcome {
    serial.text(length, &serial_text(gpu(device)?.1))
}

pub(crate) fn nvmlDeviceGetName(device: nvmlDevice_t, name: Out<c_char>, length: u32) -> Outcome {
    name.text(length, &gpu(device)?.1.name)
}

pub(crate) fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: Out<c_char>, length: u32) -> Outcome {
    uuid.text(length, &gpu(device)?.1.uuid_text())
}

pub(crate) fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<u32>) -> Outcome {
    index.put(gpu(device)?.1.index as u32)
}

pub(crate) fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: Out<u32>) -> Outcome {
    nvmlDeviceGetIndex(device, minor)
}

pub(crate) fn nvmlDeviceGetBoardId(device: nvmlDevice_t, board: Out<u32>) -> Outcome {
    let (_, bus, _) = gpu(device)?.1.pci;
    board.put(u32::from(bus) << 8)
}

pub(crate) fn nvmlDeviceGetBrand(device: nvmlDevice_t, brand: Out<nvmlBrandType_t>) -> Outcome {
    gpu(device)?;
    brand.put(NVML_BRAND_NVIDIA)
}

pub(crate) fn nvmlDeviceGetVbiosVersion(
    device: nvmlDevice_t,
    version: Out<c_char>,
    length: u32,
) -> Outcome {
    gpu(device)?;
    version.text(length, "00.00.00.00.01")
}

pub(crate) fn nvmlDeviceGetMultiGpuBoard(device: nvmlDevice_t, multi: Out<u32>) -> Outcome {
    gpu(device)?;
    multi.put(0)
}

pub(crate) fn nvmlDeviceOnSameBoard(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    same: Out<i32>,
) -> Outcome {
    same.put(i32::from(gpu(first)?.1.index == gpu(second)?.1.index))
}

pub(crate) fn nvmlDeviceGetAttributes(
    device: nvmlDevice_t,
    attributes: Out<nvmlDeviceAttributes_t>,
) -> Outcome {
    let info = gpu(device)?.1;
    attributes.put(nvmlDeviceAttributes_t {
        multiprocessor_count: info.multiprocessors,
        shared_copy_engine_count: 2,
        shared_decoder_count: 0,
        shared_encoder_count: 0,
        shared_jpeg_count: 0,
        shared_ofa_count: 0,
        gpu_instance_slice_count: 0,
        compute_instance_slice_count: 0,
        memory_size_mb: info.total_bytes >> 20,
    })
}

pub(crate) fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    attributes: Out<nvmlDeviceAttributes_t>,
) -> Outcome {
    nvmlDeviceGetAttributes(device, attributes)
}

pub(crate) fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: Out<i32>,
    minor: Out<i32>,
) -> Outcome {
    let capability = gpu(device)?.1.compute_capability;
    major.put(capability.0 as i32)?;
    minor.put(capability.1 as i32)
}

pub(crate) fn nvmlDeviceGetArchitecture(
    device: nvmlDevice_t,
    architecture: Out<nvmlDeviceArchitecture_t>,
) -> Outcome {
    architecture.put(match gpu(device)?.1.compute_capability {
        (7, 5) => NVML_DEVICE_ARCH_TURING,
        (7, _) => NVML_DEVICE_ARCH_VOLTA,
        (8, 9) => NVML_DEVICE_ARCH_ADA,
        (8, _) => NVML_DEVICE_ARCH_AMPERE,
        (9, _) => NVML_DEVICE_ARCH_HOPPER,
        (10 | 12, _) => NVML_DEVICE_ARCH_BLACKWELL,
        _ => NVML_DEVICE_ARCH_UNKNOWN,
    })
}

pub(crate) fn nvmlDeviceGetNumGpuCores(device: nvmlDevice_t, cores: Out<u32>) -> Outcome {
    cores.put(gpu(device)?.1.multiprocessors * 128)
}

pub(crate) fn nvmlDeviceGetMemoryBusWidth(device: nvmlDevice_t, width: Out<u32>) -> Outcome {
    gpu(device)?;
    width.put(5120)
}
