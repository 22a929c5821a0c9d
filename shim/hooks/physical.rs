//! The virtual-memory API's physical memory; what it counts is in [`crate::vmm`].

use super::pool::lane_at;
use crate::guard::guard;
use crate::link::{self, Session};
use crate::real;
use crate::vmm::{Charge, Piece, Pieces};
use gpuslice_nvabi::types::*;
use std::sync::{MutexGuard, PoisonError};

fn pieces(session: &Session) -> MutexGuard<'_, Pieces> {
    session
        .pieces
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Ends references; the charges that end with them go back to credit.
fn drop_references(session: &Session, dropped: impl IntoIterator<Item = Piece>) {
    let mut ended = Vec::new();
    pieces(session).drop_references(dropped, |charge| ended.push(charge));
    for Charge { lane, bytes } in ended {
        session.release(lane, bytes);
    }
}

pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    guard(|| {
        let call = || real!(cuMemCreate(handle, size, prop, flags));
        // SAFETY: null, or the application's own properties, which the driver is about to read.
        let (Some(session), Some(prop)) = (link::session()?, unsafe { prop.as_ref() }) else {
            return Ok(call());
        };
        let Some(lane) = lane_at(session, prop.location)? else {
            return Ok(call());
        };
        let reservation = session.reserve(lane, size as u64)?;
        let result = call();
        if result == CUresult::SUCCESS {
            let charge = Charge {
                lane,
                bytes: reservation.bytes,
            };
            // SAFETY: the driver has just written there and answered success.
            pieces(session).create(unsafe { *handle }, charge);
            reservation.commit();
        }
        Ok(result)
    })
}

pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    guard(|| {
        let call = || real!(cuMemRelease(handle));
        let Some(session) = link::attached() else {
            return Ok(call());
        };
        let piece = pieces(session).remove_handle(handle);
        let result = call();
        match piece {
            Some(piece) if result != CUresult::SUCCESS => {
                pieces(session).add_handle(handle, piece);
            }
            piece => drop_references(session, piece),
        }
        Ok(result)
    })
}

pub unsafe extern "C" fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    guard(|| {
        let call = || real!(cuMemMap(ptr, size, offset, handle, flags));
        let Some(session) = link::attached() else {
            return Ok(call());
        };
        let counted = pieces(session).prepare_map(handle);
        let result = call();
        match counted {
            Some(piece) if result == CUresult::SUCCESS => {
                pieces(session).map(ptr, size as u64, piece);
            }
            piece => drop_references(session, piece),
        }
        Ok(result)
    })
}

pub unsafe extern "C" fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult {
    guard(|| {
        let call = || real!(cuMemUnmap(ptr, size));
        let Some(session) = link::attached() else {
            return Ok(call());
        };
        let unmapped = pieces(session).unmap(ptr, size as u64);
        let result = call();
        if result == CUresult::SUCCESS {
            drop_references(session, unmapped.pieces());
        } else {
            pieces(session).restore(unmapped);
        }
        Ok(result)
    })
}

pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CUresult {
    guard(|| {
        let call = || real!(cuMemRetainAllocationHandle(handle, addr));
        let Some(session) = link::attached() else {
            return Ok(call());
        };
        let piece = pieces(session).retain_at(addr as u64);
        let result = call();
        match piece {
            Some(piece) if result == CUresult::SUCCESS => {
                // SAFETY: the driver has just written there and answered success.
                pieces(session).add_handle(unsafe { *handle }, piece);
            }
            piece => drop_references(session, piece),
        }
        Ok(result)
    })
}
