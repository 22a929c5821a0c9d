//! Virtual GPUs, the host's side of a hypervisor.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_vgpu_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 11080] nvmlDeviceGetVirtualizationMode(
                device: nvmlDevice_t, p_virtual_mode: *mut nvmlGpuVirtualizationMode_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetHostVgpuMode(
                device: nvmlDevice_t, p_host_vgpu_mode: *mut nvmlHostVgpuMode_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetVirtualizationMode(
                device: nvmlDevice_t, virtual_mode: nvmlGpuVirtualizationMode_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuHeterogeneousMode(
                device: nvmlDevice_t, p_heterogeneous_mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceSetVgpuHeterogeneousMode(
                device: nvmlDevice_t, p_heterogeneous_mode: *const c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlVgpuInstanceGetPlacementId(
                vgpu_instance: nvmlVgpuInstance_t, p_placement: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuTypeSupportedPlacements(
                device: nvmlDevice_t, vgpu_type_id: nvmlVgpuTypeId_t,
                p_placement_list: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuTypeCreatablePlacements(
                device: nvmlDevice_t, vgpu_type_id: nvmlVgpuTypeId_t,
                p_placement_list: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlVgpuTypeGetGspHeapSize(
                vgpu_type_id: nvmlVgpuTypeId_t, gsp_heap_size: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlVgpuTypeGetFbReservation(
                vgpu_type_id: nvmlVgpuTypeId_t, fb_reservation: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlVgpuInstanceGetRuntimeStateSize(
                vgpu_instance: nvmlVgpuInstance_t, p_state: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceSetVgpuCapabilities(
                device: nvmlDevice_t, capability: nvmlDeviceVgpuCapability_t,
                state: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceVgpuForceGspUnload(device: nvmlDevice_t) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGridLicensableFeatures(
                device: nvmlDevice_t, p_grid_licensable_features: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGridLicensableFeatures_v2(
                device: nvmlDevice_t, p_grid_licensable_features: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGridLicensableFeatures_v3(
                device: nvmlDevice_t, p_grid_licensable_features: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGridLicensableFeatures_v4(
                device: nvmlDevice_t, p_grid_licensable_features: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlGetVgpuDriverCapabilities(
                capability: nvmlVgpuDriverCapability_t, cap_result: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuCapabilities(
                device: nvmlDevice_t, capability: nvmlDeviceVgpuCapability_t, cap_result: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetSupportedVgpus(
                device: nvmlDevice_t, vgpu_count: *mut u32, vgpu_type_ids: *mut nvmlVgpuTypeId_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetCreatableVgpus(
                device: nvmlDevice_t, vgpu_count: *mut u32, vgpu_type_ids: *mut nvmlVgpuTypeId_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetClass(
                vgpu_type_id: nvmlVgpuTypeId_t, vgpu_type_class: *mut c_char, size: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetName(
                vgpu_type_id: nvmlVgpuTypeId_t, vgpu_type_name: *mut c_char, size: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetGpuInstanceProfileId(
                vgpu_type_id: nvmlVgpuTypeId_t, gpu_instance_profile_id: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetDeviceID(
                vgpu_type_id: nvmlVgpuTypeId_t, device_id: *mut u64, subsystem_id: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetFramebufferSize(
                vgpu_type_id: nvmlVgpuTypeId_t, fb_size: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetNumDisplayHeads(
                vgpu_type_id: nvmlVgpuTypeId_t, num_display_heads: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetResolution(
                vgpu_type_id: nvmlVgpuTypeId_t, display_index: u32, xdim: *mut u32, ydim: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetLicense(
                vgpu_type_id: nvmlVgpuTypeId_t, vgpu_type_license_string: *mut c_char, size: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetFrameRateLimit(
                vgpu_type_id: nvmlVgpuTypeId_t, frame_rate_limit: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetMaxInstances(
                device: nvmlDevice_t, vgpu_type_id: nvmlVgpuTypeId_t,
                vgpu_instance_count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetMaxInstancesPerVm(
                vgpu_type_id: nvmlVgpuTypeId_t, vgpu_instance_count_per_vm: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlVgpuTypeGetBAR1Info(
                vgpu_type_id: nvmlVgpuTypeId_t, bar1_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetActiveVgpus(
                device: nvmlDevice_t, vgpu_count: *mut u32,
                vgpu_instances: *mut nvmlVgpuInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetVmID(
                vgpu_instance: nvmlVgpuInstance_t, vm_id: *mut c_char, size: u32,
                vm_id_type: *mut nvmlVgpuVmIdType_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetUUID(
                vgpu_instance: nvmlVgpuInstance_t, uuid: *mut c_char, size: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetVmDriverVersion(
                vgpu_instance: nvmlVgpuInstance_t, version: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetFbUsage(
                vgpu_instance: nvmlVgpuInstance_t, fb_usage: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetLicenseStatus(
                vgpu_instance: nvmlVgpuInstance_t, licensed: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetType(
                vgpu_instance: nvmlVgpuInstance_t, vgpu_type_id: *mut nvmlVgpuTypeId_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetFrameRateLimit(
                vgpu_instance: nvmlVgpuInstance_t, frame_rate_limit: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetEccMode(
                vgpu_instance: nvmlVgpuInstance_t, ecc_mode: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetEncoderCapacity(
                vgpu_instance: nvmlVgpuInstance_t, encoder_capacity: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceSetEncoderCapacity(
                vgpu_instance: nvmlVgpuInstance_t, encoder_capacity: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetEncoderStats(
                vgpu_instance: nvmlVgpuInstance_t, session_count: *mut u32, average_fps: *mut u32,
                average_latency: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetEncoderSessions(
                vgpu_instance: nvmlVgpuInstance_t, session_count: *mut u32,
                session_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetFBCStats(
                vgpu_instance: nvmlVgpuInstance_t, fbc_stats: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetFBCSessions(
                vgpu_instance: nvmlVgpuInstance_t, session_count: *mut u32,
                session_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetGpuInstanceId(
                vgpu_instance: nvmlVgpuInstance_t, gpu_instance_id: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetGpuPciId(
                vgpu_instance: nvmlVgpuInstance_t, vgpu_pci_id: *mut c_char, length: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuTypeGetCapabilities(
                vgpu_type_id: nvmlVgpuTypeId_t, capability: nvmlVgpuCapability_t,
                cap_result: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetMdevUUID(
                vgpu_instance: nvmlVgpuInstance_t, mdev_uuid: *mut c_char, size: u32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceGetCreatableVgpus(
                gpu_instance: nvmlGpuInstance_t, p_vgpus: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlVgpuTypeGetMaxInstancesPerGpuInstance(
                p_max_instance: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceGetActiveVgpus(
                gpu_instance: nvmlGpuInstance_t, p_vgpu_instance_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceSetVgpuSchedulerState(
                gpu_instance: nvmlGpuInstance_t, p_scheduler: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlGpuInstanceSetVgpuSchedulerState_v2(
                gpu_instance: nvmlGpuInstance_t, p_scheduler_state: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceGetVgpuSchedulerState(
                gpu_instance: nvmlGpuInstance_t, p_scheduler_state_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlGpuInstanceGetVgpuSchedulerState_v2(
                gpu_instance: nvmlGpuInstance_t, p_scheduler_state_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceGetVgpuSchedulerLog(
                gpu_instance: nvmlGpuInstance_t, p_scheduler_log_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlGpuInstanceGetVgpuSchedulerLog_v2(
                gpu_instance: nvmlGpuInstance_t, p_scheduler_log_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceGetVgpuTypeCreatablePlacements(
                gpu_instance: nvmlGpuInstance_t, p_creatable_placement_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceGetVgpuHeterogeneousMode(
                gpu_instance: nvmlGpuInstance_t, p_heterogeneous_mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlGpuInstanceSetVgpuHeterogeneousMode(
                gpu_instance: nvmlGpuInstance_t, p_heterogeneous_mode: *const c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuSchedulerState(
                device: nvmlDevice_t, p_scheduler_state: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetVgpuSchedulerState_v2(
                device: nvmlDevice_t, p_scheduler_state_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuSchedulerLog(
                device: nvmlDevice_t, p_scheduler_log: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetVgpuSchedulerLog_v2(
                device: nvmlDevice_t, p_scheduler_log_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceSetVgpuSchedulerState(
                device: nvmlDevice_t, p_scheduler_state: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetVgpuSchedulerState_v2(
                device: nvmlDevice_t, p_scheduler_state: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetMetadata(
                vgpu_instance: nvmlVgpuInstance_t, vgpu_metadata: *mut c_void,
                buffer_size: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetVgpuMetadata(
                device: nvmlDevice_t, pgpu_metadata: *mut c_void, buffer_size: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGetVgpuCompatibility(
                vgpu_metadata: *mut c_void, pgpu_metadata: *mut c_void,
                compatibility_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuSchedulerCapabilities(
                device: nvmlDevice_t, p_capabilities: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGetVgpuVersion(
                supported: *mut c_void, current: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlSetVgpuVersion(vgpu_version: *mut c_void) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetVgpuUtilization(
                device: nvmlDevice_t, last_seen_time_stamp: u64,
                sample_val_type: *mut nvmlValueType_t, vgpu_instance_samples_count: *mut u32,
                utilization_samples: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuInstancesUtilizationInfo(
                device: nvmlDevice_t, vgpu_util_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetVgpuProcessUtilization(
                device: nvmlDevice_t, last_seen_time_stamp: u64,
                vgpu_process_samples_count: *mut u32, utilization_samples: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetVgpuProcessesUtilizationInfo(
                device: nvmlDevice_t, vgpu_proc_util_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetAccountingMode(
                vgpu_instance: nvmlVgpuInstance_t, mode: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetAccountingPids(
                vgpu_instance: nvmlVgpuInstance_t, count: *mut u32, pids: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetAccountingStats(
                vgpu_instance: nvmlVgpuInstance_t, pid: u32, stats: *mut nvmlAccountingStats_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceClearAccountingPids(
                vgpu_instance: nvmlVgpuInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetLicenseInfo(
                vgpu_instance: nvmlVgpuInstance_t, license_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlVgpuInstanceGetLicenseInfo_v2(
                vgpu_instance: nvmlVgpuInstance_t, license_info: *mut c_void,
            ) -> nvmlReturn_t;
        }
    };
}
