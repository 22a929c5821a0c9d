//! Enumerations of the driver API as integers with named values (cuda.h 13.5). Second part.
//!
//! A C enum may hold any value a newer program puts there, so these are aliases with constants,
//! never Rust enums. Names are the header's, so that its documentation applies.

/// The stream variant that `cuGetProcAddress` is to find.
pub type CUdriverProcAddress_flags = u32;
pub const CU_GET_PROC_ADDRESS_DEFAULT: CUdriverProcAddress_flags = 0;
pub const CU_GET_PROC_ADDRESS_LEGACY_STREAM: CUdriverProcAddress_flags = 1;
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: CUdriverProcAddress_flags = 2;

/// The reason why `cuGetProcAddress` found no function.
pub type CUdriverProcAddressQueryResult = u32;
pub const CU_GET_PROC_ADDRESS_SUCCESS: CUdriverProcAddressQueryResult = 0;
pub const CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND: CUdriverProcAddressQueryResult = 1;
pub const CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT: CUdriverProcAddressQueryResult = 2;

/// `enum CUgraphNodeType` of the header.
pub type CUgraphNodeType = u32;
pub const CU_GRAPH_NODE_TYPE_KERNEL: CUgraphNodeType = 0;
pub const CU_GRAPH_NODE_TYPE_MEMCPY: CUgraphNodeType = 1;
pub const CU_GRAPH_NODE_TYPE_MEMSET: CUgraphNodeType = 2;
pub const CU_GRAPH_NODE_TYPE_HOST: CUgraphNodeType = 3;
pub const CU_GRAPH_NODE_TYPE_GRAPH: CUgraphNodeType = 4;
pub const CU_GRAPH_NODE_TYPE_EMPTY: CUgraphNodeType = 5;
pub const CU_GRAPH_NODE_TYPE_WAIT_EVENT: CUgraphNodeType = 6;
pub const CU_GRAPH_NODE_TYPE_EVENT_RECORD: CUgraphNodeType = 7;
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: CUgraphNodeType = 8;
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: CUgraphNodeType = 9;
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: CUgraphNodeType = 10;
pub const CU_GRAPH_NODE_TYPE_MEM_FREE: CUgraphNodeType = 11;
pub const CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: CUgraphNodeType = 12;
pub const CU_GRAPH_NODE_TYPE_CONDITIONAL: CUgraphNodeType = 13;
pub const CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: CUgraphNodeType = 14;
pub const CU_GRAPH_NODE_TYPE_RESERVED_16: CUgraphNodeType = 16;
pub const CU_GRAPH_NODE_TYPE_EXTERNAL_ENGINE: CUgraphNodeType = 17;
pub const CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH: CUgraphNodeType = 18;

/// `enum CUgraphDependencyType` of the header.
pub type CUgraphDependencyType = u32;
pub const CU_GRAPH_DEPENDENCY_TYPE_DEFAULT: CUgraphDependencyType = 0;
pub const CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: CUgraphDependencyType = 1;

/// `enum CUgraphExecUpdateResult` of the header.
pub type CUgraphExecUpdateResult = u32;
pub const CU_GRAPH_EXEC_UPDATE_SUCCESS: CUgraphExecUpdateResult = 0;
pub const CU_GRAPH_EXEC_UPDATE_ERROR: CUgraphExecUpdateResult = 1;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED: CUgraphExecUpdateResult = 2;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED: CUgraphExecUpdateResult = 3;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED: CUgraphExecUpdateResult = 4;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED: CUgraphExecUpdateResult = 5;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED: CUgraphExecUpdateResult = 6;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE: CUgraphExecUpdateResult = 7;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED: CUgraphExecUpdateResult = 8;

