//! The library and the system: start, versions, units, confidential computing, performance
//! counters.
//!
//! No header has `nvmlInternalGetExportTable`, but `nvidia-smi` ends with "Mismatch in versions" in a process whose
//! library lacks it (580.159.04). Its tables are the real library's: what they show is not narrowed.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_system_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 11080] nvmlInit() -> nvmlReturn_t;
            [pass, sim, 11080] nvmlInit_v2() -> nvmlReturn_t;
            [pass, sim, 11080] nvmlInitWithFlags(flags: u32) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlShutdown() -> nvmlReturn_t;
            [pass, sim, 11080] nvmlErrorString(result: nvmlReturn_t) -> *const c_char;
            [pass, sim, 11080] nvmlSystemGetDriverVersion(
                version: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlSystemGetNVMLVersion(
                version: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlSystemGetCudaDriverVersion(
                cuda_driver_version: *mut i32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlSystemGetCudaDriverVersion_v2(
                cuda_driver_version: *mut i32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlSystemGetHicVersion(
                hwbc_count: *mut u32, hwbc_entries: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlSystemGetDriverBranch(
                branch_info: *mut c_void, length: u32,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlSystemGetCPER_v1(cper: *mut c_void) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlUnitGetCount(unit_count: *mut u32) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitGetHandleByIndex(
                index: u32, unit: *mut nvmlUnit_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitGetUnitInfo(
                unit: nvmlUnit_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitGetLedState(
                unit: nvmlUnit_t, state: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitGetPsuInfo(
                unit: nvmlUnit_t, psu: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitGetTemperature(
                unit: nvmlUnit_t, kind: u32, temp: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitGetFanSpeedInfo(
                unit: nvmlUnit_t, fan_speeds: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitGetDevices(
                unit: nvmlUnit_t, device_count: *mut u32, devices: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemGetConfComputeCapabilities(
                capabilities: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemGetConfComputeState(state: *mut c_void) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemGetConfComputeGpusReadyState(
                is_accepting_work: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemGetConfComputeKeyRotationThresholdInfo(
                p_key_rotation_thr_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemSetConfComputeGpusReadyState(
                is_accepting_work: u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemSetConfComputeKeyRotationThresholdInfo(
                p_key_rotation_thr_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemGetConfComputeSettings(
                settings: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlSystemGetConfComputeSettings_v2(
                settings: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlUnitSetLedState(
                unit: nvmlUnit_t, color: nvmlLedColor_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGetExcludedDeviceCount(device_count: *mut u32) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGetExcludedDeviceInfoByIndex(
                index: u32, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGetBlacklistDeviceCount(
                device_count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGetBlacklistDeviceInfoByIndex(
                index: u32, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlInternalGetExportTable(
                table: *mut *const c_void, id: *const c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpmMetricsGet(metrics_get: *mut c_void) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpmSampleFree(gpm_sample: nvmlGpmSample_t) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpmSampleAlloc(
                gpm_sample: *mut nvmlGpmSample_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpmSampleGet(
                device: nvmlDevice_t, gpm_sample: nvmlGpmSample_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpmQueryDeviceSupport(
                device: nvmlDevice_t, gpm_support: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlGpmQueryIfStreamingEnabled(
                device: nvmlDevice_t, state: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlGpmSetStreamingEnabled(
                device: nvmlDevice_t, state: u32,
            ) -> nvmlReturn_t;
        }
    };
}
