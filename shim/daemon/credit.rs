//! Memory credit: bytes that the daemon has granted and this process has not used yet.
//!
//! # Problem
//! Two processes of one slice must never exceed the cap together, so the daemon has to decide before the
//! driver is called. A round trip per allocation would cost microseconds.
//!
//! # Idea
//! The daemon grants more than requested, as credit. Taking from credit and returning to it is one atomic
//! operation on a word of this process (`credit/balance.rs`); only an empty account asks the daemon. A large surplus is
//! returned immediately if the container has other processes. All credit is returned when one of them is short, or
//! when it is idle ([`super::credit_return`]). The cap is not enforced here: all credit was granted, so the sum over
//! all processes never exceeds the cap.
//!
//! Threads that change that word concurrently would contend for its cache line, at ten times the cost of the
//! operation itself. So each thread has a cache of its own for small amounts, on a separate cache line, and
//! refills it from the common credit. Caches are bounded; for other processes their contents are held. A thread that
//! finds too little common credit collects the contents of all caches before it asks the daemon, so the last byte
//! under the cap is usable.
//!
//! The held bytes are published for the container's other processes and for the daemon. Moves between a thread and
//! its cache are not.
//!
//! A request takes all credit out of the account before it is sent, which may be hundreds of MiB that the process
//! freed, and puts it back afterwards. The held bytes stay the same meanwhile.
#![forbid(unsafe_code)]

mod atomic;
mod balance;

use balance::Balance;
pub use balance::Change;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gpuslice_wire::units::MIB;
use gpuslice_wire::usage::SLOT_BYTES;

/// Thread caches of an account; further threads share them.
const THREAD_CACHES: usize = 8;
/// Capacity of a thread cache, bytes. All caches together are half of the smallest chunk.
const THREAD_CACHE_BYTES: u64 = MIB / THREAD_CACHES as u64;
/// Size of a refill from the common credit, and the rest in a cache that overflows.
const REFILL_BYTES: u64 = THREAD_CACHE_BYTES / 2;
const _: () = assert!(THREAD_CACHES as u64 * THREAD_CACHE_BYTES * 2 <= CHUNK_MIN);
/// The largest request: no machine has as much memory.
pub const BYTES_MAX: u64 = 1 << 47;
const _: () = assert!(BYTES_MAX < SLOT_BYTES);
/// Bounds of [`chunk`].
const CHUNK_MIN: u64 = 2 * MIB;
const CHUNK_MAX: u64 = 32 * MIB;

/// The credit of one process on one lane.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CreditAccount {
    balance: Balance,
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

