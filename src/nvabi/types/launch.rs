//! The structures of launches and of context creation (cuda.h 13.5).

use super::*;

/// The value of a launch attribute: 64 bytes, read by the attribute's id.
///
/// Kept as bytes with the header's alignment: only a few kinds are inspected, and those are read through
/// `word`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchAttributeValue {
    pub bytes: [u8; 64],
}
layout!(CUlaunchAttributeValue, 64, bytes: 0);

impl CUlaunchAttributeValue {
    /// The `index`-th 32-bit word (0 to 15), of which every integer kind (priority, cooperative, cluster
    /// extents) consists. Reads 0 if out of range.
    pub const fn word(&self, index: usize) -> u32 {
        if index >= 16 {
            return 0;
        }
        let b = &self.bytes;
        let i = index * 4;
        u32::from_ne_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]])
    }
}

/// The number of multiprocessors that a context may use; the only kind of affinity is a count.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUexecAffinityParam {
    pub kind: CUexecAffinityType,
    pub sm_count: u32,
}
layout!(CUexecAffinityParam, 8, kind: 0, sm_count: 4);

/// One EGL frame; passed by value, so its size matters even if it is passed through.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUeglFrame {
    /// Three arrays or three pitched pointers, by `frame_type`.
    pub planes: [*mut c_void; 3],
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub pitch: u32,
    pub plane_count: u32,
    pub num_channels: u32,
    pub frame_type: u32,
    pub egl_color_format: u32,
    pub cu_format: CUarray_format,
}
layout!(CUeglFrame, 64, planes: 0, width: 24, plane_count: 40, cu_format: 56);

/// The result of `cuDeviceGetProperties` (deprecated).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUdevprop {
    pub max_threads_per_block: i32,
    pub max_threads_dim: [i32; 3],
    pub max_grid_size: [i32; 3],
    pub shared_mem_per_block: i32,
    pub total_constant_memory: i32,
    pub simd_width: i32,
    pub mem_pitch: i32,
    pub regs_per_block: i32,
    pub clock_rate: i32,
    pub texture_align: i32,
}
layout!(
    CUdevprop,
    56,
    max_threads_per_block: 0, max_threads_dim: 4, max_grid_size: 16, shared_mem_per_block: 28,
    total_constant_memory: 32, simd_width: 36, mem_pitch: 40, regs_per_block: 44, clock_rate: 48,
    texture_align: 52,
);

/// The parameters of `cuCtxCreate_v4`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUctxCreateParams {
    pub exec_affinity_params: *mut CUexecAffinityParam,
    pub num_exec_affinity_params: i32,
    pub cig_params: *mut c_void,
}
layout!(
    CUctxCreateParams,
    24,
    exec_affinity_params: 0, num_exec_affinity_params: 8, cig_params: 16,
);

/// One attribute of a launch: its id and its value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchAttribute {
    pub id: CUlaunchAttributeID,
    pub pad: [c_char; 4],
    pub value: CUlaunchAttributeValue,
}
layout!(CUlaunchAttribute, 72, id: 0, pad: 4, value: 8);

/// Grid, block, stream and attributes of `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    pub grid_dim_x: u32,
    pub grid_dim_y: u32,
    pub grid_dim_z: u32,
    pub block_dim_x: u32,
    pub block_dim_y: u32,
    pub block_dim_z: u32,
    pub shared_mem_bytes: u32,
    pub h_stream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub num_attrs: u32,
}
layout!(
    CUlaunchConfig,
    56,
    grid_dim_x: 0, grid_dim_y: 4, grid_dim_z: 8, block_dim_x: 12, block_dim_y: 16,
    block_dim_z: 20, shared_mem_bytes: 24, h_stream: 32, attrs: 40, num_attrs: 48,
);

/// One device's part of a multi-device cooperative launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_LAUNCH_PARAMS {
    pub function: CUfunction,
    pub grid_dim_x: u32,
    pub grid_dim_y: u32,
    pub grid_dim_z: u32,
    pub block_dim_x: u32,
    pub block_dim_y: u32,
    pub block_dim_z: u32,
    pub shared_mem_bytes: u32,
    pub h_stream: CUstream,
    pub kernel_params: *mut *mut c_void,
}
layout!(
    CUDA_LAUNCH_PARAMS,
    56,
    function: 0, grid_dim_x: 8, grid_dim_y: 12, grid_dim_z: 16, block_dim_x: 20, block_dim_y: 24,
    block_dim_z: 28, shared_mem_bytes: 32, h_stream: 40, kernel_params: 48,
);
