//! Physical memory, counted by references.
//!
//! `cuMemCreate` gives physical memory a handle, `cuMemMap` puts it at an address, and the memory
//! lives until the last handle is released *and* the last mapping is gone, in either order: create,
//! map, release, and the memory is still there. More than these two hold memory: a descriptor that was
//! exported ([`exports`]), a tile of a sparse array ([`tiles`]), a multicast object or an endpoint it is
//! bound to ([`bound`]). So a *piece* of memory is charged once, when it begins, and the charge ends
//! when the sum of all references to it reaches zero.
//!
//! A piece need not have a charge. What was imported is charged to the process that created it, in
//! this container or another one, and its references here must only not disturb the books; a
//! multicast object is no memory, but its end is the end of what was bound to it.
//! Memory of other APIs and of other containers' processes is counted here as well, under the
//! [`Name`]s that an application has for it.
//!
//! As in [`crate::book`], references are taken before the driver adds one and given up before it
//! drops one (and put back if it refuses), because handles and addresses are reused at once.
//!
//! A process that is checkpointed (`cuCheckpointProcess…`) has its memory moved to the host and, when
//! it is restored, back. It stays charged all the while, so that there is room for it on its return.
#![forbid(unsafe_code)]

pub mod bound;
pub mod exports;
#[cfg(test)]
mod model;
pub mod tiles;

use bound::Bound;
use exports::Exports;
use gpuslice_wire::ids::Lane;
use std::collections::{BTreeMap, HashMap};
use tiles::{Tile, Tiles};

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

/// What an application calls a thing that refers to a piece; the driver's numbers for things of
/// different kinds may be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// Created, imported, retained; a multicast object.
    Handle(u64),
    /// A logical endpoint.
    Endpoint(u32),
    /// The address of another process's memory.
    Opened(u64),
    /// Memory of another API.
    External(u64),
    /// A buffer or mipmapped array in such memory.
    Within(u64),
}

#[derive(Debug)]
struct Alive {
    charge: Option<Charge>,
    references: u64,
    /// Known under a name that nobody can take back, for as long as the process lives.
    kept: bool,
    /// What this piece holds in its turn.
    bound: Vec<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    piece: Piece,
}

/// A name's piece and how many references the application holds through it.
#[derive(Clone, Copy, Debug)]
struct Named {
    piece: Piece,
    count: u64,
    /// The context that takes the name with it; 0 for what outlives contexts.
    context: u64,
}

/// Names, mappings, descriptors, tiles and the pieces behind them.
#[derive(Debug, Default)]
pub struct Pieces {
    next: u64,
    alive: HashMap<Piece, Alive>,
    names: HashMap<Name, Named>,
    mappings: BTreeMap<u64, Mapping>,
    exports: Exports,
    tiles: Tiles,
}

impl Pieces {
    /// A new piece with one counted reference, to be written under a name next.
    #[must_use]
    pub fn begin(&mut self, charge: Option<Charge>) -> Piece {
        let piece = Piece(self.next);
        self.next += 1;
        let alive = Alive {
            charge,
            references: 1,
            kept: false,
            bound: Vec::new(),
        };
        self.alive.insert(piece, alive);
        piece
    }

    /// Counts one more reference to a piece.
    fn count(&mut self, piece: Piece) -> Option<Piece> {
        self.alive.get_mut(&piece)?.references += 1;
        Some(piece)
    }

    /// Counts a reference to what `name` stands for, for something that the driver is about to make;
    /// `None` for a name that is not ours.
    pub fn refer(&mut self, name: Name) -> Option<Piece> {
        let piece = self.names.get(&name)?.piece;
        self.count(piece)
    }

    /// Writes a counted reference under a name that is new: whatever the books have under it is gone,
    /// in a way that passed us by, and its references are handed out to be dropped.
    #[must_use]
    pub fn create(&mut self, name: Name, context: u64, piece: Piece) -> Vec<Piece> {
        let named = Named {
            piece,
            count: 1,
            context,
        };
        match self.names.insert(name, named) {
            Some(old) => vec![old.piece; old.count as usize],
            None => Vec::new(),
        }
    }

    /// Writes a counted reference under a name that may be known already. If it is known for another
    /// piece, then both are the same memory: it is counted there, and the reference to `piece` is
    /// handed out to be dropped.
    #[must_use]
    pub fn add(&mut self, name: Name, context: u64, piece: Piece) -> Option<Piece> {
        let fresh = Named {
            piece,
            count: 0,
            context,
        };
        let named = self.names.entry(name).or_insert(fresh);
        named.count += 1;
        let known = named.piece;
        if known == piece {
            return None;
        }
        self.count(known);
        Some(piece)
    }

    /// Takes a reference out of a name; it stays counted until [`Pieces::drop_references`] or
    /// [`Pieces::add`] with the same piece and context.
    pub fn remove(&mut self, name: Name) -> Option<(Piece, u64)> {
        let named = self.names.get_mut(&name)?;
        let (piece, context) = (named.piece, named.context);
        named.count -= 1;
        if named.count == 0 {
            self.names.remove(&name);
        }
        Some((piece, context))
    }

