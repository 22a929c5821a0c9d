//! The common credit of a process, and which thread publishes a change of it.
//!
//! # Problem
//! The container's other processes, and the daemon, read how much this process holds from words of theirs. Each change
//! of the credit changes that number, and a call that changed it returns when the number is written. Threads that all
//! wrote it would contend for those words as well, and of threads that write at the same time the slowest writes last:
//! its number may be an old one, and would stay.
//!
//! # Idea
//! One bit of the word of credit says that a thread publishes. The operation that changes the credit sets it too. A
//! thread that finds it clear publishes: it looks, writes, and clears the bit if the credit is still what it saw. If
//! not, it looks and writes again. A thread that finds the bit set waits for its end, which is then after its own
//! change. It does not wait long: the other one may be interrupted, or killed. Then it publishes as well.
//!
//! So several may publish at the same time: the bit saves work and excludes nothing. Each thread that writes compares
//! the credit afterwards. Either nothing has changed since its look, or it looks and writes again.
//!
//! `tests/pages` runs this file on atomics that show every value a weak memory allows.

use super::atomic::Ordering::SeqCst;
use super::atomic::{AtomicU64, pause};

/// Set while a thread publishes. Sums of credit are far smaller.
const PUBLISHING: u64 = 1 << 63;
/// How often a thread looks whether another one has published: for some times as long as that takes.
const LOOKS: u32 = 64;

/// A change of the common credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The credit before, bytes.
    pub before: u64,
    /// Whether no other thread was publishing.
    pub first: bool,
}

impl Change {
    /// The change of this word.
    #[inline]
    fn of(word: u64) -> Change {
        Change { before: word & !PUBLISHING, first: word & PUBLISHING == 0 }
    }
}

/// Bytes, and [`PUBLISHING`].
#[derive(Debug, Default)]
pub struct Common(pub(super) AtomicU64);

impl Common {
    /// The credit, bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.0.load(SeqCst) & !PUBLISHING
    }

    /// Takes what `to` leaves out of the credit; `None`, and nothing changed, if that is `None`.
    #[inline]
    pub fn take(&self, to: impl Fn(u64) -> Option<u64>) -> Option<Change> {
        self.update(PUBLISHING, to).map(Change::of)
    }

    /// Adds to the credit.
    #[inline]
    pub fn put(&self, bytes: u64) -> Change {
        let sum = |there: u64| there.saturating_add(bytes).min(PUBLISHING - 1);
        let set = |word: u64| Some(sum(word & !PUBLISHING) | PUBLISHING);
        let (Ok(word) | Err(word)) = self.0.fetch_update(SeqCst, SeqCst, set);
        Change::of(word)
    }

    /// As [`Common::take`], where what the process holds stays the same. Returns the credit before.
    pub fn take_unpublished(&self, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        Some(self.update(0, to)? & !PUBLISHING)
    }

    /// The word before.
    #[inline]
    fn update(&self, set: u64, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let with_bit = |word: u64| Some(to(word & !PUBLISHING)? | word & PUBLISHING | set);
        self.0.fetch_update(SeqCst, SeqCst, with_bit).ok()
    }

    /// Adds to the credit, for a caller that publishes in any case.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, SeqCst);
    }

    /// Takes all credit, for a caller that publishes in any case.
    pub fn take_all(&self) -> u64 {
        self.0.fetch_and(PUBLISHING, SeqCst) & !PUBLISHING
    }

    /// After a change that was not the first: whether another thread has published it, which is waited for a moment.
    pub fn another_publishes(&self) -> bool {
        (0..LOOKS).any(|_| {
            pause();
            self.0.load(SeqCst) & PUBLISHING == 0
        })
    }

    /// Ends the publication of a number that belongs to the credit `seen`. Returns whether the credit is still `seen`.
    #[inline]
    pub fn publication_ends(&self, seen: u64) -> bool {
        self.0.compare_exchange(seen | PUBLISHING, seen, SeqCst, SeqCst).is_ok()
            || self.is_still(seen)
    }

    /// Whether another thread has ended it, or the credit has changed. An operation that writes: a load, as of an
    /// exchange that failed, may be of a moment before the caller's number is there.
    #[inline(never)]
    fn is_still(&self, seen: u64) -> bool {
        self.0.fetch_add(0, SeqCst) & !PUBLISHING == seen
    }
}
