//! Accounting through NVML, the driver's limits on control groups, and the commands that report them.

mod accounting;
mod cases;
mod cgroup_limits;
mod doctor;
mod ends;
mod group;
mod members;
mod stranger;
