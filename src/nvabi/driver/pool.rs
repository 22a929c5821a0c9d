//! Stream-ordered allocation, memory pools and the memory of graphs.
//!
//! An allocation from a pool takes device memory only when the pool has to grow. A free releases it only when
//! the pool shrinks: at a synchronisation, beyond its release threshold, or by `cuMemPoolTrimTo`. A pool
//! imported by other processes is charged in the process that created it.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_pool_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 11020] cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool);
            [pass, sim, 11020] cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice);
            [pass, sim, 11020] cuDeviceGetDefaultMemPool(
                pool_out: *mut CUmemoryPool, dev: CUdevice,
            );
            [hook, sim, 11020] cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream);
            [hook, sim, 11020] cuMemFreeAsync_ptsz(dptr: CUdeviceptr, h_stream: CUstream);
            [hook, sim, 11020] cuMemAllocAsync(
                dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream,
            );
            [hook, sim, 11020] cuMemAllocAsync_ptsz(
                dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream,
            );
            [hook, sim, 11020] cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize);
            [hook, sim, 11020] cuMemPoolSetAttribute(
                pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void,
            );
            [pass, sim, 11020] cuMemPoolGetAttribute(
                pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void,
            );
            [pass, sim, 11020] cuMemPoolSetAccess(
                pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize,
            );
            [pass, sim, 11020] cuMemPoolGetAccess(
                flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool,
                location: *mut CUmemLocation,
            );
            [hook, sim, 11020] cuMemPoolCreate(
                pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps,
            );
            [hook, sim, 11020] cuMemPoolDestroy(pool: CUmemoryPool);
            [hook, sim, 13000] cuMemGetDefaultMemPool(
                pool_out: *mut CUmemoryPool, location: *mut CUmemLocation,
                kind: CUmemAllocationType,
            );
            [hook, sim, 13000] cuMemGetMemPool(
                pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType,
            );
            [pass, sim, 13000] cuMemSetMemPool(
                location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool,
            );
            [hook, sim, 11020] cuMemAllocFromPoolAsync(
                dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream,
            );
            [hook, sim, 11020] cuMemAllocFromPoolAsync_ptsz(
                dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream,
            );
            [hook, sim, 11020] cuMemPoolExportToShareableHandle(
                handle_out: *mut c_void, pool: CUmemoryPool,
                handle_type: CUmemAllocationHandleType, flags: u64,
            );
            [hook, sim, 11020] cuMemPoolImportFromShareableHandle(
                pool_out: *mut CUmemoryPool, handle: *mut c_void,
                handle_type: CUmemAllocationHandleType, flags: u64,
            );
            [pass, sim, 11020] cuMemPoolExportPointer(
                share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr,
            );
            [pass, sim, 11020] cuMemPoolImportPointer(
                ptr_out: *mut CUdeviceptr, pool: CUmemoryPool,
                share_data: *mut CUmemPoolPtrExportData,
            );
            [hook, sim, 11040] cuDeviceGraphMemTrim(device: CUdevice);
            [pass, sim, 11040] cuDeviceGetGraphMemAttribute(
                device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void,
            );
            [pass, sim, 11040] cuDeviceSetGraphMemAttribute(
                device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void,
            );
        }
    };
}
