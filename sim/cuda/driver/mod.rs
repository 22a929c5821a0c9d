//! The driver as such: initialisation, errors in words, devices and the process's attachment to them.

mod attributes;
mod checkpoint;
mod daemon;
mod device;
mod errors;
mod kernel;
mod opening;
mod process;
pub mod strict;
mod visible;

pub use device::text;
pub use process::{device_error, identity, process};

/// Entry points of this room.
pub mod imp {
    pub use super::checkpoint::*;
    pub use super::device::*;
    pub use super::errors::*;
    pub use super::process::*;
}
