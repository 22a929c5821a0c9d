//! The allocation table: size and lane of every charged allocation, by pointer.
//!
//! A free passes only a pointer, so every charged allocation is recorded until it is freed.
//! Applications hold hundreds of thousands of allocations and free from every thread. The table is
//! therefore split into shards with a lock each, and both operations are one step in a small hash table.
//!
//! A free removes the entry *before* the driver is called: afterwards another thread may already have
//! allocated at the same pointer, and its entry must stay. If the driver refuses, the entry is restored.
#![forbid(unsafe_code)]

use super::pools::PoolId;
use super::quick::Quick;
use super::table::{TOP_BITS, Table, mix};
use gpuslice_wire::ids::Lane;

const SHARDS: usize = 1 << TOP_BITS;

/// The kind of a charge, which determines how it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Memory that NVML shows for the process too.
    #[default]
    Seen,
    /// Managed memory, which NVML does not show.
    Unseen,
    /// An array or a mipmapped array.
    Array,
    /// Part of a pool, which is charged as a whole.
    Pool(PoolId),
}

/// A charged allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Charged to this lane.
    pub lane: Lane,
    /// Its charge, bytes.
    pub bytes: u64,
    /// The context whose destruction frees the memory; 0 for memory that outlives contexts (pools).
    pub context: u64,
    /// Its kind.
    pub kind: Kind,
}

/// Applications hold very many of these.
const _: () = assert!(size_of::<Allocation>() <= 24);

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation { lane: Lane(0), bytes: 0, context: 0, kind: Kind::Seen }
    }
}

/// All charged allocations of a process by pointer.
#[derive(Debug)]
pub struct AllocationTable {
    shards: [Quick<Table<Allocation>>; SHARDS],
}

/// The entries removed by [`AllocationTable::remove_context`].
#[derive(Debug)]
#[must_use]
pub struct Removed(Vec<(u64, Allocation)>);

impl Removed {
    /// The charges.
    pub fn charges(&self) -> impl Iterator<Item = Allocation> {
        self.0.iter().map(|(_, held)| *held)
    }
}

impl Default for AllocationTable {
    fn default() -> AllocationTable {
        AllocationTable { shards: [const { Quick::new(Table::new()) }; SHARDS] }
    }
}

impl AllocationTable {
    #[inline(always)]
    fn shard(&self, key: u64) -> &Quick<Table<Allocation>> {
        &self.shards[(key >> (u64::BITS - TOP_BITS)) as usize]
    }

    /// Records an allocation. Returns the entry it replaces, whose memory must be freed already.
    #[must_use]
    #[inline]
    pub fn insert(&self, pointer: u64, held: Allocation) -> Option<Allocation> {
        let key = mix(pointer);
        self.shard(key).with(|shard| shard.insert(key, held))
    }

    /// Removes an allocation; `None` for a pointer that was never charged.
    #[must_use]
    #[inline]
    pub fn remove(&self, pointer: u64) -> Option<Allocation> {
        let key = mix(pointer);
        self.shard(key).with(|shard| shard.remove(key))
    }

    /// Removes all allocations of a context that is about to be destroyed.
    pub fn remove_context(&self, context: u64) -> Removed {
        let mut all = Vec::new();
        for shard in &self.shards {
            shard.with(|shard| {
                let of_context = |(_, held): &(u64, Allocation)| held.context == context;
                let gone: Vec<(u64, Allocation)> = shard.iter().filter(of_context).collect();
                all.extend(gone.into_iter().filter_map(|(key, _)| {
                    let held = shard.remove(key)?;
                    Some((key, held))
                }));
            });
        }
        Removed(all)
    }

    /// Restores the allocations of a context that was not destroyed.
    pub fn restore(&self, removed: Removed) {
        for (key, held) in removed.0 {
            let _none = self.shard(key).with(|shard| shard.insert(key, held));
        }
    }

