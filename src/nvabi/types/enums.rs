//! Enumerations of the driver API as integers with named values (cuda.h 13.5). First part.
//!
//! A C enum may hold any value a newer program puts there, so these are aliases with constants,
//! never Rust enums. Names are the header's, so that its documentation applies.

/// Flags of context creation.
pub type CUctx_flags = u32;
pub const CU_CTX_SCHED_AUTO: CUctx_flags = 0;
pub const CU_CTX_SCHED_SPIN: CUctx_flags = 1;
pub const CU_CTX_SCHED_YIELD: CUctx_flags = 2;
pub const CU_CTX_SCHED_BLOCKING_SYNC: CUctx_flags = 4;
pub const CU_CTX_BLOCKING_SYNC: CUctx_flags = 4;
pub const CU_CTX_SCHED_MASK: CUctx_flags = 7;
pub const CU_CTX_MAP_HOST: CUctx_flags = 8;
pub const CU_CTX_COREDUMP_ENABLE: CUctx_flags = 32;
pub const CU_CTX_USER_COREDUMP_ENABLE: CUctx_flags = 64;
pub const CU_CTX_SYNC_MEMOPS: CUctx_flags = 128;
pub const CU_CTX_FLAGS_MASK: CUctx_flags = 255;

/// Flags of stream creation.
pub type CUstream_flags = u32;
pub const CU_STREAM_DEFAULT: CUstream_flags = 0;
pub const CU_STREAM_NON_BLOCKING: CUstream_flags = 1;

/// Flags of event creation.
pub type CUevent_flags = u32;
pub const CU_EVENT_DEFAULT: CUevent_flags = 0;
pub const CU_EVENT_BLOCKING_SYNC: CUevent_flags = 1;
pub const CU_EVENT_DISABLE_TIMING: CUevent_flags = 2;
pub const CU_EVENT_INTERPROCESS: CUevent_flags = 4;

/// `enum CUevent_record_flags` of the header.
pub type CUevent_record_flags = u32;
pub const CU_EVENT_RECORD_DEFAULT: CUevent_record_flags = 0;
pub const CU_EVENT_RECORD_EXTERNAL: CUevent_record_flags = 1;

/// `enum CUevent_wait_flags` of the header.
pub type CUevent_wait_flags = u32;
pub const CU_EVENT_WAIT_DEFAULT: CUevent_wait_flags = 0;
pub const CU_EVENT_WAIT_EXTERNAL: CUevent_wait_flags = 1;

/// Comparison of a wait on memory.
pub type CUstreamWaitValue_flags = u32;
pub const CU_STREAM_WAIT_VALUE_GEQ: CUstreamWaitValue_flags = 0;
pub const CU_STREAM_WAIT_VALUE_EQ: CUstreamWaitValue_flags = 1;
pub const CU_STREAM_WAIT_VALUE_AND: CUstreamWaitValue_flags = 2;
pub const CU_STREAM_WAIT_VALUE_NOR: CUstreamWaitValue_flags = 3;
pub const CU_STREAM_WAIT_VALUE_FLUSH: CUstreamWaitValue_flags = 0x40000000;

/// `enum CUstreamWriteValue_flags` of the header.
pub type CUstreamWriteValue_flags = u32;
pub const CU_STREAM_WRITE_VALUE_DEFAULT: CUstreamWriteValue_flags = 0;
pub const CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER: CUstreamWriteValue_flags = 1;

/// `enum CUstreamBatchMemOpType` of the header.
pub type CUstreamBatchMemOpType = u32;
pub const CU_STREAM_MEM_OP_WAIT_VALUE_32: CUstreamBatchMemOpType = 1;
pub const CU_STREAM_MEM_OP_WRITE_VALUE_32: CUstreamBatchMemOpType = 2;
pub const CU_STREAM_MEM_OP_WAIT_VALUE_64: CUstreamBatchMemOpType = 4;
pub const CU_STREAM_MEM_OP_WRITE_VALUE_64: CUstreamBatchMemOpType = 5;
pub const CU_STREAM_MEM_OP_BARRIER: CUstreamBatchMemOpType = 6;
pub const CU_STREAM_MEM_OP_ATOMIC_REDUCTION: CUstreamBatchMemOpType = 8;
pub const CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: CUstreamBatchMemOpType = 3;

/// `enum CUoccupancy_flags` of the header.
pub type CUoccupancy_flags = u32;
pub const CU_OCCUPANCY_DEFAULT: CUoccupancy_flags = 0;
pub const CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE: CUoccupancy_flags = 1;

