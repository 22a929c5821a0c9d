//! gpuslice-shim-replace
