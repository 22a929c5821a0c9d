//! The atomics of [`super::balance`]. `tests/pages` compiles that module as it is with a module of its own in this
//! one's place, whose atomics show every value that a weak memory may show.

pub use std::sync::atomic::{AtomicU64, Ordering};
