//! Green contexts and device resources: a context over a part of the multiprocessors.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_green_fn {
    ($callback:ident) => {
        $callback! {
            [hook, sim, 12040] cuGreenCtxCreate(
                ph_ctx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: u32,
            );
            [hook, sim, 12040] cuGreenCtxDestroy(h_ctx: CUgreenCtx);
            [pass, sim, 12040] cuCtxFromGreenCtx(p_context: *mut CUcontext, h_ctx: CUgreenCtx);
            [pass, sim, 12040] cuDeviceGetDevResource(
                device: CUdevice, resource: *mut c_void, kind: CUdevResourceType,
            );
            [pass, none, 12040] cuCtxGetDevResource(
                h_ctx: CUcontext, resource: *mut c_void, kind: CUdevResourceType,
            );
            [pass, none, 12040] cuGreenCtxGetDevResource(
                h_ctx: CUgreenCtx, resource: *mut c_void, kind: CUdevResourceType,
            );
            [pass, none, 12040] cuDevSmResourceSplitByCount(
                result: *mut c_void, nb_groups: *mut u32, input: *const c_void,
                remainder: *mut c_void, flags: u32, min_count: u32,
            );
            [pass, none, 13010] cuDevSmResourceSplit(
                result: *mut c_void, nb_groups: u32, input: *const c_void, remainder: *mut c_void,
                flags: u32, group_params: *mut c_void,
            );
            [pass, sim, 12040] cuDevResourceGenerateDesc(
                ph_desc: *mut CUdevResourceDesc, resources: *mut c_void, nb_resources: u32,
            );
            [pass, none, 12040] cuGreenCtxRecordEvent(h_ctx: CUgreenCtx, h_event: CUevent);
            [pass, none, 12040] cuGreenCtxWaitEvent(h_ctx: CUgreenCtx, h_event: CUevent);
            [pass, none, 12040] cuStreamGetGreenCtx(h_stream: CUstream, ph_ctx: *mut CUgreenCtx);
            [pass, none, 12050] cuGreenCtxStreamCreate(
                ph_stream: *mut CUstream, green_ctx: CUgreenCtx, flags: u32, priority: i32,
            );
            [pass, none, 12090] cuGreenCtxGetId(green_ctx: CUgreenCtx, green_ctx_id: *mut u64);
            [pass, none, 13010] cuStreamGetDevResource(
                h_stream: CUstream, resource: *mut c_void, kind: CUdevResourceType,
            );
            [pass, none, 13010] cuStreamGetDevResource_ptsz(
                h_stream: CUstream, resource: *mut c_void, kind: CUdevResourceType,
            );
        }
    };
}
