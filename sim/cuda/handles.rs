//! Handles that stay safe after their object is destroyed.
//!
//! The real driver returns pointers to its objects and may crash on a stale one. These handles are
//! numbers in the form of a pointer: a kind, an index in a table and the generation of that entry.
//! So a destroyed stream, a made-up pointer or an event passed as a graph is an error, never a crash.

#![forbid(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;

/// What a handle may name; part of its value.
pub trait Named {
    /// Different for every kind of object.
    const KIND: u8;
}

/// Names an object of one kind; stays invalid for ever once the object is gone.
pub struct Key<T> {
    index: u32,
    generation: u32,
    kind: PhantomData<fn() -> T>,
}

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;
const KIND_SHIFT: u32 = INDEX_BITS + GENERATION_BITS;
const GENERATIONS: u32 = (1 << GENERATION_BITS) - 1;

impl<T: Named> Key<T> {
    /// As the pointer the program sees; never null and never one of the small special values.
    pub fn to_pointer(self) -> *mut c_void {
        let place = u64::from(self.generation) << INDEX_BITS | u64::from(self.index);
        (u64::from(T::KIND) << KIND_SHIFT | place) as usize as *mut c_void
    }

    /// The inverse; `None` for what names another kind of object or none.
    pub fn from_pointer(pointer: *mut c_void) -> Option<Self> {
        let value = pointer as usize as u64;
        let index = (value & ((1 << INDEX_BITS) - 1)) as u32;
        let generation = (value >> INDEX_BITS) as u32 & GENERATIONS;
        (value >> KIND_SHIFT == u64::from(T::KIND)).then_some(Self {
            index,
            generation,
            kind: PhantomData,
        })
    }

    /// A number of its own for every object of the process, as the `...GetId` functions give.
    pub fn id(self) -> u64 {
        u64::from(self.generation) << INDEX_BITS | u64::from(self.index)
    }
}

impl<T> Key<T> {
    /// Names nothing, ever: generations begin with 1.
    pub fn none() -> Self {
        Self { index: 0, generation: 0, kind: PhantomData }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Key<T> {}
impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}
impl<T> Eq for Key<T> {}
impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.index, self.generation).cmp(&(other.index, other.generation))
    }
}
impl<T> std::fmt::Debug for Key<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "#{}.{}", self.index, self.generation)
    }
}

/// The objects of one kind.
pub struct Table<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Table<T> {
    pub const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// `None` when there are as many objects as handles can name.
    pub fn insert(&mut self, object: T) -> Option<Key<T>> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.places.len() < 1 << INDEX_BITS => {
                self.places.push((1, None));
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        let place = &mut self.places[index as usize];
        place.1 = Some(object);
        Some(Key { index, generation: place.0, kind: PhantomData })
    }

    pub fn get(&self, key: Key<T>) -> Option<&T> {
        let (generation, object) = self.places.get(key.index as usize)?;
        (*generation == key.generation).then_some(object.as_ref()).flatten()
    }

    pub fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let (generation, object) = self.places.get_mut(key.index as usize)?;
        (*generation == key.generation).then_some(object.as_mut()).flatten()
    }

    pub fn remove(&mut self, key: Key<T>) -> Option<T> {
        let (generation, object) = self.places.get_mut(key.index as usize)?;
        if *generation != key.generation {
            return None;
        }
        let object = object.take()?;
        // A place whose generations are used up is never given out again.
        if *generation < GENERATIONS {
            *generation += 1;
            self.free.push(key.index);
        }
        Some(object)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.places.iter().enumerate().filter_map(|(index, (generation, object))| {
            let key = Key { index: index as u32, generation: *generation, kind: PhantomData };
            Some((key, object.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Apple;
    impl Named for Apple {
        const KIND: u8 = 1;
    }
    struct Pear;
    impl Named for Pear {
        const KIND: u8 = 2;
    }

    #[test]
    fn a_handle_outlives_its_object_harmlessly() {
        let mut apples = Table::new();
        let first = apples.insert(Apple).expect("there is room");
        let pointer = first.to_pointer();
        assert!(pointer as usize > 4096, "small values have meanings of their own");
        assert_eq!(Key::<Apple>::from_pointer(pointer), Some(first));
        assert_eq!(Key::<Pear>::from_pointer(pointer), None);
        assert!(apples.remove(first).is_some());
        assert!(apples.remove(first).is_none());
        let second = apples.insert(Apple).expect("there is room");
        assert!(apples.get(first).is_none() && apples.get(second).is_some());
        assert_ne!(first.to_pointer(), second.to_pointer());
        for wild in [0_usize, 1, 2, 0xdead_beef, usize::MAX] {
            let key = Key::<Apple>::from_pointer(wild as *mut c_void);
            assert!(key.is_none_or(|key| apples.get(key).is_none()), "{wild:#x}");
        }
    }
}
