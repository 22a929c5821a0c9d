//! A lock for critical sections of a few nanoseconds.
//!
//! Most of the cost of a small critical section is locking and unlocking. The standard mutex
//! needs an atomic read-modify-write for each, because the unlock must know whether a thread sleeps.
//! This lock is released by a plain store. A waiting thread spins, then yields, then sleeps, so that a
//! preempted holder gets the processor back even from a waiter of higher priority.

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

/// A value for short use by one thread at a time. Aligned so that adjacent locks do not share a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Quick<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` hands the value to one thread at a time, which may then be any thread.
unsafe impl<T: Send> Sync for Quick<T> {}

/// Number of spins before the first yield, and of tries before the first sleep.
const LOOKS: u32 = 100;
const YIELDS: u32 = 200;
/// Length of a sleep.
const NAP: Duration = Duration::from_micros(50);

impl<T> Quick<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Quick<T> {
        Quick { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `work` with the value. It must be short, must not call the driver, and must not lock again.
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
                _ => std::thread::sleep(NAP),
            }
        }
    }
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