    /// Counts a reference to what is mapped at `address`, to be written under a name soon.
    pub fn refer_at(&mut self, address: u64) -> Option<Piece> {
        let (&start, &Mapping { bytes, piece }) = self.mappings.range(..=address).next_back()?;
        (address - start < bytes).then_some(())?;
        self.count(piece)
    }

    /// Counts a reference to each piece that is mapped somewhere in the range.
    #[must_use]
    pub fn refer_within(&mut self, address: u64, bytes: u64) -> Vec<Piece> {
        let end = address.saturating_add(bytes);
        let first = self.mappings.range(..=address).next_back();
        let first = first.map_or(address, |(&start, _)| start);
        let reaches = |&(&start, mapping): &(&u64, &Mapping)| start + mapping.bytes > address;
        let mapped = self.mappings.range(first..end).filter(reaches);
        let pieces: Vec<Piece> = mapped.map(|(_, mapping)| mapping.piece).collect();
        pieces.iter().for_each(|&piece| {
            self.count(piece);
        });
        pieces
    }

    /// Writes a counted reference to `piece` down as a mapping; hands out that of a mapping which was
    /// there and is gone, in a way that passed us by.
    #[must_use]
    pub fn map(&mut self, address: u64, bytes: u64, piece: Piece) -> Option<Piece> {
        let old = self.mappings.insert(address, Mapping { bytes, piece });
        old.map(|mapping| mapping.piece)
    }

    /// Takes out the mappings that lie in the range as a whole; they stay counted until
    /// [`Pieces::drop_references`] or [`Pieces::restore`].
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Unmapped {
        let end = address.saturating_add(bytes);
        let inside = |&(&start, mapping): &(&u64, &Mapping)| mapping.bytes <= end - start;
        let mapped = self.mappings.range(address..end).filter(inside);
        let starts: Vec<u64> = mapped.map(|(&start, _)| start).collect();
        let take = |start| self.mappings.remove(&start).map(|mapping| (start, mapping));
        Unmapped(starts.into_iter().filter_map(take).collect())
    }

    /// Writes back what an unmap that the driver refused took out.
    pub fn restore(&mut self, unmapped: Unmapped) {
        self.mappings.extend(unmapped.0);
    }

    /// Keeps a counted reference for ever, because nothing will tell when the name it was given away
    /// under is of no use any more. One is enough: hands out every other.
    #[must_use]
    pub fn keep(&mut self, piece: Piece) -> Option<Piece> {
        let alive = self.alive.get_mut(&piece)?;
        std::mem::replace(&mut alive.kept, true).then_some(piece)
    }

    /// Takes out everything that a context which is about to end takes with it; it stays counted until
    /// [`Pieces::drop_references`] or [`Pieces::reopen`].
    pub fn close(&mut self, context: u64) -> Closed {
        if context == 0 {
            // No context at all; what outlives contexts is not anybody's.
            return Closed::default();
        }
        let of_context = |(_, named): &(&Name, &Named)| named.context == context;
        let names: Vec<Name> = self
            .names
            .iter()
            .filter(of_context)
            .map(|it| *it.0)
            .collect();
        let take = |name| self.names.remove(&name).map(|named| (name, named));
        Closed {
            names: names.into_iter().filter_map(take).collect(),
            tiles: self.tiles.take_context(context),
        }
    }

    /// Writes back what was taken out of a context that did not end.
    pub fn reopen(&mut self, closed: Closed) {
        self.names.extend(closed.names);
        self.tiles.restore(closed.tiles);
    }

    /// Ends references, and with the last one of a piece those that it held in its turn; the charges
    /// that ended.
    #[must_use]
    pub fn drop_references(&mut self, pieces: impl IntoIterator<Item = Piece>) -> Vec<Charge> {
        let (mut left, mut ended) = (Vec::from_iter(pieces), Vec::new());
        while let Some(piece) = left.pop() {
            let Some(alive) = self.alive.get_mut(&piece) else {
                continue;
            };
            alive.references -= 1;
            if alive.references == 0
                && let Some(gone) = self.alive.remove(&piece)
            {
                ended.extend(gone.charge);
                left.extend(gone.bound.iter().map(|bound| bound.piece));
            }
        }
        ended
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

/// What [`Pieces::close`] took out of a context.
#[derive(Debug, Default)]
#[must_use]
pub struct Closed {
    names: Vec<(Name, Named)>,
    tiles: Vec<Tile>,
}

impl Closed {
    /// Its references, one by one.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let named = |(_, named): &(Name, Named)| vec![named.piece; named.count as usize];
        let tiles = self.tiles.iter().map(|tile| tile.piece);
        self.names.iter().flat_map(named).chain(tiles)
    }
}

#[cfg(test)]
mod tests;
