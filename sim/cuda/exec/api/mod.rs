//! Entry points about streams, events, launches and stream memory operations.

mod event;
mod launch;
mod memop;
mod stream;

pub use launch::{Shape, launch_of};
pub use memop::memops;
pub use stream::synchronize;

/// All of them.
pub mod imp {
    pub use super::event::*;
    pub use super::launch::*;
    pub use super::memop::*;
    pub use super::stream::*;
}
