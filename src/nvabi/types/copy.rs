//! The structures of arrays and of two- and three-dimensional copies (cuda.h 13.5).

use super::*;

/// A one- or two-dimensional array; width and height in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    pub format: CUarray_format,
    pub num_channels: u32,
}
layout!(CUDA_ARRAY_DESCRIPTOR, 24, width: 0, height: 8, format: 16, num_channels: 20);

/// An array of up to three dimensions, layered or cubemap; extents in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: CUarray_format,
    pub num_channels: u32,
    pub flags: u32,
}
layout!(
    CUDA_ARRAY3D_DESCRIPTOR,
    40,
    width: 0, height: 8, depth: 16, format: 24, num_channels: 28, flags: 32,
);

/// Size and alignment, in bytes, of the memory a deferred array needs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    pub size: usize,
    pub alignment: usize,
    pub reserved: [u32; 4],
}
layout!(CUDA_ARRAY_MEMORY_REQUIREMENTS, 32, size: 0, alignment: 8, reserved: 16);

/// Extent, in elements, of one tile of a sparse array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_SPARSE_TILE {
    pub width: u32,
    pub height: u32,
    pub depth: u32,
}
layout!(CUDA_ARRAY_SPARSE_TILE, 12, width: 0, height: 4, depth: 8);

/// Tiles and mip tail of a sparse array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_SPARSE_PROPERTIES {
    pub tile_extent: CUDA_ARRAY_SPARSE_TILE,
    pub miptail_first_level: u32,
    pub miptail_size: u64,
    pub flags: u32,
    pub reserved: [u32; 4],
}
layout!(
    CUDA_ARRAY_SPARSE_PROPERTIES,
    48,
    tile_extent: 0, miptail_first_level: 12, miptail_size: 16, flags: 24, reserved: 28,
);

/// A two-dimensional copy; x, pitch and width in bytes, y and height in rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY2D {
    pub src_x_in_bytes: usize,
    pub src_y: usize,
    pub src_memory_type: CUmemorytype,
    pub src_host: *const c_void,
    pub src_device: CUdeviceptr,
    pub src_array: CUarray,
    pub src_pitch: usize,
    pub dst_x_in_bytes: usize,
    pub dst_y: usize,
    pub dst_memory_type: CUmemorytype,
    pub dst_host: *mut c_void,
    pub dst_device: CUdeviceptr,
    pub dst_array: CUarray,
    pub dst_pitch: usize,
    pub width_in_bytes: usize,
    pub height: usize,
}
layout!(
    CUDA_MEMCPY2D,
    128,
    src_x_in_bytes: 0, src_y: 8, src_memory_type: 16, src_host: 24, src_device: 32,
    src_array: 40, src_pitch: 48, dst_x_in_bytes: 56, dst_y: 64, dst_memory_type: 72,
    dst_host: 80, dst_device: 88, dst_array: 96, dst_pitch: 104, width_in_bytes: 112,
    height: 120,
);

/// A three-dimensional copy; x, pitch and width in bytes, the rest in rows and slices. Only a copy
/// between contexts reads their fields; they are reserved in every other one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D {
    pub src_x_in_bytes: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_memory_type: CUmemorytype,
    pub src_host: *const c_void,
    pub src_device: CUdeviceptr,
    pub src_array: CUarray,
    pub src_context: CUcontext,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x_in_bytes: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_memory_type: CUmemorytype,
    pub dst_host: *mut c_void,
    pub dst_device: CUdeviceptr,
    pub dst_array: CUarray,
    pub dst_context: CUcontext,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width_in_bytes: usize,
    pub height: usize,
    pub depth: usize,
}
layout!(
    CUDA_MEMCPY3D,
    200,
    src_x_in_bytes: 0, src_y: 8, src_z: 16, src_lod: 24, src_memory_type: 32, src_host: 40,
    src_device: 48, src_array: 56, src_context: 64, src_pitch: 72, src_height: 80,
    dst_x_in_bytes: 88, dst_y: 96, dst_z: 104, dst_lod: 112, dst_memory_type: 120, dst_host: 128,
    dst_device: 136, dst_array: 144, dst_context: 152, dst_pitch: 160, dst_height: 168,
    width_in_bytes: 176, height: 184, depth: 192,
);

impl CUDA_MEMCPY3D {
    /// A copy of nothing from nowhere.
    pub const EMPTY: Self = Self {
        src_x_in_bytes: 0,
        src_y: 0,
        src_z: 0,
        src_lod: 0,
        src_memory_type: CU_MEMORYTYPE_UNIFIED,
        src_host: core::ptr::null(),
        src_device: 0,
        src_array: CUarray::NULL,
        src_context: CUcontext::NULL,
        src_pitch: 0,
        src_height: 0,
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_z: 0,
        dst_lod: 0,
        dst_memory_type: CU_MEMORYTYPE_UNIFIED,
        dst_host: core::ptr::null_mut(),
        dst_device: 0,
        dst_array: CUarray::NULL,
        dst_context: CUcontext::NULL,
        dst_pitch: 0,
        dst_height: 0,
        width_in_bytes: 0,
        height: 1,
        depth: 1,
    };
}

/// A three-dimensional copy between two contexts.
pub type CUDA_MEMCPY3D_PEER = CUDA_MEMCPY3D;
