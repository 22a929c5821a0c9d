//! Pinned host memory: allocated by the driver, or the application's own memory, registered.
//!
//! It is taken from the host and can neither be swapped nor moved. So it is counted in an account of
//! its own ([`Lane::HOST`]), and capped if the node configures a cap. The driver pins whole pages. It ends
//! with its context, like everything created in a context.

use crate::guard::Outcome;
use crate::memory::contexts::key;
use crate::slice::{self, Charging, freed};
use core::sync::atomic::{AtomicUsize, Ordering};
use gpuslice_nvabi::types::*;
use gpuslice_wire::ids::Lane;

fn page() -> usize {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    let known = PAGE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(0).max(4096);
    PAGE.store(page, Ordering::Relaxed);
    page
}

/// Bytes of the pages (of size `page`, a power of two) in which `bytes` from `start` on lie.
fn pinned(start: usize, bytes: usize, page: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let offset = start & (page - 1);
    bytes
        .checked_add(offset)
        .and_then(|bytes| bytes.checked_next_multiple_of(page))
        .unwrap_or(usize::MAX)
}

/// Pins `bytes` by `call`, which writes their address to `address` on success.
fn charged(
    bytes: usize,
    call: impl FnOnce() -> CUresult,
    address: impl FnOnce() -> *mut c_void,
) -> Outcome {
    let Some(slice) = slice::get()? else {
        return Ok(call());
    };
    let here = slice.here()?;
    let charging = Charging::on(slice, Lane::HOST, key(here.context), bytes)?;
    let result = call();
    if result == CUresult::SUCCESS {
        charging.commit(address() as u64);
    }
    Ok(result)
}

/// Allocates pinned memory by `call`.
///
/// # Safety
/// `call` writes the address to `pp` when it answers success.
unsafe fn allocated(
    pp: *const *mut c_void,
    bytes: usize,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    // SAFETY: read after the driver wrote it and answered success.
    charged(pinned(0, bytes, page()), call, || unsafe { *pp })
}

hooks! {
    guard cuMemAllocHost(pp: *mut *mut c_void, bytesize: u32) as |call| {
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { allocated(pp, bytesize as usize, call) }
    };

    guard cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) as |call| {
        // SAFETY: as in `cuMemAllocHost`.
        unsafe { allocated(pp, bytesize, call) }
    };

    guard cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: u32) as |call| {
        // SAFETY: as in `cuMemAllocHost`.
        unsafe { allocated(pp, bytesize, call) }
    };
}

/// Registers the application's own memory by `call`. Memory of another device has no pages to pin.
fn registered(
    p: *mut c_void,
    bytes: usize,
    flags: u32,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return Ok(call());
    }
    charged(pinned(p as usize, bytes, page()), call, || p)
}

hooks! {
    guard cuMemHostRegister(p: *mut c_void, bytesize: usize, flags: u32) as |call|
        registered(p, bytesize, flags, call);

    guard cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32) as |call|
        registered(p, bytesize, flags, call);

    guard cuMemFreeHost(p: *mut c_void) as |call| freed(p as u64, call);

    guard cuMemHostUnregister(p: *mut c_void) as |call| freed(p as u64, call);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_pinned() {
        let cases = [
            (0, 0, 0),
            (5, 0, 0),
            (0, 1, 4096),
            (4095, 1, 4096),
            (4095, 2, 8192),
            (1, 4096, 8192),
            (0, usize::MAX, usize::MAX),
            (1, usize::MAX, usize::MAX),
        ];
        for (start, bytes, expect) in cases {
            assert_eq!(pinned(start, bytes, 4096), expect, "{start} {bytes}");
        }
    }
}
