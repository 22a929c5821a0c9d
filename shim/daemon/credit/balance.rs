//! The bytes that a process holds on one lane, the bytes that it was granted, and the copy that other processes read.
//!
//! # Problem
//! The container's other processes, and the daemon, read in a word of the usage table how much this process holds. A
//! call that changes it returns when they can see the change. If each thread wrote what it has counted, a slower one
//! could write an older number after a newer one, and it would stay.
//!
//! # Idea
//! The number has a version, in the same word of this process; each change makes it the next. The copy has it too. A
//! thread that has changed the word exchanges, in the copy, the word before its change for the word after it. Where
//! nothing else happens that is all, and it takes the copy's cache line once. Otherwise the exchange fails, and the
//! thread exchanges what the copy has for what the word has by now, until one succeeds or the two are the same. So the
//! copy becomes newer only. An exchange fails because another thread's has succeeded: no thread waits for another one.
//! A version comes again after 65,536 changes: a thread that is interrupted between its steps for just as many, which
//! end at the same number, makes the copy older until the next change. What another process writes into the copy lasts
//! until the next change, too.
//!
//! `granted` is a word that one thread at a time changes. Memory may be taken while that much is held or less. Two
//! words do not change together, so both sides look after they have written. A thread that takes memory
//! reads `granted` once more and then the held bytes, and gives the memory back if they exceed `granted`. A thread that
//! lowers `granted` reads the held bytes, and raises `granted` again if they exceed it. At least one of the two sees
//! the other, and memory that was returned to the daemon is not in use.
//!
//! `tests/pages` runs this file on atomics that show every value a weak memory allows.

use super::atomic::AtomicU64;
use super::atomic::Ordering::{Relaxed, SeqCst};
use core::convert::Infallible;
use gpuslice_wire::usage::{SLOT_BYTES, slot_bytes};

/// A change of the bytes held: the words before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "other processes do not see it yet"]
pub struct Change {
    before: u64,
    after: u64,
}

/// Bytes granted and bytes held.
#[derive(Debug, Default)]
pub struct Balance {
    /// Bytes granted and not returned. One thread at a time changes it: the one that holds the slow path's lock.
    pub(super) granted: AtomicU64,
    /// Bytes held, and above them the version.
    pub(super) held: AtomicU64,
}

impl Balance {
    /// Bytes granted and not returned.
    #[inline]
    pub fn granted(&self) -> u64 {
        self.granted.load(Relaxed)
    }

    /// Bytes held, with those in the caches of threads.
    #[inline]
    pub fn held(&self) -> u64 {
        slot_bytes(self.held.load(SeqCst))
    }

    /// Granted and not held, bytes.
    #[inline]
    pub fn credit(&self) -> u64 {
        self.credit_beside(self.held())
    }

    /// The credit where so many bytes are held: what is granted beyond the room of the word is of no use.
    #[inline]
    fn credit_beside(&self, held: u64) -> u64 {
        self.granted().min(SLOT_BYTES).saturating_sub(held)
    }

    /// Takes the bytes that `of` makes of the credit, at most all of it, and returns them; `None`, and nothing is
    /// taken, if that is `None`, or if credit is just being returned to the daemon.
    #[inline]
    pub fn take(&self, of: impl Fn(u64) -> Option<u64>) -> Option<(u64, Change)> {
        let mut bytes = 0;
        let taken = self.change::<()>(|held| {
            bytes = of(self.credit_beside(held)).ok_or(())?;
            Ok(held + bytes)
        });
        let change = taken.ok()?;
        let granted = self.granted.load(SeqCst);
        if self.held() > granted {
            let _ = self.put(bytes);
            return None;
        }
        Some((bytes, change))
    }

    /// Gives back bytes that are held. Returns the credit afterwards.
    #[inline]
    pub fn put(&self, bytes: u64) -> (u64, Change) {
        let Ok(change) = self.change::<Infallible>(|held| Ok(held.saturating_sub(bytes)));
        (self.credit_beside(slot_bytes(change.after)), change)
    }

    /// Lowers what is granted by the bytes that `of` makes of the credit, at most all of it. Returns them; no thread
    /// holds them then. The caller holds the slow path's lock.
    pub fn lower(&self, of: impl Fn(u64) -> u64) -> u64 {
        loop {
            let granted = self.granted();
            let bytes = of(granted.saturating_sub(self.held()));
            self.granted.store(granted - bytes, SeqCst);
            if self.held() <= granted - bytes || bytes == 0 {
                return bytes;
            }
            self.granted.store(granted, SeqCst);
        }
    }

    /// Raises what is granted, of which the caller takes `taken` bytes, for which there is room: before another thread
    /// finds them. The caller holds the slow path's lock.
    pub fn raise(&self, bytes: u64, taken: u64) {
        let Ok(_) = self.change::<Infallible>(|held| Ok(held + taken));
        self.granted.store(self.granted().saturating_add(bytes), SeqCst);
    }

    /// Makes the copy as new as the held bytes are now, or newer.
    pub fn publish(&self, copy: &AtomicU64) {
        self.publish_over(copy, copy.load(SeqCst));
    }

    /// Makes the copy as new as `change`, or newer.
    #[inline]
    pub fn publish_change(&self, copy: &AtomicU64, change: Change) {
        if let Err(there) = copy.compare_exchange(change.before, change.after, SeqCst, SeqCst) {
            self.publish_over(copy, there);
        }
    }

    /// Makes a copy that had `there` as new as the held bytes are now, or newer.
    #[inline(never)]
    fn publish_over(&self, copy: &AtomicU64, mut there: u64) {
        loop {
            // After `there` was read: a copy that does not change before the exchange is then older.
            let is = self.held.load(SeqCst);
            if there == is {
                return;
            }
            match copy.compare_exchange(there, is, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(now) => there = now,
            }
        }
    }

    /// Changes the bytes held to those that `to` makes of them.
    ///
    /// # Errors
    /// That of `to`; nothing is changed then.
    #[inline]
    fn change<E>(&self, mut to: impl FnMut(u64) -> Result<u64, E>) -> Result<Change, E> {
        let mut before = self.held.load(Relaxed);
        loop {
            let bytes = to(slot_bytes(before))?;
            let after = (before & !SLOT_BYTES).wrapping_add(SLOT_BYTES + 1) | bytes;
            match self.held.compare_exchange(before, after, SeqCst, SeqCst) {
                Ok(_) => return Ok(Change { before, after }),
                Err(now) => before = now,
            }
        }
    }
}
