//! Claiming part in a turn, and reporting the process as drained: the words shared with the daemon.
//!
//! The daemon closes a turn (a store to `turn`) and then reads the claims; a process writes its
//! claims and then reads `turn` again. With sequential consistency at least one of the two sees
//! the other: either the process finds the turn closed and does not launch, or the daemon finds
//! the process active and waits until `drained` equals `active`.
//!
//! The open mode ends in the same way. While no turns are taken the word is even; a process that launches
//! claims part in it too, and the daemon increments the word when turns begin. The second check then reads
//! the page's mode: without it, the word of turns that have just begun would pass for the open mode's.
//!
//! A process that gave its turn back early (idle, so `drained` = `active` = the open turn) and launches
//! after all must first reset `drained`, by the same rule.
//!
//! # Orders of memory
//! The process alone writes `active` and `drained`, under the lane's lock, so it reads them relaxed. `tests/pages` runs
//! the functions below on atomics that show every value a weak memory allows; it fails if one of their orders is
//! weaker, or one of their checks is missing.
#![forbid(unsafe_code)]

use super::atomic::Ordering::{Relaxed, Release, SeqCst};
use super::atomic::{AtomicU32, AtomicU64};
use gpuslice_wire::page::{MODE_OPEN, may_launch};

/// The words of one lane that process and daemon share. The daemon writes the first two, the process the others.
#[derive(Clone, Copy, Debug)]
pub struct ClaimWords<'a> {
    /// The container's turn word.
    pub turn: &'a AtomicU32,
    /// Whether turns are taken.
    pub mode: &'a AtomicU32,
    /// The last turn word in which this process launched.
    pub active: &'a AtomicU32,
    /// The last one after which it had nothing in flight.
    pub drained: &'a AtomicU32,
    /// When its last work then had ended, ns.
    pub drained_ns: &'a AtomicU64,
}

impl ClaimWords<'_> {
    /// Claims part in `turn`, which is odd, or even while no turns are taken. This process may launch in it
    /// only after `true`.
    #[must_use]
    pub fn take(&self, turn: u32) -> bool {
        let reported = self.drained.load(Relaxed) == turn;
        if self.active.load(Relaxed) == turn && !reported {
            return true; // Claimed earlier in this turn, and not reported drained since.
        }
        if reported {
            // An even word: different from every turn in which a process was active.
            self.drained.store(turn.wrapping_sub(1), Relaxed);
        }
        // A daemon that sees this sees `drained` reset; one that does not is seen by the load.
        self.active.store(turn, SeqCst);
        self.turn.load(SeqCst) == turn
    }

    /// Claims part in the open mode, in which the turn word was `turn`. Launches may go only after `true`.
    #[must_use]
    pub fn take_open(&self, turn: u32) -> bool {
        self.take(turn) && self.mode.load(Relaxed) == MODE_OPEN
    }

    /// Claims part in the turn before the even `turn`, which began and ended unseen while work was parked: a report
    /// is owed for it.
    pub fn took_before(&self, turn: u32) {
        self.active.store(turn.wrapping_sub(1), SeqCst);
    }

    /// Whether a turn in which this process took part, or the open mode before the turns, is over and not yet
    /// reported drained; `free` is true while no turns are taken.
    #[must_use]
    pub fn owes_report(&self, free: bool) -> bool {
        let active = self.active.load(Relaxed);
        let turn = self.turn.load(Relaxed); // a stale one delays the report
        let over = turn != active || !free && !may_launch(turn);
        active != self.drained.load(Relaxed) && over
    }

    /// Reports that nothing is in flight since `ended`, ns. The caller holds the lane's lock and knows that.
    pub fn report_drained(&self, ended: u64) {
        self.drained_ns.store(ended, Relaxed);
        self.drained.store(self.active.load(Relaxed), Release);
    }
}
