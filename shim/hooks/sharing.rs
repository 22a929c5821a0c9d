//! Physical memory given to others and taken from them.
//!
//! An import is not charged: the memory is paid for by the process that created it, and two processes
//! that share a buffer must not pay for it twice. If that process lets go of it, the importer holds
//! memory that no hook has charged; the daemon's measurement finds it.
//!
//! A fabric handle is 64 bytes that any process of any node may be given; nothing tells when the last of
//! them is forgotten, and NVIDIA's documents do not say what becomes of the memory then. So memory
//! that was exported in this kind stays charged until the process ends.

use super::physical::{drop_references, handed, physical_table};
use crate::guard::guard;
use crate::link::{self, Session};
use crate::real;
use crate::vmm::{Name, PhysicalAllocation};
use gpuslice_nvabi::types::*;
use std::os::fd::RawFd;

pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    os_handle: *mut c_void,
    sh_handle_type: CUmemAllocationHandleType,
) -> CUresult {
    guard(|| {
        let call = || {
            real!(cuMemImportFromShareableHandle(
                handle,
                os_handle,
                sh_handle_type
            ))
        };
        let Some(session) = link::session()? else {
            return Ok(call());
        };
        let mut table = physical_table(session);
        let counted = match sh_handle_type {
            // The pointer is the number.
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
                table.refer_exported(os_handle as usize as RawFd)
            }
            _ => None,
        };
        let counted = counted.unwrap_or_else(|| table.begin(None));
        drop(table);
        // SAFETY: as in `cuMemRetainAllocationHandle`.
        Ok(unsafe { handed(session, Some(counted), handle, call) })
    })
}

/// Writes references to `counted` down as held by the descriptor that `call` writes.
///
/// # Safety
/// `call` writes a descriptor's number there when it answers success.
unsafe fn exported(
    session: &Session,
    counted: Vec<PhysicalAllocation>,
    descriptor: *const c_void,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    let dropped = if result == CUresult::SUCCESS && !counted.is_empty() {
        // SAFETY: the driver has just written there and answered success.
        physical_table(session).export(unsafe { descriptor.cast::<RawFd>().read() }, counted)
    } else {
        counted
    };
    drop_references(session, dropped);
    result
}

pub unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable_handle: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    handle_type: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    guard(|| {
        let call = || {
            real!(cuMemExportToShareableHandle(
                shareable_handle,
                handle,
                handle_type,
                flags
            ))
        };
        let Some(session) = link::attached() else {
            return Ok(call());
        };
        let counted = physical_table(session).refer(Name::Handle(handle));
        if handle_type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            let counted = Vec::from_iter(counted);
            // SAFETY: the application's own pointer to an `int`, which the driver checks and writes.
            return Ok(unsafe { exported(session, counted, shareable_handle, call) });
        }
        let result = call();
        let dropped = match counted {
            Some(allocation) if result == CUresult::SUCCESS => {
                physical_table(session).keep(allocation)
            }
            counted => counted,
        };
        drop_references(session, dropped);
        Ok(result)
    })
}

/// A dma-buf holds the memory behind the addresses it was made for. Only memory of this API is followed: of
/// `cuMemAlloc`'s it is not known whether freeing takes it from under the dma-buf.
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: CUmemRangeHandleType,
    flags: u64,
) -> CUresult {
    guard(|| {
        let call = || {
            real!(cuMemGetHandleForAddressRange(
                handle,
                dptr,
                size,
                handle_type,
                flags
            ))
        };
        let Some(session) = link::attached() else {
            return Ok(call());
        };
        let counted = physical_table(session).refer_within(dptr, size as u64);
        // SAFETY: the application's own pointer to an `int`, which the driver checks and writes; the
        // only type of handle there is is a descriptor.
        Ok(unsafe { exported(session, counted, handle, call) })
    })
}