/// `enum CUgraphInstantiateResult` of the header.
pub type CUgraphInstantiateResult = u32;
pub const CUDA_GRAPH_INSTANTIATE_SUCCESS: CUgraphInstantiateResult = 0;
pub const CUDA_GRAPH_INSTANTIATE_ERROR: CUgraphInstantiateResult = 1;
pub const CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE: CUgraphInstantiateResult = 2;
pub const CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED: CUgraphInstantiateResult = 3;
pub const CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED: CUgraphInstantiateResult = 4;
pub const CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED: CUgraphInstantiateResult = 5;

/// `enum CUgraphInstantiate_flags` of the header.
pub type CUgraphInstantiate_flags = u32;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: CUgraphInstantiate_flags = 1;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: CUgraphInstantiate_flags = 2;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH: CUgraphInstantiate_flags = 4;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: CUgraphInstantiate_flags = 8;

/// `enum CUgraphMem_attribute` of the header.
pub type CUgraphMem_attribute = u32;
pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: CUgraphMem_attribute = 0;
pub const CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: CUgraphMem_attribute = 1;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: CUgraphMem_attribute = 2;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: CUgraphMem_attribute = 3;

/// `enum CUlaunchAttributeID` of the header.
pub type CUlaunchAttributeID = u32;
pub const CU_LAUNCH_ATTRIBUTE_IGNORE: CUlaunchAttributeID = 0;
pub const CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: CUlaunchAttributeID = 1;
pub const CU_LAUNCH_ATTRIBUTE_COOPERATIVE: CUlaunchAttributeID = 2;
pub const CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: CUlaunchAttributeID = 3;
pub const CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: CUlaunchAttributeID = 4;
pub const CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: CUlaunchAttributeID = 5;
pub const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: CUlaunchAttributeID = 6;
pub const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT: CUlaunchAttributeID = 7;
pub const CU_LAUNCH_ATTRIBUTE_PRIORITY: CUlaunchAttributeID = 8;
pub const CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: CUlaunchAttributeID = 9;
pub const CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: CUlaunchAttributeID = 10;
pub const CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: CUlaunchAttributeID = 11;
pub const CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: CUlaunchAttributeID = 12;
pub const CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: CUlaunchAttributeID = 13;
pub const CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: CUlaunchAttributeID = 14;
pub const CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: CUlaunchAttributeID = 16;
pub const CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE: CUlaunchAttributeID = 17;
pub const CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE: CUlaunchAttributeID = 18;

/// `enum CUmemAllocationHandleType` of the header.
pub type CUmemAllocationHandleType = u32;
pub const CU_MEM_HANDLE_TYPE_NONE: CUmemAllocationHandleType = 0;
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType = 1;
pub const CU_MEM_HANDLE_TYPE_WIN32: CUmemAllocationHandleType = 2;
pub const CU_MEM_HANDLE_TYPE_WIN32_KMT: CUmemAllocationHandleType = 4;
pub const CU_MEM_HANDLE_TYPE_FABRIC: CUmemAllocationHandleType = 8;

/// `enum CUarraySparseSubresourceType` of the header.
pub type CUarraySparseSubresourceType = u32;
pub const CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL: CUarraySparseSubresourceType = 0;
pub const CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL: CUarraySparseSubresourceType = 1;

/// `enum CUmemOperationType` of the header.
pub type CUmemOperationType = u32;
pub const CU_MEM_OPERATION_TYPE_MAP: CUmemOperationType = 1;
pub const CU_MEM_OPERATION_TYPE_UNMAP: CUmemOperationType = 2;

/// `enum CUmemAccess_flags` of the header.
pub type CUmemAccess_flags = u32;
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: CUmemAccess_flags = 0;
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: CUmemAccess_flags = 1;
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: CUmemAccess_flags = 3;

/// `enum CUmemLocationType` of the header.
pub type CUmemLocationType = u32;
pub const CU_MEM_LOCATION_TYPE_NONE: CUmemLocationType = 0;
pub const CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType = 1;
pub const CU_MEM_LOCATION_TYPE_HOST: CUmemLocationType = 2;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: CUmemLocationType = 3;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: CUmemLocationType = 4;
pub const CU_MEM_LOCATION_TYPE_INVISIBLE: CUmemLocationType = 5;
pub const CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: CUmemLocationType = 6;

