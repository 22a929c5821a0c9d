//! The book: which pointer holds how much of which lane.
//!
//! A free names a pointer only, so every charged allocation is written down until it is freed.
//! Applications hold hundreds of thousands of them and free from every thread, so the book is
//! split into shards with a lock each, and both operations are one step in a small hash table.
//!
//! Who frees takes the entry out *before* the driver frees: afterwards another thread may already
//! have been given the same pointer, and its entry must not be the one that is found. If the
//! driver then refuses, the entry is written back.
#![forbid(unsafe_code)]

use crate::pools::PoolId;
use crate::sync::Quick;
use crate::table::{TOP_BITS, Table, mix};
use gpuslice_wire::ids::Lane;

const SHARDS: usize = 1 << TOP_BITS;

/// What a charge is for, as far as its end depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Memory that NVML shows for the process too.
    #[default]
    Seen,
    /// Managed memory, which it does not show.
    Unseen,
    /// Part of a pool, which is charged as a whole.
    Pool(PoolId),
}

/// What one pointer or handle holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Charged to this lane.
    pub lane: Lane,
    /// This much, bytes.
    pub bytes: u64,
    /// The context that takes the memory with it when it is destroyed; 0 for memory that outlives
    /// contexts (pools).
    pub context: u64,
    /// What it is for.
    pub kind: Kind,
}

/// Applications hold very many of these.
const _: () = assert!(size_of::<Held>() <= 24);

impl Default for Held {
    fn default() -> Held {
        Held {
            lane: Lane(0),
            bytes: 0,
            context: 0,
            kind: Kind::Seen,
        }
    }
}

/// All charged allocations of a process by pointer.
#[derive(Debug)]
pub struct Book {
    shards: [Quick<Table<Held>>; SHARDS],
}

/// What [`Book::remove_context`] took out.
#[derive(Debug)]
#[must_use]
pub struct Removed(Vec<(u64, Held)>);

impl Removed {
    /// The charges.
    pub fn charges(&self) -> impl Iterator<Item = Held> {
        self.0.iter().map(|(_, held)| *held)
    }
}

impl Default for Book {
    fn default() -> Book {
        Book {
            shards: [const { Quick::new(Table::new()) }; SHARDS],
        }
    }
}

impl Book {
    #[inline(always)]
    fn shard(&self, key: u64) -> &Quick<Table<Held>> {
        &self.shards[(key >> (u64::BITS - TOP_BITS)) as usize]
    }

    /// Writes an allocation down; gives the entry it replaces, whose memory must be gone.
    #[must_use]
    #[inline]
    pub fn insert(&self, pointer: u64, held: Held) -> Option<Held> {
        let key = mix(pointer);
        self.shard(key).with(|shard| shard.insert(key, held))
    }

    /// Takes an allocation out; `None` for a pointer that was never charged.
    #[must_use]
    #[inline]
    pub fn remove(&self, pointer: u64) -> Option<Held> {
        let key = mix(pointer);
        self.shard(key).with(|shard| shard.remove(key))
    }

    /// Takes out everything of a context that is about to be destroyed.
    pub fn remove_context(&self, context: u64) -> Removed {
        let mut all = Vec::new();
        for shard in &self.shards {
            shard.with(|shard| {
                let of_context = |(_, held): &(u64, Held)| held.context == context;
                let gone: Vec<(u64, Held)> = shard.iter().filter(of_context).collect();
                all.extend(gone.into_iter().filter_map(|(key, _)| {
                    let held = shard.remove(key)?;
                    Some((key, held))
                }));
            });
        }
        Removed(all)
    }

    /// Writes back what was taken out of a context that was not destroyed after all.
    pub fn restore(&self, removed: Removed) {
        for (key, held) in removed.0 {
            let _none = self.shard(key).with(|shard| shard.insert(key, held));
        }
    }

    /// Bytes written down for a lane.
    #[must_use]
    pub fn bytes(&self, lane: Lane) -> u64 {
        let of_lane = |(_, held): (u64, Held)| if held.lane == lane { held.bytes } else { 0 };
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

    fn held(lane: u8, bytes: u64, context: u64) -> Held {
        Held {
            lane: Lane(lane),
            bytes,
            context,
            kind: Kind::Seen,
        }
    }

    #[test]
    fn what_goes_in_comes_out_once() {
        let book = Book::default();
        assert_eq!(book.insert(0x7000, held(1, 5, 9)), None);
        assert_eq!(book.remove(0x7001), None, "inside is not the pointer");
        assert_eq!(book.remove(0x7000), Some(held(1, 5, 9)));
        assert_eq!(book.remove(0x7000), None);
    }

    #[test]
    fn a_context_takes_its_own_with_it() {
        let book = Book::default();
        for pointer in 1..1000u64 {
            let entry = held((pointer % 2) as u8, 512, pointer % 3);
            assert_eq!(book.insert(pointer << 9, entry), None);
        }
        let gone = book.remove_context(2);
        assert!(gone.charges().all(|entry| entry.context == 2));
        assert_eq!(
            gone.charges().map(|entry| entry.bytes).sum::<u64>(),
            333 * 512
        );
        book.restore(gone);
        assert_eq!(book.bytes(Lane(0)) + book.bytes(Lane(1)), 999 * 512);
        assert_eq!(book.remove_context(2).charges().count(), 333);
        assert_eq!(book.bytes(Lane(0)) + book.bytes(Lane(1)), 666 * 512);
    }

    /// Against a plain map, with seeded random pointers.
    #[test]
    fn agrees_with_a_plain_map() {
        let (book, mut plain) = (Book::default(), std::collections::BTreeMap::new());
        let mut random = 7u64;
        for _ in 0..50_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (pointer, entry) = (((random >> 40) % 4096 + 1) << 21, held(0, random >> 50, 0));
            if random & 1 << 39 == 0 {
                assert_eq!(book.insert(pointer, entry), plain.insert(pointer, entry));
            } else {
                assert_eq!(book.remove(pointer), plain.remove(&pointer));
            }
        }
        assert_eq!(
            book.bytes(Lane(0)),
            plain.values().map(|held| held.bytes).sum::<u64>()
        );
    }

    /// Threads that pass pointers to each other, as the driver's own reuse of addresses does: every
    /// entry is taken out exactly once, by whoever has the pointer.
    #[test]
    fn threads_never_lose_or_double_an_entry() {
        let book = Book::default();
        let addresses: Vec<u64> = (1..=20_000u64).map(|n| n << 9).collect();
        let pool = Mutex::new(addresses);
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let (book, pool) = (&book, &pool);
                scope.spawn(move || {
                    let (mut random, mut mine) = (seed + 1, Vec::new());
                    for _ in 0..40_000 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        if random >> 63 == 0 && mine.len() < 4_000 {
                            let pointer = pool.lock().expect("no panic").pop().expect("enough");
                            let entry = held(seed as u8, random >> 20, random >> 62 & 1);
                            assert_eq!(book.insert(pointer, entry), None);
                            mine.push((pointer, entry));
                        } else if !mine.is_empty() {
                            let (pointer, entry) = mine.swap_remove(random as usize % mine.len());
                            assert_eq!(book.remove(pointer), Some(entry));
                            pool.lock().expect("no panic").push(pointer);
                        }
                    }
                    for (pointer, entry) in mine {
                        assert_eq!(book.remove(pointer), Some(entry));
                    }
                });
            }
        });
        assert_eq!((0..4).map(|lane| book.bytes(Lane(lane))).sum::<u64>(), 0);
    }
}