/// `enum CUstreamUpdateCaptureDependencies_flags` of the header.
pub type CUstreamUpdateCaptureDependencies_flags = u32;
pub const CU_STREAM_ADD_CAPTURE_DEPENDENCIES: CUstreamUpdateCaptureDependencies_flags = 0;
pub const CU_STREAM_SET_CAPTURE_DEPENDENCIES: CUstreamUpdateCaptureDependencies_flags = 1;

/// Element format of an array.
pub type CUarray_format = u32;
pub const CU_AD_FORMAT_UNSIGNED_INT8: CUarray_format = 1;
pub const CU_AD_FORMAT_UNSIGNED_INT16: CUarray_format = 2;
pub const CU_AD_FORMAT_UNSIGNED_INT32: CUarray_format = 3;
pub const CU_AD_FORMAT_SIGNED_INT8: CUarray_format = 8;
pub const CU_AD_FORMAT_SIGNED_INT16: CUarray_format = 9;
pub const CU_AD_FORMAT_SIGNED_INT32: CUarray_format = 10;
pub const CU_AD_FORMAT_HALF: CUarray_format = 16;
pub const CU_AD_FORMAT_FLOAT: CUarray_format = 32;
pub const CU_AD_FORMAT_NV12: CUarray_format = 176;
pub const CU_AD_FORMAT_UNORM_INT8X1: CUarray_format = 192;
pub const CU_AD_FORMAT_UNORM_INT8X2: CUarray_format = 193;
pub const CU_AD_FORMAT_UNORM_INT8X4: CUarray_format = 194;
pub const CU_AD_FORMAT_UNORM_INT16X1: CUarray_format = 195;
pub const CU_AD_FORMAT_UNORM_INT16X2: CUarray_format = 196;
pub const CU_AD_FORMAT_UNORM_INT16X4: CUarray_format = 197;
pub const CU_AD_FORMAT_SNORM_INT8X1: CUarray_format = 198;
pub const CU_AD_FORMAT_SNORM_INT8X2: CUarray_format = 199;
pub const CU_AD_FORMAT_SNORM_INT8X4: CUarray_format = 200;
pub const CU_AD_FORMAT_SNORM_INT16X1: CUarray_format = 201;
pub const CU_AD_FORMAT_SNORM_INT16X2: CUarray_format = 202;
pub const CU_AD_FORMAT_SNORM_INT16X4: CUarray_format = 203;
pub const CU_AD_FORMAT_BC1_UNORM: CUarray_format = 145;
pub const CU_AD_FORMAT_BC1_UNORM_SRGB: CUarray_format = 146;
pub const CU_AD_FORMAT_BC2_UNORM: CUarray_format = 147;
pub const CU_AD_FORMAT_BC2_UNORM_SRGB: CUarray_format = 148;
pub const CU_AD_FORMAT_BC3_UNORM: CUarray_format = 149;
pub const CU_AD_FORMAT_BC3_UNORM_SRGB: CUarray_format = 150;
pub const CU_AD_FORMAT_BC4_UNORM: CUarray_format = 151;
pub const CU_AD_FORMAT_BC4_SNORM: CUarray_format = 152;
pub const CU_AD_FORMAT_BC5_UNORM: CUarray_format = 153;
pub const CU_AD_FORMAT_BC5_SNORM: CUarray_format = 154;
pub const CU_AD_FORMAT_BC6H_UF16: CUarray_format = 155;
pub const CU_AD_FORMAT_BC6H_SF16: CUarray_format = 156;
pub const CU_AD_FORMAT_BC7_UNORM: CUarray_format = 157;
pub const CU_AD_FORMAT_BC7_UNORM_SRGB: CUarray_format = 158;
pub const CU_AD_FORMAT_P010: CUarray_format = 159;
pub const CU_AD_FORMAT_P016: CUarray_format = 161;
pub const CU_AD_FORMAT_NV16: CUarray_format = 162;
pub const CU_AD_FORMAT_P210: CUarray_format = 163;
pub const CU_AD_FORMAT_P216: CUarray_format = 164;
pub const CU_AD_FORMAT_YUY2: CUarray_format = 165;
pub const CU_AD_FORMAT_Y210: CUarray_format = 166;
pub const CU_AD_FORMAT_Y216: CUarray_format = 167;
pub const CU_AD_FORMAT_AYUV: CUarray_format = 168;
pub const CU_AD_FORMAT_Y410: CUarray_format = 169;
pub const CU_AD_FORMAT_Y416: CUarray_format = 177;
pub const CU_AD_FORMAT_Y444_PLANAR8: CUarray_format = 178;
pub const CU_AD_FORMAT_Y444_PLANAR10: CUarray_format = 179;
pub const CU_AD_FORMAT_YUV444_8bit_SemiPlanar: CUarray_format = 180;
pub const CU_AD_FORMAT_YUV444_16bit_SemiPlanar: CUarray_format = 181;
pub const CU_AD_FORMAT_UNORM_INT_101010_2: CUarray_format = 80;
pub const CU_AD_FORMAT_UINT8_PACKED_422: CUarray_format = 81;
pub const CU_AD_FORMAT_UINT8_PACKED_444: CUarray_format = 82;
pub const CU_AD_FORMAT_UINT8_SEMIPLANAR_420: CUarray_format = 83;
pub const CU_AD_FORMAT_UINT16_SEMIPLANAR_420: CUarray_format = 84;
pub const CU_AD_FORMAT_UINT8_SEMIPLANAR_422: CUarray_format = 85;
pub const CU_AD_FORMAT_UINT16_SEMIPLANAR_422: CUarray_format = 86;
pub const CU_AD_FORMAT_UINT8_SEMIPLANAR_444: CUarray_format = 87;
pub const CU_AD_FORMAT_UINT16_SEMIPLANAR_444: CUarray_format = 88;
pub const CU_AD_FORMAT_UINT8_PLANAR_420: CUarray_format = 89;
pub const CU_AD_FORMAT_UINT16_PLANAR_420: CUarray_format = 90;
pub const CU_AD_FORMAT_UINT8_PLANAR_422: CUarray_format = 91;
pub const CU_AD_FORMAT_UINT16_PLANAR_422: CUarray_format = 92;
pub const CU_AD_FORMAT_UINT8_PLANAR_444: CUarray_format = 93;
pub const CU_AD_FORMAT_UINT16_PLANAR_444: CUarray_format = 94;

