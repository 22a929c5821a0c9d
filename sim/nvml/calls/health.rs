//! Modes and error counters: a simulated card has the usual modes and no defects.

use crate::abi::{Out, Outcome};
use crate::session::gpu;
use gpuslice_nvabi::types::*;

pub(super) fn constant<T: Copy>(device: nvmlDevice_t, place: Out<T>, value: T) -> Outcome {
    gpu(device)?;
    place.put(value)
}

fn pair<T: Copy>(device: nvmlDevice_t, first: Out<T>, second: Out<T>, value: T) -> Outcome {
    gpu(device)?;
    first.put(value)?;
    second.put(value)
}

type Enabled = Out<nvmlEnableState_t>;

pub(crate) fn nvmlDeviceGetDisplayMode(device: nvmlDevice_t, display: Enabled) -> Outcome {
    constant(device, display, NVML_FEATURE_DISABLED)
}

pub(crate) fn nvmlDeviceGetDisplayActive(device: nvmlDevice_t, active: Enabled) -> Outcome {
    constant(device, active, NVML_FEATURE_DISABLED)
}

pub(crate) fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, mode: Enabled) -> Outcome {
    constant(device, mode, NVML_FEATURE_ENABLED)
}

pub(crate) fn nvmlDeviceGetAccountingMode(device: nvmlDevice_t, mode: Enabled) -> Outcome {
    constant(device, mode, NVML_FEATURE_DISABLED)
}

pub(crate) fn nvmlDeviceGetComputeMode(
    device: nvmlDevice_t,
    mode: Out<nvmlComputeMode_t>,
) -> Outcome {
    let (machine, info) = gpu(device)?;
    let exclusive = machine.properties().exclusive >> info.index & 1 != 0;
    mode.put(if exclusive { NVML_COMPUTEMODE_EXCLUSIVE_PROCESS } else { NVML_COMPUTEMODE_DEFAULT })
}

pub(crate) fn nvmlDeviceGetEccMode(
    device: nvmlDevice_t,
    current: Enabled,
    pending: Enabled,
) -> Outcome {
    pair(device, current, pending, NVML_FEATURE_ENABLED)
}

pub(crate) fn nvmlDeviceGetDefaultEccMode(device: nvmlDevice_t, mode: Enabled) -> Outcome {
    constant(device, mode, NVML_FEATURE_ENABLED)
}

pub(crate) fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
    count: Out<u64>,
) -> Outcome {
    gpu(device)?;
    if error > NVML_MEMORY_ERROR_TYPE_UNCORRECTED || counter > NVML_AGGREGATE_ECC {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    count.put(0)
}

pub(crate) fn nvmlDeviceGetRetiredPages(
    device: nvmlDevice_t,
    _cause: nvmlPageRetirementCause_t,
    count: Out<u32>,
    _addresses: Out<u64>,
) -> Outcome {
    constant(device, count, 0)
}

pub(crate) fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    _cause: nvmlPageRetirementCause_t,
    count: Out<u32>,
    _addresses: Out<u64>,
    _timestamps: Out<u64>,
) -> Outcome {
    constant(device, count, 0)
}

pub(crate) fn nvmlDeviceGetRetiredPagesPendingStatus(
    device: nvmlDevice_t,
    pending: Enabled,
) -> Outcome {
    constant(device, pending, NVML_FEATURE_DISABLED)
}

pub(crate) fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corrected: Out<u32>,
    uncorrected: Out<u32>,
    pending: Out<u32>,
    failed: Out<u32>,
) -> Outcome {
    pair(device, corrected, uncorrected, 0)?;
    pair(device, pending, failed, 0)
}

pub(crate) fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: Out<u32>,
    pending: Out<u32>,
) -> Outcome {
    let (machine, info) = gpu(device)?;
    pair(device, current, pending, machine.properties().mig >> info.index & 1)
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig: Out<u32>) -> Outcome {
    constant(device, is_mig, 0)
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: Out<u32>) -> Outcome {
    constant(device, count, 0)
}

pub(crate) fn nvmlDeviceGetVirtualizationMode(
    device: nvmlDevice_t,
    mode: Out<nvmlGpuVirtualizationMode_t>,
) -> Outcome {
    constant(device, mode, NVML_GPU_VIRTUALIZATION_MODE_NONE)
}

pub(crate) fn nvmlDeviceGetGspFirmwareMode(
    device: nvmlDevice_t,
    enabled: Out<u32>,
    default: Out<u32>,
) -> Outcome {
    pair(device, enabled, default, 0)
}
