//! Descriptors of memory: exported memory stays as long as a copy of its descriptor is open.
//!
//! The application owns a descriptor: it may send it over a socket and close it at any time, without a
//! driver call. So the table records its number and the identity of the open file ([`Stamp`]), and checks
//! both when they matter: when memory is released, before an allocation is refused, and when the process
//! is idle. It never closes a descriptor and never duplicates one, since a copy would keep the memory.
//!
//! Two descriptors of different memory may have the same stamp (on NVIDIA's driver all are openings of one
//! device file). A closed number that now is another such descriptor thus counts as still open. An export
//! that yields that number again proves that the old descriptor is closed. The error is
//! on the safe side: the charge stays too long, never too short.
//!
//! Copies in other processes cannot be seen. Memory that only they hold is no longer charged here; the
//! daemon's measurement of the importing process covers it.

use super::{Charge, PhysicalAllocation, PhysicalTable};
use crate::daemon::sys::{Stamp, same_file, stamp};
use crate::memory::followed;
use std::collections::HashMap;
use std::os::fd::RawFd;

/// Number of recorded descriptors at which closed ones are first searched for.
const LOOK_FROM: usize = 64;

#[derive(Debug)]
struct Exported {
    stamp: Stamp,
    /// One allocation, or all in a range of addresses.
    allocations: Vec<PhysicalAllocation>,
}

/// Open descriptors by number. There are at most twice as many as the process has open.
#[derive(Debug, Default)]
pub struct Exports {
    open: HashMap<RawFd, Exported>,
    /// Number of descriptors at which closed ones are searched for next.
    look_at: usize,
}

impl Exports {
    /// Removes closed descriptors, of those with an allocation for which `concerned` is true.
    fn closed(
        &mut self,
        concerned: impl Fn(&PhysicalAllocation) -> bool,
    ) -> Vec<PhysicalAllocation> {
        let gone = self.open.extract_if(|&number, exported| {
            exported.allocations.iter().any(&concerned) && stamp(number) != Some(exported.stamp)
        });
        gone.flat_map(|(_, exported)| exported.allocations).collect()
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.open.len()
    }

    /// The allocation of a descriptor: of this number, or of a copy of it.
    fn allocation(&self, number: RawFd) -> Option<PhysicalAllocation> {
        let stamp = stamp(number)?;
        let one_piece = |exported: &Exported| match exported.allocations[..] {
            [allocation] if exported.stamp == stamp => Some(allocation),
            _ => None,
        };
        if let Some(exported) = self.open.get(&number) {
            return one_piece(exported);
        }
        let copies = self.open.iter().filter_map(|(&other, exported)| {
            let allocation = one_piece(exported)?;
            same_file(number, other).then_some(allocation)
        });
        copies.take(1).next()
    }
}

impl PhysicalTable {
    /// Records counted references as held by a descriptor that the driver has just created. Returns the
    /// references of descriptors found closed.
    #[must_use]
    pub fn export(
        &mut self,
        number: RawFd,
        allocations: Vec<PhysicalAllocation>,
    ) -> Vec<PhysicalAllocation> {
        let Some(stamp) = stamp(number) else {
            return allocations; // Closed already, by another thread.
        };
        followed::follow();
        let exports = &mut self.exports;
        let exported = Exported { stamp, allocations };
        let before = exports.open.insert(number, exported);
        let mut gone = before.map_or(Vec::new(), |before| before.allocations);
        if exports.open.len() >= exports.look_at.max(LOOK_FROM) {
            gone.extend(exports.closed(|_| true));
            exports.look_at = exports.open.len() * 2;
        }
        gone
    }

    /// Counts a reference to the memory of a descriptor that is about to be imported, if this process exported
    /// it.
    pub fn refer_exported(&mut self, number: RawFd) -> Option<PhysicalAllocation> {
        let allocation = self.exports.allocation(number)?;
        self.count(allocation)
    }

    /// Ends references as [`PhysicalTable::drop_references`] does, and those of closed descriptors to the
    /// same allocations.
    #[must_use]
    pub fn drop_and_look(
        &mut self,
        allocations: impl IntoIterator<Item = PhysicalAllocation>,
    ) -> Vec<Charge> {
        let mut allocations = Vec::from_iter(allocations);
        if !self.exports.open.is_empty() && !allocations.is_empty() {
            allocations.extend(self.exports.closed(|allocation| allocations.contains(allocation)));
        }
        self.drop_references(allocations)
    }

    /// Drops the references of all closed descriptors. Returns the charges that ended.
    #[must_use]
    pub fn look(&mut self) -> Vec<Charge> {
        let closed = self.exports.closed(|_| true);
        self.drop_references(closed)
    }
}
