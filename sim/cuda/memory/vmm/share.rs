//! Memory of one process in another, by a file descriptor.
//!
//! The program sends the descriptor over a socket. Like a handle or a mapping it holds the memory: a
//! program may release all others, and the memory is there until the last copy of the descriptor is
//! closed.

use super::handle::{gpu_of, hand_out, physical};
use super::{Backing, INVALID, Physical};
use crate::driver::{device_error, process};
use crate::entry::{Out, Outcome, refuse_if};
use crate::vram::Chunk;
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::MemoryKey;
use std::os::fd::{BorrowedFd, IntoRawFd};

/// The memory a descriptor holds; the descriptor stays the program's.
pub fn named(fd: i32) -> Result<MemoryKey, CUresult> {
    refuse_if(fd < 0)?;
    // SAFETY: not -1, and used within this call only. A number that is no open descriptor makes the
    // first use of it fail.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    process()?.machine.mem_named(fd).map_err(device_error)
}

pub fn cuMemExportToShareableHandle(
    shareable: Out<c_void>,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome {
    shareable.require()?;
    let physical = physical(handle)?;
    if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
        return Err(INVALID);
    }
    refuse_if(physical.prop.requested_handle_types & kind == 0)?;
    let key = physical.backing.chunk()?.memory.key;
    let file = process()?.machine.mem_export(key).map_err(device_error)?;
    shareable.cast::<i32>().set(file.into_raw_fd())
}

pub fn cuMemImportFromShareableHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Outcome {
    handle.require()?;
    refuse_if(kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)?;
    let chunk = Chunk::import(named(os_handle as usize as i32)?)?;
    let gpus = &process()?.gpus;
    let device = gpus.iter().position(|gpu| gpu.index == chunk.gpu());
    let device = device.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    let prop = CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: kind,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device as i32 },
        win32_handle_meta_data: std::ptr::null_mut(),
        alloc_flags: CUmemAllocationFlags {
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    gpu_of(&prop)?;
    handle.set(hand_out(Physical { backing: Backing::Device(chunk), prop })?)
}
