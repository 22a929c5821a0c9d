//! The book: which pointer holds how much of which lane.
//!
//! A free names a pointer only, so every charged allocation is written down until it is freed.
//! Applications hold hundreds of thousands of them and free from every thread, so the book is
//! split into shards with a lock each, and both operations are one hash-table step.
//!
//! Who frees takes the entry out *before* the driver frees: afterwards another thread may already
//! have been given the same pointer, and its entry must not be the one that is found. If the
//! driver then refuses, the entry is written back.
#![forbid(unsafe_code)]

use core::hash::{BuildHasherDefault, Hasher};
use gpuslice_wire::ids::Lane;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

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
}

/// Multiplies by 2^64 / golden ratio and folds: pointers differ in middle bits only.
#[derive(Debug, Default)]
struct PointerHasher(u64);

impl Hasher for PointerHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }
    fn write_u64(&mut self, key: u64) {
        let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

type Shard = HashMap<u64, Held, BuildHasherDefault<PointerHasher>>;

/// All charged allocations of a process by pointer.
#[derive(Debug)]
pub struct Book {
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for Book {
    fn default() -> Book {
        Book {
            shards: [const { Mutex::new(HashMap::with_hasher(BuildHasherDefault::new())) }; SHARDS],
        }
    }
}

/// A panic elsewhere never leaves a shard half-written: each critical section is one map operation.
fn open(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    #[inline]
    fn shard(&self, pointer: u64) -> MutexGuard<'_, Shard> {
        let mixed = pointer.wrapping_mul(0xd6e8_feb8_6659_fd93);
        open(&self.shards[(mixed >> 58) as usize % SHARDS])
    }

    /// Writes an allocation down; gives the entry it replaces, whose memory must be gone.
    #[must_use]
    pub fn insert(&self, pointer: u64, held: Held) -> Option<Held> {
        self.shard(pointer).insert(pointer, held)
    }

    /// Takes an allocation out; `None` for a pointer that was never charged.
    #[must_use]
    pub fn remove(&self, pointer: u64) -> Option<Held> {
        self.shard(pointer).remove(&pointer)
    }

    /// Takes out everything of a destroyed context and hands each entry to `gone`.
    pub fn remove_context(&self, context: u64, mut gone: impl FnMut(Held)) {
        for shard in &self.shards {
            open(shard).retain(|_, held| {
                let dies = held.context == context;
                if dies {
                    gone(*held);
                }
                !dies
            });
        }
    }

    /// Bytes written down for a lane.
    #[must_use]
    pub fn bytes(&self, lane: Lane) -> u64 {
        let of_lane = |held: &Held| if held.lane == lane { held.bytes } else { 0 };
        self.shards
            .iter()
            .map(|shard| open(shard).values().map(of_lane).sum::<u64>())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lane: u8, bytes: u64, context: u64) -> Held {
        Held {
            lane: Lane(lane),
            bytes,
            context,
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
        let mut freed = 0;
        book.remove_context(2, |entry| {
            assert_eq!(entry.context, 2);
            freed += entry.bytes;
        });
        assert_eq!(freed, 333 * 512);
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
            let (pointer, entry) = ((random >> 40) % 4096 << 21, held(0, random >> 50, 0));
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
}