/// `enum CUmemAllocationType` of the header.
pub type CUmemAllocationType = u32;
pub const CU_MEM_ALLOCATION_TYPE_PINNED: CUmemAllocationType = 1;
pub const CU_MEM_ALLOCATION_TYPE_MANAGED: CUmemAllocationType = 2;

/// `enum CUmemAllocationGranularity_flags` of the header.
pub type CUmemAllocationGranularity_flags = u32;
pub const CU_MEM_ALLOC_GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags = 0;
pub const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: CUmemAllocationGranularity_flags = 1;

/// `enum CUmemAllocationCompType` of the header.
pub type CUmemAllocationCompType = u32;
pub const CU_MEM_ALLOCATION_COMP_NONE: CUmemAllocationCompType = 0;
pub const CU_MEM_ALLOCATION_COMP_GENERIC: CUmemAllocationCompType = 1;

/// `enum CUmemPool_attribute` of the header.
pub type CUmemPool_attribute = u32;
pub const CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: CUmemPool_attribute = 1;
pub const CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: CUmemPool_attribute = 2;
pub const CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: CUmemPool_attribute = 3;
pub const CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: CUmemPool_attribute = 4;
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: CUmemPool_attribute = 5;
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: CUmemPool_attribute = 6;
pub const CU_MEMPOOL_ATTR_USED_MEM_CURRENT: CUmemPool_attribute = 7;
pub const CU_MEMPOOL_ATTR_USED_MEM_HIGH: CUmemPool_attribute = 8;
pub const CU_MEMPOOL_ATTR_ALLOCATION_TYPE: CUmemPool_attribute = 9;
pub const CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES: CUmemPool_attribute = 10;
pub const CU_MEMPOOL_ATTR_LOCATION_ID: CUmemPool_attribute = 11;
pub const CU_MEMPOOL_ATTR_LOCATION_TYPE: CUmemPool_attribute = 12;
pub const CU_MEMPOOL_ATTR_MAX_POOL_SIZE: CUmemPool_attribute = 13;
pub const CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED: CUmemPool_attribute = 14;
pub const CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID: CUmemPool_attribute = 15;

/// `enum CUmemAttach_flags` of the header.
pub type CUmemAttach_flags = u32;
pub const CU_MEM_ATTACH_GLOBAL: CUmemAttach_flags = 1;
pub const CU_MEM_ATTACH_HOST: CUmemAttach_flags = 2;
pub const CU_MEM_ATTACH_SINGLE: CUmemAttach_flags = 4;

/// `enum CUipcMem_flags` of the header.
pub type CUipcMem_flags = u32;
pub const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: CUipcMem_flags = 1;

/// `enum CUdevice_P2PAttribute` of the header.
pub type CUdevice_P2PAttribute = u32;
pub const CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: CUdevice_P2PAttribute = 1;
pub const CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: CUdevice_P2PAttribute = 2;
pub const CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: CUdevice_P2PAttribute = 3;
pub const CU_DEVICE_P2P_ATTRIBUTE_ACCESS_ACCESS_SUPPORTED: CUdevice_P2PAttribute = 4;
pub const CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: CUdevice_P2PAttribute = 4;
pub const CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: CUdevice_P2PAttribute = 5;

/// `enum CUmoduleLoadingMode` of the header.
pub type CUmoduleLoadingMode = u32;
pub const CU_MODULE_EAGER_LOADING: CUmoduleLoadingMode = 1;
pub const CU_MODULE_LAZY_LOADING: CUmoduleLoadingMode = 2;

