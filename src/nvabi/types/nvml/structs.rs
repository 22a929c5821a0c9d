//! The structures of NVML (nvml.h 13.5); sizes and offsets were read from the header with a C
//! compiler.
//!
//! Versioned structures carry `version` = size | (version << 24), set by the caller:
//! `nvmlMemory_v2` etc. in `consts`. Texts are NUL-terminated inside their arrays.

use crate::types::*;

/// A sample's value; which member, `nvmlValueType_t` says.
#[repr(C)]
#[derive(Clone, Copy)]
pub union nvmlValue_t {
    pub double: f64,
    pub int: i32,
    pub uint: u32,
    pub ulong: u64,
    pub ulonglong: u64,
    pub longlong: i64,
    pub ushort: u16,
}
layout!(nvmlValue_t, 8, double: 0, uint: 0);

/// A device's memory in bytes; `used` includes what the driver reserves.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlMemory_t {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}
layout!(nvmlMemory_t, 24, total: 0, free: 8, used: 16);

/// A device's memory in bytes, the driver's reservation apart.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlMemory_v2_t {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}
layout!(nvmlMemory_v2_t, 40, version: 0, total: 8, reserved: 16, free: 24, used: 32);

/// The host-visible window of a device, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlBAR1Memory_t {
    pub bar1_total: u64,
    pub bar1_free: u64,
    pub bar1_used: u64,
}
layout!(nvmlBAR1Memory_t, 24, bar1_total: 0, bar1_free: 8, bar1_used: 16);

/// Percent of the last sample period in which the device was busy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlUtilization_t {
    pub gpu: u32,
    pub memory: u32,
}
layout!(nvmlUtilization_t, 8, gpu: 0, memory: 4);

/// One process on a device, as the oldest process list reports it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessInfo_v1_t {
    pub pid: u32,
    pub used_gpu_memory: u64,
}
layout!(nvmlProcessInfo_v1_t, 16, pid: 0, used_gpu_memory: 8);

/// One process on a device, with its MIG instances (the v2 and v3 lists).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessInfo_t {
    pub pid: u32,
    pub used_gpu_memory: u64,
    pub gpu_instance_id: u32,
    pub compute_instance_id: u32,
}
layout!(
    nvmlProcessInfo_t,
    24,
    pid: 0, used_gpu_memory: 8, gpu_instance_id: 16, compute_instance_id: 20,
);

/// One process on a device, with memory protected by confidential computing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessDetail_v1_t {
    pub pid: u32,
    pub used_gpu_memory: u64,
    pub gpu_instance_id: u32,
    pub compute_instance_id: u32,
    pub used_gpu_cc_protected_memory: u64,
}
layout!(
    nvmlProcessDetail_v1_t,
    32,
    pid: 0, used_gpu_memory: 8, gpu_instance_id: 16, compute_instance_id: 20,
    used_gpu_cc_protected_memory: 24,
);

/// The list `nvmlDeviceGetRunningProcessDetailList` fills; the caller gives the room.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessDetailList_t {
    pub version: u32,
    pub mode: u32,
    pub num_proc_array_entries: u32,
    pub proc_array: *mut nvmlProcessDetail_v1_t,
}
layout!(
    nvmlProcessDetailList_t,
    24,
    version: 0, mode: 4, num_proc_array_entries: 8, proc_array: 16,
);

/// One process's share of a device in percent, at `time_stamp` (µs since the epoch).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessUtilizationSample_t {
    pub pid: u32,
    pub time_stamp: u64,
    pub sm_util: u32,
    pub mem_util: u32,
    pub enc_util: u32,
    pub dec_util: u32,
}
layout!(
    nvmlProcessUtilizationSample_t,
    32,
    pid: 0, time_stamp: 8, sm_util: 16, mem_util: 20, enc_util: 24, dec_util: 28,
);

/// One process's share of a device, with JPEG and optical flow engines.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessUtilizationInfo_v1_t {
    pub time_stamp: u64,
    pub pid: u32,
    pub sm_util: u32,
    pub mem_util: u32,
    pub enc_util: u32,
    pub dec_util: u32,
    pub jpg_util: u32,
    pub ofa_util: u32,
}
layout!(
    nvmlProcessUtilizationInfo_v1_t,
    40,
    time_stamp: 0, pid: 8, sm_util: 12, mem_util: 16, enc_util: 20, dec_util: 24, jpg_util: 28,
    ofa_util: 32,
);

/// The list `nvmlDeviceGetProcessesUtilizationInfo` fills; the caller gives the room.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessesUtilizationInfo_t {
    pub version: u32,
    pub process_samples_count: u32,
    pub last_seen_time_stamp: u64,
    pub proc_util_array: *mut nvmlProcessUtilizationInfo_v1_t,
}
layout!(
    nvmlProcessesUtilizationInfo_t,
    24,
    version: 0, process_samples_count: 4, last_seen_time_stamp: 8, proc_util_array: 16,
);

