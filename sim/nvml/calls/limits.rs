//! The driver's memory limits per control group, named by the group's directory.

use crate::abi::Outcome;
use crate::abi::{In, Out};
use crate::session::{Refusal, gpu};
use core::ffi::c_char;
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::LimitError;
use std::path::PathBuf;

fn group(name: *const c_char) -> Result<PathBuf, Refusal> {
    In::pointed(name).path()
}

fn refusal(error: LimitError) -> Refusal {
    match error {
        LimitError::NotSupported => nvmlReturn_t::ERROR_NOT_SUPPORTED,
        LimitError::NotPermitted => nvmlReturn_t::ERROR_NO_PERMISSION,
        LimitError::Invalid | LimitError::NoSuchGpu => nvmlReturn_t::ERROR_INVALID_ARGUMENT,
        LimitError::NoGroup => nvmlReturn_t::ERROR_OPERATING_SYSTEM,
        LimitError::NotFound => nvmlReturn_t::ERROR_NOT_FOUND,
        LimitError::TooMany => nvmlReturn_t::ERROR_INSUFFICIENT_RESOURCES,
    }
}

pub(crate) fn nvmlDeviceSetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: Out<nvmlSetMemoryLimits_v1_t>,
) -> Outcome {
    let (machine, info) = gpu(device)?;
    let limits = limits.get()?;
    let group = group(limits.name_space)?;
    machine.set_limits(info.index, &group, limits.soft_limit, limits.hard_limit).map_err(refusal)
}

pub(crate) fn nvmlDeviceGetMemoryLimits_v1(
    device: nvmlDevice_t,
    place: Out<nvmlGetMemoryLimits_v1_t>,
) -> Outcome {
    let (machine, info) = gpu(device)?;
    let limits = place.get()?;
    let group = group(limits.name_space)?;
    let found = machine.limits_of(info.index, &group).map_err(refusal)?;
    place.put(nvmlGetMemoryLimits_v1_t {
        soft_limit: found.soft,
        hard_limit: found.hard,
        current_used: found.used,
        ..limits
    })
}
