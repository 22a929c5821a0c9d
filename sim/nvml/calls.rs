//! What each implemented function answers; a function has its C name and the table's arguments.

mod device;
mod event;
mod health;
mod limits;
mod pci;
mod process;
mod sensor;
mod system;
mod usage;

pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use health::*;
pub(crate) use limits::*;
pub(crate) use pci::*;
pub(crate) use process::*;
pub(crate) use sensor::*;
pub(crate) use system::*;
pub(crate) use usage::*;
