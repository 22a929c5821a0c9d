//! Logical endpoints, copies over the fabric, cliques (all from CUDA 13).

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_endpoint_fn {
    ($callback:ident) => {
        $callback! {
            [pass, none, 13040] cuDeviceGetFabricClusterUuid(uuid: *mut CUuuid, dev: CUdevice);
            [pass, none, 13040] cuDeviceGetCliqueCount(count: *mut usize, dev: CUdevice);
            [pass, none, 13040] cuDeviceGetCliqueInfo(
                clique_info: *mut c_void, count: *mut usize, dev: CUdevice,
            );
            [pass, none, 13030] cuLogicalEndpointIdReserve(
                base_le_id: *mut CUlogicalEndpointId, count: u32,
            );
            [pass, none, 13030] cuLogicalEndpointIdRelease(
                base_le_id: CUlogicalEndpointId, count: u32,
            );
            [hook, none, 13030] cuLogicalEndpointCreate(
                le_id: CUlogicalEndpointId, prop: *const c_void,
            );
            [pass, none, 13030] cuLogicalEndpointAddDevice(
                le_id: CUlogicalEndpointId, dev: CUdevice,
            );
            [hook, none, 13030] cuLogicalEndpointDestroy(le_id: CUlogicalEndpointId);
            [hook, none, 13030] cuLogicalEndpointBindAddr(
                le_id: CUlogicalEndpointId, dev: CUdevice, offset: u64, ptr: *mut c_void,
                size: u64, flags: u64,
            );
            [hook, none, 13030] cuLogicalEndpointBindMem(
                le_id: CUlogicalEndpointId, dev: CUdevice, offset: u64,
                mem_handle: CUmemGenericAllocationHandle, mem_offset: u64, size: u64, flags: u64,
            );
            [hook, none, 13030] cuLogicalEndpointUnbind(
                le_id: CUlogicalEndpointId, dev: CUdevice, offset: u64, size: u64,
            );
            [pass, none, 13030] cuLogicalEndpointExport(
                handle: *mut c_void, le_id: CUlogicalEndpointId,
                handle_type: CUlogicalEndpointIpcHandleType,
            );
            [hook, none, 13030] cuLogicalEndpointImport(
                le_id: CUlogicalEndpointId, handle: *const c_void,
                handle_type: CUlogicalEndpointIpcHandleType,
            );
            [pass, none, 13030] cuLogicalEndpointGetLimits(
                bind_alignment: *mut u64, max_size: *mut u64, prop: *const c_void,
            );
            [pass, none, 13030] cuLogicalEndpointQuery(
                le_id: CUlogicalEndpointId, count: u32, query_status: *mut i32,
            );
            [hook, none, 13050] cuFabricCpyBatchAsync(
                num_ops: usize, op_list: *mut c_void, flags: u64, h_stream: CUstream,
            );
            [hook, none, 13050] cuFabricCpyBatchAsync_ptsz(
                num_ops: usize, op_list: *mut c_void, flags: u64, h_stream: CUstream,
            );
        }
    };
}
