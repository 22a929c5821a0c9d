//! The state of a container's preemption, as the observer sees it.

/// Whether a container's work is stopped on the GPU. Stopped work, or work not known to be resumed yet,
/// waits for its turn whatever is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// No stop is ordered.
    None,
    /// A stop is ordered.
    Stopping,
    /// The work is stopped.
    Stopped,
    /// A resume is ordered.
    Resuming,
}
