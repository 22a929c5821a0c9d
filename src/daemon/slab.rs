//! A slab with generations: a key is a slot and its generation, so a stale key never finds the slot's next
//! entry. Events that epoll returned for a descriptor closed since carry such stale keys and are dropped.

use serde::{Deserialize, Serialize};

/// A key of a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Index; below 2^16.
    pub slot: u16,
    /// How often the slot has been used.
    pub generation: u32,
}

/// A bounded slab; see the file's head.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u16>,
    limit: u16,
}

impl<T> Slab<T> {
    /// An empty slab of at most `limit` entries.
    pub const fn new(limit: u16) -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new(), limit }
    }

    /// Inserts `value`, or returns it when the slab is full.
    pub fn insert(&mut self, value: T) -> Result<Key, T> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.entries.len() < usize::from(self.limit) => {
                self.entries.push((0, None));
                (self.entries.len() - 1) as u16
            }
            None => return Err(value),
        };
        let entry = &mut self.entries[usize::from(slot)];
        entry.0 = entry.0.wrapping_add(1);
        entry.1 = Some(value);
        Ok(Key { slot, generation: entry.0 })
    }

    /// The entry, unless it was removed.
    pub fn get(&self, key: Key) -> Option<&T> {
        let (generation, value) = self.entries.get(usize::from(key.slot))?;
        value.as_ref().filter(|_| *generation == key.generation)
    }

    /// The entry, unless it was removed.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, value) = self.entries.get_mut(usize::from(key.slot))?;
        value.as_mut().filter(|_| *generation == key.generation)
    }

    /// Removes the entry; its slot may be used again.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.free.push(key.slot);
        self.entries[usize::from(key.slot)].1.take()
    }

    /// All entries with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries.iter().enumerate().filter_map(|(slot, (generation, value))| {
            let key = Key { slot: slot as u16, generation: *generation };
            value.as_ref().map(|value| (key, value))
        })
    }

    /// All entries, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    /// Entries in the table.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_never_finds_the_next_entry() {
        let mut slots = Slab::new(1);
        let first = slots.insert('a').expect("room");
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('c').expect("room again");
        assert_eq!((first.slot, slots.len()), (second.slot, 1));
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.get(second), Some(&'c'));
    }
}
