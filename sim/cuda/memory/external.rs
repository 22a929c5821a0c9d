//! Memory of another API, by a descriptor.
//!
//! On a real system the other API is Vulkan or the like. Here the driver itself is the only maker of
//! device memory, so only descriptors of `cuMemExportToShareableHandle` can be imported. An import
//! holds the memory; a buffer mapped from it is an allocation of its own, freed by `cuMemFree`.

use super::vmm;
use crate::allocations::{self, Allocation, Home, Kind};
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::exec;
use crate::handles::{Key, Named, Table};
use crate::vram::{Chunk, Pages};
use gpuslice_nvabi::types::*;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`, and the last kind there is.
const OPAQUE_FD: u32 = 1;
const LAST_KIND: u32 = 8;
/// `CUDA_EXTERNAL_MEMORY_DEDICATED`.
const DEDICATED: u32 = 1;

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`, up to its reserved words.
#[repr(C)]
#[derive(Clone, Copy)]
struct BufferDesc {
    offset: u64,
    size: u64,
    flags: u32,
}

/// Imported memory.
struct External {
    chunk: Arc<Chunk>,
    bytes: u64,
}

impl Named for External {
    const KIND: u8 = 0x43;
}

fn imports() -> MutexGuard<'static, Table<External>> {
    static IMPORTS: Mutex<Table<External>> = Mutex::new(Table::new());
    IMPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(memory: CUexternalMemory) -> Result<Key<External>, CUresult> {
    Key::from_pointer(memory.0).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

pub fn cuImportExternalMemory(
    memory: Out<CUexternalMemory>,
    description: In<CUDA_EXTERNAL_MEMORY_HANDLE_DESC>,
) -> Outcome {
    memory.require()?;
    exec::working()?;
    let desc = description.get()?;
    // The first bytes of a union.
    let fd = desc.handle[0] as u32 as i32;
    if desc.kind == 0 || desc.kind > LAST_KIND || desc.flags & !DEDICATED != 0 {
        return Err(INVALID);
    }
    if desc.kind != OPAQUE_FD {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let chunk = Chunk::import(vmm::named(fd)?)?;
    refuse_if(desc.size == 0 || desc.size > chunk.bytes())?;
    let bytes = desc.size;
    let entered = imports().insert(External { chunk, bytes });
    memory.set(CUexternalMemory(entered.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.to_pointer()))?;
    // SAFETY: an import that succeeds makes the descriptor the driver's.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

pub fn cuExternalMemoryGetMappedBuffer(
    pointer: Out<CUdeviceptr>,
    memory: CUexternalMemory,
    description: In<c_void>,
) -> Outcome {
    pointer.require()?;
    let context = exec::working()?;
    let desc = description.cast::<BufferDesc>().get()?;
    let (chunk, bytes) = {
        let imports = imports();
        let import = imports.get(key(memory)?);
        let import = import.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        (import.chunk.clone(), import.bytes)
    };
    let end = desc.offset.checked_add(desc.size);
    if desc.size == 0 || desc.flags != 0 || end.is_none_or(|end| end > bytes) {
        return Err(INVALID);
    }
    let pages = Pages::of(chunk)?;
    let address = pages.address + desc.offset;
    let home = Home::Pages(pages);
    let allocation = Allocation::new(context, desc.size, Kind::Device, home);
    allocations::insert(address, allocation);
    pointer.set(address)
}

pub fn cuDestroyExternalMemory(memory: CUexternalMemory) -> Outcome {
    let gone = imports().remove(key(memory)?);
    gone.map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
}
