//! Memory bound to a multicast object or a logical endpoint.
//!
//! Binding gives memory a further name: a write to the object is a write to every memory bound at that
//! place. The memory stays until it is unbound or the object ends, even if its handles are released, so the
//! object holds a reference to it. A part of the object belongs to a device and a range: the same range is
//! bound once for each device of the team.

use super::{Name, PhysicalAllocation, PhysicalTable};
use gpuslice_wire::ids::Lane;

/// The part of an object to which memory is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lane of its GPU; `None`: not specified, which means the lane that the memory is charged to.
    pub lane: Option<Lane>,
    /// Its offset.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// A reference that an object holds.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub(super) allocation: PhysicalAllocation,
    place: Place,
}

impl PhysicalTable {
    /// Records a counted reference as held by an object. Memory bound to an unknown object stays counted for
    /// ever, since the object's end is not observed.
    pub fn bind(&mut self, object: Name, place: Place, allocation: PhysicalAllocation) {
        let charged = self.entries.get(&allocation).and_then(|entry| entry.charge);
        let place = Place { lane: place.lane.or(charged.map(|charge| charge.lane)), ..place };
        let holder = self.names.get(&object).map(|named| named.allocation);
        if let Some(holder) = holder.and_then(|holder| self.entries.get_mut(&holder)) {
            holder.bound.push(Bound { allocation, place });
        }
    }

    /// Removes the references that an object holds inside this place. The caller restores them by
    /// [`PhysicalTable::rebind`] if the driver refuses, and drops them otherwise.
    #[must_use]
    pub fn unbind(&mut self, object: Name, place: Place) -> Vec<Bound> {
        let holder = self.names.get(&object).map(|named| named.allocation);
        let Some(holder) = holder.and_then(|holder| self.entries.get_mut(&holder)) else {
            return Vec::new();
        };
        let end = place.offset.saturating_add(place.bytes);
        let inside = |bound: &Bound| {
            let at = bound.place;
            at.lane == place.lane
                && at.offset >= place.offset
                && at.offset.saturating_add(at.bytes) <= end
        };
        let (taken, left) = std::mem::take(&mut holder.bound).into_iter().partition(inside);
        holder.bound = left;
        taken
    }

    /// Restores the references of an unbind that the driver refused.
    pub fn rebind(&mut self, object: Name, bound: Vec<Bound>) {
        let holder = self.names.get(&object).map(|named| named.allocation);
        if let Some(holder) = holder.and_then(|holder| self.entries.get_mut(&holder)) {
            holder.bound.extend(bound);
        }
    }
}

/// The allocations that were unbound.
pub fn allocations(bound: Vec<Bound>) -> impl Iterator<Item = PhysicalAllocation> {
    bound.into_iter().map(|bound| bound.allocation)
}
