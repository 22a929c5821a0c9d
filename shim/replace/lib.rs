//! The replacement door, `libgpuslice_replace.so`: mounted over the driver's library in a container.
//!
//! Every program that wants `libcuda.so.1` gets this file, whatever its environment is. It exports
//! only the hooks and *needs* the real driver, by its private path: the loader looks a name up here
//! first and there next, so that every other function, also one newer than our table, is the real
//! driver's by itself.
#![allow(non_snake_case)] // the driver's names

use gpuslice_shim::export_driver_hooks;

gpuslice_nvabi::for_each_driver_fn!(export_driver_hooks);
