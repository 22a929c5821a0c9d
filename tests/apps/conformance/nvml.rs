//! All queries agree: the driver's two, NVML's two, and NVML's list of processes.

use crate::child::Helper;
use crate::words::*;
use gpuslice_apps::api::{has_nvml, nvml_calls::*};
use gpuslice_nvabi::types::*;
use std::ffi::CString;

family!("nvml":
    total_is_stable, nvml_totals_agree, nvml_adds_up, nvml_v2_adds_up,
    nvml_follows_an_allocation, nvml_agrees, nvml_when_full, free_when_full,
    nvml_knows_this_process, nvml_process_uses_what_it_has, nvml_lists_a_helper,
    nvml_forgets_the_dead, nvml_lists_nothing_twice, nvml_list_too_short, nvml_null,
    old_v2_version, null_free_or_total, info_without_context, totals_agree,
    free_is_never_above_total, total_of_no_device, same_from_both_contexts;
    bare: total_needs_no_context,
);

/// The driver's UUID of the device, as NVML writes it.
pub fn uuid(gpu: Gpu) -> Outcome<String> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    ok!(cuDeviceGetUuid(&mut uuid, gpu.device));
    let digits: Vec<String> =
        uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    let all = digits.concat();
    Ok(format!(
        "GPU-{}-{}-{}-{}-{}",
        &all[..8],
        &all[8..12],
        &all[12..16],
        &all[16..20],
        &all[20..]
    ))
}

/// NVML's handle of the device.
pub fn nvml(gpu: Gpu) -> Outcome<nvmlDevice_t> {
    of_uuid(&uuid(gpu)?)
}

/// NVML's handle of the device with this UUID.
pub fn of_uuid(uuid: &str) -> Outcome<nvmlDevice_t> {
    if !has_nvml() {
        return skip("there is no NVML");
    }
    let name = CString::new(uuid).or_else(fail)?;
    let mut device = nvmlDevice_t::NULL;
    answers("nvmlInit_v2", nvmlInit_v2())?;
    answers("nvmlDeviceGetHandleByUUID", nvmlDeviceGetHandleByUUID(name.as_ptr(), &mut device))?;
    Ok(device)
}

fn answers(call: &str, code: nvmlReturn_t) -> Outcome {
    if code == nvmlReturn_t::SUCCESS {
        return Ok(());
    }
    fail(format_args!("{call} answered {code:?}"))
}

pub fn memory(device: nvmlDevice_t) -> Outcome<nvmlMemory_t> {
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    answers("nvmlDeviceGetMemoryInfo", nvmlDeviceGetMemoryInfo(device, &mut memory))?;
    Ok(memory)
}

pub fn memory_v2(device: nvmlDevice_t) -> Outcome<nvmlMemory_v2_t> {
    let version = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;
    let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
    answers("nvmlDeviceGetMemoryInfo_v2", nvmlDeviceGetMemoryInfo_v2(device, &mut memory))?;
    Ok(memory)
}

/// A driver keeps a little of the device for itself, which NVML counts.
fn near(one: u64, other: u64, total: usize) -> bool {
    one.abs_diff(other) <= total as u64 / 16
}

fn processes(device: nvmlDevice_t) -> Outcome<Vec<nvmlProcessInfo_t>> {
    let none = nvmlProcessInfo_t {
        pid: 0,
        used_gpu_memory: 0,
        gpu_instance_id: 0,
        compute_instance_id: 0,
    };
    let (mut list, mut count) = (vec![none; 1024], 1024);
    let code = nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, list.as_mut_ptr());
    answers("nvmlDeviceGetComputeRunningProcesses_v3", code)?;
    list.truncate(count as usize);
    Ok(list)
}

/// Whether NVML lists a process. In a namespace of their own processes have other numbers.
pub fn listed(device: nvmlDevice_t, pid: i32) -> Outcome<Option<nvmlProcessInfo_t>> {
    Ok(processes(device)?.into_iter().find(|one| one.pid as i32 == pid))
}

pub fn me() -> i32 {
    std::process::id() as i32
}

fn totals_agree(gpu: Gpu) -> Outcome {
    let mut total = 0;
    ok!(cuDeviceTotalMem_v2(&mut total, gpu.device));
    that!(total == gpu.total()?, "{total} by cuDeviceTotalMem, {} by cuMemGetInfo", gpu.total()?);
    Ok(())
}

