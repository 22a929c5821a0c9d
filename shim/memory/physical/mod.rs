//! Physical memory, counted by references.
//!
//! `cuMemCreate` gives physical memory a handle, and `cuMemMap` puts it at an address. The memory lives until
//! the last handle is released *and* the last mapping is gone, in either order. After create, map,
//! release, the memory still exists. Other references are an exported descriptor ([`exports`]), a tile of
//! a sparse array ([`tiles`]), and a multicast object or endpoint to which it is bound ([`bound`]). So a
//! physical allocation is charged once, when it is created, and the charge ends with its last reference.
//!
//! A physical allocation need not have a charge. An import is charged to the process that created it, in
//! this container or another one; its references are counted here only to keep the table consistent. A
//! multicast object is no memory, but its end releases the memory bound to it. Memory of other APIs and
//! of other containers' processes is counted here as well, under the [`Name`]s that the application uses.
//!
//! As in [`super::allocations`], a reference is counted before the driver adds one, and removed before the
//! driver drops one. If the driver refuses, it is restored. Handles and addresses are reused immediately.
//!
//! A checkpointed process (`cuCheckpointProcess…`) has its memory moved to the host, and back when it is
//! restored. The memory stays charged meanwhile, so that there is room for it after the restore.
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

/// The number of a physical allocation, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhysicalAllocation(u64);

/// The charge of a physical allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Charged to this lane.
    pub lane: Lane,
    /// Its size, bytes.
    pub bytes: u64,
}

/// The application's name for a reference to a physical allocation. Names of different kinds may have the
/// same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// A handle that was created, imported or retained; a multicast object.
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
struct Entry {
    charge: Option<Charge>,
    references: u64,
    /// Exported under a name that cannot be revoked: it lives as long as the process.
    kept: bool,
    /// The references that this allocation (an object) holds to others.
    bound: Vec<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    allocation: PhysicalAllocation,
}

/// The allocation behind a name, and the number of references that the application holds by it.
#[derive(Clone, Copy, Debug)]
struct Named {
    allocation: PhysicalAllocation,
    count: u64,
    /// The context whose end removes the name; 0 for a name that outlives contexts.
    context: u64,
}

/// The physical allocations of a process and the names, mappings, descriptors and tiles that refer to them.
#[derive(Debug, Default)]
pub struct PhysicalTable {
    next: u64,
    entries: HashMap<PhysicalAllocation, Entry>,
    names: HashMap<Name, Named>,
    mappings: BTreeMap<u64, Mapping>,
    exports: Exports,
    tiles: Tiles,
}

impl PhysicalTable {
    /// Adds an allocation with one counted reference; the caller records that under a name next.
    #[must_use]
    pub fn begin(&mut self, charge: Option<Charge>) -> PhysicalAllocation {
        let allocation = PhysicalAllocation(self.next);
        self.next += 1;
        let entry = Entry { charge, references: 1, kept: false, bound: Vec::new() };
        self.entries.insert(allocation, entry);
        allocation
    }

    /// Counts one more reference to an allocation.
    fn count(&mut self, allocation: PhysicalAllocation) -> Option<PhysicalAllocation> {
        self.entries.get_mut(&allocation)?.references += 1;
        Some(allocation)
    }

    /// Counts a reference to the allocation behind `name`, before the driver adds one; `None` for an
    /// unknown name.
    pub fn refer(&mut self, name: Name) -> Option<PhysicalAllocation> {
        let allocation = self.names.get(&name)?.allocation;
        self.count(allocation)
    }

    /// Records a counted reference under a new name. If the table has that name, its memory was released
    /// unseen; the stale references are returned for the caller to drop.
    #[must_use]
    pub fn create(
        &mut self,
        name: Name,
        context: u64,
        allocation: PhysicalAllocation,
    ) -> Vec<PhysicalAllocation> {
        let named = Named { allocation, count: 1, context };
        match self.names.insert(name, named) {
            Some(old) => vec![old.allocation; old.count as usize],
            None => Vec::new(),
        }
    }

    /// Records a counted reference under a name that may be known. If the name belongs to another
    /// allocation, both are the same memory: the reference is counted there, and that to `allocation` is
    /// returned for the caller to drop.
    #[must_use]
    pub fn add(
        &mut self,
        name: Name,
        context: u64,
        allocation: PhysicalAllocation,
    ) -> Option<PhysicalAllocation> {
        let fresh = Named { allocation, count: 0, context };
        let named = self.names.entry(name).or_insert(fresh);
        named.count += 1;
        let known = named.allocation;
        if known == allocation {
            return None;
        }
        self.count(known);
        Some(allocation)
    }

    /// Removes a reference from a name; it stays counted until [`PhysicalTable::drop_references`] or
    /// [`PhysicalTable::add`] with the same allocation and context.
    pub fn remove(&mut self, name: Name) -> Option<(PhysicalAllocation, u64)> {
        let named = self.names.get_mut(&name)?;
        let (allocation, context) = (named.allocation, named.context);
        named.count -= 1;
        if named.count == 0 {
            self.names.remove(&name);
        }
        Some((allocation, context))
    }

    /// Counts a reference to the allocation mapped at `address`; the caller records it under a name.
    pub fn refer_at(&mut self, address: u64) -> Option<PhysicalAllocation> {
        let (&start, &Mapping { bytes, allocation }) =
            self.mappings.range(..=address).next_back()?;
        (address - start < bytes).then_some(())?;
        self.count(allocation)
    }

