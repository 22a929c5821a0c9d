//! What is lent of a GPU's memory; `memory::borrow` has the rules.

use gpuslice_wire::units::{Bytes, Duration, Instant};

/// What is lent on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lending {
    /// A slice of it has, or had, a limit above its cap.
    pub(crate) elastic: bool,
    /// A reclaim is on: when the next step of it is due.
    pub(crate) due: Option<Instant>,
    /// When unused credit of borrowers was recalled last.
    recalled: Option<Instant>,
    /// How often it was settled: for tests of effort.
    #[cfg(test)]
    pub(crate) settled: u64,
}

impl Lending {
    /// Whether unused credit is to be recalled now, as so much is missing. Each recall is answered, and each answer
    /// is a step of the engine: without a pause one would follow the other.
    pub(crate) fn recalls(&mut self, now: Instant, every: Duration, missing: Bytes) -> bool {
        let is_due = self.recalled.is_none_or(|at| at.plus(every) <= now);
        let recalls = is_due && missing > Bytes::ZERO;
        if recalls {
            self.recalled = Some(now);
        }
        recalls
    }
}
