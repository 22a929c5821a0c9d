//! Physical memory exported to and imported from other processes.
//!
//! An import is not charged: the process that created the memory is charged, and two processes
//! that share a buffer must not both be. If that process releases it, the importer holds
//! memory that no hook has charged; the daemon's measurement covers it.
//!
//! A fabric handle is 64 bytes that may be passed to any process of any node. The end of its last copy
//! cannot be observed, and NVIDIA does not document what becomes of the memory then. So memory exported as
//! a fabric handle stays charged until the process ends.

use super::shared::shared;
use crate::memory::physical::{Name, PhysicalAllocation};
use crate::slice::{self, Slice, handed};
use gpuslice_nvabi::types::*;
use std::os::fd::RawFd;

hooks! {
    guard cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void,
        sh_handle_type: CUmemAllocationHandleType,
    ) as |call| {
        let Some(slice) = slice::get()? else {
            return Ok(call());
        };
        let mut table = slice.physical();
        let counted = match sh_handle_type {
            // The pointer is the descriptor number.
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
                table.refer_exported(os_handle as usize as RawFd)
            }
            _ => None,
        };
        let counted = counted.unwrap_or_else(|| table.begin(None));
        drop(table);
        // SAFETY: as in `cuMemRetainAllocationHandle`.
        Ok(unsafe { handed(slice, Some(counted), handle, || shared(call)) })
    };
}

/// Records the `counted` references as held by the descriptor that `call` writes.
///
/// # Safety
/// `call` writes a descriptor's number there when it answers success.
unsafe fn exported(
    slice: &Slice,
    counted: Vec<PhysicalAllocation>,
    descriptor: *const c_void,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = shared(call);
    let dropped = if result == CUresult::SUCCESS && !counted.is_empty() {
        // SAFETY: the driver has just written there and answered success.
        slice.physical().export(unsafe { descriptor.cast::<RawFd>().read() }, counted)
    } else {
        counted
    };
    slice.drop_references(dropped);
    result
}

hooks! {
    guard cuMemExportToShareableHandle(
        shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle,
        handle_type: CUmemAllocationHandleType, flags: u64,
    ) as |call| {
        let Some(slice) = slice::attached() else {
            return Ok(call());
        };
        let counted = slice.physical().refer(Name::Handle(handle));
        if handle_type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            let counted = Vec::from_iter(counted);
            // SAFETY: the application's own pointer to an `int`, which the driver checks and writes.
            return Ok(unsafe { exported(slice, counted, shareable_handle, call) });
        }
        let result = shared(call);
        let dropped = match counted {
            Some(allocation) if result == CUresult::SUCCESS => slice.physical().keep(allocation),
            counted => counted,
        };
        slice.drop_references(dropped);
        Ok(result)
    };

    /// A dma-buf holds the memory behind its addresses. Only memory of the virtual-memory API is followed: for
    /// `cuMemAlloc`, it is unknown whether a free removes the memory behind the dma-buf.
    guard cuMemGetHandleForAddressRange(
        handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: CUmemRangeHandleType,
        flags: u64,
    ) as |call| {
        let Some(slice) = slice::attached() else {
            return Ok(call());
        };
        let counted = slice.physical().refer_within(dptr, size as u64);
        // SAFETY: the application's own pointer to an `int`, which the driver checks and writes; the
        // only type of handle is a descriptor.
        Ok(unsafe { exported(slice, counted, handle, call) })
    };
}
