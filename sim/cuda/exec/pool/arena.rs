//! The arena of a pool: its memory of the device, the parts in use and the gaps.
//!
//! A pool takes memory from the device in large pieces and hands out parts of them, so that an
//! allocation in the middle of a program's work costs nothing. A part that was freed in a stream may
//! still be used by work queued before: until the stream reaches the free, the part is in limbo,
//! where only the same stream, whose order is certain, may take it again.

#![forbid(unsafe_code)]

use crate::vram::FreeRanges;
use std::collections::HashMap;

/// A piece of device memory; its end gives it back to the device.
pub trait Piece {
    fn address(&self) -> u64;
    fn bytes(&self) -> u64;
}

/// Parts begin at multiples of this, and are as large.
const GRAIN: u64 = 512;

struct Area<P> {
    piece: P,
    gaps: FreeRanges,
}

impl<P: Piece> Area<P> {
    fn is_unused(&self) -> bool {
        self.gaps.is(self.piece.address(), self.piece.bytes())
    }
}

/// A part freed in a stream whose turn has not come.
struct Limbo {
    address: u64,
    asked: u64,
    stream: u64,
    ticket: u64,
}

/// The accounting of one pool: its pieces, their used parts and their gaps.
pub struct Arena<P> {
    areas: Vec<Area<P>>,
    /// Length of each part that is in use or in limbo.
    parts: HashMap<u64, u64>,
    limbo: Vec<Limbo>,
    tickets: u64,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
}

/// How long a part of that many bytes is.
pub fn part(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(GRAIN)
}

impl<P: Piece> Arena<P> {
    pub fn new() -> Self {
        Self {
            areas: Vec::new(),
            parts: HashMap::new(),
            limbo: Vec::new(),
            tickets: 0,
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
        }
    }

    /// Nothing in use and nothing in limbo.
    pub fn is_idle(&self) -> bool {
        self.parts.is_empty()
    }

    fn count(&mut self, len: u64) {
        self.used += len;
        self.used_high = self.used_high.max(self.used);
    }

    /// A part that the same stream has freed, of exactly the size asked for.
    pub fn reuse(&mut self, asked: u64, stream: u64) -> Option<u64> {
        let fits = |one: &Limbo| one.stream == stream && one.asked == asked;
        let index = self.limbo.iter().position(fits)?;
        let address = self.limbo.swap_remove(index).address;
        self.count(self.parts.get(&address).copied()?);
        Some(address)
    }

    /// A part from the gaps.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let address = self.areas.iter_mut().find_map(|area| area.gaps.take(len, 1, 0))?;
        self.parts.insert(address, len);
        self.count(len);
        Some(address)
    }

    /// Adds a piece of the device's memory.
    pub fn grow(&mut self, piece: P) {
        self.reserved += piece.bytes();
        self.reserved_high = self.reserved_high.max(self.reserved);
        let gaps = FreeRanges::new(piece.address(), piece.bytes());
        self.areas.push(Area { piece, gaps });
    }

    /// Frees a part at once; false where there is none.
    pub fn give(&mut self, address: u64) -> bool {
        let Some(len) = self.parts.get(&address).copied() else {
            return false;
        };
        self.used -= len;
        self.close(address);
        true
    }

    /// Frees a part once the stream is there; the ticket is for [`Arena::retire`].
    pub fn give_later(&mut self, address: u64, asked: u64, stream: u64) -> Option<u64> {
        self.used -= self.parts.get(&address).copied()?;
        self.tickets += 1;
        self.limbo.push(Limbo { address, asked, stream, ticket: self.tickets });
        Some(self.tickets)
    }

    /// The stream is there: the part is free, unless it was taken again. True if it is free now.
    pub fn retire(&mut self, ticket: u64) -> bool {
        let Some(index) = self.limbo.iter().position(|one| one.ticket == ticket) else {
            return false;
        };
        let address = self.limbo.swap_remove(index).address;
        self.close(address);
        true
    }

    /// The stream does not come to the free of a part any more: it is free. False if it is not in limbo.
    pub fn forget(&mut self, address: u64) -> bool {
        let Some(index) = self.limbo.iter().position(|one| one.address == address) else {
            return false;
        };
        self.limbo.swap_remove(index);
        self.close(address);
        true
    }

    /// The piece of the device's memory a part lies in.
    pub fn piece_of(&self, address: u64) -> Option<&P> {
        let within =
            |piece: &&P| (piece.address()..piece.address() + piece.bytes()).contains(&address);
        self.areas.iter().map(|area| &area.piece).find(within)
    }

    /// Whether a part is in limbo.
    pub fn in_limbo(&self, address: u64) -> bool {
        self.limbo.iter().any(|one| one.address == address)
    }

    fn close(&mut self, address: u64) {
        let Some(len) = self.parts.remove(&address) else {
            return;
        };
        let within = |area: &&mut Area<P>| {
            (area.piece.address()..area.piece.address() + area.piece.bytes()).contains(&address)
        };
        if let Some(area) = self.areas.iter_mut().find(within) {
            area.gaps.give(address, len);
        }
    }

    /// Gives unused pieces back to the device as long as more than `keep` bytes stay; returns
    /// them, to be dropped by the caller.
    pub fn trim(&mut self, keep: u64) -> Vec<P> {
        let mut given = Vec::new();
        let mut index = 0;
        while index < self.areas.len() {
            let bytes = self.areas[index].piece.bytes();
            if self.areas[index].is_unused() && self.reserved - bytes >= keep {
                self.reserved -= bytes;
                given.push(self.areas.swap_remove(index).piece);
            } else {
                index += 1;
            }
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Range(u64, u64);
    impl Piece for Range {
        fn address(&self) -> u64 {
            self.0
        }
        fn bytes(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn used_and_reserved_are_counted_apart() {
        let mut arena = Arena::new();
        assert_eq!(arena.take(512), None);
        arena.grow(Range(4096, 2048));
        let a = arena.take(512).expect("there is room");
        let b = arena.take(1024).expect("there is room");
        assert_eq!((arena.used, arena.reserved), (1536, 2048));
        assert_eq!(arena.take(1024), None);
        assert!(arena.give(a) && !arena.give(a));
        assert_eq!((arena.used, arena.used_high), (1024, 1536));
        assert!(arena.trim(0).is_empty(), "a part is in use");
        assert!(arena.give(b));
        assert!(arena.trim(1).is_empty(), "it would fall below what is kept");
        assert_eq!(arena.trim(0).len(), 1);
        assert_eq!((arena.reserved, arena.reserved_high), (0, 2048));
        assert!(arena.is_idle());
    }

    #[test]
    fn limbo_is_for_the_same_stream_only() {
        let mut arena = Arena::new();
        arena.grow(Range(0, 1024));
        let first = arena.take(1024).expect("there is room");
        let ticket = arena.give_later(first, 1000, 7).expect("it is in use");
        assert_eq!(arena.used, 0);
        assert_eq!(arena.take(512), None);
        assert_eq!(arena.reuse(1000, 8), None);
        assert_eq!(arena.reuse(900, 7), None);
        assert_eq!(arena.reuse(1000, 7), Some(first));
        assert!(!arena.retire(ticket), "it was taken again");
        let ticket = arena.give_later(first, 1000, 7).expect("it is in use");
        assert!(arena.retire(ticket));
        assert_eq!(arena.take(512), Some(0));
    }
}
