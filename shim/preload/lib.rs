//! gpuslice-shim-preload
