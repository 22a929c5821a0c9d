//! Mount injection, `libgpuslice_mount.so`: mounted over the driver's library in a container.
//!
//! Every program that loads `libcuda.so.1` gets this file, whatever its environment is. It exports
//! only the hooks and has a `DT_NEEDED` entry for the real driver at its private path. The loader
//! resolves a name here first and there next, so every other function, also one newer than our
//! table, resolves to the real driver's.
#![allow(non_snake_case)] // the driver's names

use gpuslice_shim::export_driver_hooks;

gpuslice_nvabi::for_each_driver_fn!(export_driver_hooks);
