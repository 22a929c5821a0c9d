//! gpuslice-shim: what runs inside a tenant's process, as the library behind the three shim libraries.
//!
//! The process believes it talks to NVIDIA's driver. It does, except that a few dozen functions
//! (the rows marked `hook` in [`gpuslice_nvabi`]) first ask for memory credit or wait for a turn.
//!
//! From the top down; a room uses those below it and none above:
//!
//! * [`hooks`] are the intercepted driver functions, [`nvml_hooks`] those of NVML;
//! * [`mod@slice`] puts the rooms below together: one value for the process in its slice;
//! * [`launch`] holds launches until it is the container's turn;
//! * [`memory`] records what the process has allocated, and what each kind of memory costs;
//! * [`daemon`] is the connection to the daemon: attach, shared pages, credit, reconnect;
//! * [`channels`] are the kernel's names for where this process's work runs;
//! * [`resolve`] finds the real driver and gives every function of the table its real address.
//!
//! The shim libraries (`preload`, `mount`, `nvml`) are crates of their own that export C symbols and
//! hold no logic. Nothing here may end, signal, print into or block for ever the process: every
//! hook runs in [`guard`], which turns a panic into a CUDA error.
#![deny(missing_docs)]

pub mod channels;
pub mod daemon;
pub mod guard;
pub mod hooks;
pub mod launch;
pub mod memory;
pub mod nvml_hooks;
pub mod resolve;
pub mod slice;
