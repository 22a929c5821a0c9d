//! `gpusliced`: gives containers slices of this node's GPUs. Effects only; decisions are the
//! engine's. One thread waits for descriptors and deadlines, tells the engine what happened, and
//! performs what it decides.
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod accounting;
mod admin;
mod budget;
mod cgroup;
mod cgroup_limits;
mod claim;
mod closer;
mod config;
mod daemon;
mod effects;
mod ended;
mod examine;
mod gpus;
mod grants;
mod handles;
mod keepers;
#[path = "../layout.rs"]
mod layout;
mod leave;
mod members;
mod nvml;
mod options;
mod pages;
mod peer;
mod places;
mod policies;
mod poll;
mod preempt;
mod probe;
mod requests;
mod service;
mod slices;
mod slots;
mod sockets;
mod start;
mod state;
mod tenants;

fn main() -> std::process::ExitCode {
    start::main()
}
