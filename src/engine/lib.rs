//! gpuslice-engine