/// Whether a change is to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// It is in the thread's cache alone.
    No,
    /// It is one of the common credit.
    Yes(Change),
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
    /// Takes `bytes` from credit; `None`, and nothing is taken, when cache and common credit hold less. Says whether
    /// the change is to be published.
    #[inline]
    #[must_use]
    pub fn take(&self, bytes: u64) -> Option<Publish> {
        if bytes > THREAD_CACHE_BYTES {
            return self.take_large(bytes).map(Publish::Yes);
        }
        let cache = self.cache();
        match cache.change(|there| there.checked_sub(bytes)) {
            Ok(_) => Some(Publish::No),
            Err(_) => self.take_common(cache, bytes).map(Publish::Yes),
        }
    }

    /// Takes more `bytes` than a cache can hold.
    #[inline(never)]
    fn take_large(&self, bytes: u64) -> Option<Change> {
        let (_, change) = self.balance.take(|credit| (credit >= bytes).then_some(bytes))?;
        Some(change)
    }

    /// Takes `bytes` from the common credit, and for a small request also a refill for the cache.
    #[inline(never)]
    fn take_common(&self, cache: &ThreadCache, bytes: u64) -> Option<Change> {
        let refill = if bytes <= REFILL_BYTES { REFILL_BYTES } else { 0 };
        let with_refill = |credit: u64| match credit.checked_sub(bytes)? {
            left if left < refill => Some(bytes),
            _ => Some(bytes + refill),
        };
        let (taken, change) = self.balance.take(with_refill)?;
        if taken > bytes && !cache.add(taken - bytes) {
            return Some(self.balance.put(taken - bytes).1);
        }
        Some(change)
    }

    /// Puts `bytes` back into credit. Returns the common credit afterwards and the change to be published, unless they
    /// fit into the thread's cache.
    #[inline]
    pub fn put(&self, bytes: u64) -> Option<(u64, Change)> {
        if bytes > THREAD_CACHE_BYTES {
            return Some(self.balance.put(bytes));
        }
        let cache = self.cache();
        if cache.add(bytes) { None } else { Some(self.put_uncached(cache, bytes)) }
    }

    /// The calling thread's cache. Amounts that it cannot hold are not looked for there: to find it takes some 3 ns.
    #[inline]
    fn cache(&self) -> &ThreadCache {
        &self.caches[thread_index() % THREAD_CACHES]
    }

    /// Puts `bytes` into the common credit, and for a small number also the cache's excess over a refill.
    #[inline(never)]
    fn put_uncached(&self, cache: &ThreadCache, bytes: u64) -> (u64, Change) {
        let keep =
            |there: u64| (bytes <= REFILL_BYTES && there > REFILL_BYTES).then_some(REFILL_BYTES);
        let spilt = cache.change(keep).map_or(0, |there| there - REFILL_BYTES);
        self.balance.put(bytes.saturating_add(spilt))
    }

    /// Takes all credit, for the caller to return to the daemon. The caller holds the slow path's lock.
    #[must_use]
    pub fn take_all(&self) -> u64 {
        let caches = self.caches.iter().map(|cache| cache.0.swap(0, Ordering::Relaxed));
        let _ = self.balance.put(caches.sum());
        self.balance.lower(|credit| credit)
    }

    /// Publishes a change, in the word that other processes read.
    #[inline]
    pub fn publish_change(&self, copy: &AtomicU64, change: Change) {
        self.balance.publish_change(copy, change);
    }

    /// Publishes the held bytes as they are.
    pub fn publish(&self, copy: &AtomicU64) {
        self.balance.publish(copy);
    }

    /// Bytes granted and not returned.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.balance.granted()
    }

    /// Unused credit, bytes. Bytes that another thread is moving may be counted twice, or not at all.
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.balance.credit() + self.cached()
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
        self.balance.held().saturating_sub(self.cached())
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
        // The word has no room for it. With all credit taken out, no other thread makes that less.
        if bytes > SLOT_BYTES - self.balance.held() {
            self.balance.raise(have, 0);
            return TakeOutcome::Refused;
        }
        if have >= bytes {
            self.balance.raise(have, bytes);
            return TakeOutcome::Taken;
        }
        let (mut kept, returned) = if siblings { (0, have) } else { (have, 0) };
        let need = bytes - kept;
        match ask(CreditRequest { returned, need, wish: need.saturating_add(chunk) }) {
            CreditReply::Granted(granted) if granted >= need => {
                self.balance.raise(kept + granted, bytes);
                TakeOutcome::Taken
            }
            // A daemon that grants less than needed violates the protocol; the grant still counts.
            CreditReply::Granted(granted) => {
                self.balance.raise(kept + granted, 0);
                TakeOutcome::Refused
            }
            CreditReply::Refused => {
                // A thread may have been moving a refill from the common credit to its cache.
                kept += self.take_all();
                let enough = kept >= bytes;
                self.balance.raise(kept, if enough { bytes } else { 0 });
                if enough { TakeOutcome::Taken } else { TakeOutcome::Refused }
            }
            // The returned credit may have arrived: counting it as held could exceed the daemon's record.
            CreditReply::Gone => {
                self.balance.raise(kept, 0);
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
        let surplus = |credit: u64| match CreditAccount::has_surplus(credit, chunk) {
            true => credit - chunk,
            false => 0,
        };
        self.balance.lower(surplus)
    }
}

#[cfg(test)]
mod tests;
