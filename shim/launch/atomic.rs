//! The atomics of [`super::claim`], [`super::turn`] and [`super::word`]. `tests/pages` compiles these modules as they
//! are with a module of its own in this one's place, whose atomics show every value that a weak memory may show.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
