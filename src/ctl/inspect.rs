//! `gpuslice inspect`: the node's GPUs in the tables of `kubectl inspect cgpu`.
//!
//! The tables are gpuslice-k8s's, which prints them for a whole cluster too. So this command becomes that program,
//! and only tells it to ask the daemon of this machine.

use crate::admin::{Admin, Forbidden};
use crate::node;
use anyhow::{Context, Result};
use gpuslice_host::layout::NODE_SOCKET;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Options of `gpuslice inspect`.
#[derive(clap::Args)]
pub struct Options {
    /// List the pods and slices
    #[arg(short, long)]
    details: bool,
    /// Form of the output: table, wide (cores, claims, memory in use) or json
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    output: String,
    /// Memory of one unit: GiB, MiB or a size
    #[arg(long, value_name = "UNIT", default_value = "GiB")]
    memory_unit: String,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Runs `gpuslice inspect`.
///
/// # Errors
/// No daemon is there that this user trusts, or gpuslice-k8s is not installed.
pub fn main(options: &Options) -> Result<ExitCode> {
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    // gpuslice-k8s believes whichever process listens there. It tells of `node_group` where this user may not ask.
    match Admin::connect_to(&dir, NODE_SOCKET) {
        Err(why) if !why.is::<Forbidden>() => return Err(why),
        _ => {}
    }
    let program = node::part("gpuslice-k8s")?;
    let mut command = Command::new(&program);
    command.args(["inspect", "--local", "--output", &options.output]);
    command.args(["--memory-unit", &options.memory_unit]);
    if options.details {
        command.arg("--details");
    }
    command.arg("--node-socket").arg(dir.join(NODE_SOCKET));
    Err(command.exec()).with_context(|| program.display().to_string())
}
