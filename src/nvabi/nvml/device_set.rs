//! Changing a device; refused to a tenant by the driver unless it is root.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_device_set_fn {
    ($callback:ident) => {
        $callback! {
            [pass, none, 11080] nvmlDeviceSetCpuAffinity(device: nvmlDevice_t) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceClearCpuAffinity(device: nvmlDevice_t) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceValidateInforom(device: nvmlDevice_t) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceSetDramEncryptionMode(
                device: nvmlDevice_t, dram_encryption: *const c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceSetConfComputeUnprotectedMemSize(
                device: nvmlDevice_t, size_ki_b: u64,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetHostname_v1(
                device: nvmlDevice_t, hostname: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetPersistenceMode(
                device: nvmlDevice_t, mode: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetComputeMode(
                device: nvmlDevice_t, mode: nvmlComputeMode_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetEccMode(
                device: nvmlDevice_t, ecc: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceClearEccErrorCounts(
                device: nvmlDevice_t, counter_type: nvmlEccCounterType_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetDriverModel(
                device: nvmlDevice_t, driver_model: nvmlDriverModel_t, flags: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetGpuOperationMode(
                device: nvmlDevice_t, mode: nvmlGpuOperationMode_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetAPIRestriction(
                device: nvmlDevice_t, api_type: nvmlRestrictedAPI_t,
                is_restricted: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceModifyDrainState(
                pci_info: *mut nvmlPciInfo_t, new_state: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceRemoveGpu(pci_info: *mut nvmlPciInfo_t) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceRemoveGpu_v2(
                pci_info: *mut nvmlPciInfo_t, gpu_state: nvmlDetachGpuState_t,
                link_state: nvmlPcieLinkState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceDiscoverGpus(
                pci_info: *mut nvmlPciInfo_t,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceReadWritePRM_v1(
                device: nvmlDevice_t, buffer: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceReadPRMCounters_v1(
                device: nvmlDevice_t, counter_list: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetRusdSettings_v1(
                device: nvmlDevice_t, settings: *mut c_void,
            ) -> nvmlReturn_t;
        }
    };
}
