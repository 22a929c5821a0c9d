//! The services of other modules that `exec` uses: the device, memory for variables, single words.
//!
//! A word of memory is reached only through the registry of allocations: a pointer outside all
//! allocations is a fault of the context, not of the process.

use super::stream::{StreamKey, shared};
use crate::context::{self, Context};
use crate::driver::process;
use crate::entry::Outcome;
use crate::memory::{self, Allocation, Home, Kind};
use crate::vram::{Chunk, Pages};
use gpuslice_nvabi::types::CUresult;
use gpuslice_sim_device::Machine;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The simulated machine.
pub fn machine() -> Result<&'static Machine, CUresult> {
    Ok(process()?.machine)
}

/// Memory for a module's code; `None` where modules take none.
pub fn image_memory(context: &Context, image: u64) -> Result<Option<Arc<Chunk>>, CUresult> {
    match machine()?.module_bytes(image) {
        0 => Ok(None),
        bytes => memory::take_unseen(context.gpu().index, bytes).map(Some),
    }
}

/// Memory for the variables of a module.
pub fn module_memory(context: &'static Context, bytes: u64) -> Result<u64, CUresult> {
    let pages = Pages::new(context.gpu().index, bytes.max(1))?;
    let address = pages.address;
    memory::insert(
        address,
        Allocation::new(context, bytes, Kind::Module, Home::Pages(pages)),
    );
    Ok(address)
}

/// Gives the memory of [`module_memory`] back; it may have gone with its context.
pub fn free_module_memory(address: u64) {
    drop(memory::remove(address, |one| one.kind == Kind::Module));
}

/// The context a stream belongs to.
pub fn context_of(stream: StreamKey) -> Result<&'static Context, CUresult> {
    let id = shared()?.with(|model| model.stream(stream).map(|stream| stream.context));
    let id = id.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if let Ok(current) = context::current()
        && current.id == id
    {
        return Ok(current);
    }
    let living = context::living();
    living
        .into_iter()
        .find(|one| one.id == id)
        .ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
}

/// Frees what `cuMemAlloc` or `cuMemAllocManaged` gave.
pub fn release(address: u64) -> Outcome {
    let freeable = |one: &Allocation| matches!(one.kind, Kind::Device | Kind::Managed { .. });
    let gone = memory::remove(address, freeable).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    memory::release(address, gone);
    Ok(())
}

/// Whether a word can be reached there: aligned, and in an allocation.
fn reach(address: u64, wide: bool, write: bool) -> Outcome {
    let bytes = if wide { 8 } else { 4 };
    let aligned = address.is_multiple_of(bytes);
    if !aligned || memory::check(address, bytes, write, false).is_err() {
        return Err(CUresult::ERROR_ILLEGAL_ADDRESS);
    }
    Ok(())
}

/// Whether the program may name this word in a stream memory operation.
pub fn is_word(address: u64, wide: bool) -> bool {
    reach(address, wide, false).is_ok()
}

/// Adds to a word of 32 bits.
pub fn add(address: u64, value: u32) -> Outcome {
    reach(address, false, true)?;
    // SAFETY: aligned and inside an allocation that is mapped for reading and writing; other
    // processors, threads and processes change it with atomic operations of the same size.
    let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
    word.fetch_add(value, Ordering::AcqRel);
    Ok(())
}

/// Writes a word.
pub fn store(address: u64, value: u64, wide: bool) -> Outcome {
    reach(address, wide, true)?;
    if wide {
        // SAFETY: as in `add`.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Release);
    } else {
        // SAFETY: as in `add`.
        unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value as u32, Ordering::Release);
    }
    Ok(())
}

/// Reads a word; `None` where there is none any more.
pub fn load(address: u64, wide: bool) -> Option<u64> {
    reach(address, wide, false).ok()?;
    Some(if wide {
        // SAFETY: as in `add`, and only read.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire)
    } else {
        // SAFETY: as in `add`, and only read.
        u64::from(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire))
    })
}
