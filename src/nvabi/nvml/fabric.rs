//! NVLink, fabric and topology.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_fabric_fn {
    ($callback:ident) => {
        $callback! {
            [pass, none, 11080] nvmlSystemGetTopologyGpuSet(
                cpu_number: u32, count: *mut u32, device_array: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetC2cModeInfoV(
                device: nvmlDevice_t, c2c_mode_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetTopologyCommonAncestor(
                device1: nvmlDevice_t, device2: nvmlDevice_t,
                path_info: *mut nvmlGpuTopologyLevel_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetTopologyNearestGpus(
                device: nvmlDevice_t, level: nvmlGpuTopologyLevel_t, count: *mut u32,
                device_array: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetP2PStatus(
                device1: nvmlDevice_t, device2: nvmlDevice_t, p2p_index: nvmlGpuP2PCapsIndex_t,
                p2p_status: *mut nvmlGpuP2PStatus_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetGpuFabricInfo(
                device: nvmlDevice_t, gpu_fabric_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetGpuFabricInfo_v4(
                device: nvmlDevice_t, gpu_fabric_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetGpuFabricInfoV(
                device: nvmlDevice_t, gpu_fabric_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkState(
                device: nvmlDevice_t, link: u32, is_active: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkVersion(
                device: nvmlDevice_t, link: u32, version: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkCapability(
                device: nvmlDevice_t, link: u32, capability: nvmlNvLinkCapability_t,
                cap_result: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkRemotePciInfo(
                device: nvmlDevice_t, link: u32, pci: *mut nvmlPciInfo_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkRemotePciInfo_v2(
                device: nvmlDevice_t, link: u32, pci: *mut nvmlPciInfo_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkErrorCounter(
                device: nvmlDevice_t, link: u32, counter: nvmlNvLinkErrorCounter_t,
                counter_value: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceResetNvLinkErrorCounters(
                device: nvmlDevice_t, link: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceSetNvLinkUtilizationControl(
                device: nvmlDevice_t, link: u32, counter: u32, control: *mut c_void, reset: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkUtilizationControl(
                device: nvmlDevice_t, link: u32, counter: u32, control: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkUtilizationCounter(
                device: nvmlDevice_t, link: u32, counter: u32, rxcounter: *mut u64,
                txcounter: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceFreezeNvLinkUtilizationCounter(
                device: nvmlDevice_t, link: u32, counter: u32, freeze: nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceResetNvLinkUtilizationCounter(
                device: nvmlDevice_t, link: u32, counter: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetNvLinkRemoteDeviceType(
                device: nvmlDevice_t, link: u32,
                p_nv_link_device_type: *mut nvmlIntNvLinkDeviceType_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceSetNvLinkDeviceLowPowerThreshold(
                device: nvmlDevice_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemSetNvlinkBwMode(nvlink_bw_mode: u32) -> nvmlReturn_t;
            [pass, none, 12040] nvmlSystemGetNvlinkBwMode(nvlink_bw_mode: *mut u32) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetNvlinkSupportedBwModes(
                device: nvmlDevice_t, supported_bw_mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetNvlinkBwMode(
                device: nvmlDevice_t, get_bw_mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceSetNvlinkBwMode(
                device: nvmlDevice_t, set_bw_mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetNvlinkBwModeAsync_v1(
                device: nvmlDevice_t, set_bw_mode_async: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetNvLinkInfo(
                device: nvmlDevice_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetNvLinkInfo_v3(
                device: nvmlDevice_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetNvLinkTelemetrySamples_v1(
                device: nvmlDevice_t, samples: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetNvlinkRemapTableInfo_v1(
                device: nvmlDevice_t, remap_table_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetNvlinkNvleReady_v1(
                device: nvmlDevice_t, set_nvle_ready: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceLockNvlinkRemapTable_v1(
                device: nvmlDevice_t, remap_table_lock_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceSetupNvlinkNvleEncryptionKey_v1(
                device: nvmlDevice_t, encryption_key: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetNvlinkNvlePrivateInfo_v1(
                device: nvmlDevice_t, private_info: *mut c_void,
            ) -> nvmlReturn_t;
        }
    };
}
