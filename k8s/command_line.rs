//! The program's names and commands.
//!
//! kubectl finds its plugins by file name, so the program does what its own name says: as `kubectl-inspect-cgpu` or
//! `kubectl-inspect-gpushare` it is `gpuslice-k8s inspect`.

use crate::{agent, extender, inspect, webhook};
use anyhow::Context;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;

/// Share a node's GPUs among the pods of a cluster
#[derive(Debug, Parser)]
#[command(name = "gpuslice-k8s", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Offer this node's GPUs to the cluster
    Agent(agent::Options),
    /// Serve the scheduler extender of gpushare
    Extender(extender::Options),
    /// Serve the admission webhook that turns limits into claims
    Webhook(webhook::Options),
    /// Show the cluster's shared GPUs and what pods have of them
    Inspect(inspect::Options),
}

/// Runs the command that the program's name or its arguments tell.
pub fn main() -> ExitCode {
    match run(&parse(std::env::args_os().collect()).command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpuslice-k8s: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Exits with a help text or an error if the arguments are for neither program.
fn parse(arguments: Vec<OsString>) -> Cli {
    let name = arguments.first().and_then(|it| Path::new(it).file_name()?.to_str());
    match name.is_some_and(|name| name.starts_with("kubectl-inspect")) {
        true => Cli { command: Command::Inspect(inspect::Options::parse_from(arguments)) },
        false => Cli::parse_from(arguments),
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Agent(options) => {
            if serve(agent::run(options))? == agent::Ended::Relabelled {
                begin_anew()?;
            }
        }
        Command::Extender(options) => serve(extender::run(options))?,
        Command::Webhook(options) => serve(webhook::run(options))?,
        Command::Inspect(options) => {
            let text = inspect::run(options)?;
            std::io::stdout().write_all(text.as_bytes())?;
        }
    }
    Ok(())
}

/// Runs a service on one thread: its callers ask one question at a time.
fn serve<T>(service: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(service);
    // A thread that waits for the daemon must not keep the process.
    runtime.shutdown_background();
    ended
}

/// Replaces this process by a new one of the same program with the same arguments. Its sockets close.
fn begin_anew() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os();
    let mut program = std::process::Command::new("/proc/self/exe");
    program.arg0(arguments.next().unwrap_or_default()).args(arguments);
    Err(program.exec()).context("beginning anew for the node's new labels")
}
