//! Memory bound to a multicast object or a logical endpoint.
//!
//! Binding gives memory a further name: what is written to the object is written to every memory bound
//! at that place. The memory stays until it is unbound or the object ends, whatever became of its
//! handles, so the object's piece holds a reference to it. A part of the object belongs to a device and
//! a range: the same range is bound once for each device of the team.

use super::{Name, Piece, Pieces};
use gpuslice_wire::ids::Lane;

/// Where in an object something is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// On the GPU of this lane; `None`: not said, which is then the lane that the memory is charged to.
    pub lane: Option<Lane>,
    /// From here on.
    pub offset: u64,
    /// So far.
    pub bytes: u64,
}

/// A reference that an object holds.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub(super) piece: Piece,
    place: Place,
}

impl Pieces {
    /// Writes a counted reference down as held by an object. What was bound to an object we do not know
    /// stays counted for good, since its end will not be noticed.
    pub fn bind(&mut self, object: Name, place: Place, piece: Piece) {
        let charged = self.alive.get(&piece).and_then(|alive| alive.charge);
        let place = Place {
            lane: place.lane.or(charged.map(|charge| charge.lane)),
            ..place
        };
        let holder = self.names.get(&object).map(|named| named.piece);
        if let Some(holder) = holder.and_then(|holder| self.alive.get_mut(&holder)) {
            holder.bound.push(Bound { piece, place });
        }
    }

    /// Takes out what an object holds inside this place; to be written back by [`Pieces::rebind`] if
    /// the driver refuses, and dropped if not.
    #[must_use]
    pub fn unbind(&mut self, object: Name, place: Place) -> Vec<Bound> {
        let holder = self.names.get(&object).map(|named| named.piece);
        let Some(holder) = holder.and_then(|holder| self.alive.get_mut(&holder)) else {
            return Vec::new();
        };
        let end = place.offset.saturating_add(place.bytes);
        let inside = |bound: &Bound| {
            let at = bound.place;
            at.lane == place.lane
                && at.offset >= place.offset
                && at.offset.saturating_add(at.bytes) <= end
        };
        let (taken, left) = std::mem::take(&mut holder.bound)
            .into_iter()
            .partition(inside);
        holder.bound = left;
        taken
    }

    /// Writes back what an unbind that the driver refused took out.
    pub fn rebind(&mut self, object: Name, bound: Vec<Bound>) {
        let holder = self.names.get(&object).map(|named| named.piece);
        if let Some(holder) = holder.and_then(|holder| self.alive.get_mut(&holder)) {
            holder.bound.extend(bound);
        }
    }
}

/// The pieces of what was unbound.
pub fn pieces(bound: Vec<Bound>) -> impl Iterator<Item = Piece> {
    bound.into_iter().map(|bound| bound.piece)
}
