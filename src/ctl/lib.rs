//! `gpuslice`: run commands in slices, look at slices, show the whole thing at work.
//!
//! One file per command. The CLI decides nothing about memory or time: it asks the daemon over the
//! admin socket, in the words of `gpuslice-wire`.

mod admin;
mod cdi;
mod child;
mod demo;
mod doctor;
mod door;
mod leaf;
mod left;
mod metrics;
mod mount_point;
mod node;
mod out;
mod policy;
mod ps;
mod rm;
mod run;
mod set;
mod setup;
mod shared;
mod sim;
mod slice;
mod table;
mod trust;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "gpuslice",
    version,
    about = "Slices of an NVIDIA GPU: hard memory caps, shares of time"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command in a slice, without a container runtime
    Run(run::Options),
    /// Show the slices of this node
    Ps(ps::Options),
    /// End slices that nobody ended, as of a container that crashed
    Rm(rm::Options),
    /// Change a slice's caps, weight, share or priority while its container runs
    Set(set::Options),
    /// Show or change how a GPU's time is divided
    Policy(policy::Options),
    /// Say what this node has for holding caps, what is missing, and what mends it
    Doctor(doctor::Options),
    /// Print the slices as metrics for Prometheus, or serve them
    Metrics(metrics::Options),
    /// Make a container engine know gpuslice, or undo that; shows every change first
    Setup(setup::Options),
    /// Slices as devices of the Container Device Interface: --device gpuslice.io/slice=1of4
    Cdi(cdi::Options),
    /// Three tenants on one GPU, with a verdict: weights 1:2:4, or what a policy means
    Demo(demo::Options),
    /// Create, describe or remove a simulated GPU
    Sim(sim::Options),
}

/// Runs the command that the program's arguments name.
pub fn main() -> std::process::ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::main(&options),
        Command::Ps(options) => ps::main(&options),
        Command::Rm(options) => rm::main(&options),
        Command::Set(options) => set::main(&options),
        Command::Policy(options) => policy::main(&options),
        Command::Doctor(options) => doctor::main(&options),
        Command::Metrics(options) => metrics::main(&options),
        Command::Setup(options) => setup::main(&options),
        Command::Cdi(options) => cdi::main(&options),
        Command::Demo(options) => demo::main(&options),
        Command::Sim(options) => sim::main(&options),
    };
    result.unwrap_or_else(|error| {
        out::note(&format!("{error:#}"));
        std::process::ExitCode::FAILURE
    })
}
