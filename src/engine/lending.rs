//! What is lent of a GPU's memory; `memory::borrow` has the rules.

use gpuslice_wire::units::Instant;

/// What is lent on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lending {
    /// A slice of it has, or had, a limit above its cap.
    pub(crate) elastic: bool,
    /// A reclaim is on: when the next step of it is due.
    pub(crate) due: Option<Instant>,
}
