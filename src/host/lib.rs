//! What the host offers to the programs of the node, `gpusliced` and `gpuslice`.
//!
//! [`layout`] is the layout of an installation: where its parts, its sockets and the driver are.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod layout;