    /// Counts a reference to each allocation that is mapped somewhere in the range.
    #[must_use]
    pub fn refer_within(&mut self, address: u64, bytes: u64) -> Vec<PhysicalAllocation> {
        let end = address.saturating_add(bytes);
        let first = self.mappings.range(..=address).next_back();
        let first = first.map_or(address, |(&start, _)| start);
        let reaches = |&(&start, mapping): &(&u64, &Mapping)| start + mapping.bytes > address;
        let mapped = self.mappings.range(first..end).filter(reaches);
        let allocations: Vec<PhysicalAllocation> =
            mapped.map(|(_, mapping)| mapping.allocation).collect();
        allocations.iter().for_each(|&allocation| {
            self.count(allocation);
        });
        allocations
    }

    /// Records a counted reference to `allocation` as a mapping. Returns the stale reference of a mapping
    /// at the same address that was removed unseen.
    #[must_use]
    pub fn map(
        &mut self,
        address: u64,
        bytes: u64,
        allocation: PhysicalAllocation,
    ) -> Option<PhysicalAllocation> {
        let old = self.mappings.insert(address, Mapping { bytes, allocation });
        old.map(|mapping| mapping.allocation)
    }

    /// Removes the mappings that lie entirely in the range; they stay counted until
    /// [`PhysicalTable::drop_references`] or [`PhysicalTable::restore`].
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Unmapped {
        let end = address.saturating_add(bytes);
        let inside = |&(&start, mapping): &(&u64, &Mapping)| mapping.bytes <= end - start;
        let mapped = self.mappings.range(address..end).filter(inside);
        let starts: Vec<u64> = mapped.map(|(&start, _)| start).collect();
        let take = |start| self.mappings.remove(&start).map(|mapping| (start, mapping));
        Unmapped(starts.into_iter().filter_map(take).collect())
    }

    /// Restores the mappings of an unmap that the driver refused.
    pub fn restore(&mut self, unmapped: Unmapped) {
        self.mappings.extend(unmapped.0);
    }

    /// Keeps a counted reference until the process ends, because the end of the exported name cannot be
    /// observed. One reference suffices: returns any further one.
    #[must_use]
    pub fn keep(&mut self, allocation: PhysicalAllocation) -> Option<PhysicalAllocation> {
        let entry = self.entries.get_mut(&allocation)?;
        std::mem::replace(&mut entry.kept, true).then_some(allocation)
    }

    /// Removes all names and tiles that end with a context which is about to end; they stay counted until
    /// [`PhysicalTable::drop_references`] or [`PhysicalTable::reopen`].
    pub fn close(&mut self, context: u64) -> Closed {
        if context == 0 {
            // 0 is no context, but marks names that outlive contexts.
            return Closed::default();
        }
        let of_context = |(_, named): &(&Name, &Named)| named.context == context;
        let names: Vec<Name> = self.names.iter().filter(of_context).map(|it| *it.0).collect();
        let take = |name| self.names.remove(&name).map(|named| (name, named));
        Closed {
            names: names.into_iter().filter_map(take).collect(),
            tiles: self.tiles.take_context(context),
        }
    }

    /// Restores the names and tiles of a context that did not end.
    pub fn reopen(&mut self, closed: Closed) {
        self.names.extend(closed.names);
        self.tiles.restore(closed.tiles);
    }

    /// Ends references, and with the last one of an allocation also those that it holds. Returns the
    /// charges that ended.
    #[must_use]
    pub fn drop_references(
        &mut self,
        allocations: impl IntoIterator<Item = PhysicalAllocation>,
    ) -> Vec<Charge> {
        let (mut left, mut ended) = (Vec::from_iter(allocations), Vec::new());
        while let Some(allocation) = left.pop() {
            let Some(entry) = self.entries.get_mut(&allocation) else {
                continue;
            };
            entry.references -= 1;
            if entry.references == 0
                && let Some(gone) = self.entries.remove(&allocation)
            {
                ended.extend(gone.charge);
                left.extend(gone.bound.iter().map(|bound| bound.allocation));
            }
        }
        ended
    }
}

/// Mappings taken out by [`PhysicalTable::unmap`].
#[derive(Debug)]
#[must_use]
pub struct Unmapped(Vec<(u64, Mapping)>);

impl Unmapped {
    /// The mapped allocations, one for each mapping.
    pub fn allocations(&self) -> impl Iterator<Item = PhysicalAllocation> {
        self.0.iter().map(|(_, mapping)| mapping.allocation)
    }
}

/// The names and tiles removed by [`PhysicalTable::close`].
#[derive(Debug, Default)]
#[must_use]
pub struct Closed {
    names: Vec<(Name, Named)>,
    tiles: Vec<Tile>,
}

impl Closed {
    /// Their references, one by one.
    pub fn allocations(&self) -> impl Iterator<Item = PhysicalAllocation> {
        let named = |(_, named): &(Name, Named)| vec![named.allocation; named.count as usize];
        let tiles = self.tiles.iter().map(|tile| tile.allocation);
        self.names.iter().flat_map(named).chain(tiles)
    }
}

#[cfg(test)]
mod tests;
