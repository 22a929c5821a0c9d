//! The common credit of a process, and which thread publishes a change of it.
//!
//! # Problem
//! The container's other processes, and the daemon, read how much this process holds from words of theirs. Each change
//! of the credit changes that number. Threads that all wrote it would contend for those words as well, and of threads
//! that write at the same time the slowest writes last: its number may be an old one, and would stay.
//!
//! # Idea
//! One bit of the word of credit says that a thread publishes. The operation that changes the credit sets it too. A
//! thread that finds it clear publishes. One that finds it set need not: the thread that publishes has not ended, since
//! it ends with an operation on the same word, which shows it what has changed since it looked. Then it goes on, unless
//! another thread has begun meanwhile.
//!
//! So each thread that writes compares the word afterwards. Either nothing has changed since its look, or it or another
//! thread looks and writes again. Several may publish at the same time: the bit saves work and excludes nothing. A
//! thread that was killed with it set leaves it to the next one that publishes unasked (`Session::settle`).
//!
//! `tests/pages` runs this file on atomics that show every value a weak memory allows.

use super::atomic::AtomicU64;
use super::atomic::Ordering::SeqCst;

/// Set while a thread publishes. Credit is less than [`super::BYTES_MAX`].
const PUBLISHING: u64 = 1 << 63;

/// A change of the common credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The credit before, bytes.
    pub before: u64,
    /// Whether the thread that made the change has to publish it. Else another one does, after this change.
    pub publish: bool,
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

    /// Changes the credit as `to` says; `None`, and nothing changed, if that is `None`.
    #[inline]
    pub fn change(&self, to: impl Fn(u64) -> Option<u64>) -> Option<Change> {
        let word = self.update(PUBLISHING, to)?;
        Some(Change { before: word & !PUBLISHING, publish: word & PUBLISHING == 0 })
    }

    /// As [`Common::change`], where what the process holds stays the same. Returns the credit before.
    pub fn change_unpublished(&self, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        Some(self.update(0, to)? & !PUBLISHING)
    }

    /// The word before.
    #[inline]
    fn update(&self, set: u64, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let with_bit = |word: u64| Some(to(word & !PUBLISHING)? | word & PUBLISHING | set);
        self.0.fetch_update(SeqCst, SeqCst, with_bit).ok()
    }

    /// Adds to the credit, for a caller that publishes unasked.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, SeqCst);
    }

    /// Takes all credit, for a caller that publishes unasked.
    pub fn take_all(&self) -> u64 {
        self.0.fetch_and(PUBLISHING, SeqCst) & !PUBLISHING
    }

    /// Ends a publication, of what was held when the credit was `seen`, and nothing else had changed if `same`. Returns
    /// whether that is what is held now, or another thread has begun since: if not, the caller looks and writes again.
    #[inline]
    pub fn publication_ends(&self, seen: u64, same: impl FnOnce() -> bool) -> bool {
        let now = self.0.fetch_and(!PUBLISHING, SeqCst) & !PUBLISHING;
        now == seen && same() || self.0.fetch_or(PUBLISHING, SeqCst) & PUBLISHING != 0
    }
}
