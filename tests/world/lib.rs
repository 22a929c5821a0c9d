//! gpuslice-world
