//! `gpuslice`: the command-line interface.
//!
//! One file per subcommand. The CLI decides nothing about memory or time: it asks the daemon over the
//! admin socket, in the messages of `gpuslice-wire`.

mod admin;
mod background;
mod cdi;
mod cgroup;
mod child;
mod clients;
mod columns;
mod complete;
mod demo;
mod doctor;
mod elsewhere;
mod events;
mod explain;
mod gpus;
mod inject;
mod inspect;
mod manual;
mod metrics;
mod mount_point;
mod node;
mod out;
mod past;
mod plot;
mod policy;
mod processes;
mod ps;
mod record;
mod refused;
mod rm;
mod run;
mod set;
mod setup;
mod shared;
mod sim;
mod slice;
mod spark;
mod suspend;
mod svg;
mod table;
mod text;
mod top;
mod trust;
mod wall_time;
mod web;
mod why;

use clap::{CommandFactory, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "gpuslice",
    version,
    about = "Slice NVIDIA GPUs: hard memory caps and shares of GPU time"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command in a slice, without a container runtime
    Run(run::Options),
    /// List the slices of this node
    Ps(ps::Options),
    /// Explain why a slice is slow, and name the command that helps
    Explain(explain::Options),
    /// Show what happened lately: slices, refusals, overruns, changes
    Events(events::Options),
    /// List the GPUs of this node: memory, use, policy
    Gpus(gpus::Options),
    /// Show this node's GPUs as kubectl inspect cgpu does
    Inspect(inspect::Options),
    /// Watch slices and GPUs, and change slices
    Top(top::Options),
    /// Show the last ten minutes: lines, a picture or a table
    Plot(plot::Options),
    /// Record turns for some seconds: sums, a picture or a trace for Perfetto
    Record(record::Options),
    /// Show the node in a browser, read-only
    Web(web::Options),
    /// Remove leftover slices
    Rm(rm::Options),
    /// Change a running slice's caps, weight, share, limit or priority
    Set(set::Options),
    /// Move a container's GPU memory to the host; its processes wait until it is resumed
    Suspend(suspend::Options),
    /// Move a suspended container's memory back to the GPU
    Resume(suspend::Options),
    /// Show or change the scheduling policy of a GPU
    Policy(policy::Options),
    /// Check this node and suggest fixes
    Doctor(doctor::Options),
    /// Print or serve Prometheus metrics
    Metrics(metrics::Options),
    /// Configure a container engine for gpuslice, or undo it
    Setup(setup::Options),
    /// Generate Container Device Interface (CDI) devices for slices
    Cdi(cdi::Options),
    /// Run three tenants on one GPU and check their shares and caps
    Demo(demo::Options),
    /// Create or remove a simulated GPU
    Sim(sim::Options),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Manual(manual::Options),
}

/// Runs the command that the program's arguments name.
pub fn main() -> std::process::ExitCode {
    // A shell that completes a word gets its answer, and nothing else is done.
    let shell = clap_complete::CompleteEnv::with_factory(Cli::command);
    shell.var(complete::VARIABLE).completer("gpuslice").complete();
    let result = match Cli::parse().command {
        Command::Run(options) => run::main(&options),
        Command::Ps(options) => ps::main(&options),
        Command::Explain(options) => explain::main(&options),
        Command::Events(options) => events::main(&options),
        Command::Gpus(options) => gpus::main(&options),
        Command::Inspect(options) => inspect::main(&options),
        Command::Top(options) => top::main(&options),
        Command::Plot(options) => plot::main(&options),
        Command::Record(options) => record::main(&options),
        Command::Web(options) => web::main(&options),
        Command::Rm(options) => rm::main(&options),
        Command::Set(options) => set::main(&options),
        Command::Suspend(options) => suspend::main(&options),
        Command::Resume(options) => suspend::resume(&options),
        Command::Policy(options) => policy::main(&options),
        Command::Doctor(options) => doctor::main(&options),
        Command::Metrics(options) => metrics::main(&options),
        Command::Setup(options) => setup::main(&options),
        Command::Cdi(options) => cdi::main(&options),
        Command::Demo(options) => demo::main(&options),
        Command::Sim(options) => sim::main(&options),
        Command::Manual(options) => manual::main(Cli::command(), &options),
    };
    result.unwrap_or_else(|error| {
        out::note(&format!("{error:#}"));
        std::process::ExitCode::FAILURE
    })
}
