//! Memory for a program that lives for less than a millisecond.
//!
//! A general allocator separates size classes and requests memory from the kernel for each: a system
//! call and a first page fault, which is expensive in a virtual machine. This one is a bump allocator in
//! the program's own uninitialised memory, of which only used pages exist. The last allocation can grow and
//! be freed; the others live until the program exits. Larger requests, such as a `config.json` of
//! megabytes, go to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Four times the need of a container with one slice and a configuration of usual size.
const ROOM: usize = 256 << 10;

/// For a program's `#[global_allocator]`.
pub struct Heap {
    room: UnsafeCell<[MaybeUninit<u8>; ROOM]>,
    /// Allocated bytes, from the beginning of the memory.
    used: AtomicUsize,
}

// SAFETY: each part of the memory has one owner: `used` gives none out twice.
unsafe impl Sync for Heap {}

impl Heap {
    /// An empty heap.
    #[must_use]
    pub const fn new() -> Heap {
        Heap { room: UnsafeCell::new([MaybeUninit::uninit(); ROOM]), used: AtomicUsize::new(0) }
    }

    /// Offset of an address in the memory.
    fn offset(&self, at: *mut u8) -> Option<usize> {
        let offset = (at as usize).wrapping_sub(self.room.get() as usize);
        (offset < ROOM).then_some(offset)
    }

    /// Resizes the allocation that ends at `used` to end at `end`; fails if it is not the last or does
    /// not fit.
    fn move_end(&self, used: usize, end: usize) -> bool {
        end <= ROOM && self.used.compare_exchange(used, end, Relaxed, Relaxed).is_ok()
    }

    /// Allocates a part of the memory.
    fn part(&self, layout: Layout) -> Option<*mut u8> {
        let base = self.room.get() as usize;
        loop {
            let used = self.used.load(Relaxed);
            let start = (base + used).next_multiple_of(layout.align()) - base;
            let end = start.checked_add(layout.size()).filter(|&end| end <= ROOM)?;
            if self.move_end(used, end) {
                // SAFETY: `start` is within the memory.
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

// SAFETY: parts do not overlap, are aligned, and stay until they are freed or replaced.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        self.part(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match self.offset(at) {
            Some(start) => drop(self.move_end(start + layout.size(), start)),
            // SAFETY: not within the memory, so the system allocated it.
            None => unsafe { System.dealloc(at, layout) },
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = self.offset(at) else {
            // SAFETY: not within the memory, so the system allocated it.
            return unsafe { System.realloc(at, layout, size) };
        };
        let grown =
            start.checked_add(size).is_some_and(|end| self.move_end(start + layout.size(), end));
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
        // SAFETY: layouts of more than 0 bytes; memory is freed with the layout it was allocated with.
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
