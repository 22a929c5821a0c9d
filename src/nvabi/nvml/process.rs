//! Memory, processes, utilisation and accounting.
//!
//! The functions that `nvidia-smi` and similar tools use. They must show the slice: its cap as the total, and
//! its own processes only.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_process_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 11080] nvmlSystemGetProcessName(
                pid: u32, name: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetMemoryInfo(
                device: nvmlDevice_t, memory: *mut nvmlMemory_t,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetMemoryInfo_v2(
                device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t,
            ) -> nvmlReturn_t;
            [pass, sim, 13050] nvmlDeviceSetMemoryLimits_v1(
                device: nvmlDevice_t, limits: *mut nvmlSetMemoryLimits_v1_t,
            ) -> nvmlReturn_t;
            [pass, sim, 13050] nvmlDeviceGetMemoryLimits_v1(
                device: nvmlDevice_t, limits: *mut nvmlGetMemoryLimits_v1_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetUtilizationRates(
                device: nvmlDevice_t, utilization: *mut nvmlUtilization_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetEncoderUtilization(
                device: nvmlDevice_t, utilization: *mut u32, sampling_period_us: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetEncoderCapacity(
                device: nvmlDevice_t, encoder_query_type: nvmlEncoderType_t,
                encoder_capacity: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetEncoderStats(
                device: nvmlDevice_t, session_count: *mut u32, average_fps: *mut u32,
                average_latency: *mut u32,
            ) -> nvmlReturn_t;
            [hook, none, 11080] nvmlDeviceGetEncoderSessions(
                device: nvmlDevice_t, session_count: *mut u32, session_infos: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetDecoderUtilization(
                device: nvmlDevice_t, utilization: *mut u32, sampling_period_us: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 12040] nvmlDeviceGetJpgUtilization(
                device: nvmlDevice_t, utilization: *mut u32, sampling_period_us: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 12040] nvmlDeviceGetOfaUtilization(
                device: nvmlDevice_t, utilization: *mut u32, sampling_period_us: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetFBCStats(
                device: nvmlDevice_t, fbc_stats: *mut c_void,
            ) -> nvmlReturn_t;
            [hook, none, 11080] nvmlDeviceGetFBCSessions(
                device: nvmlDevice_t, session_count: *mut u32, session_info: *mut c_void,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetComputeRunningProcesses(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut nvmlProcessInfo_v1_t,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetComputeRunningProcesses_v2(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut c_void,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetComputeRunningProcesses_v3(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut nvmlProcessInfo_t,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetGraphicsRunningProcesses(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut nvmlProcessInfo_v1_t,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetGraphicsRunningProcesses_v2(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut c_void,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetGraphicsRunningProcesses_v3(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut nvmlProcessInfo_t,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetMPSComputeRunningProcesses(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut nvmlProcessInfo_v1_t,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetMPSComputeRunningProcesses_v2(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut c_void,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetMPSComputeRunningProcesses_v3(
                device: nvmlDevice_t, info_count: *mut u32, infos: *mut nvmlProcessInfo_t,
            ) -> nvmlReturn_t;
            [hook, sim, 12040] nvmlDeviceGetRunningProcessDetailList(
                device: nvmlDevice_t, plist: *mut nvmlProcessDetailList_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetSamples(
                device: nvmlDevice_t, kind: nvmlSamplingType_t, last_seen_time_stamp: u64,
                sample_val_type: *mut nvmlValueType_t, sample_count: *mut u32,
                samples: *mut nvmlSample_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetBAR1MemoryInfo(
                device: nvmlDevice_t, bar1_memory: *mut nvmlBAR1Memory_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetAccountingMode(
                device: nvmlDevice_t, mode: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [hook, none, 11080] nvmlDeviceGetAccountingStats(
                device: nvmlDevice_t, pid: u32, stats: *mut nvmlAccountingStats_t,
            ) -> nvmlReturn_t;
            [hook, none, 13050] nvmlDeviceGetAccountingStats_v2(
                device: nvmlDevice_t, stats: *mut c_void,
            ) -> nvmlReturn_t;
            [hook, none, 11080] nvmlDeviceGetAccountingPids(
                device: nvmlDevice_t, count: *mut u32, pids: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetAccountingBufferSize(
                device: nvmlDevice_t, buffer_size: *mut u32,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetProcessUtilization(
                device: nvmlDevice_t, utilization: *mut nvmlProcessUtilizationSample_t,
                process_samples_count: *mut u32, last_seen_time_stamp: u64,
            ) -> nvmlReturn_t;
            [hook, sim, 12040] nvmlDeviceGetProcessesUtilizationInfo(
                device: nvmlDevice_t, proceses_util_info: *mut nvmlProcessesUtilizationInfo_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetAccountingMode(
                device: nvmlDevice_t, mode: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceClearAccountingPids(device: nvmlDevice_t) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetFieldValues(
                device: nvmlDevice_t, values_count: i32, values: *mut nvmlFieldValue_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceClearFieldValues(
                device: nvmlDevice_t, values_count: i32, values: *mut nvmlFieldValue_t,
            ) -> nvmlReturn_t;
        }
    };
}
