//! Memory credit: bytes that the daemon has granted and this process has not used yet.
//!
//! # Problem
//! Two processes of one slice must never exceed the cap together, so the daemon has to decide before the
//! driver is called. A round trip per allocation would cost microseconds.
//!
//! # Idea
//! The daemon grants more than requested, as credit. Taking from credit and returning to it is one atomic
//! operation on a word of this process; only an empty account asks the daemon. A large surplus is returned
//! immediately if the container has other processes. All credit is returned when one of them is short, or
//! when it is idle ([`super::credit_return`]). The cap is not enforced here: all credit was granted, so the sum over
//! all processes never exceeds the cap.
//!
//! Threads that change that word concurrently would contend for its cache line, at ten times the cost of the
//! operation itself. So each thread has a cache of its own for small amounts, on a separate cache line, and
//! refills it from the common credit. Caches are bounded. A thread that finds too little common credit
//! collects the contents of all caches before it asks the daemon, so the last byte under the cap is usable.
//!
//! `granted` changes only on the slow path (under the connection's lock), credit at any time; the
//! difference is held by allocations and by reservations in flight. A request takes all credit out of both
//! words before it is sent, which may be hundreds of MiB that the process freed, and puts it back into both
//! afterwards. So the difference is right also while another thread waits for the daemon's answer. Changes of
//! both words are marked by a sequence counter, with which every reader sees both before or both after.
//!
//! The difference is published for the container's other processes and for the daemon, mostly by one of the threads
//! that change the common credit at the same time (`credit/common.rs`). What moves between a thread and its cache is
//! not.
#![forbid(unsafe_code)]

mod atomic;
mod common;

use common::{Change, Common};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use gpuslice_wire::units::MIB;

/// Thread caches of an account; further threads share them.
const THREAD_CACHES: usize = 8;
/// Capacity of a thread cache, bytes. All caches together are half of the smallest chunk.
const THREAD_CACHE_BYTES: u64 = MIB / THREAD_CACHES as u64;
/// Size of a refill from the common credit, and the rest in a cache that overflows.
const REFILL_BYTES: u64 = THREAD_CACHE_BYTES / 2;
const _: () = assert!(THREAD_CACHES as u64 * THREAD_CACHE_BYTES * 2 <= CHUNK_MIN);
/// The largest request: no address space is larger, and sums of several requests do not overflow.
pub const BYTES_MAX: u64 = 1 << 56;
/// How often a reader tries again while credit and `granted` change together: first at once, then after other
/// threads have run, since the one that makes the change may be interrupted.
const CHANGE_SPINS: u32 = 100;
const CHANGE_YIELDS: u32 = 100_000;
/// Bounds of [`chunk`].
const CHUNK_MIN: u64 = 2 * MIB;
const CHUNK_MAX: u64 = 32 * MIB;

/// The credit of one process on one lane.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CreditAccount {
    granted: AtomicU64,
    common: Common,
    /// Odd while credit and `granted` change together.
    changes: AtomicU64,
    caches: [ThreadCache; THREAD_CACHES],
}

/// Two cache lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadCache(AtomicU64);

impl ThreadCache {
    #[inline]
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to)
    }

    /// Adds `bytes` if there is room for them.
    #[inline]
    fn add(&self, bytes: u64) -> bool {
        let full = |there: u64| there.checked_add(bytes).filter(|&sum| sum <= THREAD_CACHE_BYTES);
        self.change(full).is_ok()
    }
}

/// The index of the calling thread, in the order of first use. It spreads concurrent threads over the caches.
#[inline(always)]
fn thread_index() -> usize {
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

/// Where credit was taken from or returned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditSource {
    /// The thread's cache alone.
    ThreadCache,
    /// The common credit.
    Common {
        /// Its new value, bytes.
        left: u64,
        /// Whether no other thread was publishing the account.
        first: bool,
    },
}

/// The account at one moment, to be published.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Bytes held.
    pub held: u64,
    common: u64,
    changes: u64,
}

/// A request to the daemon for credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditRequest {
    /// Credit to return first, bytes.
    pub returned: u64,
    /// The smallest useful grant, bytes.
    pub need: u64,
    /// The preferred grant, which saves further requests, bytes.
    pub wish: u64,
}

/// The daemon's reply to a [`CreditRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditReply {
    /// This many bytes, at least what was needed.
    Granted(u64),
    /// The cap is reached.
    Refused,
    /// There is no connection to the daemon.
    Gone,
}

