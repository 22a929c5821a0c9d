//! Temperature, power and clocks, derived from the load between an idle and a busy value.

use crate::abi::{Out, Outcome};
use crate::session::{Refusal, device_error, gpu};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::now_ns;

const TEMPERATURE_C: (u32, u32) = (34, 66);
const POWER_MW: (u32, u32) = (75_000, 620_000);
const POWER_LIMIT_MW: u32 = 700_000;
const POWER_LEAST_MW: u32 = 200_000;
const CORE_MHZ: (u32, u32) = (345, 1980);
const MEMORY_MHZ: u32 = 3201;
const SHUTDOWN_C: u32 = 92;
const SLOWDOWN_C: u32 = 89;

/// A value between the idle and the busy one, by the percentage of load.
fn between((idle, busy): (u32, u32), percent: u32) -> u32 {
    idle + (busy - idle) * percent.min(100) / 100
}

fn load(device: nvmlDevice_t) -> Result<u32, Refusal> {
    let (machine, info) = gpu(device)?;
    machine.utilisation(info.index).map_err(device_error)
}

pub(super) fn power(device: nvmlDevice_t) -> Result<u32, Refusal> {
    Ok(between(POWER_MW, load(device)?))
}

/// Millijoules since the device was made, counting the idle part from the machine's start.
pub(super) fn energy(device: nvmlDevice_t) -> Result<u64, Refusal> {
    let (machine, info) = gpu(device)?;
    let busy_ms = machine.busy_ns(info.index).map_err(device_error)? / 1_000_000;
    let idle = u64::from(POWER_MW.0) * (now_ns() / 1_000_000);
    Ok((idle + u64::from(POWER_MW.1 - POWER_MW.0) * busy_ms) / 1000)
}

fn clock(percent: u32, kind: nvmlClockType_t) -> Result<u32, Refusal> {
    match kind {
        NVML_CLOCK_GRAPHICS | NVML_CLOCK_SM | NVML_CLOCK_VIDEO => {
            Ok(if percent == 0 { CORE_MHZ.0 } else { CORE_MHZ.1 })
        }
        NVML_CLOCK_MEM => Ok(MEMORY_MHZ),
        _ => Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: nvmlTemperatureSensors_t,
    celsius: Out<u32>,
) -> Outcome {
    let percent = load(device)?;
    if sensor != NVML_TEMPERATURE_GPU {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    celsius.put(between(TEMPERATURE_C, percent))
}

pub(crate) fn nvmlDeviceGetTemperatureV(
    device: nvmlDevice_t,
    place: Out<nvmlTemperature_t>,
) -> Outcome {
    let percent = load(device)?;
    let asked = place.get()?;
    if asked.version != nvmlTemperature_v1 {
        return Err(nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if asked.sensor_type != NVML_TEMPERATURE_GPU {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    place.put(nvmlTemperature_t { temperature: between(TEMPERATURE_C, percent) as i32, ..asked })
}

pub(crate) fn nvmlDeviceGetTemperatureThreshold(
    device: nvmlDevice_t,
    which: nvmlTemperatureThresholds_t,
    celsius: Out<u32>,
) -> Outcome {
    gpu(device)?;
    match which {
        NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => celsius.put(SHUTDOWN_C),
        NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => celsius.put(SLOWDOWN_C),
        _ => Err(nvmlReturn_t::ERROR_NOT_SUPPORTED),
    }
}

pub(crate) fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, milliwatts: Out<u32>) -> Outcome {
    milliwatts.put(power(device)?)
}

pub(crate) fn nvmlDeviceGetTotalEnergyConsumption(
    device: nvmlDevice_t,
    millijoules: Out<u64>,
) -> Outcome {
    millijoules.put(energy(device)?)
}

pub(crate) fn nvmlDeviceGetPowerManagementMode(
    device: nvmlDevice_t,
    mode: Out<nvmlEnableState_t>,
) -> Outcome {
    gpu(device)?;
    mode.put(NVML_FEATURE_ENABLED)
}

pub(crate) fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, limit: Out<u32>) -> Outcome {
    gpu(device)?;
    limit.put(POWER_LIMIT_MW)
}

pub(crate) fn nvmlDeviceGetPowerManagementDefaultLimit(
    device: nvmlDevice_t,
    limit: Out<u32>,
) -> Outcome {
    nvmlDeviceGetPowerManagementLimit(device, limit)
}

pub(crate) fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, limit: Out<u32>) -> Outcome {
    nvmlDeviceGetPowerManagementLimit(device, limit)
}

pub(crate) fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: nvmlDevice_t,
    least: Out<u32>,
    most: Out<u32>,
) -> Outcome {
    gpu(device)?;
    least.put(POWER_LEAST_MW)?;
    most.put(POWER_LIMIT_MW)
}

pub(crate) fn nvmlDeviceGetPerformanceState(
    device: nvmlDevice_t,
    state: Out<nvmlPstates_t>,
) -> Outcome {
    gpu(device)?;
    state.put(NVML_PSTATE_0)
}

pub(crate) fn nvmlDeviceGetPowerState(device: nvmlDevice_t, state: Out<nvmlPstates_t>) -> Outcome {
    nvmlDeviceGetPerformanceState(device, state)
}

pub(crate) fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    kind: nvmlClockType_t,
    mhz: Out<u32>,
) -> Outcome {
    mhz.put(clock(load(device)?, kind)?)
}

