//! Preload injection, `libgpuslice.so`: loaded first by `LD_PRELOAD` or `/etc/ld.so.preload`.
//!
//! Its SONAME is the driver's, so the loader takes it for the driver whenever a program loads
//! `libcuda.so.1`, without any override of `dlsym`. Every program that starts loads it, CUDA or not,
//! so it must not load the driver. It exports the whole driver interface itself; rows without a hook
//! jump to the real driver's function, resolved on first use.
#![allow(non_snake_case)] // the driver's names

use gpuslice_shim::export_driver;

gpuslice_nvabi::for_each_driver_fn!(export_driver);
