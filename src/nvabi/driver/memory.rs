//! Device, managed and pinned host memory, and attributes of pointers.
//!
//! The unversioned names with `CUdeviceptr_v1` are the 32-bit interface before CUDA 3.2; drivers
//! still export them, no program built since 2010 calls them.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_memory_fn {
    ($callback:ident) => {
        $callback! {
            [hook, none, 2000] cuMemGetInfo(free: *mut u32, total: *mut u32);
            [hook, sim, 3020] cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            [hook, sim, 2000] cuMemAlloc(dptr: *mut CUdeviceptr_v1, bytesize: u32);
            [hook, sim, 3020] cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
            [hook, none, 2000] cuMemAllocPitch(
                dptr: *mut CUdeviceptr_v1, p_pitch: *mut u32, width_in_bytes: u32, height: u32,
                element_size_bytes: u32,
            );
            [hook, sim, 3020] cuMemAllocPitch_v2(
                dptr: *mut CUdeviceptr, p_pitch: *mut usize, width_in_bytes: usize, height: usize,
                element_size_bytes: u32,
            );
            [hook, none, 2000] cuMemFree(dptr: CUdeviceptr_v1);
            [hook, sim, 3020] cuMemFree_v2(dptr: CUdeviceptr);
            [pass, none, 2000] cuMemGetAddressRange(
                pbase: *mut CUdeviceptr_v1, psize: *mut u32, dptr: CUdeviceptr_v1,
            );
            [pass, sim, 3020] cuMemGetAddressRange_v2(
                pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr,
            );
            [hook, none, 2000] cuMemAllocHost(pp: *mut *mut c_void, bytesize: u32);
            [hook, sim, 3020] cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize);
            [hook, sim, 2000] cuMemFreeHost(p: *mut c_void);
            [hook, sim, 2020] cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: u32);
            [pass, none, 2020] cuMemHostGetDevicePointer(
                pdptr: *mut CUdeviceptr_v1, p: *mut c_void, flags: u32,
            );
            [pass, sim, 3020] cuMemHostGetDevicePointer_v2(
                pdptr: *mut CUdeviceptr, p: *mut c_void, flags: u32,
            );
            [pass, sim, 2030] cuMemHostGetFlags(p_flags: *mut u32, p: *mut c_void);
            [hook, sim, 6000] cuMemAllocManaged(
                dptr: *mut CUdeviceptr, bytesize: usize, flags: u32,
            );
            [hook, none, 4000] cuMemHostRegister(p: *mut c_void, bytesize: usize, flags: u32);
            [hook, sim, 6050] cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32);
            [hook, sim, 4000] cuMemHostUnregister(p: *mut c_void);
            [pass, sim, 4000] cuPointerGetAttribute(
                data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr,
            );
            [hook, sim, 8000] cuMemPrefetchAsync(
                dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream,
            );
            [hook, sim, 8000] cuMemPrefetchAsync_ptsz(
                dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream,
            );
            [hook, sim, 12020] cuMemPrefetchAsync_v2(
                dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32,
                h_stream: CUstream,
            );
            [hook, sim, 12020] cuMemPrefetchAsync_v2_ptsz(
                dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32,
                h_stream: CUstream,
            );
            [pass, sim, 8000] cuMemAdvise(
                dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice,
            );
            [pass, sim, 12020] cuMemAdvise_v2(
                dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation,
            );
            [hook, none, 13000] cuMemPrefetchBatchAsync(
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize,
                num_prefetch_locs: usize, flags: u64, h_stream: CUstream,
            );
            [hook, none, 13000] cuMemPrefetchBatchAsync_ptsz(
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize,
                num_prefetch_locs: usize, flags: u64, h_stream: CUstream,
            );
            [pass, none, 13000] cuMemDiscardBatchAsync(
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64,
                h_stream: CUstream,
            );
            [pass, none, 13000] cuMemDiscardBatchAsync_ptsz(
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64,
                h_stream: CUstream,
            );
            [hook, none, 13000] cuMemDiscardAndPrefetchBatchAsync(
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize,
                num_prefetch_locs: usize, flags: u64, h_stream: CUstream,
            );
            [hook, none, 13000] cuMemDiscardAndPrefetchBatchAsync_ptsz(
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize,
                num_prefetch_locs: usize, flags: u64, h_stream: CUstream,
            );
            [pass, none, 13040] cuMemGetLocationInfo(
                ptr: CUdeviceptr, size: usize, summary_granularity: usize,
                sampling_granularity: usize, location_out: *mut CUmemLocation,
            );
            [pass, sim, 8000] cuMemRangeGetAttribute(
                data: *mut c_void, data_size: usize, attribute: CUmem_range_attribute,
                dev_ptr: CUdeviceptr, count: usize,
            );
            [pass, sim, 8000] cuMemRangeGetAttributes(
                data: *mut *mut c_void, data_sizes: *mut usize,
                attributes: *mut CUmem_range_attribute, num_attributes: usize,
                dev_ptr: CUdeviceptr, count: usize,
            );
            [pass, sim, 6000] cuPointerSetAttribute(
                value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr,
            );
            [pass, sim, 7000] cuPointerGetAttributes(
                num_attributes: u32, attributes: *mut CUpointer_attribute, data: *mut *mut c_void,
                ptr: CUdeviceptr,
            );
        }
    };
}
