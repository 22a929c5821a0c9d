//! The index of a container, by which ledgers and queues name it.

/// A container's index in the engine's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContainerIndex(pub(crate) u16);
