//! gpuslice-nvabi: the CUDA driver's and NVML's binary interface, written down once.
//!
//! The shim stands between a program and the driver, the simulated GPU stands in the driver's
//! place, and both must export the same few hundred functions with the same signatures. A list kept
//! in four places drifts; so there is **one table** here, one line per exported function, and
//! everything else is derived from it: the shim's exports and pass-through slots, the simulator's
//! checklist, the answer to `cuGetProcAddress`, and the test that compares it with NVIDIA's
//! headers.
//!
//! A row reads
//!
//! ```text
//! [hook, sim, 3020] cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
//! ```
//!
//! 1. `hook` or `pass`: the shim looks at this call, or hands it straight to the driver;
//! 2. `sim` or `none`: the simulated driver implements it, or answers "not supported";
//! 3. the CUDA version (major * 1000 + minor * 10) this form of the function came with.
//!
//! The name is the *exported symbol*: `cuMemAlloc_v2` is what programs reach when they write
//! `cuMemAlloc`, because the header maps one to the other; `_ptsz` and `_ptds` are the twins for
//! programs built with one default stream per thread. The types are in [`types`]; a structure
//! nobody here looks into is `c_void`.
//!
//! How to use it: write a macro that takes rows, import [`types`], and hand it over:
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
//! [`control`] is another interface: the few ioctls of the driver's kernel side that take a process's
//! work off a GPU and let it go on.
//!
//! The callback is invoked once per family, in a fixed order; flat index = position over all
//! families ([`table::DRIVER_FLAT`]).

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
