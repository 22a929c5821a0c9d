//! Fills. A fill takes no memory; on a stream it is work like a launch.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_set_fn {
    ($callback:ident) => {
        $callback! {
            [hook, none, 2000] cuMemsetD8(dst_device: CUdeviceptr_v1, uc: u8, n: u32);
            [hook, sim, 3020] cuMemsetD8_v2(dst_device: CUdeviceptr, uc: u8, n: usize);
            [hook, sim, 7000] cuMemsetD8_v2_ptds(dst_device: CUdeviceptr, uc: u8, n: usize);
            [hook, none, 2000] cuMemsetD16(dst_device: CUdeviceptr_v1, us: u16, n: u32);
            [hook, sim, 3020] cuMemsetD16_v2(dst_device: CUdeviceptr, us: u16, n: usize);
            [hook, sim, 7000] cuMemsetD16_v2_ptds(dst_device: CUdeviceptr, us: u16, n: usize);
            [hook, none, 2000] cuMemsetD32(dst_device: CUdeviceptr_v1, ui: u32, n: u32);
            [hook, sim, 3020] cuMemsetD32_v2(dst_device: CUdeviceptr, ui: u32, n: usize);
            [hook, sim, 7000] cuMemsetD32_v2_ptds(dst_device: CUdeviceptr, ui: u32, n: usize);
            [hook, none, 2000] cuMemsetD2D8(
                dst_device: CUdeviceptr_v1, dst_pitch: u32, uc: u8, width: u32, height: u32,
            );
            [hook, sim, 3020] cuMemsetD2D8_v2(
                dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize,
            );
            [hook, sim, 7000] cuMemsetD2D8_v2_ptds(
                dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize,
            );
            [hook, none, 2000] cuMemsetD2D16(
                dst_device: CUdeviceptr_v1, dst_pitch: u32, us: u16, width: u32, height: u32,
            );
            [hook, sim, 3020] cuMemsetD2D16_v2(
                dst_device: CUdeviceptr, dst_pitch: usize, us: u16, width: usize, height: usize,
            );
            [hook, sim, 7000] cuMemsetD2D16_v2_ptds(
                dst_device: CUdeviceptr, dst_pitch: usize, us: u16, width: usize, height: usize,
            );
            [hook, none, 2000] cuMemsetD2D32(
                dst_device: CUdeviceptr_v1, dst_pitch: u32, ui: u32, width: u32, height: u32,
            );
            [hook, sim, 3020] cuMemsetD2D32_v2(
                dst_device: CUdeviceptr, dst_pitch: usize, ui: u32, width: usize, height: usize,
            );
            [hook, sim, 7000] cuMemsetD2D32_v2_ptds(
                dst_device: CUdeviceptr, dst_pitch: usize, ui: u32, width: usize, height: usize,
            );
            [hook, sim, 3020] cuMemsetD8Async(
                dst_device: CUdeviceptr, uc: u8, n: usize, h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemsetD8Async_ptsz(
                dst_device: CUdeviceptr, uc: u8, n: usize, h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemsetD16Async(
                dst_device: CUdeviceptr, us: u16, n: usize, h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemsetD16Async_ptsz(
                dst_device: CUdeviceptr, us: u16, n: usize, h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemsetD32Async(
                dst_device: CUdeviceptr, ui: u32, n: usize, h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemsetD32Async_ptsz(
                dst_device: CUdeviceptr, ui: u32, n: usize, h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemsetD2D8Async(
                dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemsetD2D8Async_ptsz(
                dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize,
                h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemsetD2D16Async(
                dst_device: CUdeviceptr, dst_pitch: usize, us: u16, width: usize, height: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemsetD2D16Async_ptsz(
                dst_device: CUdeviceptr, dst_pitch: usize, us: u16, width: usize, height: usize,
                h_stream: CUstream,
            );
            [hook, sim, 3020] cuMemsetD2D32Async(
                dst_device: CUdeviceptr, dst_pitch: usize, ui: u32, width: usize, height: usize,
                h_stream: CUstream,
            );
            [hook, sim, 7000] cuMemsetD2D32Async_ptsz(
                dst_device: CUdeviceptr, dst_pitch: usize, ui: u32, width: usize, height: usize,
                h_stream: CUstream,
            );
        }
    };
}
