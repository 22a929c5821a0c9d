//! Enumerations of NVML as integers with named values (nvml.h 13.5).

/// `enum nvmlBrandType_t` of the header.
pub type nvmlBrandType_t = u32;
pub const NVML_BRAND_UNKNOWN: nvmlBrandType_t = 0;
pub const NVML_BRAND_QUADRO: nvmlBrandType_t = 1;
pub const NVML_BRAND_TESLA: nvmlBrandType_t = 2;
pub const NVML_BRAND_NVS: nvmlBrandType_t = 3;
pub const NVML_BRAND_GRID: nvmlBrandType_t = 4;
pub const NVML_BRAND_GEFORCE: nvmlBrandType_t = 5;
pub const NVML_BRAND_TITAN: nvmlBrandType_t = 6;
pub const NVML_BRAND_NVIDIA_VAPPS: nvmlBrandType_t = 7;
pub const NVML_BRAND_NVIDIA_VPC: nvmlBrandType_t = 8;
pub const NVML_BRAND_NVIDIA_VCS: nvmlBrandType_t = 9;
pub const NVML_BRAND_NVIDIA_VWS: nvmlBrandType_t = 10;
pub const NVML_BRAND_NVIDIA_CLOUD_GAMING: nvmlBrandType_t = 11;
pub const NVML_BRAND_NVIDIA_VGAMING: nvmlBrandType_t = 11;
pub const NVML_BRAND_QUADRO_RTX: nvmlBrandType_t = 12;
pub const NVML_BRAND_NVIDIA_RTX: nvmlBrandType_t = 13;
pub const NVML_BRAND_NVIDIA: nvmlBrandType_t = 14;
pub const NVML_BRAND_GEFORCE_RTX: nvmlBrandType_t = 15;
pub const NVML_BRAND_TITAN_RTX: nvmlBrandType_t = 16;
pub const NVML_BRAND_NVIDIA_DLA: nvmlBrandType_t = 17;
pub const NVML_BRAND_NVIDIA_NPU: nvmlBrandType_t = 19;
pub const NVML_BRAND_NVIDIA_VGAMEDEV: nvmlBrandType_t = 18;

/// `enum nvmlTemperatureSensors_t` of the header.
pub type nvmlTemperatureSensors_t = u32;
pub const NVML_TEMPERATURE_GPU: nvmlTemperatureSensors_t = 0;

/// `enum nvmlTemperatureThresholds_t` of the header.
pub type nvmlTemperatureThresholds_t = u32;
pub const NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: nvmlTemperatureThresholds_t = 0;
pub const NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: nvmlTemperatureThresholds_t = 1;
pub const NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN: nvmlTemperatureThresholds_t = 4;
pub const NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR: nvmlTemperatureThresholds_t = 5;
pub const NVML_TEMPERATURE_THRESHOLD_GPS_CURR: nvmlTemperatureThresholds_t = 7;

/// `enum nvmlComputeMode_t` of the header.
pub type nvmlComputeMode_t = u32;
pub const NVML_COMPUTEMODE_DEFAULT: nvmlComputeMode_t = 0;
pub const NVML_COMPUTEMODE_EXCLUSIVE_THREAD: nvmlComputeMode_t = 1;
pub const NVML_COMPUTEMODE_PROHIBITED: nvmlComputeMode_t = 2;
pub const NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: nvmlComputeMode_t = 3;

/// `enum nvmlClockType_t` of the header.
pub type nvmlClockType_t = u32;
pub const NVML_CLOCK_GRAPHICS: nvmlClockType_t = 0;
pub const NVML_CLOCK_SM: nvmlClockType_t = 1;
pub const NVML_CLOCK_MEM: nvmlClockType_t = 2;
pub const NVML_CLOCK_VIDEO: nvmlClockType_t = 3;

/// `enum nvmlClockId_t` of the header.
pub type nvmlClockId_t = u32;
pub const NVML_CLOCK_ID_CURRENT: nvmlClockId_t = 0;
pub const NVML_CLOCK_ID_APP_CLOCK_TARGET: nvmlClockId_t = 1;
pub const NVML_CLOCK_ID_APP_CLOCK_DEFAULT: nvmlClockId_t = 2;

/// `enum nvmlDriverModel_t` of the header.
pub type nvmlDriverModel_t = u32;
pub const NVML_DRIVER_WDDM: nvmlDriverModel_t = 0;
pub const NVML_DRIVER_WDM: nvmlDriverModel_t = 1;
pub const NVML_DRIVER_MCDM: nvmlDriverModel_t = 2;

