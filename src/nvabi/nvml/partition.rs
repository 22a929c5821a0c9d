//! MIG: GPU instances and compute instances.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_partition_fn {
    ($callback:ident) => {
        $callback! {
            [pass, none, 11080] nvmlDeviceSetMigMode(
                device: nvmlDevice_t, mode: u32, activation_status: *mut nvmlReturn_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMigMode(
                device: nvmlDevice_t, current_mode: *mut u32, pending_mode: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstanceProfileInfo(
                device: nvmlDevice_t, profile: u32, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstanceProfileInfoV(
                device: nvmlDevice_t, profile: u32, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetGpuInstanceProfileInfoByIdV(
                device: nvmlDevice_t, profile_id: u32, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstancePossiblePlacements(
                device: nvmlDevice_t, profile_id: u32, placements: *mut c_void, count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device: nvmlDevice_t, profile_id: u32, placements: *mut c_void, count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstanceRemainingCapacity(
                device: nvmlDevice_t, profile_id: u32, count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceCreateGpuInstance(
                device: nvmlDevice_t, profile_id: u32, gpu_instance: *mut nvmlGpuInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceCreateGpuInstanceWithPlacement(
                device: nvmlDevice_t, profile_id: u32, placement: *const c_void,
                gpu_instance: *mut nvmlGpuInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceDestroy(
                gpu_instance: nvmlGpuInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstances(
                device: nvmlDevice_t, profile_id: u32, gpu_instances: *mut nvmlGpuInstance_t,
                count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstanceById(
                device: nvmlDevice_t, id: u32, gpu_instance: *mut nvmlGpuInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceGetInfo(
                gpu_instance: nvmlGpuInstance_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceGetComputeInstanceProfileInfo(
                gpu_instance: nvmlGpuInstance_t, profile: u32, eng_profile: u32, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceGetComputeInstanceProfileInfoV(
                gpu_instance: nvmlGpuInstance_t, profile: u32, eng_profile: u32, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
                gpu_instance: nvmlGpuInstance_t, profile_id: u32, count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlGpuInstanceGetComputeInstancePossiblePlacements(
                gpu_instance: nvmlGpuInstance_t, profile_id: u32, placements: *mut c_void,
                count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceCreateComputeInstance(
                gpu_instance: nvmlGpuInstance_t, profile_id: u32,
                compute_instance: *mut nvmlComputeInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                gpu_instance: nvmlGpuInstance_t, profile_id: u32, placement: *const c_void,
                compute_instance: *mut nvmlComputeInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlComputeInstanceDestroy(
                compute_instance: nvmlComputeInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceGetComputeInstances(
                gpu_instance: nvmlGpuInstance_t, profile_id: u32,
                compute_instances: *mut nvmlComputeInstance_t, count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlGpuInstanceGetComputeInstanceById(
                gpu_instance: nvmlGpuInstance_t, id: u32,
                compute_instance: *mut nvmlComputeInstance_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlComputeInstanceGetInfo(
                compute_instance: nvmlComputeInstance_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlComputeInstanceGetInfo_v2(
                compute_instance: nvmlComputeInstance_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceIsMigDeviceHandle(
                device: nvmlDevice_t, is_mig_device: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuInstanceId(
                device: nvmlDevice_t, id: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetComputeInstanceId(
                device: nvmlDevice_t, id: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMaxMigDeviceCount(
                device: nvmlDevice_t, count: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetMigDeviceHandleByIndex(
                device: nvmlDevice_t, index: u32, mig_device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
                mig_device: nvmlDevice_t, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlGpmMigSampleGet(
                device: nvmlDevice_t, gpu_instance_id: u32, gpm_sample: nvmlGpmSample_t,
            ) -> nvmlReturn_t;
        }
    };
}