/// `enum CUfunctionLoadingState` of the header.
pub type CUfunctionLoadingState = u32;
pub const CU_FUNCTION_LOADING_STATE_UNLOADED: CUfunctionLoadingState = 0;
pub const CU_FUNCTION_LOADING_STATE_LOADED: CUfunctionLoadingState = 1;

/// `enum CUuserObject_flags` of the header.
pub type CUuserObject_flags = u32;
pub const CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: CUuserObject_flags = 1;

/// `enum CUuserObjectRetain_flags` of the header.
pub type CUuserObjectRetain_flags = u32;
pub const CU_GRAPH_USER_OBJECT_MOVE: CUuserObjectRetain_flags = 1;

/// `enum CUjitInputType` of the header.
pub type CUjitInputType = u32;
pub const CU_JIT_INPUT_CUBIN: CUjitInputType = 0;
pub const CU_JIT_INPUT_PTX: CUjitInputType = 1;
pub const CU_JIT_INPUT_FATBINARY: CUjitInputType = 2;
pub const CU_JIT_INPUT_OBJECT: CUjitInputType = 3;
pub const CU_JIT_INPUT_LIBRARY: CUjitInputType = 4;
pub const CU_JIT_INPUT_NVVM: CUjitInputType = 5;
pub const CU_JIT_NUM_INPUT_TYPES: CUjitInputType = 6;

/// `enum CUjit_option` of the header.
pub type CUjit_option = u32;
pub const CU_JIT_MAX_REGISTERS: CUjit_option = 0;
pub const CU_JIT_THREADS_PER_BLOCK: CUjit_option = 1;
pub const CU_JIT_WALL_TIME: CUjit_option = 2;
pub const CU_JIT_INFO_LOG_BUFFER: CUjit_option = 3;
pub const CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: CUjit_option = 4;
pub const CU_JIT_ERROR_LOG_BUFFER: CUjit_option = 5;
pub const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: CUjit_option = 6;
pub const CU_JIT_OPTIMIZATION_LEVEL: CUjit_option = 7;
pub const CU_JIT_TARGET_FROM_CUCONTEXT: CUjit_option = 8;
pub const CU_JIT_TARGET: CUjit_option = 9;
pub const CU_JIT_FALLBACK_STRATEGY: CUjit_option = 10;
pub const CU_JIT_GENERATE_DEBUG_INFO: CUjit_option = 11;
pub const CU_JIT_LOG_VERBOSE: CUjit_option = 12;
pub const CU_JIT_GENERATE_LINE_INFO: CUjit_option = 13;
pub const CU_JIT_CACHE_MODE: CUjit_option = 14;
pub const CU_JIT_NEW_SM3X_OPT: CUjit_option = 15;
pub const CU_JIT_FAST_COMPILE: CUjit_option = 16;
pub const CU_JIT_GLOBAL_SYMBOL_NAMES: CUjit_option = 17;
pub const CU_JIT_GLOBAL_SYMBOL_ADDRESSES: CUjit_option = 18;
pub const CU_JIT_GLOBAL_SYMBOL_COUNT: CUjit_option = 19;
pub const CU_JIT_LTO: CUjit_option = 20;
pub const CU_JIT_FTZ: CUjit_option = 21;
pub const CU_JIT_PREC_DIV: CUjit_option = 22;
pub const CU_JIT_PREC_SQRT: CUjit_option = 23;
pub const CU_JIT_FMA: CUjit_option = 24;
pub const CU_JIT_REFERENCED_KERNEL_NAMES: CUjit_option = 25;
pub const CU_JIT_REFERENCED_KERNEL_COUNT: CUjit_option = 26;
pub const CU_JIT_REFERENCED_VARIABLE_NAMES: CUjit_option = 27;
pub const CU_JIT_REFERENCED_VARIABLE_COUNT: CUjit_option = 28;
pub const CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES: CUjit_option = 29;
pub const CU_JIT_POSITION_INDEPENDENT_CODE: CUjit_option = 30;
pub const CU_JIT_MIN_CTA_PER_SM: CUjit_option = 31;
pub const CU_JIT_MAX_THREADS_PER_BLOCK: CUjit_option = 32;
pub const CU_JIT_OVERRIDE_DIRECTIVE_VALUES: CUjit_option = 33;
pub const CU_JIT_SPLIT_COMPILE: CUjit_option = 34;
pub const CU_JIT_BINARY_LOADER_THREAD_COUNT: CUjit_option = 35;
pub const CU_JIT_NUM_OPTIONS: CUjit_option = 36;

