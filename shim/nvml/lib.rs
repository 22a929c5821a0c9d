//! The NVML shim, `libgpuslice_nvml.so`: replaces `libnvidia-ml.so.1` under both injection methods.
//!
//! Exports all of NVML: hooks for memory and processes, and jumps to the real library for the rest.
#![allow(non_snake_case)] // NVML's names

use gpuslice_shim::export_nvml;

gpuslice_nvabi::for_each_nvml_fn!(export_nvml);
