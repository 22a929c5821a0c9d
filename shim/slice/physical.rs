//! Steps with physical memory that need the table and the account. [`crate::memory::physical`] says what counts
//! as a reference, and why.

use super::attach::attached;
use super::state::Slice;
use crate::guard::Outcome;
use crate::memory::physical::{Charge, Name, PhysicalAllocation};
use gpuslice_nvabi::types::{CUmemGenericAllocationHandle, CUresult};
use gpuslice_wire::family::Family;

impl Slice {
    /// Ends references, and releases the charges that end with them.
    pub fn drop_references(&self, dropped: impl IntoIterator<Item = PhysicalAllocation>) {
        let mut table = self.physical();
        self.release_ended(table.drop_and_look(dropped));
    }

    /// Releases the charges of memory whose exported descriptors were closed. Called before an allocation is
    /// refused, and when the process is idle.
    pub(super) fn drop_closed_exports(&self) {
        let mut table = self.physical();
        self.release_ended(table.look());
    }

    /// Called with the table locked: a thread that finds no closed descriptor there, since another one has found it,
    /// requests memory from an account that has its bytes.
    fn release_ended(&self, ended: Vec<Charge>) {
        for Charge { lane, bytes } in ended {
            self.release_of(lane, Family::Physical, bytes);
        }
    }
}

/// Releases one reference under `name` by `call`.
///
/// # Errors
/// None of its own.
pub fn released(name: Name, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(slice) = attached() else {
        return Ok(call());
    };
    let taken = slice.physical().remove(name);
    let result = call();
    let Some((allocation, context)) = taken else {
        return Ok(result); // An unknown name: nothing is charged for it.
    };
    let dropped = if result == CUresult::SUCCESS {
        Some(allocation)
    } else {
        slice.physical().add(name, context, allocation)
    };
    slice.drop_references(dropped);
    Ok(result)
}

/// Makes a call that returns a handle of memory to which `counted` is a reference already counted.
///
/// # Safety
/// `call` writes the handle there when it answers success.
pub unsafe fn handed(
    slice: &Slice,
    counted: Option<PhysicalAllocation>,
    handle: *const CUmemGenericAllocationHandle,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    let dropped = match counted {
        Some(allocation) if result == CUresult::SUCCESS => {
            // SAFETY: the driver has just written there and answered success.
            let name = Name::Handle(unsafe { *handle });
            slice.physical().add(name, 0, allocation)
        }
        counted => counted,
    };
    slice.drop_references(dropped);
    result
}
