//! `gpuslice suspend` and `gpuslice resume`: move a container's GPU memory to the host, and back.
//!
//! The driver moves the memory of whole processes (release 570 and later). Their programs do not notice: calls to the
//! driver wait until the container is resumed. Its cap stays promised to it.

use crate::admin::{Admin, Closed};
use crate::node;
use crate::out;
use crate::refused::reworded;
use crate::rm::find;
use crate::table::{Row, View};
use anyhow::{Context, Result, anyhow};
use gpuslice_wire::admin::Command;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::Bytes;
use std::path::PathBuf;
use std::process::ExitCode;

/// What a command says of a connection that was lost.
const CUT_SHORT: &str = "the daemon ended before the move did; the next daemon repeats a move that had begun, \
     and gpuslice ps shows whether the container is suspended";

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
    let (slice, admin) = ask(options, |container| Command::Suspend { container })?;
    let now = View::of(admin.list()?);
    let rows = || now.rows.iter().filter(|row| row.container == slice.id);
    let sum = |of: &dyn Fn(&Row) -> Bytes| rows().map(of).fold(Bytes::ZERO, Bytes::saturating_add);
    let (moved, left) = (sum(&|row| now.on_host(row)), sum(&|row| row.untracked));
    let left = match left {
        Bytes::ZERO => String::new(),
        left => format!("; {left} of it may still be on the GPU"),
    };
    out::line(&format!("{}: suspended, {moved} of the GPU are free for others{left}", slice.name))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `gpuslice resume`.
///
/// # Errors
/// No daemon answers; no slice matches, or several do; it is not suspended, or the GPU has no room.
pub fn resume(options: &Options) -> Result<ExitCode> {
    let (slice, _) = ask(options, |container| Command::Resume { container })?;
    out::line(&format!("{}: resumed, with {} on the GPU", slice.name, slice.memory))?;
    Ok(ExitCode::SUCCESS)
}

/// The container of a command, with its memory before that.
struct Asked {
    id: String,
    name: String,
    memory: Bytes,
}

/// Sends a command for the container that the options name.
fn ask(options: &Options, command: impl Fn(ContainerId) -> Command) -> Result<(Asked, Admin)> {
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = Admin::connect(&dir)?;
    let view = View::of(admin.list()?);
    let id = find(&view, &options.container, &dir)?;
    let container = ContainerId::new(&id).context(id.clone())?;
    // A move takes as long as its bytes; the daemon bounds it.
    admin.wait_for_long()?;
    admin.ask(&command(container)).map_err(|why| {
        let why = if why.is::<Closed>() { anyhow!(CUT_SHORT) } else { why };
        reworded(&why, (&id, &options.container), options.runtime_dir.as_deref())
    })?;
    let rows = view.rows.iter().filter(|row| row.container == id);
    let memory = rows.fold(Bytes::ZERO, |sum, row| sum.saturating_add(row.reserved));
    Ok((Asked { name: view.name(&id), id, memory }, admin))
}
