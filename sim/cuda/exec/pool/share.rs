//! Pools of one process in another.
//!
//! A descriptor only names a pool; the memory is shared pointer by pointer. A process that imports a
//! pool can open its maker's allocations and close them by freeing; it can allocate nothing from it.
//! The bytes stay until both processes have released them, as with every import.

use super::{Pool, PoolKey, named, pool_of, pools};
use crate::allocations::{self, Allocation, Home, Kind};
use crate::driver::{device_error, identity, process};
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::exec::{settle_all, working};
use crate::vram::{Chunk, Pages, map};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::MemoryKey;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
const FD: CUmemAllocationHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const POOL_MAGIC: [u8; 8] = *b"gpusipol";
const POINTER_MAGIC: [u8; 8] = *b"gpusiptr";

/// A pool of some process: the process, and the pool's handle there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    maker: u64,
    pool: u64,
}

fn origin_of(pool: &Pool, key: PoolKey) -> Origin {
    let own = Origin { maker: identity(), pool: key.to_pointer() as u64 };
    pool.origin.unwrap_or(own)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// A new file that says which pool is meant: origin and machine's index of the GPU.
fn file_of(origin: Origin, gpu: usize) -> std::io::Result<File> {
    let file = map::memory_file(c"gpuslice-sim-pool")?;
    let words = [origin.maker, origin.pool, gpu as u64].map(u64::to_le_bytes);
    file.write_all_at(&[POOL_MAGIC, words[0], words[1], words[2]].concat(), 0)?;
    Ok(file)
}

/// What such a file says; the descriptor stays the program's.
fn read_file(fd: i32) -> Option<(Origin, usize)> {
    if fd < 0 {
        return None;
    }
    let mut bytes = [0; 32];
    // SAFETY: not -1, used within this call only, and never closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    file.read_exact_at(&mut bytes, 0).ok()?;
    let (maker, pool) = (word(&bytes, 8), word(&bytes, 16));
    let known = bytes[..8] == POOL_MAGIC;
    known.then_some((Origin { maker, pool }, word(&bytes, 24) as usize))
}

/// Closes memory of an imported pool; false where this is none.
pub fn close(key: PoolKey, address: u64) -> Result<bool, CUresult> {
    let mut pools = pools();
    let pool = pools.table.get_mut(key).ok_or(INVALID)?;
    let Some(pages) = pool.opened.remove(&address) else {
        return Ok(false);
    };
    drop(pools);
    // Queued work may still use it.
    settle_all();
    allocations::remove(address, |one| matches!(one.kind, Kind::Pool { .. }));
    drop(pages);
    Ok(true)
}

pub fn cuMemPoolExportToShareableHandle(
    handle: Out<c_void>,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome {
    handle.require()?;
    let key = named(pool.0)?;
    let mut pools = pools();
    let pool = pools.pool(key)?;
    let imported = pool.origin.is_some();
    if kind != FD || pool.handle_types & kind == 0 || flags != 0 || imported {
        return Err(INVALID);
    }
    let file = file_of(origin_of(pool, key), pool.gpu);
    let file = file.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    handle.cast::<i32>().set(file.into_raw_fd())
}

pub fn cuMemPoolImportFromShareableHandle(
    pool: Out<CUmemoryPool>,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome {
    pool.require()?;
    refuse_if(kind != FD || flags != 0)?;
    let (origin, gpu) = read_file(handle as usize as i32).ok_or(INVALID)?;
    let gpus = &process()?.gpus;
    let device = gpus.iter().position(|one| one.index == gpu);
    let device = device.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    let mut pools = pools();
    let new = pools.create(device as CUdevice, false)?;
    pools.pool(new)?.origin = Some(origin);
    pool.set(CUmemoryPool(new.to_pointer()))
}

pub fn cuMemPoolExportPointer(data: Out<CUmemPoolPtrExportData>, pointer: CUdeviceptr) -> Outcome {
    data.require()?;
    let (key, bytes) = pool_of(pointer).ok_or(INVALID)?;
    let mut pools = pools();
    let pool = pools.pool(key)?;
    let exportable = pool.handle_types & FD != 0;
    let piece = pool.arena.piece_of(pointer).filter(|_| exportable);
    let piece = piece.ok_or(INVALID)?;
    let memory = piece.chunk.memory.key;
    process()?.machine.mem_offer(memory).map_err(device_error)?;
    let memory = memory.to_bytes();
    let origin = origin_of(pool, key);
    let words = [pointer - piece.address, bytes, origin.maker, origin.pool];
    let mut reserved = [0; 64];
    reserved[..8].copy_from_slice(&POINTER_MAGIC);
    reserved[8..20].copy_from_slice(&memory);
    for (place, word) in reserved[24..56].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    data.set(CUmemPoolPtrExportData { reserved })
}

pub fn cuMemPoolImportPointer(
    pointer: Out<CUdeviceptr>,
    pool: CUmemoryPool,
    data: In<CUmemPoolPtrExportData>,
) -> Outcome {
    pointer.require()?;
    let context = working()?;
    let key = named(pool.0)?;
    let bytes = data.get()?.reserved;
    let memory = bytes[8..20].try_into().map_err(|_| INVALID)?;
    let (offset, len) = (word(&bytes, 24), word(&bytes, 32));
    let (maker, from) = (word(&bytes, 40), word(&bytes, 48));
    let named = Some(Origin { maker, pool: from });
    let known = bytes[..8] == POINTER_MAGIC && pools().pool(key)?.origin == named;
    refuse_if(!known)?;
    let pages = Pages::of(Chunk::import(MemoryKey::from_bytes(memory))?)?;
    let end = offset.checked_add(len);
    refuse_if(len == 0 || end.is_none_or(|end| end > pages.bytes()))?;
    let address = pages.address + offset;
    let kind = Kind::Pool { pool: key.to_pointer() as u64 };
    let allocation = Allocation::new(context, len, kind, Home::Elsewhere);
    pools().pool(key)?.opened.insert(address, pages);
    allocations::insert(address, allocation);
    pointer.set(address)
}
