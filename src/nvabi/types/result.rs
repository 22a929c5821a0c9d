//! The status of a driver call: `CUresult`, with the name and the text that `cuGetErrorName` and
//! `cuGetErrorString` return for each value (cuda.h 13.5).
//!
//! The type is an integer, not an enum: a newer driver may return values this table does not know, and they
//! must pass through unchanged. The texts of old values are those that drivers print; the texts of values new
//! in CUDA 12 and 13 are this project's.

use core::ffi::CStr;
use core::fmt;

/// Declares a result type: value, constant, symbolic name, text.
macro_rules! results {
    ($result:ident($repr:ty); $($value:literal $short:ident $name:literal $text:literal;)*) => {
        impl $result {
            $(
                #[doc = concat!("Value ", stringify!($value), ".")]
                pub const $short: Self = Self($value);
            )*

            /// The header's name of this value, if it is one of the header's.
            pub const fn name(self) -> Option<&'static CStr> {
                match self.0 {
                    $($value => Some($name),)*
                    _ => None,
                }
            }

            /// The meaning of this value, as text.
            pub const fn description(self) -> Option<&'static CStr> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }

            /// Every value of the header, in rising order.
            pub const ALL: &'static [Self] = &[$(Self($value)),*];

            /// Whether the call succeeded.
            pub const fn is_success(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Debug for $result {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name().map(CStr::to_str) {
                    Some(Ok(name)) => f.write_str(name),
                    _ => write!(f, concat!(stringify!($result), "({})"), self.0),
                }
            }
        }

        impl fmt::Display for $result {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.description().map(CStr::to_str) {
                    Some(Ok(text)) => write!(f, "{text} ({self:?})"),
                    _ => fmt::Debug::fmt(self, f),
                }
            }
        }
    };
}
pub(crate) use results;

/// The status of a driver call.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CUresult(pub i32);