/// Attributes of a pointer.
pub type CUpointer_attribute = u32;
pub const CU_POINTER_ATTRIBUTE_CONTEXT: CUpointer_attribute = 1;
pub const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: CUpointer_attribute = 2;
pub const CU_POINTER_ATTRIBUTE_DEVICE_POINTER: CUpointer_attribute = 3;
pub const CU_POINTER_ATTRIBUTE_HOST_POINTER: CUpointer_attribute = 4;
pub const CU_POINTER_ATTRIBUTE_P2P_TOKENS: CUpointer_attribute = 5;
pub const CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: CUpointer_attribute = 6;
pub const CU_POINTER_ATTRIBUTE_BUFFER_ID: CUpointer_attribute = 7;
pub const CU_POINTER_ATTRIBUTE_IS_MANAGED: CUpointer_attribute = 8;
pub const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: CUpointer_attribute = 9;
pub const CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: CUpointer_attribute = 10;
pub const CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: CUpointer_attribute = 11;
pub const CU_POINTER_ATTRIBUTE_RANGE_SIZE: CUpointer_attribute = 12;
pub const CU_POINTER_ATTRIBUTE_MAPPED: CUpointer_attribute = 13;
pub const CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: CUpointer_attribute = 14;
pub const CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: CUpointer_attribute = 15;
pub const CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: CUpointer_attribute = 16;
pub const CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: CUpointer_attribute = 17;
pub const CU_POINTER_ATTRIBUTE_MAPPING_SIZE: CUpointer_attribute = 18;
pub const CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: CUpointer_attribute = 19;
pub const CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: CUpointer_attribute = 20;
pub const CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: CUpointer_attribute = 21;
pub const CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL: CUpointer_attribute = 22;

/// `enum CUfunction_attribute` of the header.
pub type CUfunction_attribute = u32;
pub const CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: CUfunction_attribute = 0;
pub const CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: CUfunction_attribute = 1;
pub const CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: CUfunction_attribute = 2;
pub const CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: CUfunction_attribute = 3;
pub const CU_FUNC_ATTRIBUTE_NUM_REGS: CUfunction_attribute = 4;
pub const CU_FUNC_ATTRIBUTE_PTX_VERSION: CUfunction_attribute = 5;
pub const CU_FUNC_ATTRIBUTE_BINARY_VERSION: CUfunction_attribute = 6;
pub const CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: CUfunction_attribute = 7;
pub const CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: CUfunction_attribute = 8;
pub const CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: CUfunction_attribute = 9;
pub const CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: CUfunction_attribute = 10;
pub const CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: CUfunction_attribute = 11;
pub const CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: CUfunction_attribute = 12;
pub const CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: CUfunction_attribute = 13;
pub const CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: CUfunction_attribute = 14;
pub const CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: CUfunction_attribute = 15;
pub const CU_FUNC_ATTRIBUTE_DEVICE_NODE_UPDATE_SUPPORTED: CUfunction_attribute = 16;
pub const CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE: CUfunction_attribute = 17;

