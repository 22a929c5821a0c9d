//! Copies: linear, between arrays, two- and three-dimensional, between devices, in batches.
//!
//! The synchronous ones have a `_ptds` variant and those on a stream a `_ptsz` variant: the same work, but a
//! null stream means the calling thread's own. All of them are work for the GPU, and wait for a turn.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_copy_fn {
    ($callback:ident) => {
        $callback! {
            [hook, sim, 4000] cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize);
            [hook, sim, 7000] cuMemcpy_ptds(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize);
            [hook, sim, 4000] cuMemcpyPeer(
                dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
                src_context: CUcontext, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyPeer_ptds(
                dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
                src_context: CUcontext, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyHtoD(
                dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyHtoD_v2(
                dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyHtoD_v2_ptds(
                dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyDtoH(
                dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyDtoH_v2(
                dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyDtoH_v2_ptds(
                dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyDtoD(
                dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyDtoD_v2(
                dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyDtoD_v2_ptds(
                dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyDtoA(
                dst_array: CUarray, dst_offset: u32, src_device: CUdeviceptr_v1, byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyDtoA_v2(
                dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyDtoA_v2_ptds(
                dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyAtoD(
                dst_device: CUdeviceptr_v1, src_array: CUarray, src_offset: u32, byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyAtoD_v2(
                dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyAtoD_v2_ptds(
                dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyHtoA(
                dst_array: CUarray, dst_offset: u32, src_host: *const c_void, byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyHtoA_v2(
                dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyHtoA_v2_ptds(
                dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyAtoH(
                dst_host: *mut c_void, src_array: CUarray, src_offset: u32, byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyAtoH_v2(
                dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyAtoH_v2_ptds(
                dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize,
            );
            [hook, none, 2000] cuMemcpyAtoA(
                dst_array: CUarray, dst_offset: u32, src_array: CUarray, src_offset: u32,
                byte_count: u32,
            );
            [hook, sim, 3020] cuMemcpyAtoA_v2(
                dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize,
                byte_count: usize,
            );
            [hook, sim, 7000] cuMemcpyAtoA_v2_ptds(
                dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize,
                byte_count: usize,
            );
            [hook, none, 2000] cuMemcpy2D(p_copy: *const c_void);
            [hook, sim, 3020] cuMemcpy2D_v2(p_copy: *const CUDA_MEMCPY2D);
            [hook, sim, 7000] cuMemcpy2D_v2_ptds(p_copy: *const CUDA_MEMCPY2D);
            [hook, none, 2000] cuMemcpy2DUnaligned(p_copy: *const c_void);
            [hook, sim, 3020] cuMemcpy2DUnaligned_v2(p_copy: *const CUDA_MEMCPY2D);
            [hook, sim, 7000] cuMemcpy2DUnaligned_v2_ptds(p_copy: *const CUDA_MEMCPY2D);
            [hook, none, 2000] cuMemcpy3D(p_copy: *const c_void);
            [hook, sim, 3020] cuMemcpy3D_v2(p_copy: *const CUDA_MEMCPY3D);
            [hook, sim, 7000] cuMemcpy3D_v2_ptds(p_copy: *const CUDA_MEMCPY3D);
            [hook, sim, 4000] cuMemcpy3DPeer(p_copy: *const CUDA_MEMCPY3D_PEER);
            [hook, sim, 7000] cuMemcpy3DPeer_ptds(p_copy: *const CUDA_MEMCPY3D_PEER);
            [hook, sim, 4000] cuMemcpyAsync(
                dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpyAsync_ptsz(
                dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream,
            );
            [hook, sim, 4000] cuMemcpyPeerAsync(
                dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
                src_context: CUcontext, byte_count: usize, h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpyPeerAsync_ptsz(
                dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
                src_context: CUcontext, byte_count: usize, h_stream: CUstream,
            );
            [hook, none, 2000] cuMemcpyHtoDAsync(
                dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: u32,
                h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemcpyHtoDAsync_v2(
                dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpyHtoDAsync_v2_ptsz(
                dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, none, 2000] cuMemcpyDtoHAsync(
                dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: u32,
                h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemcpyDtoHAsync_v2(
                dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpyDtoHAsync_v2_ptsz(
                dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, none, 3000] cuMemcpyDtoDAsync(
                dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: u32,
                h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemcpyDtoDAsync_v2(
                dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpyDtoDAsync_v2_ptsz(
                dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, none, 2000] cuMemcpyHtoAAsync(
                dst_array: CUarray, dst_offset: u32, src_host: *const c_void, byte_count: u32,
                h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemcpyHtoAAsync_v2(
                dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpyHtoAAsync_v2_ptsz(
                dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, none, 2000] cuMemcpyAtoHAsync(
                dst_host: *mut c_void, src_array: CUarray, src_offset: u32, byte_count: u32,
                h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemcpyAtoHAsync_v2(
                dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpyAtoHAsync_v2_ptsz(
                dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize,
                h_stream: CUstream,
            );
            [hook, none, 2000] cuMemcpy2DAsync(p_copy: *const c_void, h_stream: CUstream);
            [hook, sim, 3020] cuMemcpy2DAsync_v2(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream);
            [hook, sim, 7000] cuMemcpy2DAsync_v2_ptsz(
                p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream,
            );
            [hook, none, 2000] cuMemcpy3DAsync(p_copy: *const c_void, h_stream: CUstream);
            [hook, sim, 3020] cuMemcpy3DAsync_v2(p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream);
            [hook, sim, 7000] cuMemcpy3DAsync_v2_ptsz(
                p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream,
            );
            [hook, sim, 4000] cuMemcpy3DPeerAsync(
                p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemcpy3DPeerAsync_ptsz(
                p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream,
            );
            [hook, none, 12080] cuMemcpyBatchAsync(
                dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize,
                fail_idx: *mut usize, h_stream: CUstream,
            );
            [hook, none, 12080] cuMemcpyBatchAsync_ptsz(
                dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize,
                fail_idx: *mut usize, h_stream: CUstream,
            );
            [hook, none, 13000] cuMemcpyBatchAsync_v2(
                dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize,
                h_stream: CUstream,
            );
            [hook, none, 13000] cuMemcpyBatchAsync_v2_ptsz(
                dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize,
                h_stream: CUstream,
            );
            [hook, none, 12080] cuMemcpy3DBatchAsync(
                num_ops: usize, op_list: *mut c_void, fail_idx: *mut usize, flags: u64,
                h_stream: CUstream,
            );
            [hook, none, 12080] cuMemcpy3DBatchAsync_ptsz(
                num_ops: usize, op_list: *mut c_void, fail_idx: *mut usize, flags: u64,
                h_stream: CUstream,
            );
            [hook, none, 13000] cuMemcpy3DBatchAsync_v2(
                num_ops: usize, op_list: *mut c_void, flags: u64, h_stream: CUstream,
            );
            [hook, none, 13000] cuMemcpy3DBatchAsync_v2_ptsz(
                num_ops: usize, op_list: *mut c_void, flags: u64, h_stream: CUstream,
            );
            [hook, none, 13020] cuMemcpyWithAttributesAsync(
                dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes,
                h_stream: CUstream,
            );
            [hook, none, 13020] cuMemcpyWithAttributesAsync_ptsz(
                dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes,
                h_stream: CUstream,
            );
            [hook, none, 13020] cuMemcpy3DWithAttributesAsync(
                op: *mut c_void, flags: u64, h_stream: CUstream,
            );
            [hook, none, 13020] cuMemcpy3DWithAttributesAsync_ptsz(
                op: *mut c_void, flags: u64, h_stream: CUstream,
            );
        }
    };
}
