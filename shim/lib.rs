//! gpuslice-shim
