//! A hash table from pointers to small values, for one thread at a time.
//!
//! Open addressing with linear probing, at most half full. Removal shifts the following entries back, so
//! there are no tombstones and lookups in a busy table stay as fast as in a new one. Keys are
//! mixed ([`mix`]) by the caller, which uses their top bits to select a table.
#![forbid(unsafe_code)]

/// Smallest size of a table that has ever had an entry; a power of two.
const PLACES_MIN: usize = 64;

/// Number of top bits of a mixed pointer that a table does not use.
pub const TOP_BITS: u32 = 6;

/// Spreads a pointer over all bits, one to one, and 0 to 0: pointers differ in their middle bits, which
/// a product with 2^64 / golden ratio carries to the top.
#[inline(always)]
#[must_use]
pub fn mix(pointer: u64) -> u64 {
    pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Values by mixed pointer. Pointer 0 is invalid and marks a free slot.
#[derive(Debug)]
pub struct Table<V> {
    places: Vec<(u64, V)>,
    count: usize,
}

impl<V> Default for Table<V> {
    fn default() -> Table<V> {
        Table::new()
    }
}

impl<V> Table<V> {
    /// An empty table, which takes no memory.
    #[must_use]
    pub const fn new() -> Table<V> {
        Table { places: Vec::new(), count: 0 }
    }
}

impl<V: Copy + Default> Table<V> {
    /// The slot at which the search for a key starts; the table is allocated.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key >> (u64::BITS - TOP_BITS - self.places.len().trailing_zeros())) as usize
            & (self.places.len() - 1)
    }

    /// The slot of `key`, or the free one where it would go.
    #[inline(always)]
    fn find(&self, key: u64) -> usize {
        let last = self.places.len() - 1;
        let mut at = self.home(key);
        while self.places[at].0 != key && self.places[at].0 != 0 {
            at = (at + 1) & last;
        }
        at
    }

    /// Inserts `value` under `key` (not 0); returns the previous value.
    #[inline(always)]
    pub fn insert(&mut self, key: u64, value: V) -> Option<V> {
        if self.count * 2 >= self.places.len() {
            self.grow();
        }
        let at = self.find(key);
        let (was, old) = std::mem::replace(&mut self.places[at], (key, value));
        if was == key {
            return Some(old);
        }
        self.count += 1;
        None
    }

    #[cold]
    fn grow(&mut self) {
        let places = (self.places.len() * 2).max(PLACES_MIN);
        let old = std::mem::replace(&mut self.places, vec![(0, V::default()); places]);
        for (key, value) in old.into_iter().filter(|(key, _)| *key != 0) {
            let at = self.find(key);
            self.places[at] = (key, value);
        }
    }

    /// Removes the value of `key`.
    #[inline(always)]
    pub fn remove(&mut self, key: u64) -> Option<V> {
        if self.count == 0 || key == 0 {
            return None;
        }
        let mut free = self.find(key);
        let (was, value) = self.places[free];
        if was == 0 {
            return None;
        }
        let last = self.places.len() - 1;
        let mut at = free;
        loop {
            at = (at + 1) & last;
            let (next, _) = self.places[at];
            if next == 0 {
                break;
            }
            // An entry may not move before its home slot; distances wrap around the table.
            let from_home = at.wrapping_sub(self.home(next)) & last;
            let from_free = at.wrapping_sub(free) & last;
            if from_home >= from_free {
                self.places[free] = self.places[at];
                free = at;
            }
        }
        self.places[free].0 = 0;
        self.count -= 1;
        Some(value)
    }

    /// All keys and values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, V)> {
        self.places.iter().copied().filter(|(key, _)| *key != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_empty_table_has_nothing() {
        let mut table = Table::<u32>::new();
        assert_eq!((table.remove(5), table.remove(0), table.iter().count()), (None, None, 0));
    }

    /// Against a plain map: few pointers in a small table, so that runs collide and wrap around.
    #[test]
    fn agrees_with_a_plain_map() {
        for pointers in [20, 31, 3000u64] {
            let (mut table, mut plain) = (Table::new(), BTreeMap::new());
            let mut random = pointers;
            for step in 0..60_000u32 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pointer = mix(((random >> 40) % pointers + 1) << 21);
                if random & 1 << 39 == 0 {
                    assert_eq!(table.insert(pointer, step), plain.insert(pointer, step));
                } else {
                    assert_eq!(table.remove(pointer), plain.remove(&pointer));
                }
            }
            let mut left: Vec<(u64, u32)> = table.iter().collect();
            left.sort_unstable();
            assert_eq!(left, plain.into_iter().collect::<Vec<_>>());
        }
    }
}
