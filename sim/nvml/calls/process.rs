//! The processes on a device. A process is there from its first context on, with its pid as the
//! caller's pid namespace numbers it; processes that one does not show are not listed.

use super::usage::{memory_percent, timestamp_us};
use crate::abi::{Out, Outcome};
use crate::session::{Refusal, device_error, gpu, tells_memory};
use core::ffi::c_void;
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::ProcessInfo;

/// NVML_VALUE_NOT_AVAILABLE of nvml.h.
const NOT_AVAILABLE: u64 = u64::MAX;

/// "No MIG instance".
const NO_INSTANCE: u32 = u32::MAX;

/// `mode` of the detail list (nvml.h): compute, graphics, MPS compute.
const DETAIL_COMPUTE: u32 = 0;
const DETAIL_MODES: u32 = 3;

fn processes(device: nvmlDevice_t) -> Result<Vec<ProcessInfo>, Refusal> {
    let (machine, info) = gpu(device)?;
    machine.sampled_processes(info.index).map_err(device_error)
}

/// The same for a list of what each holds, where there is one.
fn holders(device: nvmlDevice_t) -> Result<Vec<ProcessInfo>, Refusal> {
    let told = tells_memory()?;
    let mut list = processes(device)?;
    for process in list.iter_mut().filter(|_| !told) {
        process.used_bytes = NOT_AVAILABLE;
    }
    Ok(list)
}

fn oldest(process: &ProcessInfo) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: process.pid, used_gpu_memory: process.used_bytes }
}

fn present(process: &ProcessInfo) -> nvmlProcessInfo_t {
    nvmlProcessInfo_t {
        pid: process.pid,
        used_gpu_memory: process.used_bytes,
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
    }
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_v1_t>,
) -> Outcome {
    let list: Vec<_> = holders(device)?.iter().map(oldest).collect();
    count.counted(infos, &list)
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<c_void>,
) -> Outcome {
    nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos.of())
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_t>,
) -> Outcome {
    let list: Vec<_> = holders(device)?.iter().map(present).collect();
    count.counted(infos, &list)
}

fn no_processes<T: Copy>(device: nvmlDevice_t, count: Out<u32>, infos: Out<T>) -> Outcome {
    gpu(device)?;
    count.counted(infos, &[])
}

pub(crate) fn nvmlDeviceGetGraphicsRunningProcesses(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_v1_t>,
) -> Outcome {
    no_processes(device, count, infos)
}

pub(crate) fn nvmlDeviceGetGraphicsRunningProcesses_v2(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<c_void>,
) -> Outcome {
    no_processes::<nvmlProcessInfo_t>(device, count, infos.of())
}

pub(crate) fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_t>,
) -> Outcome {
    no_processes(device, count, infos)
}

/// The client of an MPS server, if the machine is to have one: the first process, without memory.
fn mps_clients(device: nvmlDevice_t) -> Result<Vec<ProcessInfo>, Refusal> {
    let (machine, info) = gpu(device)?;
    let is_there = machine.has_mps(info.index);
    let client = ProcessInfo { pid: 1, used_bytes: 0, contexts: 1, busy_ns: 0, utilisation: 0 };
    Ok(is_there.then_some(client).into_iter().collect())
}

pub(crate) fn nvmlDeviceGetMPSComputeRunningProcesses(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_v1_t>,
) -> Outcome {
    let list: Vec<_> = mps_clients(device)?.iter().map(oldest).collect();
    count.counted(infos, &list)
}

pub(crate) fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<c_void>,
) -> Outcome {
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device, count, infos.of())
}

pub(crate) fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_t>,
) -> Outcome {
    let list: Vec<_> = mps_clients(device)?.iter().map(present).collect();
    count.counted(infos, &list)
}

pub(crate) fn nvmlDeviceGetRunningProcessDetailList(
    device: nvmlDevice_t,
    place: Out<nvmlProcessDetailList_t>,
) -> Outcome {
    let all = holders(device)?;
    let mut list = place.get()?;
    if list.version != nvmlProcessDetailList_v1 {
        return Err(nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if list.mode >= DETAIL_MODES {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    let shown = if list.mode == DETAIL_COMPUTE { &all[..] } else { &[] };
    let details: Vec<_> = shown
        .iter()
        .map(|process| nvmlProcessDetail_v1_t {
            pid: process.pid,
            used_gpu_memory: process.used_bytes,
            gpu_instance_id: NO_INSTANCE,
            compute_instance_id: NO_INSTANCE,
            used_gpu_cc_protected_memory: 0,
        })
        .collect();
    let entries = Out::pointed(list.proc_array);
    let room = list.num_proc_array_entries as usize;
    list.num_proc_array_entries = details.len() as u32;
    place.put(list)?;
    fill(entries, room, &details)
}

fn fill<T: Copy>(entries: Out<T>, room: usize, values: &[T]) -> Outcome {
    if room < values.len() {
        return Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
    }
    entries.list(room, values)
}

/// One sample per process, taken now.
fn samples(device: nvmlDevice_t, last_seen: u64) -> Result<(u64, Vec<ProcessInfo>), Refusal> {
    let time_stamp = timestamp_us();
    let mut busy = processes(device)?;
    busy.retain(|process| process.utilisation > 0);
    if busy.is_empty() || last_seen >= time_stamp {
        return Err(nvmlReturn_t::ERROR_NOT_FOUND);
    }
    Ok((time_stamp, busy))
}

pub(crate) fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    utilization: Out<nvmlProcessUtilizationSample_t>,
    count: Out<u32>,
    last_seen: u64,
) -> Outcome {
    let room = count.get()? as usize;
    let (time_stamp, busy) = samples(device, last_seen)?;
    let list: Vec<_> = busy
        .iter()
        .map(|process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            time_stamp,
            sm_util: process.utilisation,
            mem_util: memory_percent(process.utilisation),
            enc_util: 0,
            dec_util: 0,
        })
        .collect();
    count.put(list.len() as u32)?;
    if utilization.is_null() {
        return Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
    }
    fill(utilization, room, &list)
}

pub(crate) fn nvmlDeviceGetProcessesUtilizationInfo(
    device: nvmlDevice_t,
    place: Out<nvmlProcessesUtilizationInfo_t>,
) -> Outcome {
    gpu(device)?;
    let mut info = place.get()?;
    if info.version != nvmlProcessesUtilizationInfo_v1 {
        return Err(nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    let (time_stamp, busy) = samples(device, info.last_seen_time_stamp)?;
    let list: Vec<_> = busy
        .iter()
        .map(|process| nvmlProcessUtilizationInfo_v1_t {
            time_stamp,
            pid: process.pid,
            sm_util: process.utilisation,
            mem_util: memory_percent(process.utilisation),
            enc_util: 0,
            dec_util: 0,
            jpg_util: 0,
            ofa_util: 0,
        })
        .collect();
    let entries = Out::pointed(info.proc_util_array);
    let room = info.process_samples_count as usize;
    info.process_samples_count = list.len() as u32;
    place.put(info)?;
    if entries.is_null() {
        return Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
    }
    fill(entries, room, &list)
}
