//! Clocks, power, fans, temperature and performance states.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_power_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 11080] nvmlDeviceGetClockInfo(
                device: nvmlDevice_t, kind: nvmlClockType_t, clock: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMaxClockInfo(
                device: nvmlDevice_t, kind: nvmlClockType_t, clock: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpcClkVfOffset(
                device: nvmlDevice_t, offset: *mut i32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetApplicationsClock(
                device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_m_hz: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetDefaultApplicationsClock(
                device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_m_hz: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetClock(
                device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_id: nvmlClockId_t,
                clock_m_hz: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMaxCustomerBoostClock(
                device: nvmlDevice_t, clock_type: nvmlClockType_t, clock_m_hz: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetSupportedMemoryClocks(
                device: nvmlDevice_t, count: *mut u32, clocks_m_hz: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetSupportedGraphicsClocks(
                device: nvmlDevice_t, memory_clock_m_hz: u32, count: *mut u32,
                clocks_m_hz: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetAutoBoostedClocksEnabled(
                device: nvmlDevice_t, is_enabled: *mut nvmlEnableState_t,
                default_is_enabled: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetFanSpeed(
                device: nvmlDevice_t, speed: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetFanSpeed_v2(
                device: nvmlDevice_t, fan: u32, speed: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetFanSpeedRPM(
                device: nvmlDevice_t, fan_speed: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetTargetFanSpeed(
                device: nvmlDevice_t, fan: u32, target_speed: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetMinMaxFanSpeed(
                device: nvmlDevice_t, min_speed: *mut u32, max_speed: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetFanControlPolicy_v2(
                device: nvmlDevice_t, fan: u32, policy: *mut nvmlFanControlPolicy_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetNumFans(
                device: nvmlDevice_t, num_fans: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetTemperature(
                device: nvmlDevice_t, sensor_type: nvmlTemperatureSensors_t, temp: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetCoolerInfo(
                device: nvmlDevice_t, cooler_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 12090] nvmlDeviceGetTemperatureV(
                device: nvmlDevice_t, temperature: *mut nvmlTemperature_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetTemperatureThreshold(
                device: nvmlDevice_t, threshold_type: nvmlTemperatureThresholds_t, temp: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetMarginTemperature(
                device: nvmlDevice_t, margin_temp_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetThermalSettings(
                device: nvmlDevice_t, sensor_index: u32, p_thermal_settings: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPerformanceState(
                device: nvmlDevice_t, p_state: *mut nvmlPstates_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetCurrentClocksThrottleReasons(
                device: nvmlDevice_t, clocks_throttle_reasons: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetSupportedClocksThrottleReasons(
                device: nvmlDevice_t, supported_clocks_throttle_reasons: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPowerState(
                device: nvmlDevice_t, p_state: *mut nvmlPstates_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetDynamicPstatesInfo(
                device: nvmlDevice_t, p_dynamic_pstates_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetMemClkVfOffset(
                device: nvmlDevice_t, offset: *mut i32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetMinMaxClockOfPState(
                device: nvmlDevice_t, kind: nvmlClockType_t, pstate: nvmlPstates_t,
                min_clock_m_hz: *mut u32, max_clock_m_hz: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetSupportedPerformanceStates(
                device: nvmlDevice_t, pstates: *mut nvmlPstates_t, size: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpcClkMinMaxVfOffset(
                device: nvmlDevice_t, min_offset: *mut i32, max_offset: *mut i32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetMemClkMinMaxVfOffset(
                device: nvmlDevice_t, min_offset: *mut i32, max_offset: *mut i32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetClockOffsets(
                device: nvmlDevice_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceSetClockOffsets(
                device: nvmlDevice_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetPerformanceModes(
                device: nvmlDevice_t, perf_modes: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetCurrentClockFreqs(
                device: nvmlDevice_t, current_clock_freqs: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPowerManagementMode(
                device: nvmlDevice_t, mode: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPowerManagementLimit(
                device: nvmlDevice_t, limit: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPowerManagementLimitConstraints(
                device: nvmlDevice_t, min_limit: *mut u32, max_limit: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPowerManagementDefaultLimit(
                device: nvmlDevice_t, default_limit: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPowerUsage(
                device: nvmlDevice_t, power: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetPowerMizerMode_v1(
                device: nvmlDevice_t, power_mizer_mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetPowerMizerMode_v1(
                device: nvmlDevice_t, power_mizer_mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetTotalEnergyConsumption(
                device: nvmlDevice_t, energy: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetEnforcedPowerLimit(
                device: nvmlDevice_t, limit: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetAdaptiveTgpMode_v1(
                device: nvmlDevice_t, mode: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetAdaptiveTgpModeInfo_v1(
                device: nvmlDevice_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetViolationStatus(
                device: nvmlDevice_t, perf_policy_type: nvmlPerfPolicyType_t,
                viol_time: *mut nvmlViolationTime_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetPowerSource(
                device: nvmlDevice_t, power_source: *mut nvmlPowerSource_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetAdaptiveClockInfoStatus(
                device: nvmlDevice_t, adaptive_clock_status: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetPowerManagementLimit(
                device: nvmlDevice_t, limit: u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceSetPowerManagementLimit_v2(
                device: nvmlDevice_t, power_value: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDevicePerfMetricsGetSamples_v1(
                device: nvmlDevice_t, samples: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetGpuLockedClocks(
                device: nvmlDevice_t, min_gpu_clock_m_hz: u32, max_gpu_clock_m_hz: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceResetGpuLockedClocks(
                device: nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetMemoryLockedClocks(
                device: nvmlDevice_t, min_mem_clock_m_hz: u32, max_mem_clock_m_hz: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceResetMemoryLockedClocks(
                device: nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetApplicationsClocks(
                device: nvmlDevice_t, mem_clock_m_hz: u32, graphics_clock_m_hz: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceResetApplicationsClocks(
                device: nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetAutoBoostedClocksEnabled(
                device: nvmlDevice_t, enabled: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetDefaultAutoBoostedClocksEnabled(
                device: nvmlDevice_t, enabled: nvmlEnableState_t, flags: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetDefaultFanSpeed_v2(
                device: nvmlDevice_t, fan: u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceSetFanControlPolicy(
                device: nvmlDevice_t, fan: u32, policy: nvmlFanControlPolicy_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetTemperatureThreshold(
                device: nvmlDevice_t, threshold_type: nvmlTemperatureThresholds_t, temp: *mut i32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetFanSpeed_v2(
                device: nvmlDevice_t, fan: u32, speed: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetGpcClkVfOffset(
                device: nvmlDevice_t, offset: i32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetMemClkVfOffset(
                device: nvmlDevice_t, offset: i32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceWorkloadPowerProfileGetProfilesInfo(
                device: nvmlDevice_t, profiles_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(
                device: nvmlDevice_t, current_profiles: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(
                device: nvmlDevice_t, requested_profiles: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(
                device: nvmlDevice_t, requested_profiles: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(
                device: nvmlDevice_t, update_profiles: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDevicePowerSmoothingActivatePresetProfile(
                device: nvmlDevice_t, profile: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDevicePowerSmoothingUpdatePresetProfileParam(
                device: nvmlDevice_t, profile: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDevicePowerSmoothingSetState(
                device: nvmlDevice_t, state: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetPowerMode(
                device: nvmlDevice_t, power_mode_id: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetSupportedPowerModes(
                device: nvmlDevice_t, supported_power_modes: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetPowerMode(
                device: nvmlDevice_t, power_mode_id: u32,
            ) -> nvmlReturn_t;
        }
    };
}
