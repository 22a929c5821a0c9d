//! How much of a device is in use: memory, utilisation, samples, fields by number.

use super::sensor;
use crate::abi::{Out, Outcome};
use crate::session::{Refusal, device_error, gpu};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::{Machine, MemoryInfo};
use std::time::SystemTime;

/// NVML's clock for samples: microseconds since the epoch.
pub(super) fn timestamp_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

fn memory(device: nvmlDevice_t) -> Result<MemoryInfo, Refusal> {
    let (machine, info) = gpu(device)?;
    machine.sampled_mem_info(info.index).map_err(device_error)
}

/// Percent of the last sample period.
pub(super) fn percent(device: nvmlDevice_t) -> Result<u32, Refusal> {
    let (machine, info) = gpu(device)?;
    machine.utilisation(info.index).map_err(device_error)
}

/// The simulation has no memory bandwidth; programs are taken to use it half as much as the cores.
pub(super) fn memory_percent(percent: u32) -> u32 {
    percent / 2
}

pub(crate) fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, place: Out<nvmlMemory_t>) -> Outcome {
    let MemoryInfo { total, used, free } = memory(device)?;
    place.put(nvmlMemory_t { total, free, used })
}

pub(crate) fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    place: Out<nvmlMemory_v2_t>,
) -> Outcome {
    let MemoryInfo { total, used, free } = memory(device)?;
    if place.get()?.version != nvmlMemory_v2 {
        return Err(nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    place.put(nvmlMemory_v2_t { version: nvmlMemory_v2, total, reserved: 0, free, used })
}

/// The window shows the whole memory, as on cards with a resizable one.
pub(crate) fn nvmlDeviceGetBAR1MemoryInfo(
    device: nvmlDevice_t,
    place: Out<nvmlBAR1Memory_t>,
) -> Outcome {
    let MemoryInfo { total, used, free } = memory(device)?;
    place.put(nvmlBAR1Memory_t { bar1_total: total, bar1_free: free, bar1_used: used })
}

pub(crate) fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    place: Out<nvmlUtilization_t>,
) -> Outcome {
    let percent = percent(device)?;
    place.put(nvmlUtilization_t { gpu: percent, memory: memory_percent(percent) })
}

/// The engines beside the cores are idle.
pub(crate) fn nvmlDeviceGetEncoderUtilization(
    device: nvmlDevice_t,
    percent: Out<u32>,
    period_us: Out<u32>,
) -> Outcome {
    gpu(device)?;
    percent.put(0)?;
    period_us.put((Machine::utilisation_window_ns() / 1000) as u32)
}
pub(crate) use nvmlDeviceGetEncoderUtilization as nvmlDeviceGetDecoderUtilization;
pub(crate) use nvmlDeviceGetEncoderUtilization as nvmlDeviceGetJpgUtilization;
pub(crate) use nvmlDeviceGetEncoderUtilization as nvmlDeviceGetOfaUtilization;

/// One sample: the present one. With no room it tells how much is needed.
pub(crate) fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    kind: nvmlSamplingType_t,
    last_seen: u64,
    value_type: Out<nvmlValueType_t>,
    count: Out<u32>,
    samples: Out<nvmlSample_t>,
) -> Outcome {
    let load = percent(device)?;
    let uint = match kind {
        NVML_TOTAL_POWER_SAMPLES => sensor::power(device)?,
        NVML_GPU_UTILIZATION_SAMPLES => load,
        NVML_MEMORY_UTILIZATION_SAMPLES => memory_percent(load),
        _ => return Err(nvmlReturn_t::ERROR_NOT_SUPPORTED),
    };
    let time_stamp = timestamp_us();
    if last_seen >= time_stamp {
        return Err(nvmlReturn_t::ERROR_NOT_FOUND);
    }
    let room = count.get()?;
    value_type.put(NVML_VALUE_TYPE_UNSIGNED_INT)?;
    if !samples.is_null() {
        if room == 0 {
            return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        }
        let mut sample_value = nvmlValue_t { ulonglong: 0 };
        sample_value.uint = uint;
        samples.put(nvmlSample_t { time_stamp, sample_value })?;
    }
    count.put(1)
}

/// Field numbers of nvml.h (NVML_FI_DEV_...) that have an answer here.
const ECC_CURRENT: u32 = 1;
const TOTAL_ENERGY: u32 = 83;
const POWER_AVERAGE: u32 = 185;
const POWER_INSTANT: u32 = 186;
const FIELDS_MAX: i32 = 1024;

pub(crate) fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: i32,
    values: Out<nvmlFieldValue_t>,
) -> Outcome {
    gpu(device)?;
    if !(1..=FIELDS_MAX).contains(&count) {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    for index in 0..count as usize {
        let place: Out<nvmlFieldValue_t> = values.entry(index);
        let mut field = place.get()?;
        field.timestamp = timestamp_us() as i64;
        field.latency_usec = 0;
        field.value_type = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        field.nvml_return = match field_value(device, field.field_id) {
            Ok(value) => {
                field.value = nvmlValue_t { ulonglong: value };
                nvmlReturn_t::SUCCESS
            }
            Err(error) => error,
        };
        place.put(field)?;
    }
    Ok(())
}

fn field_value(device: nvmlDevice_t, field: u32) -> Result<u64, Refusal> {
    match field {
        ECC_CURRENT => Ok(1),
        TOTAL_ENERGY => sensor::energy(device),
        POWER_AVERAGE | POWER_INSTANT => sensor::power(device).map(u64::from),
        _ => Err(nvmlReturn_t::ERROR_NOT_SUPPORTED),
    }
}
