//! The structures of graph nodes (cuda.h 13.5).
//!
//! `CUgraphNodeParams` is one tagged union for all kinds; its members are the `_v2`/`_v3` forms,
//! while the older one-kind calls (`cuGraphAddMemAllocNode` ...) keep the `_v1` forms.

use super::*;

/// Ports and kind of an edge; all zero is a full dependency.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
    pub reserved: [u8; 5],
}
layout!(CUgraphEdgeData, 8, from_port: 0, to_port: 1, kind: 2, reserved: 3);

/// In: flags and upload stream. Out: result and the node at fault.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: u64,
    pub h_upload_stream: CUstream,
    pub h_err_node_out: CUgraphNode,
    pub result_out: CUgraphInstantiateResult,
}
layout!(
    CUDA_GRAPH_INSTANTIATE_PARAMS,
    32,
    flags: 0, h_upload_stream: 8, h_err_node_out: 16, result_out: 24,
);

/// Why and where an update of an executable graph was refused.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: CUgraphExecUpdateResult,
    pub error_node: CUgraphNode,
    pub error_from_node: CUgraphNode,
}
layout!(CUgraphExecUpdateResultInfo, 24, result: 0, error_node: 8, error_from_node: 16);

/// A kernel node up to CUDA 11: function only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    pub func: CUfunction,
    pub grid_dim_x: u32,
    pub grid_dim_y: u32,
    pub grid_dim_z: u32,
    pub block_dim_x: u32,
    pub block_dim_y: u32,
    pub block_dim_z: u32,
    pub shared_mem_bytes: u32,
    pub kernel_params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}
layout!(
    CUDA_KERNEL_NODE_PARAMS_v1,
    56,
    func: 0, grid_dim_x: 8, grid_dim_y: 12, grid_dim_z: 16, block_dim_x: 20, block_dim_y: 24,
    block_dim_z: 28, shared_mem_bytes: 32, kernel_params: 40, extra: 48,
);

/// A kernel node from CUDA 12: function, or library kernel with its context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS_v2 {
    pub v1: CUDA_KERNEL_NODE_PARAMS_v1,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}
layout!(CUDA_KERNEL_NODE_PARAMS_v2, 72, v1: 0, kern: 56, ctx: 64);

/// A copy node inside `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY_NODE_PARAMS {
    pub flags: i32,
    pub reserved: i32,
    pub copy_ctx: CUcontext,
    pub copy_params: CUDA_MEMCPY3D,
}
layout!(CUDA_MEMCPY_NODE_PARAMS, 216, flags: 0, reserved: 4, copy_ctx: 8, copy_params: 16);

/// A fill node; `width` in elements of `element_size` bytes, `pitch` in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMSET_NODE_PARAMS_v1 {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: u32,
    pub element_size: u32,
    pub width: usize,
    pub height: usize,
}
layout!(
    CUDA_MEMSET_NODE_PARAMS_v1,
    40,
    dst: 0, pitch: 8, value: 16, element_size: 20, width: 24, height: 32,
);

/// A fill node inside `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMSET_NODE_PARAMS_v2 {
    pub v1: CUDA_MEMSET_NODE_PARAMS_v1,
    pub ctx: CUcontext,
}
layout!(CUDA_MEMSET_NODE_PARAMS_v2, 48, v1: 0, ctx: 40);

/// A host-function node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_HOST_NODE_PARAMS_v1 {
    pub func: CUhostFn,
    pub user_data: *mut c_void,
}
layout!(CUDA_HOST_NODE_PARAMS_v1, 16, func: 0, user_data: 8);

/// An allocation node; `dptr` is filled in when the node is added.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
    pub pool_props: CUmemPoolProps,
    pub access_descs: *const CUmemAccessDesc,
    pub access_desc_count: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}
layout!(
    CUDA_MEM_ALLOC_NODE_PARAMS_v1,
    120,
    pool_props: 0, access_descs: 88, access_desc_count: 96, bytesize: 104, dptr: 112,
);

/// A free node inside `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEM_FREE_NODE_PARAMS {
    pub dptr: CUdeviceptr,
}
layout!(CUDA_MEM_FREE_NODE_PARAMS, 8, dptr: 0);

/// A child graph inside `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_CHILD_GRAPH_NODE_PARAMS {
    pub graph: CUgraph,
    pub ownership: CUgraphChildGraphNodeOwnership,
}
layout!(CUDA_CHILD_GRAPH_NODE_PARAMS, 16, graph: 0, ownership: 8);

/// An event-record node inside `CUgraphNodeParams`; before CUDA 13 `event` alone, the rest
/// reserved.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EVENT_RECORD_NODE_PARAMS {
    pub event: CUevent,
    pub ctx: CUcontext,
}
layout!(CUDA_EVENT_RECORD_NODE_PARAMS, 16, event: 0, ctx: 8);

