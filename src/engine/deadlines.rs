//! Deadlines: when the engine is due for a step although no event arrives.
//!
//! Every step asks for them, and so does its caller after it. So each step leaves the first one behind, and those of
//! the GPUs' turns lie side by side, apart from the GPUs.

use gpuslice_wire::units::Instant;

use crate::engine::Engine;
use crate::sched::gang::GpuSet;

impl Engine {
    /// When to step with [`Event::Tick`](crate::Event::Tick) if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The same, by the state of everything that has one.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        let memory =
            [self.grace, self.recalled_until(), self.held_back_until(), self.unfreed_until()];
        let moves = [self.drained_until(), self.reclaims_at];
        self.due.iter().chain(&memory).chain(&moves).flatten().min().copied()
    }

    /// # Panics
    /// If a deadline has changed outside a step; see `check`.
    pub(crate) fn check_deadline(&self) {
        assert_eq!(self.deadline, self.first_deadline(), "a deadline that the caller is not told");
        assert_eq!(self.reclaims_at, self.first_reclaim(), "a reclaim that the caller is not told");
    }

    /// GPUs whose turns are due.
    pub(crate) fn overdue(&self) -> GpuSet {
        let due = |due: &Option<Instant>| due.is_some_and(|due| due <= self.now);
        let bits = self.due.iter().enumerate().filter(|(_, it)| due(it));
        bits.fold(0, |all, (at, _)| all | 1 << at)
    }
}
