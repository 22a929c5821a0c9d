//! `libnvidia-ml.so.1` of the simulated GPU.
//!
//! Every function of nvml.h is exported. Those the table of `gpuslice_nvabi` marks `sim` have a
//! body in `calls`, checked against the table's signature by the compiler; the others answer
//! NVML_ERROR_NOT_SUPPORTED, as a driver does for what its card cannot.
//!
//! Modules: `exports` turns the table into C functions, `abi` has the types of their arguments (the
//! only two modules with unsafe code). `session` is the attachment to the device, `calls` the answers
//! by subject. Values that a simulation cannot measure (temperature, power, clocks) are derived from
//! the load, so that graphs move when work is done.

// The C names are the library's purpose.
#![allow(non_snake_case, non_camel_case_types)]
#![deny(unsafe_code)]

mod abi;
mod calls;
mod exports;
mod session;
