//! Physical memory of the virtual-memory API, counted by references.
//!
//! `cuMemCreate` gives physical memory a handle, `cuMemMap` puts it at an address, and the memory
//! lives until the last handle is released *and* the last mapping is gone, in either order: create,
//! map, release, and the memory is still there. So an allocation is charged once, at creation, and
//! the charge ends when the sum of handle references and mappings reaches zero.
//!
//! As in [`crate::book`], references are taken before the driver adds one and given up before it
//! drops one (and put back if it refuses), because handles and addresses are reused at once.
#![forbid(unsafe_code)]

use gpuslice_wire::ids::Lane;
use std::collections::{BTreeMap, HashMap};

/// One piece of physical memory, for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece(u64);

/// A charge that has ended or is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Charged to this lane.
    pub lane: Lane,
    /// This much, bytes.
    pub bytes: u64,
}

#[derive(Debug)]
struct Alive {
    charge: Charge,
    references: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    piece: Piece,
}

/// Handles, mappings and the pieces behind them.
#[derive(Debug, Default)]
pub struct Pieces {
    next: u64,
    alive: HashMap<Piece, Alive>,
    /// Handle to its piece and how many references the application holds through it.
    handles: HashMap<u64, (Piece, u64)>,
    mappings: BTreeMap<u64, Mapping>,
}

impl Pieces {
    /// A new piece with one handle reference.
    pub fn create(&mut self, handle: u64, charge: Charge) {
        let piece = Piece(self.next);
        self.next += 1;
        self.alive.insert(
            piece,
            Alive {
                charge,
                references: 1,
            },
        );
        self.handles.insert(handle, (piece, 1));
    }

    /// Takes a reference out of `handle`; its piece, on which the reference is still counted until
    /// [`Pieces::drop_references`] or [`Pieces::add_handle`].
    pub fn remove_handle(&mut self, handle: u64) -> Option<Piece> {
        let (piece, count) = self.handles.get_mut(&handle)?;
        let piece = *piece;
        *count -= 1;
        if *count == 0 {
            self.handles.remove(&handle);
        }
        Some(piece)
    }

    /// Writes a counted reference to `piece` under `handle`.
    pub fn add_handle(&mut self, handle: u64, piece: Piece) {
        self.handles.entry(handle).or_insert((piece, 0)).1 += 1;
    }

    /// Counts a reference to what is mapped at `address`, to be written under a handle soon.
    pub fn retain_at(&mut self, address: u64) -> Option<Piece> {
        let (&start, &Mapping { bytes, piece }) = self.mappings.range(..=address).next_back()?;
        (address - start < bytes).then_some(())?;
        self.alive.get_mut(&piece)?.references += 1;
        Some(piece)
    }

    /// Counts a reference to `handle`'s piece for a mapping that the driver is about to make; `None`
    /// for a handle that is not charged.
    pub fn prepare_map(&mut self, handle: u64) -> Option<Piece> {
        let &(piece, _) = self.handles.get(&handle)?;
        self.alive.get_mut(&piece)?.references += 1;
        Some(piece)
    }

    /// Writes a counted reference to `piece` down as a mapping.
    pub fn map(&mut self, address: u64, bytes: u64, piece: Piece) {
        self.mappings.insert(address, Mapping { bytes, piece });
    }

    /// Takes out the mappings that begin inside the range; they stay counted until
    /// [`Pieces::drop_references`] or [`Pieces::restore`].
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Unmapped {
        let end = address.saturating_add(bytes);
        let starts: Vec<u64> = self
            .mappings
            .range(address..end)
            .map(|(&start, _)| start)
            .collect();
        let take = |start| self.mappings.remove(&start).map(|mapping| (start, mapping));
        Unmapped(starts.into_iter().filter_map(take).collect())
    }

    /// Writes back what an unmap that the driver refused took out.
    pub fn restore(&mut self, unmapped: Unmapped) {
        self.mappings.extend(unmapped.0);
    }

    /// Ends references; hands out each charge that ended with its last one.
    pub fn drop_references(
        &mut self,
        pieces: impl IntoIterator<Item = Piece>,
        mut ended: impl FnMut(Charge),
    ) {
        for piece in pieces {
            let Some(alive) = self.alive.get_mut(&piece) else {
                continue;
            };
            alive.references -= 1;
            if alive.references == 0 {
                ended(alive.charge);
                self.alive.remove(&piece);
            }
        }
    }
}

/// Mappings taken out by [`Pieces::unmap`].
#[derive(Debug)]
#[must_use]
pub struct Unmapped(Vec<(u64, Mapping)>);

impl Unmapped {
    /// The pieces that were mapped, one for each mapping.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.0.iter().map(|(_, mapping)| mapping.piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHARGE: Charge = Charge {
        lane: Lane(2),
        bytes: 2 << 20,
    };

    fn release(pieces: &mut Pieces, handle: u64) -> Vec<Charge> {
        let (piece, mut ended) = (pieces.remove_handle(handle), Vec::new());
        pieces.drop_references(piece, |charge| ended.push(charge));
        ended
    }

    fn map(pieces: &mut Pieces, address: u64, handle: u64) {
        let piece = pieces.prepare_map(handle).expect("charged");
        pieces.map(address, 0x100, piece);
    }

    fn unmap(pieces: &mut Pieces, address: u64, bytes: u64) -> Vec<Charge> {
        let (gone, mut ended) = (pieces.unmap(address, bytes), Vec::new());
        pieces.drop_references(gone.pieces(), |charge| ended.push(charge));
        ended
    }

    #[test]
    fn released_but_mapped_is_still_charged() {
        let mut pieces = Pieces::default();
        pieces.create(7, CHARGE);
        map(&mut pieces, 0x1000, 7);
        assert_eq!(release(&mut pieces, 7), []);
        assert_eq!(unmap(&mut pieces, 0x1000, 0x100), [CHARGE]);
        assert_eq!(unmap(&mut pieces, 0x1000, 0x100), []);
    }

    #[test]
    fn a_retained_handle_keeps_the_charge() {
        let mut pieces = Pieces::default();
        pieces.create(7, CHARGE);
        map(&mut pieces, 0x1000, 7);
        assert_eq!(release(&mut pieces, 7), []);
        assert_eq!(pieces.retain_at(0x1100), None, "one past the end");
        let piece = pieces.retain_at(0x10ff).expect("mapped there");
        pieces.add_handle(8, piece);
        assert_eq!(unmap(&mut pieces, 0x1000, 0x100), []);
        assert_eq!(release(&mut pieces, 8), [CHARGE]);
        assert_eq!(release(&mut pieces, 8), []);
    }

    #[test]
    fn one_unmap_may_cover_many_mappings_and_be_refused() {
        let mut pieces = Pieces::default();
        pieces.create(7, CHARGE);
        for page in 0..4 {
            map(&mut pieces, 0x1000 + page * 0x100, 7);
        }
        assert_eq!(release(&mut pieces, 7), []);
        let gone = pieces.unmap(0x1000, 0x400);
        pieces.restore(gone);
        assert_eq!(unmap(&mut pieces, 0x1100, 0x300), []);
        assert_eq!(unmap(&mut pieces, 0x1000, 0x100), [CHARGE]);
    }

    #[test]
    fn strangers_are_not_charged() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.prepare_map(99), None);
        assert_eq!(release(&mut pieces, 99), []);
        assert_eq!(unmap(&mut pieces, 0, u64::MAX), []);
    }
}