/// `enum nvmlPstates_t` of the header.
pub type nvmlPstates_t = u32;
pub const NVML_PSTATE_0: nvmlPstates_t = 0;
pub const NVML_PSTATE_1: nvmlPstates_t = 1;
pub const NVML_PSTATE_2: nvmlPstates_t = 2;
pub const NVML_PSTATE_3: nvmlPstates_t = 3;
pub const NVML_PSTATE_4: nvmlPstates_t = 4;
pub const NVML_PSTATE_5: nvmlPstates_t = 5;
pub const NVML_PSTATE_6: nvmlPstates_t = 6;
pub const NVML_PSTATE_7: nvmlPstates_t = 7;
pub const NVML_PSTATE_8: nvmlPstates_t = 8;
pub const NVML_PSTATE_9: nvmlPstates_t = 9;
pub const NVML_PSTATE_10: nvmlPstates_t = 10;
pub const NVML_PSTATE_11: nvmlPstates_t = 11;
pub const NVML_PSTATE_12: nvmlPstates_t = 12;
pub const NVML_PSTATE_13: nvmlPstates_t = 13;
pub const NVML_PSTATE_14: nvmlPstates_t = 14;
pub const NVML_PSTATE_15: nvmlPstates_t = 15;
pub const NVML_PSTATE_UNKNOWN: nvmlPstates_t = 32;

/// `enum nvmlEnableState_t` of the header.
pub type nvmlEnableState_t = u32;
pub const NVML_FEATURE_DISABLED: nvmlEnableState_t = 0;
pub const NVML_FEATURE_ENABLED: nvmlEnableState_t = 1;

/// `enum nvmlEccCounterType_t` of the header.
pub type nvmlEccCounterType_t = u32;
pub const NVML_VOLATILE_ECC: nvmlEccCounterType_t = 0;
pub const NVML_AGGREGATE_ECC: nvmlEccCounterType_t = 1;

/// `enum nvmlMemoryErrorType_t` of the header.
pub type nvmlMemoryErrorType_t = u32;
pub const NVML_MEMORY_ERROR_TYPE_CORRECTED: nvmlMemoryErrorType_t = 0;
pub const NVML_MEMORY_ERROR_TYPE_UNCORRECTED: nvmlMemoryErrorType_t = 1;

/// `enum nvmlMemoryLocation_t` of the header.
pub type nvmlMemoryLocation_t = u32;
pub const NVML_MEMORY_LOCATION_L1_CACHE: nvmlMemoryLocation_t = 0;
pub const NVML_MEMORY_LOCATION_L2_CACHE: nvmlMemoryLocation_t = 1;
pub const NVML_MEMORY_LOCATION_DRAM: nvmlMemoryLocation_t = 2;
pub const NVML_MEMORY_LOCATION_DEVICE_MEMORY: nvmlMemoryLocation_t = 2;
pub const NVML_MEMORY_LOCATION_REGISTER_FILE: nvmlMemoryLocation_t = 3;
pub const NVML_MEMORY_LOCATION_TEXTURE_MEMORY: nvmlMemoryLocation_t = 4;
pub const NVML_MEMORY_LOCATION_TEXTURE_SHM: nvmlMemoryLocation_t = 5;
pub const NVML_MEMORY_LOCATION_CBU: nvmlMemoryLocation_t = 6;
pub const NVML_MEMORY_LOCATION_SRAM: nvmlMemoryLocation_t = 7;

/// `enum nvmlPcieUtilCounter_t` of the header.
pub type nvmlPcieUtilCounter_t = u32;
pub const NVML_PCIE_UTIL_TX_BYTES: nvmlPcieUtilCounter_t = 0;
pub const NVML_PCIE_UTIL_RX_BYTES: nvmlPcieUtilCounter_t = 1;

/// `enum nvmlPerfPolicyType_t` of the header.
pub type nvmlPerfPolicyType_t = u32;
pub const NVML_PERF_POLICY_POWER: nvmlPerfPolicyType_t = 0;
pub const NVML_PERF_POLICY_THERMAL: nvmlPerfPolicyType_t = 1;
pub const NVML_PERF_POLICY_SYNC_BOOST: nvmlPerfPolicyType_t = 2;
pub const NVML_PERF_POLICY_BOARD_LIMIT: nvmlPerfPolicyType_t = 3;
pub const NVML_PERF_POLICY_LOW_UTILIZATION: nvmlPerfPolicyType_t = 4;
pub const NVML_PERF_POLICY_RELIABILITY: nvmlPerfPolicyType_t = 5;
pub const NVML_PERF_POLICY_TOTAL_APP_CLOCKS: nvmlPerfPolicyType_t = 10;
pub const NVML_PERF_POLICY_TOTAL_BASE_CLOCKS: nvmlPerfPolicyType_t = 11;

