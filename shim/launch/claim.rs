//! Claiming part in a turn, and reporting the process as drained: the words shared with the daemon.
//!
//! The daemon closes a turn (a store to `turn`) and then reads the claims; a process writes its
//! claims and then reads `turn` again. With sequential consistency at least one of the two sees
//! the other: either the process finds the turn closed and does not launch, or the daemon finds
//! the process active and waits until `drained` equals `active`.
//!
//! The open mode ends in the same way. While no turns are taken the word is even; a process that launches
//! claims part in it too, and the daemon increments the word when turns begin. The second check then reads
//! the page's mode.
//!
//! A process that gave its turn back early (idle, so `drained` = `active` = the open turn) and launches
//! after all must first reset `drained`, by the same rule.
//!
//! All writes to the claims happen under the lane's lock, so threads of one process do not race with each
//! other. The code consists of single steps because the model test runs every interleaving of them with the
//! daemon's.
#![forbid(unsafe_code)]

use gpuslice_wire::page::{ClientLane, may_launch};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The words shared by the process and the daemon.
#[derive(Debug)]
pub struct ClaimWords<'a> {
    /// The container's turn word.
    pub turn: &'a AtomicU32,
    /// This process's claims.
    pub claims: &'a ClientLane,
}

/// State of [`ClaimWords::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// Next: clear `drained` if it shows this turn.
    Undrain,
    /// Next: set `active`.
    Activate,
    /// Next: check that the turn is still the claimed one.
    Confirm,
}

impl ClaimWords<'_> {
    /// Claims part in `turn`, which is odd, or even while no turns are taken. This process may launch in it
    /// only after `true`.
    #[must_use]
    pub fn take(&self, turn: u32) -> bool {
        let claimed = self.claims.active.load(SeqCst) == turn;
        if claimed && self.claims.drained.load(SeqCst) != turn {
            return true; // Claimed earlier in this turn, and not reported drained since.
        }
        let mut step = Take::Undrain;
        loop {
            match self.step(step, turn) {
                Ok(next) => step = next,
                Err(taken) => return taken,
            }
        }
    }

    /// One step of [`ClaimWords::take`]: at most one write, or the one read; `Err` is the outcome.
    ///
    /// # Errors
    /// The outcome: whether the claim holds.
    pub fn step(&self, step: Take, turn: u32) -> Result<Take, bool> {
        match step {
            Take::Undrain => {
                if self.claims.drained.load(SeqCst) == turn {
                    // An even word: different from every turn in which a process was active.
                    self.claims.drained.store(turn.wrapping_sub(1), SeqCst);
                }
                Ok(Take::Activate)
            }
            Take::Activate => {
                self.claims.active.store(turn, SeqCst);
                Ok(Take::Confirm)
            }
            Take::Confirm => Err(self.turn.load(SeqCst) == turn),
        }
    }

    /// Whether a turn in which this process took part, or the open mode before the turns, is over and not yet
    /// reported drained; `free` is true while no turns are taken.
    #[must_use]
    pub fn owes_report(&self, free: bool) -> bool {
        let active = self.claims.active.load(SeqCst);
        let turn = self.turn.load(SeqCst);
        let over = turn != active || !free && !may_launch(turn);
        active != self.claims.drained.load(SeqCst) && over
    }

    /// Reports that nothing is in flight since `ended`, ns. The caller holds the lane's lock and knows that.
    pub fn report_drained(&self, ended: u64) {
        let active = self.claims.active.load(SeqCst);
        self.claims.drained_ns.store(ended, Relaxed);
        self.claims.drained.store(active, SeqCst);
    }
}

#[cfg(test)]
mod model;