fn total_needs_no_context() -> Outcome {
    let (mut total, mut device) = (0, 7);
    ok!(cuInit(0));
    ok!(cuDeviceGet(&mut device, 0));
    ok!(cuDeviceTotalMem_v2(&mut total, device));
    that!(total == gpu()?.total()?, "{total} without a context");
    Ok(())
}

fn total_is_stable(gpu: Gpu) -> Outcome {
    let before = gpu.total()?;
    gpu.alloc(gpu.part(2)?)?;
    that!(gpu.total()? == before, "the device has {} bytes and had {before}", gpu.total()?);
    Ok(())
}

fn nvml_totals_agree(gpu: Gpu) -> Outcome {
    let (device, total) = (nvml(gpu)?, gpu.total()?);
    let (one, two) = (memory(device)?.total, memory_v2(device)?.total);
    that!(one == two, "{one} by the first version, {two} by the second");
    that!(near(one, total as u64, total), "{one} by NVML, {total} by CUDA");
    Ok(())
}

fn nvml_adds_up(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    for _ in 0..4 {
        gpu.alloc(gpu.part(8)?)?;
        let memory = memory(device)?;
        that!(memory.free + memory.used == memory.total, "{memory:?}");
    }
    Ok(())
}

fn nvml_v2_adds_up(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    for _ in 0..4 {
        gpu.alloc(gpu.part(8)?)?;
        let memory = memory_v2(device)?;
        that!(memory.free + memory.used + memory.reserved == memory.total, "{memory:?}");
    }
    Ok(())
}

fn nvml_follows_an_allocation(gpu: Gpu) -> Outcome {
    let (device, bytes) = (nvml(gpu)?, gpu.part(4)?);
    let before = memory(device)?.used;
    let at = gpu.alloc(bytes)?;
    let least = before + bytes as u64 - GRAIN as u64;
    that!(memory(device)?.used >= least, "NVML does not see an allocation: {:?}", memory(device)?);
    gpu.release(at)?;
    let most = before + GRAIN as u64;
    that!(memory(device)?.used <= most, "NVML does not see a free: {:?}", memory(device)?);
    Ok(())
}

/// NVML and CUDA differ by what the driver keeps for itself, if at all.
fn agree(gpu: Gpu, device: nvmlDevice_t) -> Outcome {
    let ((free, total), memory) = (gpu.info()?, memory(device)?);
    let kept = memory.total.abs_diff(total as u64);
    that!(
        memory.free.abs_diff(free as u64) <= kept + GRAIN as u64,
        "{memory:?}, {free} of {total}"
    );
    Ok(())
}

fn nvml_agrees(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    let mut all = Vec::new();
    for _ in 0..40 {
        all.push(gpu.alloc(gpu.part(64)?)?);
        agree(gpu, device)?;
    }
    gpu.release_all(all)?;
    agree(gpu, device)
}

fn nvml_when_full(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    for step in [gpu.part(16)?, GRAIN, 4096] {
        gpu.fill(step)?;
        let (one, two) = (memory(device)?, memory_v2(device)?);
        that!(one.used <= one.total && one.free <= one.total, "{one:?}");
        that!(two.used <= two.total && two.free <= two.total, "{two:?}");
    }
    Ok(())
}

fn free_when_full(gpu: Gpu) -> Outcome {
    for step in [gpu.part(16)?, GRAIN, 4096] {
        gpu.fill(step)?;
        let (free, total) = gpu.info()?;
        that!(free < total / 8, "{free} bytes are free of {total}, and none can be had");
    }
    Ok(())
}

fn free_is_never_above_total(gpu: Gpu) -> Outcome {
    let (mut random, mut held) = (Random(3), Vec::new());
    for _ in 0..300 {
        if random.below(2) == 0 && !held.is_empty() {
            gpu.release(held.swap_remove(random.below(held.len())))?;
        } else if held.len() < 20 {
            held.push(gpu.alloc(1 + random.below(gpu.part(40)?))?);
        }
        gpu.info()?;
    }
    Ok(())
}

