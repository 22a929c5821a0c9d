//! Descriptors of memory: what was exported stays as long as a copy of its descriptor is open.
//!
//! A descriptor is the application's, to be sent over a socket and closed whenever it likes, and closing
//! is no call of the driver. So the books remember its number and which open file that was
//! ([`Stamp`]), and look again whenever it matters: when memory is given up, before an allocation is
//! refused, and when the process rests. They never close it, and never make a copy of it, which
//! would keep the memory alive by itself.
//!
//! Two descriptors of different memory may have one stamp (on NVIDIA's driver they are all openings of
//! one device file). So a number that was closed and is another such descriptor by now counts
//! as still open; but the export that gave that number away anew proves that the old one is closed. Both
//! errors are on the safe side: the charge stays too long, never too short.
//!
//! Copies in other processes cannot be seen. Memory that only they hold is not charged any more: the
//! daemon's measurement of the process that imported it is what covers it.

use super::{Charge, Piece, Pieces};
use crate::link::sys::{Stamp, same_file, stamp};
use std::collections::HashMap;
use std::os::fd::RawFd;

/// So many descriptors are remembered before it is first looked whether some of them are closed.
const LOOK_FROM: usize = 64;

#[derive(Debug)]
struct Exported {
    stamp: Stamp,
    /// One, or all that a range of addresses goes over.
    pieces: Vec<Piece>,
}

/// Open descriptors by number. There are at most twice as many as the process has open.
#[derive(Debug, Default)]
pub struct Exports {
    open: HashMap<RawFd, Exported>,
    /// Look for closed ones when there are so many.
    look_at: usize,
}

impl Exports {
    /// Takes out the descriptors that are closed, of those that `concerned` is true for any piece of.
    fn closed(&mut self, concerned: impl Fn(&Piece) -> bool) -> Vec<Piece> {
        let gone = self.open.extract_if(|&number, exported| {
            exported.pieces.iter().any(&concerned) && stamp(number) != Some(exported.stamp)
        });
        gone.flat_map(|(_, exported)| exported.pieces).collect()
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.open.len()
    }

    /// The piece of a descriptor: of this number, or of one that is a copy of it.
    fn piece(&self, number: RawFd) -> Option<Piece> {
        let stamp = stamp(number)?;
        let one_piece = |exported: &Exported| match exported.pieces[..] {
            [piece] if exported.stamp == stamp => Some(piece),
            _ => None,
        };
        if let Some(exported) = self.open.get(&number) {
            return one_piece(exported);
        }
        let copies = self.open.iter().filter_map(|(&other, exported)| {
            let piece = one_piece(exported)?;
            same_file(number, other).then_some(piece)
        });
        copies.take(1).next()
    }
}

impl Pieces {
    /// Writes counted references down as held by a descriptor that the driver has just made; hands out
    /// those of others that are seen closed.
    #[must_use]
    pub fn export(&mut self, number: RawFd, pieces: Vec<Piece>) -> Vec<Piece> {
        let Some(stamp) = stamp(number) else {
            return pieces; // Closed already, by another thread.
        };
        crate::hooks::follow();
        let exports = &mut self.exports;
        let exported = Exported { stamp, pieces };
        let before = exports.open.insert(number, exported);
        let mut gone = before.map_or(Vec::new(), |before| before.pieces);
        if exports.open.len() >= exports.look_at.max(LOOK_FROM) {
            gone.extend(exports.closed(|_| true));
            exports.look_at = exports.open.len() * 2;
        }
        gone
    }

    /// Counts a reference to the memory of a descriptor that is about to be imported, if this process
    /// exported it.
    pub fn refer_exported(&mut self, number: RawFd) -> Option<Piece> {
        let piece = self.exports.piece(number)?;
        self.count(piece)
    }

    /// Ends references as [`Pieces::drop_references`], and those of closed descriptors to the same
    /// pieces.
    #[must_use]
    pub fn drop_and_look(&mut self, pieces: impl IntoIterator<Item = Piece>) -> Vec<Charge> {
        let mut pieces = Vec::from_iter(pieces);
        if !self.exports.open.is_empty() && !pieces.is_empty() {
            pieces.extend(self.exports.closed(|piece| pieces.contains(piece)));
        }
        self.drop_references(pieces)
    }

    /// Looks at all descriptors; the charges that ended.
    #[must_use]
    pub fn look(&mut self) -> Vec<Charge> {
        let closed = self.exports.closed(|_| true);
        self.drop_references(closed)
    }
}
