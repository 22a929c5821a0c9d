//! Memory for a program that lives for less than a millisecond.
//!
//! A general allocator keeps its sizes apart and asks the kernel for each anew: a system call, and a
//! page that is touched for the first time, which is dear in a virtual machine. Here things are put one
//! after the other into a piece of the program's own memory, of which as many pages exist as are used.
//! The last one can grow and be given back; the others go with the program. What does not
//! fit, such as a `config.json` of megabytes, is the system's to give.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Four times what a container with one slice and a configuration of usual size needs.
const ROOM: usize = 256 << 10;

/// For a program's `#[global_allocator]`.
pub struct Heap {
    room: UnsafeCell<[MaybeUninit<u8>; ROOM]>,
    /// How much of the room is given away, from its beginning.
    used: AtomicUsize,
}

// SAFETY: a part of the room belongs to whom it was given, and `used` gives none twice.
unsafe impl Sync for Heap {}

impl Heap {
    /// All of it free.
    #[must_use]
    pub const fn new() -> Heap {
        Heap {
            room: UnsafeCell::new([MaybeUninit::uninit(); ROOM]),
            used: AtomicUsize::new(0),
        }
    }

    /// Where in the room an address is.
    fn offset(&self, at: *mut u8) -> Option<usize> {
        let offset = (at as usize).wrapping_sub(self.room.get() as usize);
        (offset < ROOM).then_some(offset)
    }

    /// Makes what ends at `used` end at `end`; whether that was the last one and there is room.
    fn move_end(&self, used: usize, end: usize) -> bool {
        end <= ROOM
            && self
                .used
                .compare_exchange(used, end, Relaxed, Relaxed)
                .is_ok()
    }

    /// A part of the room.
    fn part(&self, layout: Layout) -> Option<*mut u8> {
        let base = self.room.get() as usize;
        loop {
            let used = self.used.load(Relaxed);
            let start = (base + used).next_multiple_of(layout.align()) - base;
            let end = start
                .checked_add(layout.size())
                .filter(|&end| end <= ROOM)?;
            if self.move_end(used, end) {
                // SAFETY: `start` is within the room.
                return Some(unsafe { self.room.get().cast::<u8>().add(start) });
            }
        }
    }
}

impl Default for Heap {
    fn default() -> Heap {
        Heap::new()
    }
}

// SAFETY: parts do not overlap, are aligned, and stay until they are given back or replaced.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        self.part(layout)
            .unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match self.offset(at) {
            Some(start) => drop(self.move_end(start + layout.size(), start)),
            // SAFETY: not of the room, so the system gave it.
            None => unsafe { System.dealloc(at, layout) },
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = self.offset(at) else {
            // SAFETY: not of the room, so the system gave it.
            return unsafe { System.realloc(at, layout, size) };
        };
        let grown = start
            .checked_add(size)
            .is_some_and(|end| self.move_end(start + layout.size(), end));
        if grown || size <= layout.size() {
            return at;
        }
        // SAFETY: the caller's promise about size and alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: a layout of more than 0 bytes.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: the old part is shorter than the new one, and they do not overlap.
            unsafe { to.copy_from_nonoverlapping(at, layout.size()) };
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("valid")
    }

    #[test]
    fn the_last_one_grows_and_goes_others_stay() {
        let heap = Box::new(Heap::new());
        // SAFETY: layouts of more than 0 bytes; what is given back was got with the same layout.
        unsafe {
            let first = heap.alloc(layout(3, 1));
            first.copy_from(b"abc".as_ptr(), 3);
            let second = heap.alloc(layout(8, 64));
            assert_eq!(second as usize % 64, 0);
            assert_eq!(
                heap.realloc(second, layout(8, 64), 100),
                second,
                "the last grows where it is"
            );
            let moved = heap.realloc(first, layout(3, 1), 10);
            assert!(moved as usize >= second as usize + 100, "another moves");
            assert_eq!(std::slice::from_raw_parts(moved, 3), b"abc");
            let used = heap.used.load(Relaxed);
            heap.dealloc(second, layout(100, 64));
            assert_eq!(heap.used.load(Relaxed), used, "not the last");
            heap.dealloc(moved, layout(10, 1));
            assert_eq!(heap.used.load(Relaxed), used - 10);
        }
    }

    #[test]
    fn what_does_not_fit_is_the_systems() {
        let heap = Box::new(Heap::new());
        // SAFETY: as above.
        unsafe {
            let small = heap.alloc(layout(ROOM - 7, 1));
            assert_eq!(heap.offset(small), Some(0));
            let other = heap.alloc(layout(8, 1));
            assert_eq!(heap.offset(other), None);
            other.write(7);
            let other = heap.realloc(other, layout(8, 1), 1 << 20);
            assert_eq!(other.read(), 7);
            heap.dealloc(other, layout(1 << 20, 1));
            let grown = heap.realloc(small, layout(ROOM - 7, 1), ROOM + 1);
            assert_eq!(heap.offset(grown), None);
            heap.dealloc(grown, layout(ROOM + 1, 1));
            assert!(!heap.alloc(layout(7, 1)).is_null());
        }
    }
}