pub(crate) fn nvmlDeviceGetMaxClockInfo(
    device: nvmlDevice_t,
    kind: nvmlClockType_t,
    mhz: Out<u32>,
) -> Outcome {
    gpu(device)?;
    mhz.put(clock(100, kind)?)
}

pub(crate) fn nvmlDeviceGetMaxCustomerBoostClock(
    device: nvmlDevice_t,
    kind: nvmlClockType_t,
    mhz: Out<u32>,
) -> Outcome {
    nvmlDeviceGetMaxClockInfo(device, kind, mhz)
}
pub(crate) use nvmlDeviceGetMaxCustomerBoostClock as nvmlDeviceGetApplicationsClock;
pub(crate) use nvmlDeviceGetMaxCustomerBoostClock as nvmlDeviceGetDefaultApplicationsClock;

pub(crate) fn nvmlDeviceGetClock(
    device: nvmlDevice_t,
    kind: nvmlClockType_t,
    which: nvmlClockId_t,
    mhz: Out<u32>,
) -> Outcome {
    match which {
        NVML_CLOCK_ID_CURRENT => nvmlDeviceGetClockInfo(device, kind, mhz),
        NVML_CLOCK_ID_APP_CLOCK_TARGET | NVML_CLOCK_ID_APP_CLOCK_DEFAULT => {
            nvmlDeviceGetMaxClockInfo(device, kind, mhz)
        }
        _ => Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetSupportedMemoryClocks(
    device: nvmlDevice_t,
    count: Out<u32>,
    mhz: Out<u32>,
) -> Outcome {
    gpu(device)?;
    count.counted(mhz, &[MEMORY_MHZ])
}

pub(crate) fn nvmlDeviceGetSupportedGraphicsClocks(
    device: nvmlDevice_t,
    memory_mhz: u32,
    count: Out<u32>,
    mhz: Out<u32>,
) -> Outcome {
    gpu(device)?;
    if memory_mhz != MEMORY_MHZ {
        return Err(nvmlReturn_t::ERROR_NOT_FOUND);
    }
    count.counted(mhz, &[CORE_MHZ.1, CORE_MHZ.0])
}

pub(crate) fn nvmlDeviceGetCurrentClocksEventReasons(
    device: nvmlDevice_t,
    reasons: Out<u64>,
) -> Outcome {
    let idle = load(device)? == 0;
    reasons.put(if idle { nvmlClocksEventReasonGpuIdle } else { nvmlClocksEventReasonNone })
}

pub(crate) fn nvmlDeviceGetSupportedClocksEventReasons(
    device: nvmlDevice_t,
    reasons: Out<u64>,
) -> Outcome {
    gpu(device)?;
    reasons.put(nvmlClocksEventReasonGpuIdle)
}

pub(crate) fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: nvmlDevice_t,
    reasons: Out<u64>,
) -> Outcome {
    nvmlDeviceGetCurrentClocksEventReasons(device, reasons)
}

pub(crate) fn nvmlDeviceGetSupportedClocksThrottleReasons(
    device: nvmlDevice_t,
    reasons: Out<u64>,
) -> Outcome {
    nvmlDeviceGetSupportedClocksEventReasons(device, reasons)
}

/// A card for servers has no fan of its own.
pub(crate) fn nvmlDeviceGetNumFans(device: nvmlDevice_t, fans: Out<u32>) -> Outcome {
    gpu(device)?;
    fans.put(0)
}
