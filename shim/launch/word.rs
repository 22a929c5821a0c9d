//! The word that every launch of the process reads.
//!
//! It is open while no turns are taken and the process has reported itself runnable. A launch opens it, the gate
//! thread closes it, and the daemon says in `gated` whether turns are taken. The thread may look at `gated` and close
//! the word between a launch's look and its opening. So a launch looks again after it has opened the word: the word
//! is never left open under turns. In between another launch may pass, as it may just before turns begin.
#![forbid(unsafe_code)]

use super::atomic::AtomicU32;
use super::atomic::Ordering::{Acquire, Relaxed, Release};

/// The bit of the word that is set while launches may go straight to the driver.
pub const OPEN: u32 = 1;
/// The word's value while they must take the slow path.
pub const CLOSED: u32 = 0;
/// The bit of the word that is set once graphs of this process allocate memory: their launches take a longer
/// path, which reserves it. The gate does not change this bit.
pub const METERED: u32 = 2;

/// Whether a launch may go straight to the driver.
#[inline(always)]
#[must_use]
pub fn is_open(word: &AtomicU32) -> bool {
    word.load(Relaxed) & OPEN != 0
}

/// Whether a graph may be launched straight away: the word is open, and no graph needs memory.
#[inline(always)]
#[must_use]
pub fn is_open_to_graphs(word: &AtomicU32) -> bool {
    word.load(Relaxed) == OPEN
}

/// Opens the word unless turns are taken: `gated` is the number of lanes that take them.
pub fn open(word: &AtomicU32, gated: &AtomicU32) {
    if gated.load(Relaxed) != 0 {
        return;
    }
    // Acquires what the gate thread saw before it closed the word: `gated`, if that was why.
    word.fetch_or(OPEN, Acquire);
    if gated.load(Relaxed) != 0 {
        close(word);
    }
}

/// Closes the word.
pub fn close(word: &AtomicU32) {
    word.fetch_and(!OPEN, Release);
}

/// Closes the word if turns are taken. Returns the number of lanes that take them.
pub fn close_for_turns(word: &AtomicU32, gated: &AtomicU32) -> u32 {
    let gated = gated.load(Relaxed);
    if gated != 0 {
        close(word);
    }
    gated
}