/// The outcome of [`CreditAccount::take_or_request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TakeOutcome {
    /// The caller has the bytes until it returns them.
    Taken,
    /// Out of memory.
    Refused,
    /// Undecided: the caller retries when the daemon is back.
    Gone,
}

/// The size of a request beyond the need: 1/128 of the cap, 2 to 32 MiB.
///
/// A process with siblings keeps at most two chunks unused. So the credit of a few processes stays a small
/// part of the slice, while most allocations need no round trip.
#[must_use]
pub fn chunk(cap: u64) -> u64 {
    (cap / 128).clamp(CHUNK_MIN, CHUNK_MAX)
}

impl CreditAccount {
    /// Takes `bytes` from credit; `None`, and nothing taken, when cache and common credit hold less.
    #[inline]
    pub fn take(&self, bytes: u64) -> Option<CreditSource> {
        let cache = &self.caches[thread_index() % THREAD_CACHES];
        match cache.change(|there| there.checked_sub(bytes)) {
            Ok(_) => Some(CreditSource::ThreadCache),
            Err(_) => self.take_common(cache, bytes),
        }
    }

    /// Takes `bytes` from the common credit, and for a small request also a refill for the cache.
    #[inline(never)]
    fn take_common(&self, cache: &ThreadCache, bytes: u64) -> Option<CreditSource> {
        let refill = if bytes <= REFILL_BYTES { REFILL_BYTES } else { 0 };
        let both = |there: u64| {
            let left = there.checked_sub(bytes)?;
            Some(left.checked_sub(refill).unwrap_or(left))
        };
        let Change { before, mut first } = self.common.take(both)?;
        let mut left = before - bytes;
        if left >= refill && refill > 0 {
            left -= refill;
            if !cache.add(refill) {
                let back = self.common.put(refill);
                (left, first) = (back.before + refill, first || back.first);
            }
        }
        Some(CreditSource::Common { left, first })
    }

    /// Puts `bytes` back into credit.
    #[inline]
    pub fn put(&self, bytes: u64) -> CreditSource {
        let cache = &self.caches[thread_index() % THREAD_CACHES];
        if cache.add(bytes) {
            return CreditSource::ThreadCache;
        }
        self.put_uncached(cache, bytes)
    }

    /// Puts `bytes` into the common credit, and for a small number also the cache's excess over a refill.
    #[inline(never)]
    fn put_uncached(&self, cache: &ThreadCache, bytes: u64) -> CreditSource {
        let keep =
            |there: u64| (bytes <= REFILL_BYTES && there > REFILL_BYTES).then_some(REFILL_BYTES);
        let spilt = cache.change(keep).map_or(0, |there| there - REFILL_BYTES);
        let bytes = bytes.saturating_add(spilt);
        let Change { before, first } = self.common.put(bytes);
        CreditSource::Common { left: before.saturating_add(bytes), first }
    }

    /// Takes all credit, for the caller to return to the daemon. The caller holds the slow path's lock.
    #[must_use]
    pub fn take_all(&self) -> u64 {
        self.change_both(|| {
            let credit = self.collect();
            self.granted.fetch_sub(credit, Ordering::Relaxed);
            credit
        })
    }

    /// Puts back `granted` bytes, of which `credit` are unused. The caller holds the slow path's lock.
    fn put_back(&self, granted: u64, credit: u64) {
        self.change_both(|| {
            self.granted.fetch_add(granted, Ordering::Relaxed);
            self.common.add(credit);
        });
    }

    /// Marks a change of credit and `granted` together. The caller holds the slow path's lock.
    fn change_both<T>(&self, change: impl FnOnce() -> T) -> T {
        self.changes.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let done = change();
        self.changes.fetch_add(1, Ordering::Release);
        done
    }

    /// Collects the common credit and that of all thread caches.
    fn collect(&self) -> u64 {
        let caches = self.caches.iter().map(|cache| cache.0.swap(0, Ordering::SeqCst));
        self.common.take_all() + caches.sum::<u64>()
    }