    /// Bytes recorded for a lane.
    #[cfg(test)]
    #[must_use]
    pub fn bytes(&self, lane: Lane) -> u64 {
        let of_lane = |(_, held): (u64, Allocation)| if held.lane == lane { held.bytes } else { 0 };
        self.shards
            .iter()
            .map(|shard| shard.with(|shard| shard.iter().map(of_lane).sum::<u64>()))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn held(lane: u8, bytes: u64, context: u64) -> Allocation {
        Allocation { lane: Lane(lane), bytes, context, kind: Kind::Seen }
    }

    #[test]
    fn an_entry_is_removed_once() {
        let table = AllocationTable::default();
        assert_eq!(table.insert(0x7000, held(1, 5, 9)), None);
        assert_eq!(table.remove(0x7001), None, "inside is not the pointer");
        assert_eq!(table.remove(0x7000), Some(held(1, 5, 9)));
        assert_eq!(table.remove(0x7000), None);
    }

    #[test]
    fn a_context_removes_its_own_allocations() {
        let table = AllocationTable::default();
        for pointer in 1..1000u64 {
            let entry = held((pointer % 2) as u8, 512, pointer % 3);
            assert_eq!(table.insert(pointer << 9, entry), None);
        }
        let gone = table.remove_context(2);
        assert!(gone.charges().all(|entry| entry.context == 2));
        assert_eq!(gone.charges().map(|entry| entry.bytes).sum::<u64>(), 333 * 512);
        table.restore(gone);
        assert_eq!(table.bytes(Lane(0)) + table.bytes(Lane(1)), 999 * 512);
        assert_eq!(table.remove_context(2).charges().count(), 333);
        assert_eq!(table.bytes(Lane(0)) + table.bytes(Lane(1)), 666 * 512);
    }

    /// Against a map map, with seeded random pointers.
    #[test]
    fn agrees_with_a_plain_map() {
        let (table, mut map) = (AllocationTable::default(), std::collections::BTreeMap::new());
        let mut random = 7u64;
        for _ in 0..50_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (pointer, entry) = (((random >> 40) % 4096 + 1) << 21, held(0, random >> 50, 0));
            if random & 1 << 39 == 0 {
                assert_eq!(table.insert(pointer, entry), map.insert(pointer, entry));
            } else {
                assert_eq!(table.remove(pointer), map.remove(&pointer));
            }
        }
        assert_eq!(table.bytes(Lane(0)), map.values().map(|held| held.bytes).sum::<u64>());
    }

    /// Threads pass pointers to each other, as the driver's reuse of addresses does. Every entry is
    /// removed exactly once, by the thread that has the pointer.
    #[test]
    fn threads_never_lose_or_double_an_entry() {
        let table = AllocationTable::default();
        let addresses: Vec<u64> = (1..=20_000u64).map(|n| n << 9).collect();
        let pool = Mutex::new(addresses);
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let (table, pool) = (&table, &pool);
                scope.spawn(move || {
                    let (mut random, mut mine) = (seed + 1, Vec::new());
                    for _ in 0..40_000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        if random >> 63 == 0 && mine.len() < 4_000 {
                            let pointer = pool.lock().expect("no panic").pop().expect("enough");
                            let entry = held(seed as u8, random >> 20, random >> 62 & 1);
                            assert_eq!(table.insert(pointer, entry), None);
                            mine.push((pointer, entry));
                        } else if !mine.is_empty() {
                            let (pointer, entry) = mine.swap_remove(random as usize % mine.len());
                            assert_eq!(table.remove(pointer), Some(entry));
                            pool.lock().expect("no panic").push(pointer);
                        }
                    }
                    for (pointer, entry) in mine {
                        assert_eq!(table.remove(pointer), Some(entry));
                    }
                });
            }
        });
        assert_eq!((0..4).map(|lane| table.bytes(Lane(lane))).sum::<u64>(), 0);
    }
}