/// Where a device sits on the PCI bus, as numbers and as text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlPciInfo_t {
    pub bus_id_legacy: [c_char; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device_id: u32,
    pub pci_sub_system_id: u32,
    pub bus_id: [c_char; 32],
}
layout!(
    nvmlPciInfo_t,
    68,
    bus_id_legacy: 0, domain: 16, bus: 20, device: 24, pci_device_id: 28, pci_sub_system_id: 32,
    bus_id: 36,
);

/// Where a device sits on the PCI bus, with class codes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlPciInfoExt_t {
    pub version: u32,
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device_id: u32,
    pub pci_sub_system_id: u32,
    pub base_class: u32,
    pub sub_class: u32,
    pub bus_id: [c_char; 32],
}
layout!(
    nvmlPciInfoExt_t,
    64,
    version: 0, domain: 4, bus: 8, device: 12, pci_device_id: 16, pci_sub_system_id: 20,
    base_class: 24, sub_class: 28, bus_id: 32,
);

/// One event: device, kind and, for an Xid, its number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlEventData_t {
    pub device: nvmlDevice_t,
    pub event_type: u64,
    pub event_data: u64,
    pub gpu_instance_id: u32,
    pub compute_instance_id: u32,
}
layout!(
    nvmlEventData_t,
    32,
    device: 0, event_type: 8, event_data: 16, gpu_instance_id: 24, compute_instance_id: 28,
);

/// Limits to set on a process or a cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlSetMemoryLimits_v1_t {
    pub name_space: *const c_char,
    pub soft_limit: u64,
    pub hard_limit: u64,
}
layout!(nvmlSetMemoryLimits_v1_t, 24, name_space: 0, soft_limit: 8, hard_limit: 16);

/// Limits in force on a process or a cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlGetMemoryLimits_v1_t {
    pub name_space: *const c_char,
    pub soft_limit: u64,
    pub hard_limit: u64,
    pub current_used: u64,
}
layout!(
    nvmlGetMemoryLimits_v1_t,
    32,
    name_space: 0, soft_limit: 8, hard_limit: 16, current_used: 24,
);

/// One sample: µs since the epoch, and its value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSample_t {
    pub time_stamp: u64,
    pub sample_value: nvmlValue_t,
}
layout!(nvmlSample_t, 16, time_stamp: 0, sample_value: 8);

/// One field asked for by id, and its answer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlFieldValue_t {
    pub field_id: u32,
    pub scope_id: u32,
    pub timestamp: i64,
    pub latency_usec: i64,
    pub value_type: nvmlValueType_t,
    pub nvml_return: nvmlReturn_t,
    pub value: nvmlValue_t,
}
layout!(
    nvmlFieldValue_t,
    40,
    field_id: 0, scope_id: 4, timestamp: 8, latency_usec: 16, value_type: 24, nvml_return: 28,
    value: 32,
);

/// How long (ns) a policy has held the clocks down.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlViolationTime_t {
    pub reference_time: u64,
    pub violation_time: u64,
}
layout!(nvmlViolationTime_t, 16, reference_time: 0, violation_time: 8);

/// What a (MIG) device has of each unit.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlDeviceAttributes_t {
    pub multiprocessor_count: u32,
    pub shared_copy_engine_count: u32,
    pub shared_decoder_count: u32,
    pub shared_encoder_count: u32,
    pub shared_jpeg_count: u32,
    pub shared_ofa_count: u32,
    pub gpu_instance_slice_count: u32,
    pub compute_instance_slice_count: u32,
    pub memory_size_mb: u64,
}
layout!(
    nvmlDeviceAttributes_t,
    40,
    multiprocessor_count: 0, shared_copy_engine_count: 4, shared_decoder_count: 8,
    shared_encoder_count: 12, shared_jpeg_count: 16, shared_ofa_count: 20,
    gpu_instance_slice_count: 24, compute_instance_slice_count: 28, memory_size_mb: 32,
);

/// What one process did on a device over its life.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlAccountingStats_t {
    pub gpu_utilization: u32,
    pub memory_utilization: u32,
    pub max_memory_usage: u64,
    pub time: u64,
    pub start_time: u64,
    pub is_running: u32,
    pub reserved: [u32; 5],
}
layout!(
    nvmlAccountingStats_t,
    56,
    gpu_utilization: 0, memory_utilization: 4, max_memory_usage: 8, time: 16, start_time: 24,
    is_running: 32, reserved: 36,
);

/// A temperature in °C, by sensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlTemperature_t {
    pub version: u32,
    pub sensor_type: nvmlTemperatureSensors_t,
    pub temperature: i32,
}
layout!(nvmlTemperature_t, 12, version: 0, sensor_type: 4, temperature: 8);

/// ECC errors by place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlEccErrorCounts_t {
    pub l1_cache: u64,
    pub l2_cache: u64,
    pub device_memory: u64,
    pub register_file: u64,
}
layout!(nvmlEccErrorCounts_t, 32, l1_cache: 0, l2_cache: 8, device_memory: 16, register_file: 24);

/// A UUID to look a device up by: as text (41 bytes with its NUL) or as 16 bytes, by `kind`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlUUID_t {
    pub version: u32,
    pub kind: u32,
    pub value: [u8; 41],
}
layout!(nvmlUUID_t, 52, version: 0, kind: 4, value: 8);
