//! Properties of a device: identity, bus, modes, errors.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_device_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 11080] nvmlDeviceGetCount(device_count: *mut u32) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetCount_v2(device_count: *mut u32) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetAttributes(
                device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t,
            ) -> nvmlReturn_t;
            [hook, sim, 11080] nvmlDeviceGetAttributes_v2(
                device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetHandleByIndex(
                index: u32, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetHandleByIndex_v2(
                index: u32, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetHandleBySerial(
                serial: *const c_char, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetHandleByUUID(
                uuid: *const c_char, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 12090] nvmlDeviceGetHandleByUUIDV(
                uuid: *const nvmlUUID_t, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetHandleByPciBusId(
                pci_bus_id: *const c_char, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetHandleByPciBusId_v2(
                pci_bus_id: *const c_char, device: *mut nvmlDevice_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetName(
                device: nvmlDevice_t, name: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetBrand(
                device: nvmlDevice_t, kind: *mut nvmlBrandType_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetIndex(
                device: nvmlDevice_t, index: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetSerial(
                device: nvmlDevice_t, serial: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetModuleId(
                device: nvmlDevice_t, module_id: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetMemoryAffinity(
                device: nvmlDevice_t, node_set_size: u32, node_set: *mut u64,
                scope: nvmlAffinityScope_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetCpuAffinityWithinScope(
                device: nvmlDevice_t, cpu_set_size: u32, cpu_set: *mut u64,
                scope: nvmlAffinityScope_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetCpuAffinity(
                device: nvmlDevice_t, cpu_set_size: u32, cpu_set: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetNumaNodeId(
                device: nvmlDevice_t, node: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetAddressingMode(
                device: nvmlDevice_t, mode: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetRepairStatus(
                device: nvmlDevice_t, repair_status: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetUnrepairableMemoryFlag_v1(
                device: nvmlDevice_t, unrepairable_memory_status: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetUUID(
                device: nvmlDevice_t, uuid: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMinorNumber(
                device: nvmlDevice_t, minor_number: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetBoardPartNumber(
                device: nvmlDevice_t, part_number: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetInforomVersion(
                device: nvmlDevice_t, object: nvmlInforomObject_t, version: *mut c_char,
                length: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetInforomImageVersion(
                device: nvmlDevice_t, version: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetInforomConfigurationChecksum(
                device: nvmlDevice_t, checksum: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetLastBBXFlushTime(
                device: nvmlDevice_t, timestamp: *mut u64, duration_us: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetBBXTimeData_v1(
                device: nvmlDevice_t, time_data: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetGpuUptime_v1(
                device: nvmlDevice_t, uptime: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetDisplayMode(
                device: nvmlDevice_t, display: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetDisplayActive(
                device: nvmlDevice_t, is_active: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPersistenceMode(
                device: nvmlDevice_t, mode: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, sim, 12040] nvmlDeviceGetPciInfoExt(
                device: nvmlDevice_t, pci: *mut nvmlPciInfoExt_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPciInfo(
                device: nvmlDevice_t, pci: *mut nvmlPciInfo_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPciInfo_v2(
                device: nvmlDevice_t, pci: *mut nvmlPciInfo_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPciInfo_v3(
                device: nvmlDevice_t, pci: *mut nvmlPciInfo_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMaxPcieLinkGeneration(
                device: nvmlDevice_t, max_link_gen: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 12040] nvmlDeviceGetGpuMaxPcieLinkGeneration(
                device: nvmlDevice_t, max_link_gen_device: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMaxPcieLinkWidth(
                device: nvmlDevice_t, max_link_width: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetCurrPcieLinkGeneration(
                device: nvmlDevice_t, curr_link_gen: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetCurrPcieLinkWidth(
                device: nvmlDevice_t, curr_link_width: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPcieThroughput(
                device: nvmlDevice_t, counter: nvmlPcieUtilCounter_t, value: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPcieReplayCounter(
                device: nvmlDevice_t, value: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGpuOperationMode(
                device: nvmlDevice_t, current: *mut nvmlGpuOperationMode_t,
                pending: *mut nvmlGpuOperationMode_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetComputeMode(
                device: nvmlDevice_t, mode: *mut nvmlComputeMode_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetCudaComputeCapability(
                device: nvmlDevice_t, major: *mut i32, minor: *mut i32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetDramEncryptionMode(
                device: nvmlDevice_t, current: *mut c_void, pending: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetEccMode(
                device: nvmlDevice_t, current: *mut nvmlEnableState_t,
                pending: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetDefaultEccMode(
                device: nvmlDevice_t, default_mode: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetBoardId(
                device: nvmlDevice_t, board_id: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMultiGpuBoard(
                device: nvmlDevice_t, multi_gpu_bool: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetTotalEccErrors(
                device: nvmlDevice_t, error_type: nvmlMemoryErrorType_t,
                counter_type: nvmlEccCounterType_t, ecc_counts: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetDetailedEccErrors(
                device: nvmlDevice_t, error_type: nvmlMemoryErrorType_t,
                counter_type: nvmlEccCounterType_t, ecc_counts: *mut nvmlEccErrorCounts_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetMemoryErrorCounter(
                device: nvmlDevice_t, error_type: nvmlMemoryErrorType_t,
                counter_type: nvmlEccCounterType_t, location_type: nvmlMemoryLocation_t,
                count: *mut u64,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetDriverModel(
                device: nvmlDevice_t, current: *mut nvmlDriverModel_t,
                pending: *mut nvmlDriverModel_t,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetDriverModel_v2(
                device: nvmlDevice_t, current: *mut nvmlDriverModel_t,
                pending: *mut nvmlDriverModel_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetVbiosVersion(
                device: nvmlDevice_t, version: *mut c_char, length: u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetBridgeChipInfo(
                device: nvmlDevice_t, bridge_hierarchy: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceOnSameBoard(
                device1: nvmlDevice_t, device2: nvmlDevice_t, on_same_board: *mut i32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetAPIRestriction(
                device: nvmlDevice_t, api_type: nvmlRestrictedAPI_t,
                is_restricted: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetIrqNum(
                device: nvmlDevice_t, irq_num: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetNumGpuCores(
                device: nvmlDevice_t, num_cores: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetMemoryBusWidth(
                device: nvmlDevice_t, bus_width: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetPcieLinkMaxSpeed(
                device: nvmlDevice_t, max_speed: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetPcieSpeed(
                device: nvmlDevice_t, pcie_speed: *mut u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetBusType(
                device: nvmlDevice_t, kind: *mut nvmlBusType_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetConfComputeMemSizeInfo(
                device: nvmlDevice_t, mem_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetConfComputeProtectedMemoryUsage(
                device: nvmlDevice_t, memory: *mut nvmlMemory_t,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetConfComputeGpuCertificate(
                device: nvmlDevice_t, gpu_cert: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetConfComputeGpuAttestationReport(
                device: nvmlDevice_t, gpu_atst_report: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetGspFirmwareVersion(
                device: nvmlDevice_t, version: *mut c_char,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetGspFirmwareMode(
                device: nvmlDevice_t, is_enabled: *mut u32, default_mode: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12040] nvmlDeviceGetSramEccErrorStatus(
                device: nvmlDevice_t, status: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetRetiredPages(
                device: nvmlDevice_t, cause: nvmlPageRetirementCause_t, page_count: *mut u32,
                addresses: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetRetiredPages_v2(
                device: nvmlDevice_t, cause: nvmlPageRetirementCause_t, page_count: *mut u32,
                addresses: *mut u64, timestamps: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetRetiredPagesPendingStatus(
                device: nvmlDevice_t, is_pending: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetRemappedRows(
                device: nvmlDevice_t, corr_rows: *mut u32, unc_rows: *mut u32,
                is_pending: *mut u32, failure_occurred: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetRemappedRows_v2(
                device: nvmlDevice_t, info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetRowRemapperHistogram(
                device: nvmlDevice_t, values: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetArchitecture(
                device: nvmlDevice_t, arch: *mut nvmlDeviceArchitecture_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetClkMonStatus(
                device: nvmlDevice_t, status: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetPlatformInfo(
                device: nvmlDevice_t, platform_info: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetPdi(
                device: nvmlDevice_t, pdi: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetHostname_v1(
                device: nvmlDevice_t, hostname: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceQueryDrainState(
                pci_info: *mut nvmlPciInfo_t, current_state: *mut nvmlEnableState_t,
            ) -> nvmlReturn_t;
            [pass, none, 11080] nvmlDeviceGetPgpuMetadataString(
                device: nvmlDevice_t, pgpu_metadata: *mut c_char, buffer_size: *mut u32,
            ) -> nvmlReturn_t;
            [pass, none, 12090] nvmlDeviceGetCapabilities(
                device: nvmlDevice_t, caps: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(
                device: nvmlDevice_t, error_counts: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlDeviceGetBankRemapperStatus_v1(
                device: nvmlDevice_t, p_bank_remapper_status: *mut c_void,
            ) -> nvmlReturn_t;
        }
    };
}
