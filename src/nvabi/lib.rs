//! gpuslice-nvabi: the binary interface of the CUDA driver and of NVML, defined once.
//!
//! The shim interposes between a program and the driver, the simulated GPU replaces the driver,
//! and both must export the same few hundred functions with the same signatures. Copies of such a list
//! diverge, so there is **one table** here, one line per exported function. Everything else is derived
//! from it: the shim's exports and pass-through slots, the simulator's
//! checklist, the result of `cuGetProcAddress`, and the test that compares it with NVIDIA's
//! headers.
//!
//! A row reads
//!
//! ```text
//! [hook, sim, 3020] cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
//! ```
//!
//! 1. `hook` or `pass`: the shim inspects this call, or passes it straight to the driver;
//! 2. `sim` or `none`: the simulated driver implements it, or returns "not supported";
//! 3. the CUDA version (major * 1000 + minor * 10) that introduced this form of the function.
//!
//! The name is the *exported symbol*: programs that call `cuMemAlloc` use `cuMemAlloc_v2`,
//! because the header maps one to the other; `_ptsz` and `_ptds` are the variants for
//! programs built with one default stream per thread. The types are in [`types`]; a structure
//! that this project never inspects is `c_void`.
//!
//! Usage: define a macro that takes rows, import [`types`], and pass the macro:
//!
//! ```
//! use gpuslice_nvabi::types::*;
//!
//! macro_rules! print_names {
//!     ($([$shim:ident, $sim:ident, $since:literal]
//!        $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
//!         $( println!("{} takes {:?}", stringify!($name), &[$(stringify!($ty)),*] as &[&str]); )*
//!     };
//! }
//! gpuslice_nvabi::for_each_driver_fn!(print_names);
//! ```
//!
//! [`control`] is another interface: the few ioctls of the driver's kernel side that preempt and resume a
//! process's work on a GPU.
//!
//! The callback is invoked once per family, in a fixed order; a function's index is its position in [`DRIVER`].

#![no_std]
// Names are the headers', so that their documentation applies.
#![allow(non_camel_case_types, non_upper_case_globals)]

pub mod control;
pub mod lookup;
pub mod sig;
pub mod table;
pub mod types;

mod driver;
mod nvml;

pub use table::{DRIVER, Function, NVML, Shim, Sim};
