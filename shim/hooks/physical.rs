//! Physical memory of the virtual-memory API: created, mapped, released. [`crate::vmm`] says what counts as
//! a reference, and why.

use super::Charging;
use super::pool::lane_at;
use crate::guard::{Outcome, guard};
use crate::lane;
use crate::link::{self, Session};
use crate::real;
use crate::vmm::{Charge, Name, PhysicalAllocation, PhysicalTable};
use gpuslice_nvabi::types::*;
use gpuslice_wire::ids::Lane;
use std::sync::{MutexGuard, PoisonError};

pub(super) fn physical_table(session: &Session) -> MutexGuard<'_, PhysicalTable> {
    session
        .physical
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Charging<'_> {
    /// Commits the reservation as the charge of a physical allocation.
    pub(super) fn into_charge(self) -> Charge {
        let (lane, bytes) = (self.reservation.lane, self.reservation.bytes);
        self.reservation.commit();
        Charge { lane, bytes }
    }
}

/// Releases charges that ended.
pub(super) fn release_charges(session: &Session, ended: Vec<Charge>) {
    for Charge { lane, bytes } in ended {
        session.release(lane, bytes);
    }
}

/// Ends references, and releases the charges that end with them.
pub(super) fn drop_references(
    session: &Session,
    dropped: impl IntoIterator<Item = PhysicalAllocation>,
) {
    let ended = physical_table(session).drop_and_look(dropped);
    release_charges(session, ended);
}

/// Releases the charges of memory whose exported descriptors were closed. Called before an allocation is
/// refused, and when the process is idle.
pub(super) fn drop_closed_exports(session: &Session) {
    let ended = physical_table(session).look();
    release_charges(session, ended);
}

/// The account that memory of a place is charged to: a GPU's, or that of pinned host memory. A kind of
/// place unknown here is charged to the current GPU.
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
            let mut table = physical_table(session);
            let allocation = table.begin(Some(Charge { lane, bytes }));
            let gone = table.create(name, 0, allocation);
            drop(table);
            drop_references(session, gone);
        }
        Ok(result)
    })
}

/// Releases one reference under `name` by `call`.
pub(super) fn released(name: Name, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(session) = link::attached() else {
        return Ok(call());
    };
    let taken = physical_table(session).remove(name);
    let result = call();
    let Some((allocation, context)) = taken else {
        return Ok(result); // An unknown name: nothing is charged for it.
    };
    let dropped = if result == CUresult::SUCCESS {
        Some(allocation)
    } else {
        physical_table(session).add(name, context, allocation)
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
        let counted = physical_table(session).refer(Name::Handle(handle));
        let result = call();
        let dropped = match counted {
            Some(allocation) if result == CUresult::SUCCESS => {
                physical_table(session).map(ptr, size as u64, allocation)
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
        let unmapped = physical_table(session).unmap(ptr, size as u64);
        let result = call();
        if result == CUresult::SUCCESS {
            drop_references(session, unmapped.allocations());
        } else {
            physical_table(session).restore(unmapped);
        }
        Ok(result)
    })
}

/// Makes a call that returns a handle of memory to which `counted` is a reference already counted.
///
/// # Safety
/// `call` writes the handle there when it answers success.
pub(super) unsafe fn handed(
    session: &Session,
    counted: Option<PhysicalAllocation>,
    handle: *const CUmemGenericAllocationHandle,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    let dropped = match counted {
        Some(allocation) if result == CUresult::SUCCESS => {
            // SAFETY: the driver has just written there and answered success.
            physical_table(session).add(Name::Handle(unsafe { *handle }), 0, allocation)
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
        let counted = physical_table(session).refer_at(addr as u64);
        // SAFETY: the application's own pointer, which the driver checks and writes.
        Ok(unsafe { handed(session, counted, handle, call) })
    })
}
