//! Streams: creation, ordering, waiting and attributes.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_stream_fn {
    ($callback:ident) => {
        $callback! {
            [hook, sim, 2000] cuStreamCreate(ph_stream: *mut CUstream, flags: u32);
            [hook, sim, 5050] cuStreamCreateWithPriority(
                ph_stream: *mut CUstream, flags: u32, priority: i32,
            );
            [pass, sim, 5050] cuStreamGetPriority(h_stream: CUstream, priority: *mut i32);
            [pass, sim, 7000] cuStreamGetPriority_ptsz(h_stream: CUstream, priority: *mut i32);
            [pass, sim, 12080] cuStreamGetDevice(h_stream: CUstream, device: *mut CUdevice);
            [pass, sim, 12080] cuStreamGetDevice_ptsz(h_stream: CUstream, device: *mut CUdevice);
            [pass, sim, 5050] cuStreamGetFlags(h_stream: CUstream, flags: *mut u32);
            [pass, sim, 7000] cuStreamGetFlags_ptsz(h_stream: CUstream, flags: *mut u32);
            [pass, sim, 12000] cuStreamGetId(h_stream: CUstream, stream_id: *mut u64);
            [pass, sim, 12000] cuStreamGetId_ptsz(h_stream: CUstream, stream_id: *mut u64);
            [pass, sim, 9020] cuStreamGetCtx(h_stream: CUstream, pctx: *mut CUcontext);
            [pass, sim, 9020] cuStreamGetCtx_ptsz(h_stream: CUstream, pctx: *mut CUcontext);
            [pass, sim, 12050] cuStreamGetCtx_v2(
                h_stream: CUstream, p_ctx: *mut CUcontext, p_green_ctx: *mut CUgreenCtx,
            );
            [pass, sim, 12050] cuStreamGetCtx_v2_ptsz(
                h_stream: CUstream, p_ctx: *mut CUcontext, p_green_ctx: *mut CUgreenCtx,
            );
            [pass, sim, 5000] cuStreamAddCallback(
                h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: u32,
            );
            [pass, sim, 7000] cuStreamAddCallback_ptsz(
                h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: u32,
            );
            [pass, sim, 6000] cuStreamAttachMemAsync(
                h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32,
            );
            [pass, sim, 7000] cuStreamAttachMemAsync_ptsz(
                h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32,
            );
            [pass, sim, 2000] cuStreamQuery(h_stream: CUstream);
            [pass, sim, 7000] cuStreamQuery_ptsz(h_stream: CUstream);
            [hook, sim, 2000] cuStreamSynchronize(h_stream: CUstream);
            [hook, sim, 7000] cuStreamSynchronize_ptsz(h_stream: CUstream);
            [hook, sim, 2000] cuStreamDestroy(h_stream: CUstream);
            [hook, sim, 4000] cuStreamDestroy_v2(h_stream: CUstream);
        }
    };
}
