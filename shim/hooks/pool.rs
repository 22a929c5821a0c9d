//! Stream-ordered memory and its pools; [`crate::memory::pools`] says what is charged, and when.
//!
//! These calls stay asynchronous, but for an allocation that would be refused ([`begun_when_freed`]). While a
//! stream is being captured, an allocation in it becomes a node of the graph and takes nothing from any pool; its
//! memory is reserved when the graph is launched ([`crate::memory::graphs`]).

use super::shared::shared;
use crate::daemon::sys;
use crate::guard::{Outcome, Uncancelled};
use crate::launch;
use crate::memory::allocations::{Allocation, Kind};
use crate::memory::pools::Pool;
use crate::memory::pools::reservation::PoolCall;
use crate::real;
use crate::resolve::call::relaxed;
use crate::slice::{self, Slice, freed};
use gpuslice_nvabi::types::*;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::units::Duration;

/// How long an allocation waits for its own stream, which may be busy, and for others once that one is done.
const FREES_WAIT: Duration = Duration(30_000_000_000);
const OTHERS_WAIT: Duration = Duration(100_000_000);
/// Shortest and longest pause between two looks at a stream, ns.
const PAUSES: [u64; 2] = [50_000, 5_000_000];

/// The stream that a null handle means in the `_ptsz` forms.
pub(super) fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { CU_STREAM_PER_THREAD } else { stream }
}

fn capturing(stream: CUstream) -> bool {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let asked = real!(cuStreamIsCapturing(stream, &raw mut status));
    asked == CUresult::SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE
}

/// Begins an allocation in `stream` that was `refused`, once streams have come to what the program has freed in them.
///
/// A program may free and allocate in one stream without a wait: the driver gives the memory to the next allocation in
/// the stream's order. How much of it, and whether it takes more from the device all the same, is known only when the
/// stream has come there. So near the cap this waits, where a driver would not. It does so for a limited time: the
/// stream may wait for the very thread that allocates.
#[cold]
fn begun_when_freed(
    slice: &Slice,
    (pool, bytes): (&Pool, u64),
    (stream, device): (CUstream, CUdevice),
    refused: CUresult,
) -> Result<PoolCall, CUresult> {
    let _uncancelled = Uncancelled::begin();
    let (mut until, mut pause, mut is_done) = (sys::now().plus(FREES_WAIT), PAUSES[0], false);
    while pool.reservation.has_pending_frees() {
        if slice.is_suspended() {
            launch::wait_for_resume(slice);
        }
        let frees = slice.pools.awaited(pool.lane, Some(stream));
        let released = pool.reservation.released();
        let comes = match relaxed(|| real!(cuStreamQuery(stream))) {
            CUresult::SUCCESS if !is_done => {
                is_done = true;
                until = sys::now().plus(OTHERS_WAIT);
                if slice.contexts.is_only(device) {
                    frees.executed();
                }
                true
            }
            CUresult::SUCCESS | CUresult::ERROR_NOT_READY => false,
            _ => break, // an error of earlier work
        };
        pool.trim(&slice.daemon);
        let comes = comes || pool.reservation.released() > released;
        if comes && let Ok(begun) = pool.begin(&slice.daemon, bytes) {
            return Ok(begun);
        }
        if sys::now() >= until {
            break;
        }
        sys::nap(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
    Err(refused)
}

/// Allocates by `call` in `stream`, from a pool or from the current one of the stream's device. If the pool
/// has grown by more than can be paid, `undo`, a free in the same stream, reverts the allocation.
///
/// # Safety
/// `pointer` is where `call` writes what it allocated.
unsafe fn allocated(
    pointer: *const CUdeviceptr,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    call: impl FnOnce() -> CUresult,
    undo: impl FnOnce(CUdeviceptr) -> CUresult,
) -> Outcome {
    let Some(slice) = slice::get()? else {
        return Ok(call());
    };
    let (_, device) = slice.of_stream(stream)?;
    let lane = slice.devices.limited(&slice.daemon, device)?;
    // No bytes take no memory, and the driver, which answers success, need not write a pointer.
    if capturing(stream) || bytes == 0 {
        return Ok(call());
    }
    let pool = match pool {
        Some(handle) => slice.pools.of_handle(&slice.daemon, &slice.devices, handle, device)?,
        None => slice.pools.of_device(device, lane)?,
    };
    let Some(pool) = pool else {
        return Ok(call()); // Charged in the process that created the pool.
    };
    let begun = pool.begin(&slice.daemon, bytes as u64).or_else(|refused| {
        begun_when_freed(slice, (&pool, bytes as u64), (stream, device), refused)
    })?;
    let result = call();
    if result != CUresult::SUCCESS {
        pool.cancel(&slice.daemon, &begun);
        return Ok(result);
    }
    // SAFETY: the driver has just written there and answered success.
    let pointer = unsafe { *pointer };
    if let Err(refused) = pool.end(&slice.daemon, &begun) {
        let _ = undo(pointer);
        slice.pools.frees_in(stream);
        pool.reservation.freed(begun.bytes);
        pool.trim(&slice.daemon);
        return Err(refused);
    }
    let allocation = Allocation {
        lane: pool.lane,
        bytes: begun.bytes,
        context: 0, // The driver frees it with no context (`cuCtxDestroy`).
        kind: Kind::Pool(pool.id()),
    };
    slice.record(allocation, pointer);
    Ok(result)
}

/// Frees by `call` in `stream`.
#[inline(always)]
fn freed_in(pointer: CUdeviceptr, stream: CUstream, call: impl FnOnce() -> CUresult) -> Outcome {
    if let Some(slice) = slice::attached() {
        slice.pools.frees_in(stream);
    }
    freed(pointer, call)
}

hooks! {
    quick cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream) as |call| {
        let undo = |pointer| real!(cuMemFreeAsync(pointer, h_stream));
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { allocated(dptr, bytesize, None, h_stream, call, undo) }
    };

    quick cuMemAllocAsync_ptsz(
        dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream,
    ) as |call| {
        let undo = |pointer| real!(cuMemFreeAsync_ptsz(pointer, h_stream));
        // SAFETY: as in `cuMemAllocAsync`.
        unsafe { allocated(dptr, bytesize, None, per_thread(h_stream), call, undo) }
    };

    quick cuMemAllocFromPoolAsync(
        dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream,
    ) as |call| {
        let undo = |pointer| real!(cuMemFreeAsync(pointer, h_stream));
        // SAFETY: as in `cuMemAllocAsync`.
        unsafe { allocated(dptr, bytesize, Some(pool), h_stream, call, undo) }
    };

    quick cuMemAllocFromPoolAsync_ptsz(
        dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream,
    ) as |call| {
        let stream = per_thread(h_stream);
        let undo = |pointer| real!(cuMemFreeAsync_ptsz(pointer, h_stream));
        // SAFETY: as in `cuMemAllocAsync`.
        unsafe { allocated(dptr, bytesize, Some(pool), stream, call, undo) }
    };

    quick cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream) as |call| {
        freed_in(dptr, h_stream, call)
    };

    quick cuMemFreeAsync_ptsz(dptr: CUdeviceptr, h_stream: CUstream) as |call| {
        freed_in(dptr, per_thread(h_stream), call)
    };
}

