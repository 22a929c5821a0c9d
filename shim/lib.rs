//! gpuslice-shim: what runs inside a tenant's process, as the library behind the three shim libraries.
//!
//! The process believes it talks to NVIDIA's driver. It does, except that a few dozen functions
//! (the rows marked `hook` in [`gpuslice_nvabi`]) first ask for memory credit or wait for a turn.
//!
//! * [`resolve`] finds the real driver and gives every function of the table its real address;
//! * [`link`] is the connection to the daemon: attach, shared pages, credit, reconnect, fork;
//! * [`credit`], [`allocations`], [`vmm`] are the process's own accounts (over `table` and `sync`);
//! * [`channels`] are the kernel's names for where this process's work runs;
//! * [`contexts`] are this process's contexts and what they cost;
//! * [`pools`] and [`graphs`] follow memory of which only the driver knows how much there is;
//! * [`lane`] says which GPU of the slice a device, context or stream belongs to;
//! * [`gate`] holds launches until it is the container's turn;
//! * [`hooks`] are the intercepted driver functions, [`nvml_hooks`] those of NVML.
//!
//! The shim libraries (`preload`, `mount`, `nvml`) are crates of their own that export C symbols and
//! hold no logic. Nothing here may end, signal, print into or block for ever the process: every
//! hook runs in [`guard`], which turns a panic into a CUDA error.
#![deny(missing_docs)]

pub mod allocations;
pub mod channels;
pub mod contexts;
pub mod credit;
pub mod gate;
pub mod graphs;
pub mod guard;
pub mod hooks;
pub mod lane;
pub mod link;
pub mod nvml_hooks;
pub mod pools;
pub mod resolve;
mod sync;
mod table;
pub mod vmm;
