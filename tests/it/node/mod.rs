//! What the driver itself says and holds: strangers seen by NVML, limits on control groups, and the
//! commands that tell of them.

mod cases;
mod doctor;
mod ends;
mod group;
mod members;
mod stranger;
mod truth;
mod walls;
