//! `gpusliced`: gives containers slices of this node's GPUs. It performs effects; the engine takes the
//! decisions. One thread waits for descriptors and deadlines, passes events to the engine and executes the
//! engine's actions.
//!
//! The files, from the top down; each uses those below it and none above:
//!
//! * [`start`] assembles the daemon, [`restore`] rebuilds slices from their records;
//! * [`event_loop`] gives each event of the kernel to a duty, [`executor`] executes the engine's actions by calling
//!   the duties;
//! * the duties, each of which owns its state and answers with [`tasks`]: [`admin`], [`preempt`] and [`suspend`], then
//!   [`clients`], [`containers`], [`cgroup_limits`], [`accounting`], [`over_cap`]; [`agents`] and
//!   [`claims`]; [`health`], with [`gpu_table`];
//! * their tools: all other files.
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod accounting;
mod admin;
mod agents;
mod bucket;
mod cgroup;
mod cgroup_limits;
mod claims;
mod clients;
mod command_line;
mod config;
mod containers;
mod descriptors;
mod driver_lock;
mod event_loop;
mod events;
mod examine;
mod executor;
mod first_messages;
mod gpu_table;
mod gpus;
mod health;
mod journal;
mod log_limit;
mod log_writer;
mod manual;
mod modes;
mod mps;
mod nvml;
mod observe;
mod one_answer;
mod over_cap;
mod paths;
mod peer;
mod policies;
mod poll;
mod preempt;
mod privileges;
mod processes;
mod recorder;
mod replies;
mod restore;
mod samples;
mod service;
mod shared_files;
mod simulated;
mod slab;
mod socket_closer;
mod sockets;
mod start;
mod state;
mod suspend;
mod tasks;
mod unavailable;

fn main() -> std::process::ExitCode {
    start::main()
}
