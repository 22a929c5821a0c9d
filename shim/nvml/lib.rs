//! gpuslice-shim-nvml
