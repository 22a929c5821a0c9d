//! The simulated CUDA driver: a `libcuda.so.1` of a software device.
//!
//! Programs written on the driver API run on it unchanged: memory has bytes and a capacity,
//! streams are in order, kernels take simulated time, other processes share the device. The device
//! itself is in `sim/device`; this crate is the driver's side of it, in each process.
//!
//! The path of a call: `export` has one exported function per row of the driver table; it goes
//! through `entry`, which checks and wraps the arguments, to the function of that name in one of the modules,
//! which each module gathers in its `imp`.
//! A module imports only from those before it in this list:
//! - `entry`, `handles`: arguments and results of every call; handles that stay safe when stale;
//! - `driver`: initialisation, errors in words, devices and their attributes;
//! - `vram`: addresses of device memory, and the physical memory behind them;
//! - `context`: contexts, their settings, the stack of current contexts of each thread;
//! - `allocations`: the ranges that a program may use, and how their bytes change;
//! - `exec`: what happens in the order of streams: launches, events, graphs, stream-ordered memory;
//! - `memory`: the calls that allocate, map, describe, copy and fill memory;
//! - `lifetime`: beginning and end of contexts, with all that belongs to them;
//! - `export`: the exported functions, and their addresses by name.

// Functions have the driver's names and arguments.
#![allow(non_snake_case, clippy::too_many_arguments)]

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
