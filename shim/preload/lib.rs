//! The preload door, `libgpuslice.so`: put before a program with `LD_PRELOAD` or `ld.so.preload`.
//!
//! Its SONAME is the driver's, so the loader takes it for the driver whenever `libcuda.so.1` is
//! wanted, without any override of `dlsym`. It sits in every program that starts, CUDA or not, so it
//! must not pull the driver in: it exports the whole driver interface itself, and the rows that
//! nobody hooks jump through to the real driver, found on first use.
#![allow(non_snake_case)] // the driver's names

use gpuslice_shim::export_driver;

gpuslice_nvabi::for_each_driver_fn!(export_driver);
