//! The memory of this process: what is charged, to which lane, and until when.
//!
//! Each kind of memory has its table, because each ends in its own way: an allocation by its pointer
//! ([`allocations`]), physical memory with its last reference ([`physical`]), a context's own memory with the
//! context ([`contexts`]), a pool's and a graph's when the driver releases it ([`pools`], [`graphs`]). Tables
//! that reserve or release bytes are passed the daemon's [`Session`]; the others only record. [`devices`] has
//! the lane of each device, and [`arrays`] an estimate of memory that the driver does not report.
//!
//! [`Session`]: crate::daemon::Session

pub mod allocations;
pub mod arrays;
pub mod contexts;
pub mod devices;
pub mod followed;
pub mod graphs;
pub mod physical;
pub mod pools;
mod quick;
mod table;