/// `enum nvmlSamplingType_t` of the header.
pub type nvmlSamplingType_t = u32;
pub const NVML_TOTAL_POWER_SAMPLES: nvmlSamplingType_t = 0;
pub const NVML_GPU_UTILIZATION_SAMPLES: nvmlSamplingType_t = 1;
pub const NVML_MEMORY_UTILIZATION_SAMPLES: nvmlSamplingType_t = 2;
pub const NVML_ENC_UTILIZATION_SAMPLES: nvmlSamplingType_t = 3;
pub const NVML_DEC_UTILIZATION_SAMPLES: nvmlSamplingType_t = 4;
pub const NVML_PROCESSOR_CLK_SAMPLES: nvmlSamplingType_t = 5;
pub const NVML_MEMORY_CLK_SAMPLES: nvmlSamplingType_t = 6;
pub const NVML_MODULE_POWER_SAMPLES: nvmlSamplingType_t = 7;
pub const NVML_JPG_UTILIZATION_SAMPLES: nvmlSamplingType_t = 8;
pub const NVML_OFA_UTILIZATION_SAMPLES: nvmlSamplingType_t = 9;

/// `enum nvmlValueType_t` of the header.
pub type nvmlValueType_t = u32;
pub const NVML_VALUE_TYPE_DOUBLE: nvmlValueType_t = 0;
pub const NVML_VALUE_TYPE_UNSIGNED_INT: nvmlValueType_t = 1;
pub const NVML_VALUE_TYPE_UNSIGNED_LONG: nvmlValueType_t = 2;
pub const NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: nvmlValueType_t = 3;
pub const NVML_VALUE_TYPE_SIGNED_LONG_LONG: nvmlValueType_t = 4;
pub const NVML_VALUE_TYPE_SIGNED_INT: nvmlValueType_t = 5;
pub const NVML_VALUE_TYPE_UNSIGNED_SHORT: nvmlValueType_t = 6;

/// `enum nvmlGpuTopologyLevel_t` of the header.
pub type nvmlGpuTopologyLevel_t = u32;
pub const NVML_TOPOLOGY_INTERNAL: nvmlGpuTopologyLevel_t = 0;
pub const NVML_TOPOLOGY_SINGLE: nvmlGpuTopologyLevel_t = 10;
pub const NVML_TOPOLOGY_MULTIPLE: nvmlGpuTopologyLevel_t = 20;
pub const NVML_TOPOLOGY_HOSTBRIDGE: nvmlGpuTopologyLevel_t = 30;
pub const NVML_TOPOLOGY_NODE: nvmlGpuTopologyLevel_t = 40;
pub const NVML_TOPOLOGY_SYSTEM: nvmlGpuTopologyLevel_t = 50;

/// `enum nvmlGpuP2PStatus_t` of the header.
pub type nvmlGpuP2PStatus_t = u32;
pub const NVML_P2P_STATUS_OK: nvmlGpuP2PStatus_t = 0;
pub const NVML_P2P_STATUS_CHIPSET_NOT_SUPPORED: nvmlGpuP2PStatus_t = 1;
pub const NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: nvmlGpuP2PStatus_t = 1;
pub const NVML_P2P_STATUS_GPU_NOT_SUPPORTED: nvmlGpuP2PStatus_t = 2;
pub const NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: nvmlGpuP2PStatus_t = 3;
pub const NVML_P2P_STATUS_DISABLED_BY_REGKEY: nvmlGpuP2PStatus_t = 4;
pub const NVML_P2P_STATUS_NOT_SUPPORTED: nvmlGpuP2PStatus_t = 5;
pub const NVML_P2P_STATUS_UNKNOWN: nvmlGpuP2PStatus_t = 6;

/// `enum nvmlGpuP2PCapsIndex_t` of the header.
pub type nvmlGpuP2PCapsIndex_t = u32;
pub const NVML_P2P_CAPS_INDEX_READ: nvmlGpuP2PCapsIndex_t = 0;
pub const NVML_P2P_CAPS_INDEX_WRITE: nvmlGpuP2PCapsIndex_t = 1;
pub const NVML_P2P_CAPS_INDEX_NVLINK: nvmlGpuP2PCapsIndex_t = 2;
pub const NVML_P2P_CAPS_INDEX_ATOMICS: nvmlGpuP2PCapsIndex_t = 3;
pub const NVML_P2P_CAPS_INDEX_PCI: nvmlGpuP2PCapsIndex_t = 4;
pub const NVML_P2P_CAPS_INDEX_PROP: nvmlGpuP2PCapsIndex_t = 4;
pub const NVML_P2P_CAPS_INDEX_UNKNOWN: nvmlGpuP2PCapsIndex_t = 5;

