//! Small CUDA driver-API programs used as tenants by the demo and the tests.
//!
//! They do not depend on gpuslice: they find `libcuda.so.1` like any program and bring their kernels
//! as PTX. So the same binary runs bare, in a slice by either injection method, on
//! the simulated GPU and on a real one.

pub mod api;
pub mod driver;
pub mod gpu;
pub mod spin;
