//! The status of an NVML call: `nvmlReturn_t`, with the text of `nvmlErrorString` (nvml.h 13.5).

use crate::types::result::results;
use core::ffi::CStr;
use core::fmt;

/// The status of an NVML call.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct nvmlReturn_t(pub u32);

results! {
    nvmlReturn_t(u32);
    0 SUCCESS c"NVML_SUCCESS" c"The operation was successful";
    1 ERROR_UNINITIALIZED c"NVML_ERROR_UNINITIALIZED" c"Uninitialized";
    2 ERROR_INVALID_ARGUMENT c"NVML_ERROR_INVALID_ARGUMENT" c"Invalid Argument";
    3 ERROR_NOT_SUPPORTED c"NVML_ERROR_NOT_SUPPORTED" c"Not Supported";
    4 ERROR_NO_PERMISSION c"NVML_ERROR_NO_PERMISSION" c"Insufficient Permissions";
    5 ERROR_ALREADY_INITIALIZED c"NVML_ERROR_ALREADY_INITIALIZED" c"Already Initialized";
    6 ERROR_NOT_FOUND c"NVML_ERROR_NOT_FOUND" c"Not Found";
    7 ERROR_INSUFFICIENT_SIZE c"NVML_ERROR_INSUFFICIENT_SIZE" c"Insufficient Size";
    8 ERROR_INSUFFICIENT_POWER c"NVML_ERROR_INSUFFICIENT_POWER" c"Insufficient External Power";
    9 ERROR_DRIVER_NOT_LOADED c"NVML_ERROR_DRIVER_NOT_LOADED" c"Driver Not Loaded";
    10 ERROR_TIMEOUT c"NVML_ERROR_TIMEOUT" c"Timeout";
    11 ERROR_IRQ_ISSUE c"NVML_ERROR_IRQ_ISSUE" c"Interrupt Request Issue";
    12 ERROR_LIBRARY_NOT_FOUND c"NVML_ERROR_LIBRARY_NOT_FOUND" c"NVML Shared Library Not Found";
    13 ERROR_FUNCTION_NOT_FOUND c"NVML_ERROR_FUNCTION_NOT_FOUND" c"Function Not Found";
    14 ERROR_CORRUPTED_INFOROM c"NVML_ERROR_CORRUPTED_INFOROM" c"Corrupted infoROM";
    15 ERROR_GPU_IS_LOST c"NVML_ERROR_GPU_IS_LOST" c"GPU is lost";
    16 ERROR_RESET_REQUIRED c"NVML_ERROR_RESET_REQUIRED" c"GPU requires reset";
    17 ERROR_OPERATING_SYSTEM c"NVML_ERROR_OPERATING_SYSTEM"
        c"GPU access blocked by the operating system";
    18 ERROR_LIB_RM_VERSION_MISMATCH c"NVML_ERROR_LIB_RM_VERSION_MISMATCH"
        c"Driver/library version mismatch";
    19 ERROR_IN_USE c"NVML_ERROR_IN_USE" c"In use by another client";
    20 ERROR_MEMORY c"NVML_ERROR_MEMORY" c"Insufficient Memory";
    21 ERROR_NO_DATA c"NVML_ERROR_NO_DATA" c"No data";
    22 ERROR_VGPU_ECC_NOT_SUPPORTED c"NVML_ERROR_VGPU_ECC_NOT_SUPPORTED"
        c"The requested vgpu operation is not available on target device, because ECC is enabled";
    23 ERROR_INSUFFICIENT_RESOURCES c"NVML_ERROR_INSUFFICIENT_RESOURCES" c"Insufficient Resources";
    24 ERROR_FREQ_NOT_SUPPORTED c"NVML_ERROR_FREQ_NOT_SUPPORTED"
        c"The requested frequency is not supported";
    25 ERROR_ARGUMENT_VERSION_MISMATCH c"NVML_ERROR_ARGUMENT_VERSION_MISMATCH"
        c"Argument Version Mismatch";
    26 ERROR_DEPRECATED c"NVML_ERROR_DEPRECATED" c"Deprecated";
    27 ERROR_NOT_READY c"NVML_ERROR_NOT_READY" c"Not Ready";
    28 ERROR_GPU_NOT_FOUND c"NVML_ERROR_GPU_NOT_FOUND" c"GPU Not Found";
    29 ERROR_INVALID_STATE c"NVML_ERROR_INVALID_STATE" c"Invalid State";
    30 ERROR_RESET_TYPE_NOT_SUPPORTED c"NVML_ERROR_RESET_TYPE_NOT_SUPPORTED"
        c"Reset Type Not Supported";
    999 ERROR_UNKNOWN c"NVML_ERROR_UNKNOWN" c"Unknown Error";
}