    /// Bytes granted and not returned.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Unused credit, bytes. Bytes that another thread is moving may be counted twice, or not at all.
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.common.bytes() + self.cached()
    }

    /// Credit in the caches of threads, bytes.
    #[inline]
    fn cached(&self) -> u64 {
        self.caches.iter().map(|cache| cache.0.load(Ordering::Relaxed)).sum()
    }

    /// Bytes held by allocations and by reservations in flight.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u64 {
        self.look().held
    }

    /// What a thread that publishes has to write, and [`CreditAccount::publication_ends`] needs afterwards.
    #[inline]
    #[must_use]
    pub fn look(&self) -> Look {
        self.between_changes(|changes| {
            let common = self.common.bytes();
            let credit = common + self.cached();
            Look { held: self.granted().saturating_sub(credit), common, changes }
        })
    }

    /// After a change: whether another thread has published it, which is waited for a moment.
    #[inline]
    #[must_use]
    pub fn another_publishes(&self) -> bool {
        self.common.another_publishes()
    }

    /// Ends the publication of a look. Returns whether nothing is left to do; if not, the caller looks again. The
    /// words that were written before are visible to other threads before the account is compared with the look.
    #[inline]
    #[must_use]
    pub fn publication_ends(&self, look: &Look) -> bool {
        self.common.publication_ends(look.common)
            && self.changes.load(Ordering::Relaxed) == look.changes
    }

    /// Reads several words between changes of two of them.
    #[inline(always)]
    fn between_changes<T>(&self, read: impl Fn(u64) -> T) -> T {
        self.unless_changed(&read).unwrap_or_else(|| self.after_change(read))
    }

    #[inline(always)]
    fn unless_changed<T>(&self, read: impl Fn(u64) -> T) -> Option<T> {
        let before = self.changes.load(Ordering::Acquire);
        let value = read(before);
        fence(Ordering::Acquire);
        let same = before.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == before;
        same.then_some(value)
    }

    /// Tries again. A change is a few instructions; a thread that was interrupted in the middle of one is not
    /// waited for without limit.
    #[cold]
    fn after_change<T>(&self, read: impl Fn(u64) -> T) -> T {
        for attempt in 0..CHANGE_SPINS + CHANGE_YIELDS {
            if let Some(value) = self.unless_changed(&read) {
                return value;
            }
            match attempt {
                ..CHANGE_SPINS => core::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
        read(self.changes.load(Ordering::Relaxed))
    }

    /// Takes `bytes`, requesting the missing part. The caller holds the slow path's lock; other threads take
    /// and put credit meanwhile.
    ///
    /// Existing credit counts towards the request. Otherwise a request near the cap would be refused although
    /// the credit and the bytes left under the cap suffice together. With `siblings` the credit is returned
    /// first: two processes that are short at the same time would otherwise each keep credit that could
    /// serve the other.
    pub fn take_or_request(
        &self,
        bytes: u64,
        chunk: u64,
        siblings: bool,
        ask: impl FnOnce(CreditRequest) -> CreditReply,
    ) -> TakeOutcome {
        let have = self.take_all();
        if let Some(left) = have.checked_sub(bytes) {
            self.put_back(have, left);
            return TakeOutcome::Taken;
        }
        let (mut kept, returned) = if siblings { (0, have) } else { (have, 0) };
        let need = bytes - kept;
        match ask(CreditRequest { returned, need, wish: need.saturating_add(chunk) }) {
            CreditReply::Granted(granted) if granted >= need => {
                self.put_back(kept + granted, granted - need);
                TakeOutcome::Taken
            }
            // A daemon that grants less than needed violates the protocol; the grant still counts.
            CreditReply::Granted(granted) => {
                self.put_back(kept + granted, kept + granted);
                TakeOutcome::Refused
            }
            CreditReply::Refused => {
                // A thread may have been moving a refill from the common credit to its cache.
                kept += self.take_all();
                let left = kept.checked_sub(bytes);
                self.put_back(kept, left.unwrap_or(kept));
                left.map_or(TakeOutcome::Refused, |_| TakeOutcome::Taken)
            }
            // The returned credit may have arrived: counting it as held could exceed the daemon's record.
            CreditReply::Gone => {
                self.put_back(kept, kept);
                TakeOutcome::Gone
            }
        }
    }

    /// Whether `common` credit exceeds the kept amount by enough to return the excess in a message. With
    /// full caches, at most two chunks are kept.
    #[inline]
    #[must_use]
    pub fn has_surplus(common: u64, chunk: u64) -> bool {
        common > 2 * chunk - THREAD_CACHES as u64 * THREAD_CACHE_BYTES
    }

    /// Takes the surplus for the caller to return to the daemon. One chunk of common credit is left, so that
    /// the next few frees need no message. The caller holds the slow path's lock.
    #[must_use]
    pub fn take_surplus(&self, chunk: u64) -> u64 {
        let rich = |common| CreditAccount::has_surplus(common, chunk).then_some(chunk);
        self.change_both(|| {
            let Some(before) = self.common.take_unpublished(rich) else {
                return 0;
            };
            self.granted.fetch_sub(before - chunk, Ordering::Relaxed);
            before - chunk
        })
    }
}

#[cfg(test)]
mod tests;
