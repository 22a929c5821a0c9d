//! The atomics of [`super::claim`] and [`super::word`]. `tests/pages` compiles these two modules as they are with a
//! module of its own in this one's place, whose atomics show every value that a weak memory may show.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
