//! Single words of memory, as stream memory operations and kernels access them.
//!
//! A word is reached only through the table of allocations: a pointer outside all allocations is a
//! fault of the context, not of the process.

use super::check;
use crate::entry::Outcome;
use gpuslice_nvabi::types::CUresult;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Whether a word can be reached there: aligned, and in an allocation.
fn reach(address: u64, wide: bool, write: bool) -> Outcome {
    let bytes = if wide { 8 } else { 4 };
    let aligned = address.is_multiple_of(bytes);
    if !aligned || check(address, bytes, write, false).is_err() {
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