/// `enum CUmemcpySrcAccessOrder` of the header.
pub type CUmemcpySrcAccessOrder = u32;
pub const CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: CUmemcpySrcAccessOrder = 1;
pub const CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL: CUmemcpySrcAccessOrder = 2;
pub const CU_MEMCPY_SRC_ACCESS_ORDER_ANY: CUmemcpySrcAccessOrder = 3;

/// `enum CUgraphChildGraphNodeOwnership` of the header.
pub type CUgraphChildGraphNodeOwnership = u32;
pub const CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE: CUgraphChildGraphNodeOwnership = 0;
pub const CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE: CUgraphChildGraphNodeOwnership = 1;

// Enumerations that are only passed through: their values are not inspected.
/// `enum CUGLDeviceList` of the header.
pub type CUGLDeviceList = u32;
/// `enum CUaddress_mode` of the header.
pub type CUaddress_mode = u32;
/// `enum CUatomicOperation` of the header.
pub type CUatomicOperation = u32;
/// `enum CUcoredumpSettings` of the header.
pub type CUcoredumpSettings = u32;
/// `enum CUdevResourceType` of the header.
pub type CUdevResourceType = u32;
/// `enum CUexecAffinityType` of the header.
pub type CUexecAffinityType = u32;
/// `enum CUfilter_mode` of the header.
pub type CUfilter_mode = u32;
/// `enum CUflushGPUDirectRDMAWritesScope` of the header.
pub type CUflushGPUDirectRDMAWritesScope = u32;
/// `enum CUflushGPUDirectRDMAWritesTarget` of the header.
pub type CUflushGPUDirectRDMAWritesTarget = u32;
/// `enum CUlibraryOption` of the header.
pub type CUlibraryOption = u32;
/// `enum CUlogicalEndpointIpcHandleType` of the header.
pub type CUlogicalEndpointIpcHandleType = u32;
/// `enum CUmemRangeHandleType` of the header.
pub type CUmemRangeHandleType = u32;
/// `enum CUmulticastGranularity_flags` of the header.
pub type CUmulticastGranularity_flags = u32;
/// `enum CUoutput_mode` of the header.
pub type CUoutput_mode = u32;
/// `enum CUprocessState` of the header.
pub type CUprocessState = u32;
pub const CU_PROCESS_STATE_RUNNING: CUprocessState = 0;
pub const CU_PROCESS_STATE_LOCKED: CUprocessState = 1;
pub const CU_PROCESS_STATE_CHECKPOINTED: CUprocessState = 2;
pub const CU_PROCESS_STATE_FAILED: CUprocessState = 3;
/// `enum CUtensorMapAllocClass` of the header.
pub type CUtensorMapAllocClass = u32;
/// `enum CUtensorMapDataType` of the header.
pub type CUtensorMapDataType = u32;
/// `enum CUtensorMapFloatOOBfill` of the header.
pub type CUtensorMapFloatOOBfill = u32;
/// `enum CUtensorMapIm2ColWideMode` of the header.
pub type CUtensorMapIm2ColWideMode = u32;
/// `enum CUtensorMapInterleave` of the header.
pub type CUtensorMapInterleave = u32;
/// `enum CUtensorMapL2promotion` of the header.
pub type CUtensorMapL2promotion = u32;
/// `enum CUtensorMapSwizzle` of the header.
pub type CUtensorMapSwizzle = u32;
