//! Memory of one process in another, by a file descriptor.
//!
//! The descriptor is that of a small sealed file with the device's name of the memory in it. The
//! program sends it over a socket as it would a real one. It holds the name, not the memory: the
//! exporter keeps its handle until the importer has opened it, as programs do.

use super::handle::{gpu_of, hand_out, physical};
use super::{INVALID, Physical};
use crate::driver::process;
use crate::memory::chunk::Chunk;
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::MemoryKey;
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;

const MAGIC: [u8; 8] = *b"gpusimvm";
const OS: CUresult = CUresult::ERROR_OPERATING_SYSTEM;

/// A descriptor that names the memory.
fn descriptor(physical: &Physical) -> Result<i32, CUresult> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; a fresh descriptor comes back, or -1.
    let fd = unsafe { libc::memfd_create(c"gpuslice-sim-memory".as_ptr(), flags) };
    if fd < 0 {
        return Err(OS);
    }
    // SAFETY: the descriptor is new and nobody else's.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let mut bytes = MAGIC.to_vec();
    bytes.extend(physical.chunk.memory.key.to_bytes());
    file.write_all(&bytes).map_err(|_| OS)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain numbers. An unsealed file would do as well; the name in it is only a claim.
    unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) };
    Ok(file.into_raw_fd())
}

/// The name in a descriptor, which stays the program's.
fn named(fd: i32) -> Result<MemoryKey, CUresult> {
    if fd < 0 {
        return Err(INVALID);
    }
    // SAFETY: the file is not closed here: `ManuallyDrop` keeps it the program's. A number that is
    // no descriptor makes reading fail.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut bytes = [0; 20];
    file.read_exact_at(&mut bytes, 0).map_err(|_| INVALID)?;
    if bytes[..8] != MAGIC {
        return Err(INVALID);
    }
    let mut key = [0; 12];
    key.copy_from_slice(&bytes[8..]);
    Ok(MemoryKey::from_bytes(key))
}

/// Entry points.
#[allow(non_snake_case)]
pub mod imp {
    use super::*;
    use crate::entry::{Out, Outcome};

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
        if physical.prop.requested_handle_types & kind == 0 {
            return Err(INVALID);
        }
        shareable.cast::<i32>().set(descriptor(&physical)?)
    }

    pub fn cuMemImportFromShareableHandle(
        handle: Out<CUmemGenericAllocationHandle>,
        os_handle: *mut c_void,
        kind: CUmemAllocationHandleType,
    ) -> Outcome {
        handle.require()?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(INVALID);
        }
        let chunk = Chunk::import(named(os_handle as usize as i32)?)?;
        let gpus = &process()?.gpus;
        let device = gpus.iter().position(|gpu| gpu.index == chunk.gpu());
        let device = device.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        let prop = CUmemAllocationProp {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            requested_handle_types: kind,
            location: CUmemLocation {
                kind: CU_MEM_LOCATION_TYPE_DEVICE,
                id: device as i32,
            },
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: CUmemAllocationFlags {
                compression_type: 0,
                gpu_direct_rdma_capable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        gpu_of(&prop)?;
        handle.set(hand_out(Physical { chunk, prop })?)
    }
}
