//! Small CUDA driver-API programs used as tenants by the demo and the tests.
//!
//! They know nothing of gpuslice: they find `libcuda.so.1` as any program does and bring their
//! kernels as PTX, so the same binary runs bare, in a slice by either injection method, on the simulated
//! GPU and on a real one.

pub mod api;
pub mod driver;
pub mod spin;
