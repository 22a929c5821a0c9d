//! Virtual memory management and multicast objects.
//!
//! Physical memory (`cuMemCreate`) and addresses (`cuMemAddressReserve`) are separate: creating physical
//! memory takes device memory, which lives until the last mapping and the last handle are gone, in either
//! order.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_vmm_fn {
    ($callback:ident) => {
        $callback! {
            [hook, none, 11070] cuMemGetHandleForAddressRange(
                handle: *mut c_void, dptr: CUdeviceptr, size: usize,
                handle_type: CUmemRangeHandleType, flags: u64,
            );
            [hook, none, 12060] cuMemBatchDecompressAsync(
                params_array: *mut c_void, count: usize, flags: u32, error_index: *mut usize,
                stream: CUstream,
            );
            [hook, none, 12060] cuMemBatchDecompressAsync_ptsz(
                params_array: *mut c_void, count: usize, flags: u32, error_index: *mut usize,
                stream: CUstream,
            );
            [pass, sim, 10020] cuMemAddressReserve(
                ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr,
                flags: u64,
            );
            [pass, sim, 10020] cuMemAddressFree(ptr: CUdeviceptr, size: usize);
            [hook, sim, 10020] cuMemCreate(
                handle: *mut CUmemGenericAllocationHandle, size: usize,
                prop: *const CUmemAllocationProp, flags: u64,
            );
            [hook, sim, 10020] cuMemRelease(handle: CUmemGenericAllocationHandle);
            [hook, sim, 10020] cuMemMap(
                ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle,
                flags: u64,
            );
            [hook, sim, 11010] cuMemMapArrayAsync(
                map_info_list: *mut CUarrayMapInfo, count: u32, h_stream: CUstream,
            );
            [hook, sim, 11010] cuMemMapArrayAsync_ptsz(
                map_info_list: *mut CUarrayMapInfo, count: u32, h_stream: CUstream,
            );
            [hook, sim, 10020] cuMemUnmap(ptr: CUdeviceptr, size: usize);
            [pass, sim, 10020] cuMemSetAccess(
                ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize,
            );
            [pass, sim, 10020] cuMemGetAccess(
                flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr,
            );
            [hook, sim, 10020] cuMemExportToShareableHandle(
                shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle,
                handle_type: CUmemAllocationHandleType, flags: u64,
            );
            [hook, sim, 10020] cuMemImportFromShareableHandle(
                handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void,
                sh_handle_type: CUmemAllocationHandleType,
            );
            [pass, sim, 10020] cuMemGetAllocationGranularity(
                granularity: *mut usize, prop: *const CUmemAllocationProp,
                option: CUmemAllocationGranularity_flags,
            );
            [pass, sim, 10020] cuMemGetAllocationPropertiesFromHandle(
                prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle,
            );
            [hook, sim, 11000] cuMemRetainAllocationHandle(
                handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void,
            );
            [hook, none, 12010] cuMulticastCreate(
                mc_handle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp,
            );
            [pass, none, 12010] cuMulticastAddDevice(
                mc_handle: CUmemGenericAllocationHandle, dev: CUdevice,
            );
            [hook, none, 12010] cuMulticastBindMem(
                mc_handle: CUmemGenericAllocationHandle, mc_offset: usize,
                mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize,
                flags: u64,
            );
            [hook, none, 13010] cuMulticastBindMem_v2(
                mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
                mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize,
                flags: u64,
            );
            [hook, none, 12010] cuMulticastBindAddr(
                mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, memptr: CUdeviceptr,
                size: usize, flags: u64,
            );
            [hook, none, 13010] cuMulticastBindAddr_v2(
                mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
                memptr: CUdeviceptr, size: usize, flags: u64,
            );
            [hook, none, 12010] cuMulticastUnbind(
                mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
                size: usize,
            );
            [pass, none, 12010] cuMulticastGetGranularity(
                granularity: *mut usize, prop: *const CUmulticastObjectProp,
                option: CUmulticastGranularity_flags,
            );
        }
    };
}
