//! The words everybody shares: units, ids, limits, messages, shared pages, snapshots.
//!
//! A tenant's process maps an old copy of this crate for as long as it lives, while the daemon is
//! upgraded under it. So this crate is an ABI: it has no dependencies, no I/O and no unsafe code,
//! every message is a fixed-size little-endian frame with a total decoder, and its layout changes
//! only together with [`limits::WIRE_VERSION`] (a test over golden bytes holds that).
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

pub mod admin;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod page;
pub mod policy;
pub mod select;
pub mod snapshot;
pub mod tenant;
pub mod text;
pub mod units;

#[cfg(test)]
mod golden;
