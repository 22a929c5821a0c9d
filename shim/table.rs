//! A hash table from pointers to small values, for one thread at a time.
//!
//! Open addressing with linear probing, at most half full, and removal by shifting back what
//! follows, so that there are no tombstones and a busy table stays as fast as a new one. Pointers differ
//! in their middle bits, so the place is taken from the top of a product with 2^64 / golden ratio.
#![forbid(unsafe_code)]

/// Places of a table that has ever held anything; a power of two.
const PLACES_MIN: usize = 64;

/// Pointer 0 is nobody's and marks a free place.
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
        Table {
            places: Vec::new(),
            count: 0,
        }
    }
}

impl<V: Copy + Default> Table<V> {
    fn home(&self, pointer: u64) -> usize {
        let product = pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (product >> (64 - self.places.len().trailing_zeros())) as usize
    }

    /// The place of `pointer`, or the free one where it would go.
    fn find(&self, pointer: u64) -> usize {
        let last = self.places.len() - 1;
        let mut at = self.home(pointer);
        while self.places[at].0 != pointer && self.places[at].0 != 0 {
            at = (at + 1) & last;
        }
        at
    }

    /// Writes `value` under `pointer` (not 0); gives what was there.
    pub fn insert(&mut self, pointer: u64, value: V) -> Option<V> {
        if self.count * 2 >= self.places.len() {
            self.grow();
        }
        let at = self.find(pointer);
        let (was, old) = std::mem::replace(&mut self.places[at], (pointer, value));
        if was == pointer {
            return Some(old);
        }
        self.count += 1;
        None
    }

    fn grow(&mut self) {
        let places = (self.places.len() * 2).max(PLACES_MIN);
        let old = std::mem::replace(&mut self.places, vec![(0, V::default()); places]);
        for (pointer, value) in old.into_iter().filter(|(pointer, _)| *pointer != 0) {
            let at = self.find(pointer);
            self.places[at] = (pointer, value);
        }
    }

    /// Takes out what is under `pointer`.
    pub fn remove(&mut self, pointer: u64) -> Option<V> {
        if self.count == 0 || pointer == 0 {
            return None;
        }
        let mut free = self.find(pointer);
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
            // What may not move before its home stays; distances are around the table.
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

    /// All pointers and values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, V)> {
        self.places
            .iter()
            .copied()
            .filter(|(pointer, _)| *pointer != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_empty_table_has_nothing() {
        let mut table = Table::<u32>::new();
        assert_eq!(
            (table.remove(5), table.remove(0), table.iter().count()),
            (None, None, 0)
        );
    }

    /// Against a plain map: few pointers in a small table, so that runs collide and wrap around.
    #[test]
    fn agrees_with_a_plain_map() {
        for pointers in [20, 31, 3000u64] {
            let (mut table, mut plain) = (Table::new(), BTreeMap::new());
            let mut random = pointers;
            for step in 0..60_000u32 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let pointer = ((random >> 40) % pointers + 1) << 21;
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
