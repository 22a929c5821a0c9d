//! gpuslice-hook
