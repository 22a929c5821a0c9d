//! gpuslice-apps
