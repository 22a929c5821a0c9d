//! What the host offers to the programs of the node, `gpusliced` and `gpuslice`.
//!
//! * [`cgroup`]: control groups of the unified hierarchy;
//! * [`clock`]: the machine's clocks;
//! * [`control_node`]: the driver's control node;
//! * [`layout`]: where an installation's parts, its sockets and the driver are;
//! * [`process`]: other processes, by pidfd and through /proc;
//! * [`seqpacket`]: the sockets on which the programs talk.
#![deny(unsafe_code)]
#![deny(missing_docs)]

pub mod cgroup;
pub mod clock;
pub mod control_node;
pub mod layout;
pub mod memory;
pub mod process;
pub mod seqpacket;