/// An event-wait node inside `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EVENT_WAIT_NODE_PARAMS {
    pub event: CUevent,
}
layout!(CUDA_EVENT_WAIT_NODE_PARAMS, 8, event: 0);

/// A node of stream memory operations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
    pub ctx: CUcontext,
    pub count: u32,
    pub param_array: *mut CUstreamBatchMemOpParams,
    pub flags: u32,
}
layout!(CUDA_BATCH_MEM_OP_NODE_PARAMS, 32, ctx: 0, count: 8, param_array: 16, flags: 24);

/// A host-function node inside `CUgraphNodeParams`; `ctx` may also be a green context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_HOST_NODE_PARAMS_v2 {
    pub v1: CUDA_HOST_NODE_PARAMS_v1,
    pub sync_mode: u32,
    pub ctx: CUcontext,
}
layout!(CUDA_HOST_NODE_PARAMS_v2, 32, v1: 0, sync_mode: 16, ctx: 24);

/// The kind-dependent part of `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUgraphNodeUnion {
    pub reserved: [i64; 29],
    pub kernel: CUDA_KERNEL_NODE_PARAMS_v3,
    pub memcpy: CUDA_MEMCPY_NODE_PARAMS,
    pub memset: CUDA_MEMSET_NODE_PARAMS_v2,
    pub host: CUDA_HOST_NODE_PARAMS_v2,
    pub graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    pub event_wait: CUDA_EVENT_WAIT_NODE_PARAMS,
    pub event_record: CUDA_EVENT_RECORD_NODE_PARAMS,
    pub alloc: CUDA_MEM_ALLOC_NODE_PARAMS_v2,
    pub free: CUDA_MEM_FREE_NODE_PARAMS,
    pub mem_op: CUDA_BATCH_MEM_OP_NODE_PARAMS,
}

/// Any graph node: its kind and that kind's parameters.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphNodeParams {
    pub kind: CUgraphNodeType,
    pub reserved0: [i32; 3],
    pub params: CUgraphNodeUnion,
    pub reserved2: i64,
}
layout!(CUgraphNodeParams, 256, kind: 0, reserved0: 4, params: 16, reserved2: 248);

/// A wait on or a write to a word of device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUstreamMemOpValueParams {
    pub operation: CUstreamBatchMemOpType,
    pub address: CUdeviceptr,
    /// The 64-bit value; a 32-bit operation uses its low half (little-endian, as all CUDA hosts
    /// are).
    pub value64: u64,
    pub flags: u32,
    pub alias: CUdeviceptr,
}
layout!(CUstreamMemOpValueParams, 40, operation: 0, address: 8, value64: 16, flags: 24, alias: 32);

/// A flush of remote writes or a memory barrier.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUstreamMemOpFlagParams {
    pub operation: CUstreamBatchMemOpType,
    pub flags: u32,
}
layout!(CUstreamMemOpFlagParams, 8, operation: 0, flags: 4);

/// One stream memory operation; every member starts with its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUstreamBatchMemOpParams {
    pub operation: CUstreamBatchMemOpType,
    pub wait_value: CUstreamMemOpValueParams,
    pub write_value: CUstreamMemOpValueParams,
    pub flush_remote_writes: CUstreamMemOpFlagParams,
    pub memory_barrier: CUstreamMemOpFlagParams,
    pub pad: [u64; 6],
}
layout!(CUstreamBatchMemOpParams, 48, operation: 0, wait_value: 0, flush_remote_writes: 0);

/// The header's unversioned name for the one-kind fill calls.
pub type CUDA_MEMSET_NODE_PARAMS = CUDA_MEMSET_NODE_PARAMS_v1;
/// The header's unversioned name for the one-kind host calls.
pub type CUDA_HOST_NODE_PARAMS = CUDA_HOST_NODE_PARAMS_v1;
/// The header's unversioned name for the one-kind allocation calls.
pub type CUDA_MEM_ALLOC_NODE_PARAMS = CUDA_MEM_ALLOC_NODE_PARAMS_v1;
/// In `CUgraphNodeParams`: laid out as before.
pub type CUDA_MEM_ALLOC_NODE_PARAMS_v2 = CUDA_MEM_ALLOC_NODE_PARAMS_v1;
/// The header's unversioned name from CUDA 12 on.
pub type CUDA_KERNEL_NODE_PARAMS = CUDA_KERNEL_NODE_PARAMS_v2;
/// In `CUgraphNodeParams`: laid out as before.
pub type CUDA_KERNEL_NODE_PARAMS_v3 = CUDA_KERNEL_NODE_PARAMS_v2;