/// The lane of a pool, and whether NVML does not show its memory. Managed memory without a device of its own
/// may be on the current GPU at any time.
fn account_of(
    slice: &Slice,
    place: CUmemLocation,
    kind: CUmemAllocationType,
) -> Result<(Lane, bool), CUresult> {
    let managed = kind == CU_MEM_ALLOCATION_TYPE_MANAGED;
    let lane = match slice.lane_at(place)? {
        Some(lane) => lane,
        None if managed => slice.lane_of_current().ok().flatten().unwrap_or(Lane(0)),
        None => Lane::HOST,
    };
    Ok((lane, managed))
}

hooks! {
    guard cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps) as |call| {
        // SAFETY: null, or the application's own properties, which the driver is about to read.
        let (Some(slice), Some(props)) = (slice::get()?, unsafe { pool_props.as_ref() }) else {
            return Ok(call());
        };
        let (lane, unseen) = account_of(slice, props.location, props.alloc_type)?;
        let result = call();
        if result == CUresult::SUCCESS {
            // SAFETY: the driver has just written there and answered success.
            let handle = unsafe { *pool };
            if let Err(refused) = slice.pools.insert(handle, lane, unseen) {
                let _ = real!(cuMemPoolDestroy(handle));
                return Err(refused);
            }
        }
        Ok(result)
    };

    guard cuMemPoolDestroy(pool: CUmemoryPool) as |call| {
        Ok(match slice::attached() {
            Some(slice) => slice.pools.destroy(&slice.daemon, pool, call),
            None => call(),
        })
    };
}

/// Notes the pool of a place, which the driver writes to `pool` in `call`.
///
/// # Safety
/// `call` writes to `pool` when it answers success.
unsafe fn found(
    pool: *const CUmemoryPool,
    place: *const CUmemLocation,
    kind: CUmemAllocationType,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let result = call();
    if result != CUresult::SUCCESS {
        return Ok(result);
    }
    // SAFETY: null, or the application's own place, which the driver has read.
    if let (Some(slice), Some(place)) = (slice::get()?, unsafe { place.as_ref() }) {
        // SAFETY: the driver has just written there and answered success.
        let handle = unsafe { *pool };
        if slice.pools.get(handle).is_none() {
            let (lane, unseen) = account_of(slice, *place, kind)?;
            slice.pools.insert(handle, lane, unseen)?;
        }
    }
    Ok(result)
}

hooks! {
    guard cuMemGetDefaultMemPool(
        pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType,
    ) as |call| {
        // SAFETY: the application's own arguments.
        unsafe { found(pool_out, location, kind, call) }
    };

    guard cuMemGetMemPool(
        pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType,
    ) as |call| {
        // SAFETY: the application's own arguments.
        unsafe { found(pool, location, kind, call) }
    };

    /// Without this handle no allocation of the pool can be opened in another process.
    guard cuMemPoolExportToShareableHandle(
        handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType,
        flags: u64,
    ) as |call| Ok(shared(call));

    /// The memory is charged in the exporting process, and so are allocations imported with it.
    guard cuMemPoolImportFromShareableHandle(
        pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType,
        flags: u64,
    ) as |call| {
        let result = shared(call);
        if result == CUresult::SUCCESS
            && let Some(slice) = slice::attached()
        {
            // SAFETY: the driver has just written there and answered success.
            slice.pools.insert_foreign(unsafe { *pool_out });
        }
        Ok(result)
    };
}

/// Settles a pool after `call`, which may have made it shrink.
fn shrunk(pool: CUmemoryPool, call: impl FnOnce() -> CUresult) -> Outcome {
    let result = call();
    if let Some(slice) = slice::attached()
        && let Some(Some(pool)) = slice.pools.get(pool)
    {
        pool.settle(&slice.daemon);
    }
    Ok(result)
}

hooks! {
    guard cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) as |call|
        shrunk(pool, call);

    guard cuMemPoolSetAttribute(
        pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void,
    ) as |call| shrunk(pool, call);
}