fn nvml_knows_this_process(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    that!(listed(device, me())?.is_some(), "NVML does not list this process");
    Ok(())
}

fn nvml_process_uses_what_it_has(gpu: Gpu) -> Outcome {
    let (device, bytes) = (nvml(gpu)?, gpu.part(4)?);
    gpu.alloc(bytes)?;
    let used = listed(device, me())?.map_or(0, |one| one.used_gpu_memory);
    // All ones: not known, as in some containers and under some drivers.
    that!(used >= bytes as u64, "this process uses {used} bytes and holds {bytes}");
    let total = memory(device)?.total;
    that!(used <= total || used == u64::MAX, "{used} bytes of {total}");
    Ok(())
}

fn nvml_lists_a_helper(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    let mut helper = Helper::start("hold", &["0"])?;
    helper.says("held")?;
    let pid = helper.pid();
    that!(listed(device, pid)?.is_some() && listed(device, me())?.is_some(), "not both are listed");
    helper.end()
}

fn nvml_forgets_the_dead(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    let mut helper = Helper::start("hold", &[&GRAIN.to_string()])?;
    helper.says("held")?;
    let pid = helper.pid();
    helper.kill()?;
    that!(listed(device, pid)?.is_none(), "NVML lists a dead process");
    Ok(())
}

fn nvml_lists_nothing_twice(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    let mut pids: Vec<u32> = processes(device)?.iter().map(|one| one.pid).collect();
    let count = pids.len();
    pids.sort_unstable();
    pids.dedup();
    that!(pids.len() == count, "a process is listed twice");
    Ok(())
}

fn nvml_list_too_short(gpu: Gpu) -> Outcome {
    let (device, mut count) = (nvml(gpu)?, 0);
    let code = nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, std::ptr::null_mut());
    that!(code == nvmlReturn_t::ERROR_INSUFFICIENT_SIZE, "it answered {code:?}");
    that!(count >= 1, "{count} processes");
    Ok(())
}

fn nvml_null(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    for code in [
        nvmlDeviceGetMemoryInfo(device, std::ptr::null_mut()),
        nvmlDeviceGetMemoryInfo_v2(device, std::ptr::null_mut()),
        nvmlDeviceGetComputeRunningProcesses_v3(device, std::ptr::null_mut(), std::ptr::null_mut()),
    ] {
        that!(code == nvmlReturn_t::ERROR_INVALID_ARGUMENT, "it answered {code:?}");
    }
    Ok(())
}

fn old_v2_version(gpu: Gpu) -> Outcome {
    let device = nvml(gpu)?;
    let mut memory = nvmlMemory_v2_t { version: 1, total: 0, reserved: 0, free: 0, used: 0 };
    let code = nvmlDeviceGetMemoryInfo_v2(device, &mut memory);
    that!(code != nvmlReturn_t::SUCCESS, "a structure of no known version is filled");
    Ok(())
}

fn null_free_or_total(_: Gpu) -> Outcome {
    let mut bytes = 0;
    says!([INVALID, SUCCESS], cuMemGetInfo_v2(std::ptr::null_mut(), &mut bytes));
    says!([INVALID, SUCCESS], cuMemGetInfo_v2(&mut bytes, std::ptr::null_mut()));
    Ok(())
}

fn total_of_no_device(gpu: Gpu) -> Outcome {
    let mut total = 0;
    for device in [99, -1] {
        says!(CUresult::ERROR_INVALID_DEVICE, cuDeviceTotalMem_v2(&mut total, device));
    }
    says!(INVALID, cuDeviceTotalMem_v2(std::ptr::null_mut(), gpu.device));
    Ok(())
}

fn info_without_context(_: Gpu) -> Outcome {
    let (mut free, mut total) = (0, 0);
    set_current(CUcontext::NULL)?;
    says!(CUresult::ERROR_INVALID_CONTEXT, cuMemGetInfo_v2(&mut free, &mut total));
    Ok(())
}

fn same_from_both_contexts(gpu: Gpu) -> Outcome {
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, gpu.device));
    gpu.alloc(gpu.part(8)?)?;
    let here = gpu.info()?;
    set_current(gpu.context)?;
    let there = gpu.info()?;
    that!(here == there, "{here:?} and {there:?}");
    Ok(())
}