/// `enum CUfunc_cache` of the header.
pub type CUfunc_cache = u32;
pub const CU_FUNC_CACHE_PREFER_NONE: CUfunc_cache = 0;
pub const CU_FUNC_CACHE_PREFER_SHARED: CUfunc_cache = 1;
pub const CU_FUNC_CACHE_PREFER_L1: CUfunc_cache = 2;
pub const CU_FUNC_CACHE_PREFER_EQUAL: CUfunc_cache = 3;

/// `enum CUsharedconfig` of the header.
pub type CUsharedconfig = u32;
pub const CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE: CUsharedconfig = 0;
pub const CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE: CUsharedconfig = 1;
pub const CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE: CUsharedconfig = 2;

/// `enum CUmemorytype` of the header.
pub type CUmemorytype = u32;
pub const CU_MEMORYTYPE_HOST: CUmemorytype = 1;
pub const CU_MEMORYTYPE_DEVICE: CUmemorytype = 2;
pub const CU_MEMORYTYPE_ARRAY: CUmemorytype = 3;
pub const CU_MEMORYTYPE_UNIFIED: CUmemorytype = 4;

/// `enum CUcomputemode` of the header.
pub type CUcomputemode = u32;
pub const CU_COMPUTEMODE_DEFAULT: CUcomputemode = 0;
pub const CU_COMPUTEMODE_PROHIBITED: CUcomputemode = 2;
pub const CU_COMPUTEMODE_EXCLUSIVE_PROCESS: CUcomputemode = 3;

/// `enum CUmem_advise` of the header.
pub type CUmem_advise = u32;
pub const CU_MEM_ADVISE_SET_READ_MOSTLY: CUmem_advise = 1;
pub const CU_MEM_ADVISE_UNSET_READ_MOSTLY: CUmem_advise = 2;
pub const CU_MEM_ADVISE_SET_PREFERRED_LOCATION: CUmem_advise = 3;
pub const CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: CUmem_advise = 4;
pub const CU_MEM_ADVISE_SET_ACCESSED_BY: CUmem_advise = 5;
pub const CU_MEM_ADVISE_UNSET_ACCESSED_BY: CUmem_advise = 6;

/// `enum CUmem_range_attribute` of the header.
pub type CUmem_range_attribute = u32;
pub const CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: CUmem_range_attribute = 1;
pub const CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: CUmem_range_attribute = 2;
pub const CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: CUmem_range_attribute = 3;
pub const CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: CUmem_range_attribute = 4;
pub const CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: CUmem_range_attribute = 5;
pub const CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: CUmem_range_attribute = 6;
pub const CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: CUmem_range_attribute = 7;
pub const CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: CUmem_range_attribute = 8;

/// Limits of a context.
pub type CUlimit = u32;
pub const CU_LIMIT_STACK_SIZE: CUlimit = 0;
pub const CU_LIMIT_PRINTF_FIFO_SIZE: CUlimit = 1;
pub const CU_LIMIT_MALLOC_HEAP_SIZE: CUlimit = 2;
pub const CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: CUlimit = 3;
pub const CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: CUlimit = 4;
pub const CU_LIMIT_MAX_L2_FETCH_GRANULARITY: CUlimit = 5;
pub const CU_LIMIT_PERSISTING_L2_CACHE_SIZE: CUlimit = 6;
pub const CU_LIMIT_SHMEM_SIZE: CUlimit = 7;
pub const CU_LIMIT_CIG_ENABLED: CUlimit = 8;
pub const CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED: CUlimit = 9;
pub const CU_LIMIT_PER_BLOCK_MEMORY_SIZE: CUlimit = 10;

/// `enum CUstreamCaptureStatus` of the header.
pub type CUstreamCaptureStatus = u32;
pub const CU_STREAM_CAPTURE_STATUS_NONE: CUstreamCaptureStatus = 0;
pub const CU_STREAM_CAPTURE_STATUS_ACTIVE: CUstreamCaptureStatus = 1;
pub const CU_STREAM_CAPTURE_STATUS_INVALIDATED: CUstreamCaptureStatus = 2;

/// `enum CUstreamCaptureMode` of the header.
pub type CUstreamCaptureMode = u32;
pub const CU_STREAM_CAPTURE_MODE_GLOBAL: CUstreamCaptureMode = 0;
pub const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: CUstreamCaptureMode = 1;
pub const CU_STREAM_CAPTURE_MODE_RELAXED: CUstreamCaptureMode = 2;
