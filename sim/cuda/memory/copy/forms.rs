//! The forms a copy is asked in, written as the general one.

use gpuslice_nvabi::types::*;

/// One side of a copy of consecutive bytes.
#[derive(Clone, Copy)]
pub enum Side {
    Host(*const c_void),
    Device(CUdeviceptr),
    /// Host or device, as the address says.
    Any(CUdeviceptr),
    /// From this byte of the first row of an array on.
    Array(CUarray, usize),
}

/// Consecutive bytes.
pub fn linear(dst: Side, src: Side, bytes: usize) -> CUDA_MEMCPY3D {
    let mut copy = CUDA_MEMCPY3D { width_in_bytes: bytes, ..CUDA_MEMCPY3D::EMPTY };
    match src {
        Side::Host(at) => (copy.src_memory_type, copy.src_host) = (CU_MEMORYTYPE_HOST, at),
        Side::Device(at) => (copy.src_memory_type, copy.src_device) = (CU_MEMORYTYPE_DEVICE, at),
        Side::Any(at) => copy.src_device = at,
        Side::Array(array, at) => {
            (copy.src_memory_type, copy.src_array) = (CU_MEMORYTYPE_ARRAY, array);
            copy.src_x_in_bytes = at;
        }
    }
    match dst {
        Side::Host(at) => {
            (copy.dst_memory_type, copy.dst_host) = (CU_MEMORYTYPE_HOST, at.cast_mut());
        }
        Side::Device(at) => (copy.dst_memory_type, copy.dst_device) = (CU_MEMORYTYPE_DEVICE, at),
        Side::Any(at) => copy.dst_device = at,
        Side::Array(array, at) => {
            (copy.dst_memory_type, copy.dst_array) = (CU_MEMORYTYPE_ARRAY, array);
            copy.dst_x_in_bytes = at;
        }
    }
    copy
}

/// Rows of bytes.
pub fn flat(copy: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_x_in_bytes: copy.src_x_in_bytes,
        src_y: copy.src_y,
        src_memory_type: copy.src_memory_type,
        src_host: copy.src_host,
        src_device: copy.src_device,
        src_array: copy.src_array,
        src_pitch: copy.src_pitch,
        dst_x_in_bytes: copy.dst_x_in_bytes,
        dst_y: copy.dst_y,
        dst_memory_type: copy.dst_memory_type,
        dst_host: copy.dst_host,
        dst_device: copy.dst_device,
        dst_array: copy.dst_array,
        dst_pitch: copy.dst_pitch,
        width_in_bytes: copy.width_in_bytes,
        height: copy.height,
        ..CUDA_MEMCPY3D::EMPTY
    }
}

/// Between contexts; all addresses are of one space, so the contexts add nothing.
pub fn peer(copy: &CUDA_MEMCPY3D_PEER) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D { src_context: CUcontext::NULL, dst_context: CUcontext::NULL, ..*copy }
}
