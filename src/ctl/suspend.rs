//! `gpuslice suspend` and `gpuslice resume`: move a container's GPU memory to the host, and back.
//!
//! The driver moves the memory of whole processes (release 570 and later). Their programs do not notice: calls to the
//! driver wait until the container is resumed. Its cap stays promised to it.

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::refused::reworded;
use crate::rm::find;
use crate::table::View;
use anyhow::{Context, Result};
use gpuslice_wire::admin::Command;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::Bytes;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of both commands.
#[derive(clap::Args)]
pub struct Options {
    /// Id, id prefix, or name as shown by `gpuslice ps`
    #[arg(value_name = "CONTAINER", add = crate::complete::slices())]
    container: String,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Runs `gpuslice suspend`.
///
/// # Errors
/// No daemon answers; no slice matches, or several do; the driver refuses, or the host has no room.
pub fn main(options: &Options) -> Result<ExitCode> {
    let (name, memory) = ask(options, |container| Command::Suspend { container })?;
    out::line(&format!("{name}: suspended, {memory} of the GPU are free for others"))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `gpuslice resume`.
///
/// # Errors
/// No daemon answers; no slice matches, or several do; it is not suspended, or the GPU has no room.
pub fn resume(options: &Options) -> Result<ExitCode> {
    let (name, memory) = ask(options, |container| Command::Resume { container })?;
    out::line(&format!("{name}: resumed, with {memory} on the GPU"))?;
    Ok(ExitCode::SUCCESS)
}

/// Sends a command for the container that the options name; returns its name and its memory.
fn ask(options: &Options, command: impl Fn(ContainerId) -> Command) -> Result<(String, Bytes)> {
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = Admin::connect(&dir)?;
    let view = View::of(admin.list()?);
    let id = find(&view, &options.container, &dir)?;
    let container = ContainerId::new(&id).context(id.clone())?;
    // A move takes as long as its bytes; the daemon bounds it.
    admin.wait_for_long()?;
    admin
        .ask(&command(container))
        .map_err(|why| reworded(&why, (&id, &options.container), options.runtime_dir.as_deref()))?;
    let rows = view.rows.iter().filter(|row| row.container == id);
    let memory = rows.fold(Bytes::ZERO, |sum, row| sum.saturating_add(row.reserved));
    Ok((view.name(&id), memory))
}