/// `enum nvmlGpuOperationMode_t` of the header.
pub type nvmlGpuOperationMode_t = u32;
pub const NVML_GOM_ALL_ON: nvmlGpuOperationMode_t = 0;
pub const NVML_GOM_COMPUTE: nvmlGpuOperationMode_t = 1;
pub const NVML_GOM_LOW_DP: nvmlGpuOperationMode_t = 2;

/// `enum nvmlGpuVirtualizationMode_t` of the header.
pub type nvmlGpuVirtualizationMode_t = u32;
pub const NVML_GPU_VIRTUALIZATION_MODE_NONE: nvmlGpuVirtualizationMode_t = 0;
pub const NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: nvmlGpuVirtualizationMode_t = 1;
pub const NVML_GPU_VIRTUALIZATION_MODE_VGPU: nvmlGpuVirtualizationMode_t = 2;
pub const NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: nvmlGpuVirtualizationMode_t = 3;
pub const NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: nvmlGpuVirtualizationMode_t = 4;

/// `enum nvmlPageRetirementCause_t` of the header.
pub type nvmlPageRetirementCause_t = u32;
pub const NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS: nvmlPageRetirementCause_t = 0;
pub const NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR: nvmlPageRetirementCause_t = 1;

/// `enum nvmlRestrictedAPI_t` of the header.
pub type nvmlRestrictedAPI_t = u32;
pub const NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS: nvmlRestrictedAPI_t = 0;
pub const NVML_RESTRICTED_API_SET_AUTO_BOOSTED_CLOCKS: nvmlRestrictedAPI_t = 1;

/// `enum nvmlEncoderType_t` of the header.
pub type nvmlEncoderType_t = u32;
pub const NVML_ENCODER_QUERY_H264: nvmlEncoderType_t = 0;
pub const NVML_ENCODER_QUERY_HEVC: nvmlEncoderType_t = 1;
pub const NVML_ENCODER_QUERY_AV1: nvmlEncoderType_t = 2;
pub const NVML_ENCODER_QUERY_UNKNOWN: nvmlEncoderType_t = 255;

/// `enum nvmlInforomObject_t` of the header.
pub type nvmlInforomObject_t = u32;
pub const NVML_INFOROM_OEM: nvmlInforomObject_t = 0;
pub const NVML_INFOROM_ECC: nvmlInforomObject_t = 1;
pub const NVML_INFOROM_POWER: nvmlInforomObject_t = 2;
pub const NVML_INFOROM_DEN: nvmlInforomObject_t = 3;

// Types that are only passed through: their values are not inspected.
/// `enum nvmlDetachGpuState_t` of the header.
pub type nvmlDetachGpuState_t = u32;
/// `enum nvmlDeviceVgpuCapability_t` of the header.
pub type nvmlDeviceVgpuCapability_t = u32;
/// `enum nvmlHostVgpuMode_t` of the header.
pub type nvmlHostVgpuMode_t = u32;
/// `enum nvmlIntNvLinkDeviceType_t` of the header.
pub type nvmlIntNvLinkDeviceType_t = u32;
/// `enum nvmlLedColor_t` of the header.
pub type nvmlLedColor_t = u32;
/// `enum nvmlNvLinkCapability_t` of the header.
pub type nvmlNvLinkCapability_t = u32;
/// `enum nvmlNvLinkErrorCounter_t` of the header.
pub type nvmlNvLinkErrorCounter_t = u32;
/// `enum nvmlPcieLinkState_t` of the header.
pub type nvmlPcieLinkState_t = u32;
/// `enum nvmlVgpuCapability_t` of the header.
pub type nvmlVgpuCapability_t = u32;
/// `enum nvmlVgpuDriverCapability_t` of the header.
pub type nvmlVgpuDriverCapability_t = u32;
/// `enum nvmlVgpuVmIdType_t` of the header.
pub type nvmlVgpuVmIdType_t = u32;
/// `nvmlVgpuInstance_t` of the header.
pub type nvmlVgpuInstance_t = u32;
/// `nvmlVgpuTypeId_t` of the header.
pub type nvmlVgpuTypeId_t = u32;
/// `nvmlFanControlPolicy_t` of the header.
pub type nvmlFanControlPolicy_t = u32;
/// `nvmlPowerSource_t` of the header.
pub type nvmlPowerSource_t = u32;
/// `nvmlAffinityScope_t` of the header.
pub type nvmlAffinityScope_t = u32;
/// `nvmlBusType_t` of the header.
pub type nvmlBusType_t = u32;
/// `nvmlDeviceArchitecture_t` of the header.
pub type nvmlDeviceArchitecture_t = u32;
