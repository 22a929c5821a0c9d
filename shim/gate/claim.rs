//! Taking part in a turn, and reporting that all is quiet: the words a process and the daemon race
//! about.
//!
//! The daemon closes a turn (a store to `turn`) and then reads the claims; a process writes its
//! claims and then reads `turn` again. With sequential consistency at least one of the two sees
//! the other: either the process finds the turn closed and does not launch, or the daemon finds
//! the process active and waits until `drained` is `active`.
//!
//! Freedom ends in the same way: while no turns are taken the word is even, a process that launches
//! claims part in it too, and the daemon moves the word on when turns begin. The second look is then
//! at the page's mode.
//!
//! A process that gave its turn back early (idle, so `drained` = `active` = the open turn) and then
//! launches after all must first take `drained` back, by the same rule.
//!
//! All writes to the claims happen under the lane's lock, so threads of one process never
//! overtake each other. Written as single steps because the model test tries every interleaving of
//! them with the daemon's.
#![forbid(unsafe_code)]

use gpuslice_wire::page::{ClientLane, may_launch};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The three words of the race.
#[derive(Debug)]
pub struct ClaimWords<'a> {
    /// The container's turn word.
    pub turn: &'a AtomicU32,
    /// This process's claims.
    pub claims: &'a ClientLane,
}

/// Progress of [`ClaimWords::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// Is `drained` to be taken back?
    Undrain,
    /// Is `active` to be set?
    Activate,
    /// Is the turn still the one claimed?
    Confirm,
}

impl ClaimWords<'_> {
    /// Claims part in `turn`, odd, or even while no turns are taken. Only after `true` may this process
    /// launch in it.
    #[must_use]
    pub fn take(&self, turn: u32) -> bool {
        let claimed = self.claims.active.load(SeqCst) == turn;
        if claimed && self.claims.drained.load(SeqCst) != turn {
            return true; // Published earlier in this turn, and not reported quiet since.
        }
        let mut step = Take::Undrain;
        loop {
            match self.step(step, turn) {
                Ok(next) => step = next,
                Err(taken) => return taken,
            }
        }
    }

    /// One step of [`ClaimWords::take`], at most one write or the one read; `Err` is the outcome.
    ///
    /// # Errors
    /// The outcome: whether the claim holds.
    pub fn step(&self, step: Take, turn: u32) -> Result<Take, bool> {
        match step {
            Take::Undrain => {
                if self.claims.drained.load(SeqCst) == turn {
                    // An even word: equal to no turn anybody was ever active in.
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

    /// Whether a turn this process took part in, or the freedom before the turns, is over and not yet
    /// reported quiet; `free` says whether no turns are taken.
    #[must_use]
    pub fn owes_report(&self, free: bool) -> bool {
        let active = self.claims.active.load(SeqCst);
        let turn = self.turn.load(SeqCst);
        let over = turn != active || !free && !may_launch(turn);
        active != self.claims.drained.load(SeqCst) && over
    }

    /// Reports that nothing is in flight since `ended`, ns; the caller knows so, under the lane's lock.
    pub fn report_drained(&self, ended: u64) {
        let active = self.claims.active.load(SeqCst);
        self.claims.drained_ns.store(ended, Relaxed);
        self.claims.drained.store(active, SeqCst);
    }
}

#[cfg(test)]
mod model;
