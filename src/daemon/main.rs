//! `gpusliced`: gives containers slices of this node's GPUs. It performs effects; the engine takes the
//! decisions. One thread waits for descriptors and deadlines, passes events to the engine and executes the
//! engine's actions.
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod accounting;
mod admin;
mod budget;
mod cgroup;
mod cgroup_limits;
mod command_line;
mod config;
mod daemon;
mod descriptors;
mod driver_lock;
mod examine;
mod executor;
mod exit_watch;
mod gpus;
mod grants;
mod handles;
mod idle_exit;
mod lingering;
mod members;
mod nvml;
mod pages;
mod paths;
mod peer;
mod policies;
mod poll;
mod preempt;
mod probe;
mod requests;
mod service;
mod slab;
mod slices;
mod socket_closer;
mod sockets;
mod start;
mod state;
mod tenants;

fn main() -> std::process::ExitCode {
    start::main()
}
