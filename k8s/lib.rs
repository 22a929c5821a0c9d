//! gpuslice on Kubernetes: an agent of the node without privileges, and the tools of its administrators.
//!
//! The daemon owns the ledger, and this crate translates. Decisions are pure functions (`amounts`, `place`,
//! `inspect::summary`, `plugin::decide`, `dra::slices`); sockets, the API server and the daemon are effects around
//! them.
#![forbid(unsafe_code)]

pub mod agent;
pub mod allocation;
pub mod amounts;
pub mod api;
mod command_line;
pub mod dra;
pub mod extender;
#[cfg(test)]
mod fuzz;
pub mod grpc;
pub mod http;
pub mod inspect;
pub mod kubelet;
pub mod ledger;
mod listen;
pub mod names;
pub mod place;
pub mod plugin;
mod signals;
#[cfg(test)]
mod testing;
pub mod webhook;

pub use command_line::main;
