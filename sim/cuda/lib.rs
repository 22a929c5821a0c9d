//! The simulated CUDA driver: a `libcuda.so.1` of a software device.
//!
//! Programs written on the driver API run on it unchanged: memory has bytes and a capacity,
//! streams are in order, kernels take simulated time, other processes share the device. The device
//! itself is in `sim/device`; this crate is the driver's side of it, in each process.
//!
//! The path of a call: `export` has one exported function per row of the driver table; it goes
//! through `entry` to `imp::<name>`, a function of one of the modules:
//! - `driver`: initialisation, versions, entry points by name, devices and their attributes;
//! - `context`: contexts, primary contexts, the stack of current contexts of each thread;
//! - `memory`: everything with an address, and copies and fills of it;
//! - `exec`: streams, events, modules, launches, graphs, stream-ordered memory.

mod allocations;
mod context;
mod driver;
mod entry;
mod exec;
mod export;
mod handles;
mod lifetime;
mod memory;
mod vram;
