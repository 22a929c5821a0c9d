//! Types shared by all parts: units, ids, limits, messages, shared pages, snapshots.
//!
//! A tenant's process runs with an old copy of this crate while the daemon is upgraded. So this crate is an ABI:
//! it has no dependencies, no I/O and no unsafe code. Every message is a fixed-size little-endian frame with a
//! total decoder. The layout and the numbers change only together with [`limits::WIRE_VERSION`]; a test over
//! golden bytes checks that.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

pub mod admin;
pub mod due;
pub mod family;
pub mod frame;
pub mod history;
pub mod ids;
pub mod limits;
pub mod node;
pub mod owner;
pub mod page;
pub mod policy;
pub mod samples;
pub mod select;
pub mod snapshot;
pub mod tenant;
pub mod text;
pub mod turns;
pub mod units;
pub mod usage;
pub mod waits;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod golden;
