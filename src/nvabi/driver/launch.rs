//! Launches, function attributes and occupancy.
//!
//! Every program starts work on the device by one of these functions, by `cuGraphLaunch`, a copy, a fill or a
//! prefetch: these calls wait for the slice's turn.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_launch_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 2020] cuFuncGetAttribute(
                pi: *mut i32, attrib: CUfunction_attribute, hfunc: CUfunction,
            );
            [pass, sim, 9000] cuFuncSetAttribute(
                hfunc: CUfunction, attrib: CUfunction_attribute, value: i32,
            );
            [pass, sim, 3000] cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache);
            [pass, sim, 11000] cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction);
            [pass, sim, 12030] cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction);
            [pass, sim, 12040] cuFuncGetParamInfo(
                func: CUfunction, param_index: usize, param_offset: *mut usize,
                param_size: *mut usize,
            );
            [pass, sim, 13020] cuFuncGetParamCount(func: CUfunction, param_count: *mut usize);
            [pass, sim, 12040] cuFuncIsLoaded(
                state: *mut CUfunctionLoadingState, function: CUfunction,
            );
            [pass, sim, 12040] cuFuncLoad(function: CUfunction);
            [hook, sim, 4000] cuLaunchKernel(
                f: CUfunction, grid_dim_x: u32, grid_dim_y: u32, grid_dim_z: u32, block_dim_x: u32,
                block_dim_y: u32, block_dim_z: u32, shared_mem_bytes: u32, h_stream: CUstream,
                kernel_params: *mut *mut c_void, extra: *mut *mut c_void,
            );
            [hook, sim, 7000] cuLaunchKernel_ptsz(
                f: CUfunction, grid_dim_x: u32, grid_dim_y: u32, grid_dim_z: u32, block_dim_x: u32,
                block_dim_y: u32, block_dim_z: u32, shared_mem_bytes: u32, h_stream: CUstream,
                kernel_params: *mut *mut c_void, extra: *mut *mut c_void,
            );
            [hook, sim, 11060] cuLaunchKernelEx(
                config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void,
                extra: *mut *mut c_void,
            );
            [hook, sim, 11060] cuLaunchKernelEx_ptsz(
                config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void,
                extra: *mut *mut c_void,
            );
            [hook, sim, 9000] cuLaunchCooperativeKernel(
                f: CUfunction, grid_dim_x: u32, grid_dim_y: u32, grid_dim_z: u32, block_dim_x: u32,
                block_dim_y: u32, block_dim_z: u32, shared_mem_bytes: u32, h_stream: CUstream,
                kernel_params: *mut *mut c_void,
            );
            [hook, sim, 9000] cuLaunchCooperativeKernel_ptsz(
                f: CUfunction, grid_dim_x: u32, grid_dim_y: u32, grid_dim_z: u32, block_dim_x: u32,
                block_dim_y: u32, block_dim_z: u32, shared_mem_bytes: u32, h_stream: CUstream,
                kernel_params: *mut *mut c_void,
            );
            [pass, sim, 10000] cuLaunchHostFunc(
                h_stream: CUstream, func: CUhostFn, user_data: *mut c_void,
            );
            [pass, sim, 10000] cuLaunchHostFunc_ptsz(
                h_stream: CUstream, func: CUhostFn, user_data: *mut c_void,
            );
            [pass, sim, 13010] cuLaunchHostFunc_v2(
                h_stream: CUstream, func: CUhostFn, user_data: *mut c_void, sync_mode: u32,
            );
            [pass, sim, 13010] cuLaunchHostFunc_v2_ptsz(
                h_stream: CUstream, func: CUhostFn, user_data: *mut c_void, sync_mode: u32,
            );
            [pass, none, 2000] cuFuncSetBlockShape(hfunc: CUfunction, x: i32, y: i32, z: i32);
            [pass, none, 2000] cuFuncSetSharedSize(hfunc: CUfunction, bytes: u32);
            [pass, none, 2000] cuParamSetSize(hfunc: CUfunction, numbytes: u32);
            [pass, none, 2000] cuParamSeti(hfunc: CUfunction, offset: i32, value: u32);
            [pass, none, 2000] cuParamSetf(hfunc: CUfunction, offset: i32, value: f32);
            [pass, none, 2000] cuParamSetv(
                hfunc: CUfunction, offset: i32, ptr: *mut c_void, numbytes: u32,
            );
            [hook, none, 2000] cuLaunch(f: CUfunction);
            [hook, none, 2000] cuLaunchGrid(f: CUfunction, grid_width: i32, grid_height: i32);
            [hook, none, 2000] cuLaunchGridAsync(
                f: CUfunction, grid_width: i32, grid_height: i32, h_stream: CUstream,
            );
            [hook, sim, 9000] cuLaunchCooperativeKernelMultiDevice(
                launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: u32, flags: u32,
            );
            [pass, none, 2000] cuParamSetTexRef(
                hfunc: CUfunction, texunit: i32, h_tex_ref: CUtexref,
            );
            [pass, sim, 4020] cuFuncSetSharedMemConfig(hfunc: CUfunction, config: CUsharedconfig);
            [pass, sim, 6050] cuOccupancyMaxActiveBlocksPerMultiprocessor(
                num_blocks: *mut i32, func: CUfunction, block_size: i32, dynamic_s_mem_size: usize,
            );
            [pass, sim, 7000] cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                num_blocks: *mut i32, func: CUfunction, block_size: i32, dynamic_s_mem_size: usize,
                flags: u32,
            );
            [pass, sim, 6050] cuOccupancyMaxPotentialBlockSize(
                min_grid_size: *mut i32, block_size: *mut i32, func: CUfunction,
                block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize, dynamic_s_mem_size: usize,
                block_size_limit: i32,
            );
            [pass, sim, 7000] cuOccupancyMaxPotentialBlockSizeWithFlags(
                min_grid_size: *mut i32, block_size: *mut i32, func: CUfunction,
                block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize, dynamic_s_mem_size: usize,
                block_size_limit: i32, flags: u32,
            );
            [pass, sim, 10020] cuOccupancyAvailableDynamicSMemPerBlock(
                dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: i32, block_size: i32,
            );
            [pass, sim, 11070] cuOccupancyMaxPotentialClusterSize(
                cluster_size: *mut i32, func: CUfunction, config: *const CUlaunchConfig,
            );
            [pass, sim, 11070] cuOccupancyMaxActiveClusters(
                num_clusters: *mut i32, func: CUfunction, config: *const CUlaunchConfig,
            );
        }
    };
}