results! {
    CUresult(i32);
    0 SUCCESS c"CUDA_SUCCESS" c"no error";
    1 ERROR_INVALID_VALUE c"CUDA_ERROR_INVALID_VALUE" c"invalid argument";
    2 ERROR_OUT_OF_MEMORY c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory";
    3 ERROR_NOT_INITIALIZED c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error";
    4 ERROR_DEINITIALIZED c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down";
    5 ERROR_PROFILER_DISABLED c"CUDA_ERROR_PROFILER_DISABLED"
        c"profiler disabled while using external profiling tool";
    6 ERROR_PROFILER_NOT_INITIALIZED c"CUDA_ERROR_PROFILER_NOT_INITIALIZED"
        c"profiler not initialized: call cudaProfilerInitialize()";
    7 ERROR_PROFILER_ALREADY_STARTED c"CUDA_ERROR_PROFILER_ALREADY_STARTED"
        c"profiler already started";
    8 ERROR_PROFILER_ALREADY_STOPPED c"CUDA_ERROR_PROFILER_ALREADY_STOPPED"
        c"profiler already stopped";
    34 ERROR_STUB_LIBRARY c"CUDA_ERROR_STUB_LIBRARY" c"CUDA driver is a stub library";
    36 ERROR_CALL_REQUIRES_NEWER_DRIVER c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"
        c"CUDA driver version is insufficient for this call";
    46 ERROR_DEVICE_UNAVAILABLE c"CUDA_ERROR_DEVICE_UNAVAILABLE"
        c"CUDA-capable device(s) is/are busy or unavailable";
    47 ERROR_MULTICAST_RESOURCE_FULL c"CUDA_ERROR_MULTICAST_RESOURCE_FULL"
        c"multicast resources are exhausted";
    100 ERROR_NO_DEVICE c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected";
    101 ERROR_INVALID_DEVICE c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal";
    102 ERROR_DEVICE_NOT_LICENSED c"CUDA_ERROR_DEVICE_NOT_LICENSED"
        c"device doesn't have valid Grid license";
    200 ERROR_INVALID_IMAGE c"CUDA_ERROR_INVALID_IMAGE" c"device kernel image is invalid";
    201 ERROR_INVALID_CONTEXT c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context";
    202 ERROR_CONTEXT_ALREADY_CURRENT c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT"
        c"context already current";
    205 ERROR_MAP_FAILED c"CUDA_ERROR_MAP_FAILED" c"mapping of buffer object failed";
    206 ERROR_UNMAP_FAILED c"CUDA_ERROR_UNMAP_FAILED" c"unmapping of buffer object failed";
    207 ERROR_ARRAY_IS_MAPPED c"CUDA_ERROR_ARRAY_IS_MAPPED" c"array is mapped";
    208 ERROR_ALREADY_MAPPED c"CUDA_ERROR_ALREADY_MAPPED" c"resource already mapped";
    209 ERROR_NO_BINARY_FOR_GPU c"CUDA_ERROR_NO_BINARY_FOR_GPU"
        c"no kernel image is available for execution on the device";
    210 ERROR_ALREADY_ACQUIRED c"CUDA_ERROR_ALREADY_ACQUIRED" c"resource already acquired";
    211 ERROR_NOT_MAPPED c"CUDA_ERROR_NOT_MAPPED" c"resource not mapped";
    212 ERROR_NOT_MAPPED_AS_ARRAY c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY" c"resource not mapped as array";
    213 ERROR_NOT_MAPPED_AS_POINTER c"CUDA_ERROR_NOT_MAPPED_AS_POINTER"
        c"resource not mapped as pointer";
    214 ERROR_ECC_UNCORRECTABLE c"CUDA_ERROR_ECC_UNCORRECTABLE"
        c"uncorrectable ECC error encountered";
    215 ERROR_UNSUPPORTED_LIMIT c"CUDA_ERROR_UNSUPPORTED_LIMIT"
        c"limit is not supported on this architecture";
    216 ERROR_CONTEXT_ALREADY_IN_USE c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE"
        c"exclusive-thread device already in use by a different thread";
    217 ERROR_PEER_ACCESS_UNSUPPORTED c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
        c"peer access is not supported between these two devices";
    218 ERROR_INVALID_PTX c"CUDA_ERROR_INVALID_PTX" c"a PTX JIT compilation failed";
    219 ERROR_INVALID_GRAPHICS_CONTEXT c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"
        c"invalid OpenGL or DirectX context";
    220 ERROR_NVLINK_UNCORRECTABLE c"CUDA_ERROR_NVLINK_UNCORRECTABLE"
        c"uncorrectable NVLink error detected during the execution";
    221 ERROR_JIT_COMPILER_NOT_FOUND c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND"
        c"PTX JIT compiler library not found";
    222 ERROR_UNSUPPORTED_PTX_VERSION c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
        c"the provided PTX was compiled with an unsupported toolchain.";
    223 ERROR_JIT_COMPILATION_DISABLED c"CUDA_ERROR_JIT_COMPILATION_DISABLED"
        c"PTX JIT compilation was disabled";
    224 ERROR_UNSUPPORTED_EXEC_AFFINITY c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"
        c"the provided execution affinity is not supported";
    225 ERROR_UNSUPPORTED_DEVSIDE_SYNC c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"
        c"the provided PTX contains unsupported call to cudaDeviceSynchronize";
    226 ERROR_CONTAINED c"CUDA_ERROR_CONTAINED" c"an error was contained by the device";
    227 ERROR_INSUFFICIENT_LOADER_VERSION c"CUDA_ERROR_INSUFFICIENT_LOADER_VERSION"
        c"CUDA loader version is insufficient";
    300 ERROR_INVALID_SOURCE c"CUDA_ERROR_INVALID_SOURCE" c"device kernel image is invalid";
    301 ERROR_FILE_NOT_FOUND c"CUDA_ERROR_FILE_NOT_FOUND" c"file not found";
    302 ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"
        c"shared object symbol not found";
    303 ERROR_SHARED_OBJECT_INIT_FAILED c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"
        c"shared object initialization failed";
    304 ERROR_OPERATING_SYSTEM c"CUDA_ERROR_OPERATING_SYSTEM"
        c"OS call failed or operation not supported on this OS";
    400 ERROR_INVALID_HANDLE c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle";
    401 ERROR_ILLEGAL_STATE c"CUDA_ERROR_ILLEGAL_STATE"
        c"the operation cannot be performed in the present state";
    402 ERROR_LOSSY_QUERY c"CUDA_ERROR_LOSSY_QUERY"
        c"attempted introspection would be semantically lossy";
    500 ERROR_NOT_FOUND c"CUDA_ERROR_NOT_FOUND" c"named symbol not found";
    600 ERROR_NOT_READY c"CUDA_ERROR_NOT_READY" c"device not ready";
    700 ERROR_ILLEGAL_ADDRESS c"CUDA_ERROR_ILLEGAL_ADDRESS"
        c"an illegal memory access was encountered";
    701 ERROR_LAUNCH_OUT_OF_RESOURCES c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
        c"too many resources requested for launch";
    702 ERROR_LAUNCH_TIMEOUT c"CUDA_ERROR_LAUNCH_TIMEOUT"
        c"the launch timed out and was terminated";
    703 ERROR_LAUNCH_INCOMPATIBLE_TEXTURING c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"
        c"launch uses incompatible texturing mode";
    704 ERROR_PEER_ACCESS_ALREADY_ENABLED c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"
        c"peer access is already enabled";
    705 ERROR_PEER_ACCESS_NOT_ENABLED c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"
        c"peer access has not been enabled";
    708 ERROR_PRIMARY_CONTEXT_ACTIVE c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"
        c"cannot set while device is active in this process";
    709 ERROR_CONTEXT_IS_DESTROYED c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed";
    710 ERROR_ASSERT c"CUDA_ERROR_ASSERT" c"device-side assert triggered";
    711 ERROR_TOO_MANY_PEERS c"CUDA_ERROR_TOO_MANY_PEERS" c"peer mapping resources exhausted";
    712 ERROR_HOST_MEMORY_ALREADY_REGISTERED c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        c"part or all of the requested memory range is already mapped";
    713 ERROR_HOST_MEMORY_NOT_REGISTERED c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
        c"pointer does not correspond to a registered memory region";
    714 ERROR_HARDWARE_STACK_ERROR c"CUDA_ERROR_HARDWARE_STACK_ERROR" c"hardware stack error";
    715 ERROR_ILLEGAL_INSTRUCTION c"CUDA_ERROR_ILLEGAL_INSTRUCTION"
        c"an illegal instruction was encountered";
    716 ERROR_MISALIGNED_ADDRESS c"CUDA_ERROR_MISALIGNED_ADDRESS" c"misaligned address";
    717 ERROR_INVALID_ADDRESS_SPACE c"CUDA_ERROR_INVALID_ADDRESS_SPACE"
        c"operation not supported on global/shared address space";
    718 ERROR_INVALID_PC c"CUDA_ERROR_INVALID_PC" c"invalid program counter";
    719 ERROR_LAUNCH_FAILED c"CUDA_ERROR_LAUNCH_FAILED" c"unspecified launch failure";
    720 ERROR_COOPERATIVE_LAUNCH_TOO_LARGE c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
        c"too many blocks in cooperative launch";
    721 ERROR_TENSOR_MEMORY_LEAK c"CUDA_ERROR_TENSOR_MEMORY_LEAK"
        c"tensor memory was not released before the kernel ended";
    800 ERROR_NOT_PERMITTED c"CUDA_ERROR_NOT_PERMITTED" c"operation not permitted";
    801 ERROR_NOT_SUPPORTED c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported";
    802 ERROR_SYSTEM_NOT_READY c"CUDA_ERROR_SYSTEM_NOT_READY" c"system not yet initialized";
    803 ERROR_SYSTEM_DRIVER_MISMATCH c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        c"system has unsupported display driver / cuda driver combination";
    804 ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"
        c"forward compatibility was attempted on non supported HW";
    805 ERROR_MPS_CONNECTION_FAILED c"CUDA_ERROR_MPS_CONNECTION_FAILED"
        c"MPS client failed to connect to the MPS control daemon or the MPS server";
    806 ERROR_MPS_RPC_FAILURE c"CUDA_ERROR_MPS_RPC_FAILURE"
        c"the remote procedural call between the MPS server and the MPS client failed";
    807 ERROR_MPS_SERVER_NOT_READY c"CUDA_ERROR_MPS_SERVER_NOT_READY"
        c"MPS server is not ready to accept new MPS client requests";
    808 ERROR_MPS_MAX_CLIENTS_REACHED c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
        c"the hardware resources required to create MPS client have been exhausted";
    809 ERROR_MPS_MAX_CONNECTIONS_REACHED c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"
        c"the hardware resources required to support device connections have been exhausted";
    810 ERROR_MPS_CLIENT_TERMINATED c"CUDA_ERROR_MPS_CLIENT_TERMINATED"
        c"the MPS client has been terminated by the server";
    811 ERROR_CDP_NOT_SUPPORTED c"CUDA_ERROR_CDP_NOT_SUPPORTED"
        c"the program is using CUDA dynamic parallelism, which this configuration does not support";
    812 ERROR_CDP_VERSION_MISMATCH c"CUDA_ERROR_CDP_VERSION_MISMATCH"
        c"the program mixes incompatible versions of CUDA dynamic parallelism";
    900 ERROR_STREAM_CAPTURE_UNSUPPORTED c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        c"operation not permitted when stream is capturing";
    901 ERROR_STREAM_CAPTURE_INVALIDATED c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        c"operation failed due to a previous error during capture";
    902 ERROR_STREAM_CAPTURE_MERGE c"CUDA_ERROR_STREAM_CAPTURE_MERGE"
        c"operation would result in a merge of separate capture sequences";
    903 ERROR_STREAM_CAPTURE_UNMATCHED c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"
        c"capture was not ended in the same stream as it began";
    904 ERROR_STREAM_CAPTURE_UNJOINED c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
        c"capturing stream has unjoined work";
    905 ERROR_STREAM_CAPTURE_ISOLATION c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION"
        c"dependency created on uncaptured work in another stream";
    906 ERROR_STREAM_CAPTURE_IMPLICIT c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        c"operation would make the legacy stream depend on a capturing blocking stream";
    907 ERROR_CAPTURED_EVENT c"CUDA_ERROR_CAPTURED_EVENT"
        c"operation not permitted on an event last recorded in a capturing stream";
    908 ERROR_STREAM_CAPTURE_WRONG_THREAD c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"
        c"attempt to terminate a thread-local capture sequence from another thread";
    909 ERROR_TIMEOUT c"CUDA_ERROR_TIMEOUT" c"wait operation timed out";
    910 ERROR_GRAPH_EXEC_UPDATE_FAILURE c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"
        c"the graph update was not performed because it breaks the rules of instantiated graphs";
    911 ERROR_EXTERNAL_DEVICE c"CUDA_ERROR_EXTERNAL_DEVICE"
        c"an async error has occurred in external entity outside of CUDA";
    912 ERROR_INVALID_CLUSTER_SIZE c"CUDA_ERROR_INVALID_CLUSTER_SIZE"
        c"a kernel launch error has occurred due to cluster misconfiguration";
    913 ERROR_FUNCTION_NOT_LOADED c"CUDA_ERROR_FUNCTION_NOT_LOADED" c"the function is not loaded";
    914 ERROR_INVALID_RESOURCE_TYPE c"CUDA_ERROR_INVALID_RESOURCE_TYPE"
        c"one or more resources are of a type the operation does not accept";
    915 ERROR_INVALID_RESOURCE_CONFIGURATION c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        c"one or more resources are insufficient or not applicable for the operation";
    916 ERROR_KEY_ROTATION c"CUDA_ERROR_KEY_ROTATION" c"an error happened while keys were rotated";
    917 ERROR_STREAM_DETACHED c"CUDA_ERROR_STREAM_DETACHED" c"the stream is detached";
    918 ERROR_GRAPH_RECAPTURE_FAILURE c"CUDA_ERROR_GRAPH_RECAPTURE_FAILURE"
        c"recapture into the graph failed";
    919 ERROR_FABRIC_NOT_READY c"CUDA_ERROR_FABRIC_NOT_READY" c"fabric is not ready";
    999 ERROR_UNKNOWN c"CUDA_ERROR_UNKNOWN" c"unknown error";
}
