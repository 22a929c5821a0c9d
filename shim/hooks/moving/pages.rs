//! Migration of managed memory, decompression by the device, and copies between logical endpoints.

use super::{TransferKind, Work, launches};
use crate::launch::DefaultStream::{self, Legacy, PerThread};
use gpuslice_nvabi::types::*;

launches! {
    cuMemPrefetchAsync(
        dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream,
    ) as Work::bytes(TransferKind::Pages, count as u64, h_stream, Legacy);
    cuMemPrefetchAsync_ptsz(
        dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream,
    ) as Work::bytes(TransferKind::Pages, count as u64, h_stream, PerThread);
    cuMemPrefetchAsync_v2(
        dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32,
        h_stream: CUstream,
    ) as Work::bytes(TransferKind::Pages, count as u64, h_stream, Legacy);
    cuMemPrefetchAsync_v2_ptsz(
        dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32,
        h_stream: CUstream,
    ) as Work::bytes(TransferKind::Pages, count as u64, h_stream, PerThread);
    cuMemPrefetchBatchAsync(
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        indices: *mut usize, many: usize, flags: u64, h_stream: CUstream,
    ) as many_pages(sizes, count, h_stream, Legacy);
    cuMemPrefetchBatchAsync_ptsz(
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        indices: *mut usize, many: usize, flags: u64, h_stream: CUstream,
    ) as many_pages(sizes, count, h_stream, PerThread);
    cuMemDiscardAndPrefetchBatchAsync(
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        indices: *mut usize, many: usize, flags: u64, h_stream: CUstream,
    ) as many_pages(sizes, count, h_stream, Legacy);
    cuMemDiscardAndPrefetchBatchAsync_ptsz(
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        indices: *mut usize, many: usize, flags: u64, h_stream: CUstream,
    ) as many_pages(sizes, count, h_stream, PerThread);
    cuMemBatchDecompressAsync(
        params: *mut c_void, count: usize, flags: u32, error: *mut usize, stream: CUstream,
    ) as Work::bytes(TransferKind::Decompression, count as u64, stream, Legacy);
    cuMemBatchDecompressAsync_ptsz(
        params: *mut c_void, count: usize, flags: u32, error: *mut usize, stream: CUstream,
    ) as Work::bytes(TransferKind::Decompression, count as u64, stream, PerThread);
    cuFabricCpyBatchAsync(
        num_ops: usize, op_list: *mut c_void, flags: u64, h_stream: CUstream,
    ) as Work::bytes(TransferKind::Device, num_ops as u64, h_stream, Legacy);
    cuFabricCpyBatchAsync_ptsz(
        num_ops: usize, op_list: *mut c_void, flags: u64, h_stream: CUstream,
    ) as Work::bytes(TransferKind::Device, num_ops as u64, h_stream, PerThread);
}

/// Several ranges.
fn many_pages(
    sizes: *const usize,
    count: usize,
    stream: CUstream,
    default_stream: DefaultStream,
) -> Work {
    let bytes = super::sum(sizes, count);
    Work::bytes(TransferKind::Pages, bytes, stream, default_stream)
}
