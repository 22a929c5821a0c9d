//! A lock for critical sections of a few nanoseconds.
//!
//! Most of what a small critical section costs is taking and leaving its lock. The standard mutex
//! needs an atomic read-modify-write for each, because it must know on leaving whether somebody sleeps.
//! This one leaves with a plain store; who waits looks again, then yields, then naps, so that a
//! holder that lost its processor gets it back even from a waiter of higher priority.

use core::cell::{Cell, UnsafeCell};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A value that one thread at a time may use, for a moment. Aligned so that locks side by side are
/// not on one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Quick<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` hands the value to one thread at a time, which may then be any thread.
unsafe impl<T: Send> Sync for Quick<T> {}

/// So many looks before the first yield; so many tries in all before the first nap.
const LOOKS: u32 = 100;
const YIELDS: u32 = 200;
/// A nap, ns.
const NAP: u64 = 50_000;

impl<T> Quick<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Quick<T> {
        Quick {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `work` with the value. It must be short, must not call out, and must not come back here.
    #[inline(always)]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        let _leave = Leave(&self.taken);
        // SAFETY: `taken` was false and is ours until `_leave` is dropped, also by a panic.
        work(unsafe { &mut *self.value.get() })
    }

    #[cold]
    fn wait(&self) {
        let _uncancelled = crate::guard::Uncancelled::begin();
        let mut tries = 0;
        while self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            tries += 1;
            match tries {
                0..LOOKS => spin_loop(),
                LOOKS..YIELDS => std::thread::yield_now(),
                _ => crate::link::sys::nap(NAP),
            }
        }
    }
}

/// The calling thread's number, in the order in which threads first asked: what threads that run at
/// the same time can be told apart by, to keep them out of each other's way.
#[inline(always)]
pub fn thread_index() -> usize {
    thread_local!(static INDEX: Cell<usize> = const { Cell::new(0) });
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let thread_index = INDEX.try_with(Cell::get).unwrap_or(0);
    if thread_index != 0 {
        return thread_index;
    }
    let thread_index = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let _ = INDEX.try_with(|own| own.set(thread_index));
    thread_index
}

struct Leave<'a>(&'a AtomicBool);

impl Drop for Leave<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn one_thread_at_a_time() {
        let lock = Quick::new((0u64, 0u64));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        lock.with(|(a, b)| {
                            assert_eq!(a, b);
                            *a += 1;
                            *b += 1;
                        });
                    }
                });
            }
        });
        assert_eq!(lock.with(|pair| *pair), (80_000, 80_000));
    }

    #[test]
    fn a_panic_leaves_it_free() {
        let lock = Quick::new(());
        let panic = catch_unwind(AssertUnwindSafe(|| lock.with(|()| panic!("as a test"))));
        assert!(panic.is_err());
        lock.with(|()| ());
    }
}
