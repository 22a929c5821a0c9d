//! Physical memory of the virtual-memory API: created, mapped, released. [`crate::memory::physical`] says what
//! counts as a reference, and why.

use crate::memory::devices::limited;
use crate::memory::physical::{Charge, Name};
use crate::slice::{self, Slice, handed, released};
use gpuslice_nvabi::types::*;
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::Lane;

/// The account that memory of a place is charged to: a GPU's, or that of pinned host memory. A kind of
/// place unknown here is charged to the current GPU.
fn account_of(slice: &Slice, place: CUmemLocation) -> Result<Lane, CUresult> {
    match place.kind {
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(Lane::HOST),
        CU_MEM_LOCATION_TYPE_DEVICE | CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => {
            limited(slice.lane_at(place)?)
        }
        _ => Ok(slice.lane_of_current().ok().flatten().unwrap_or(Lane(0))),
    }
}

hooks! {
    guard cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp,
        flags: u64,
    ) as |call| {
        // SAFETY: null, or the application's own properties, which the driver is about to read.
        let (Some(slice), Some(prop)) = (slice::get()?, unsafe { prop.as_ref() }) else {
            return Ok(call());
        };
        let lane = account_of(slice, prop.location)?;
        let reservation = slice.daemon.reserve(lane, size as u64)?;
        let result = call();
        if result == CUresult::SUCCESS {
            let bytes = reservation.bytes;
            reservation.commit();
            slice.hold(lane, Family::Physical, bytes);
            // SAFETY: the driver has just written there and answered success.
            let name = Name::Handle(unsafe { *handle });
            let mut table = slice.physical();
            let allocation = table.begin(Some(Charge { lane, bytes }));
            let gone = table.create(name, 0, allocation);
            drop(table);
            slice.drop_references(gone);
        }
        Ok(result)
    };

    guard cuMemRelease(handle: CUmemGenericAllocationHandle) as |call|
        released(Name::Handle(handle), call);

    guard cuMemMap(
        ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) as |call| {
        let Some(slice) = slice::attached() else {
            return Ok(call());
        };
        let counted = slice.physical().refer(Name::Handle(handle));
        let result = call();
        let dropped = match counted {
            Some(allocation) if result == CUresult::SUCCESS => {
                slice.physical().map(ptr, size as u64, allocation)
            }
            counted => counted,
        };
        slice.drop_references(dropped);
        Ok(result)
    };

    guard cuMemUnmap(ptr: CUdeviceptr, size: usize) as |call| {
        let Some(slice) = slice::attached() else {
            return Ok(call());
        };
        let unmapped = slice.physical().unmap(ptr, size as u64);
        let result = call();
        if result == CUresult::SUCCESS {
            slice.drop_references(unmapped.allocations());
        } else {
            slice.physical().restore(unmapped);
        }
        Ok(result)
    };

    guard cuMemRetainAllocationHandle(
        handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void,
    ) as |call| {
        let Some(slice) = slice::attached() else {
            return Ok(call());
        };
        let counted = slice.physical().refer_at(addr as u64);
        // SAFETY: the application's own pointer, which the driver checks and writes.
        Ok(unsafe { handed(slice, counted, handle, call) })
    };
}
