//! Accounting through NVML, the driver's limits on control groups, agents, claims, and the commands that report them.

mod accounting;
mod agents;
pub mod cases;
mod cgroup_limits;
mod claims;
mod disk;
mod doctor;
mod ends;
mod forgeries;
pub mod group;
pub mod health;
mod liars;
mod members;
mod mps;
mod over_cap;
pub mod stranger;
