//! Copies of consecutive bytes.

use super::Until::{self, Done, Queued};
use super::forms::Side::{self, Any, Array, Device, Host};
use super::submit;
use crate::context;
use crate::entry::Outcome;
use gpuslice_nvabi::types::{CUarray, CUcontext, CUdeviceptr, CUstream, c_void};

/// Copies `count` bytes.
fn linear(dst: Side, src: Side, count: usize, until: Until) -> Outcome {
    submit(super::forms::linear(dst, src, count), until)
}

pub fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, count: usize) -> Outcome {
    linear(Any(dst), Any(src), count, Done)
}
pub use cuMemcpy as cuMemcpy_ptds;

pub fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    count: usize,
    stream: CUstream,
) -> Outcome {
    linear(Any(dst), Any(src), count, Queued(stream))
}
pub use cuMemcpyAsync as cuMemcpyAsync_ptsz;

pub fn cuMemcpyPeer(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    count: usize,
) -> Outcome {
    context::find(dst_context)?;
    context::find(src_context)?;
    linear(Device(dst), Device(src), count, Done)
}
pub use cuMemcpyPeer as cuMemcpyPeer_ptds;

pub fn cuMemcpyPeerAsync(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    count: usize,
    stream: CUstream,
) -> Outcome {
    context::find(dst_context)?;
    context::find(src_context)?;
    linear(Device(dst), Device(src), count, Queued(stream))
}
pub use cuMemcpyPeerAsync as cuMemcpyPeerAsync_ptsz;

pub fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, count: usize) -> Outcome {
    linear(Device(dst), Host(src), count, Done)
}
pub use cuMemcpyHtoD_v2 as cuMemcpyHtoD_v2_ptds;

pub fn cuMemcpyHtoDAsync_v2(
    dst: CUdeviceptr,
    src: *const c_void,
    count: usize,
    stream: CUstream,
) -> Outcome {
    linear(Device(dst), Host(src), count, Queued(stream))
}
pub use cuMemcpyHtoDAsync_v2 as cuMemcpyHtoDAsync_v2_ptsz;

pub fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, count: usize) -> Outcome {
    linear(Host(dst), Device(src), count, Done)
}
pub use cuMemcpyDtoH_v2 as cuMemcpyDtoH_v2_ptds;

pub fn cuMemcpyDtoHAsync_v2(
    dst: *mut c_void,
    src: CUdeviceptr,
    count: usize,
    stream: CUstream,
) -> Outcome {
    linear(Host(dst), Device(src), count, Queued(stream))
}
pub use cuMemcpyDtoHAsync_v2 as cuMemcpyDtoHAsync_v2_ptsz;

pub fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, count: usize) -> Outcome {
    linear(Device(dst), Device(src), count, Done)
}
pub use cuMemcpyDtoD_v2 as cuMemcpyDtoD_v2_ptds;

pub fn cuMemcpyDtoDAsync_v2(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    count: usize,
    stream: CUstream,
) -> Outcome {
    linear(Device(dst), Device(src), count, Queued(stream))
}
pub use cuMemcpyDtoDAsync_v2 as cuMemcpyDtoDAsync_v2_ptsz;

pub fn cuMemcpyDtoA_v2(array: CUarray, at: usize, src: CUdeviceptr, count: usize) -> Outcome {
    linear(Array(array, at), Device(src), count, Done)
}
pub use cuMemcpyDtoA_v2 as cuMemcpyDtoA_v2_ptds;

pub fn cuMemcpyAtoD_v2(dst: CUdeviceptr, array: CUarray, at: usize, count: usize) -> Outcome {
    linear(Device(dst), Array(array, at), count, Done)
}
pub use cuMemcpyAtoD_v2 as cuMemcpyAtoD_v2_ptds;

pub fn cuMemcpyHtoA_v2(array: CUarray, at: usize, src: *const c_void, count: usize) -> Outcome {
    linear(Array(array, at), Host(src), count, Done)
}
pub use cuMemcpyHtoA_v2 as cuMemcpyHtoA_v2_ptds;

pub fn cuMemcpyHtoAAsync_v2(
    array: CUarray,
    at: usize,
    src: *const c_void,
    count: usize,
    stream: CUstream,
) -> Outcome {
    linear(Array(array, at), Host(src), count, Queued(stream))
}
pub use cuMemcpyHtoAAsync_v2 as cuMemcpyHtoAAsync_v2_ptsz;

pub fn cuMemcpyAtoH_v2(dst: *mut c_void, array: CUarray, at: usize, count: usize) -> Outcome {
    linear(Host(dst), Array(array, at), count, Done)
}
pub use cuMemcpyAtoH_v2 as cuMemcpyAtoH_v2_ptds;

pub fn cuMemcpyAtoHAsync_v2(
    dst: *mut c_void,
    array: CUarray,
    at: usize,
    count: usize,
    stream: CUstream,
) -> Outcome {
    linear(Host(dst), Array(array, at), count, Queued(stream))
}
pub use cuMemcpyAtoHAsync_v2 as cuMemcpyAtoHAsync_v2_ptsz;

pub fn cuMemcpyAtoA_v2(
    dst: CUarray,
    dst_at: usize,
    src: CUarray,
    src_at: usize,
    count: usize,
) -> Outcome {
    linear(Array(dst, dst_at), Array(src, src_at), count, Done)
}
pub use cuMemcpyAtoA_v2 as cuMemcpyAtoA_v2_ptds;
