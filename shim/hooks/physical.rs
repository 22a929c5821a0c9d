//! The virtual-memory API's physical memory: created, mapped, released. What counts as a reference, and
//! why, is in [`crate::vmm`].

use super::Charging;
use super::pool::lane_at;
use crate::guard::{Outcome, guard};
use crate::lane;
use crate::link::{self, Session};
use crate::real;
use crate::vmm::{Charge, Name, Piece, Pieces};
use gpuslice_nvabi::types::*;
use gpuslice_wire::ids::Lane;
use std::sync::{MutexGuard, PoisonError};

pub(super) fn pieces(session: &Session) -> MutexGuard<'_, Pieces> {
    session
        .pieces
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Charging<'_> {
    /// The driver answered success: from now on a piece answers for the bytes.
    pub(super) fn into_charge(self) -> Charge {
        let (lane, bytes) = (self.reservation.lane, self.reservation.bytes);
        self.reservation.commit();
        Charge { lane, bytes }
    }
}

/// Gives charges that ended back to credit.
pub(super) fn give_back(session: &Session, ended: Vec<Charge>) {
    for Charge { lane, bytes } in ended {
        session.release(lane, bytes);
    }
}

/// Ends references; the charges that end with them go back to credit.
pub(super) fn drop_references(session: &Session, dropped: impl IntoIterator<Item = Piece>) {
    let ended = pieces(session).drop_and_look(dropped);
    give_back(session, ended);
}

/// Looks whether descriptors of memory were closed, and gives back what they held. For before an allocation
/// is refused, and for when there is time.
pub(super) fn look_again(session: &Session) {
    let ended = pieces(session).look();
    give_back(session, ended);
}

/// The account that memory of a place is charged to: a GPU's, or that of pinned host memory. What the
/// driver may come to accept beyond the places known here is taken to be of the current GPU.
fn account_of(session: &Session, place: CUmemLocation) -> Result<Lane, CUresult> {
    match place.kind {
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(Lane::HOST),
        CU_MEM_LOCATION_TYPE_DEVICE | CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => {
            lane::limited(lane_at(session, place)?)
        }
        _ => Ok(lane::of_current(session).ok().flatten().unwrap_or(Lane(0))),
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
        let lane = account_of(session, prop.location)?;
        let reservation = session.reserve(lane, size as u64)?;
        let result = call();
        if result == CUresult::SUCCESS {
            let bytes = reservation.bytes;
            reservation.commit();
            // SAFETY: the driver has just written there and answered success.
            let name = Name::Handle(unsafe { *handle });
            let mut books = pieces(session);
            let piece = books.begin(Some(Charge { lane, bytes }));
            let gone = books.create(name, 0, piece);
            drop(books);
            drop_references(session, gone);
        }
        Ok(result)
    })
}

/// Gives up one reference under `name` by `call`.
pub(super) fn released(name: Name, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(session) = link::attached() else {
        return Ok(call());
    };
    let taken = pieces(session).remove(name);
    let result = call();
    let Some((piece, context)) = taken else {
        return Ok(result); // Not ours: the driver's business alone.
    };
    let dropped = if result == CUresult::SUCCESS {
        Some(piece)
    } else {
        pieces(session).add(name, context, piece)
    };
    drop_references(session, dropped);
    Ok(result)
}

pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    guard(|| released(Name::Handle(handle), || real!(cuMemRelease(handle))))
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
        let counted = pieces(session).refer(Name::Handle(handle));
        let result = call();
        let dropped = match counted {
            Some(piece) if result == CUresult::SUCCESS => {
                pieces(session).map(ptr, size as u64, piece)
            }
            counted => counted,
        };
        drop_references(session, dropped);
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

/// Finishes a call that was to give a handle of memory on which `counted` counts a reference already.
///
/// # Safety
/// `call` writes the handle there when it answers success.
pub(super) unsafe fn handed(
    session: &Session,
    counted: Option<Piece>,
    handle: *const CUmemGenericAllocationHandle,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    let dropped = match counted {
        Some(piece) if result == CUresult::SUCCESS => {
            // SAFETY: the driver has just written there and answered success.
            pieces(session).add(Name::Handle(unsafe { *handle }), 0, piece)
        }
        counted => counted,
    };
    drop_references(session, dropped);
    result
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
        let counted = pieces(session).refer_at(addr as u64);
        // SAFETY: the application's own pointer, which the driver checks and writes.
        Ok(unsafe { handed(session, counted, handle, call) })
    })
}
