//! `gpuslice run`: a command in a slice, without a container runtime.

use crate::admin::Admin;
use crate::background;
use crate::cgroup::OwnCgroup;
use crate::child;
use crate::inject::{Injection, inject};
use crate::node::{self, DriverOptions};
use crate::out;
use crate::shared::Shared;
use crate::slice::SliceOptions;
use crate::table::View;
use crate::trust::Untrusted;
use anyhow::{Context, Result, bail};
use gpuslice_host::clock::since_boot;
use gpuslice_wire::admin::Answer;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Options of `gpuslice run`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    slice: SliceOptions,
    #[command(flatten)]
    driver: DriverOptions,
    /// Runtime directory of a running daemon, which has its own driver: not with --sim or --driver-dir [default: this
    /// user's daemon, else a private one]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["driver_dir", "sim"])]
    runtime_dir: Option<PathBuf>,
    /// Injection method of the shim
    #[arg(long, value_enum, value_name = "METHOD", default_value = "auto")]
    inject: Injection,
    /// Print nothing about slice, injection and driver
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The daemon to use: the node's, or a private one that this user's commands share.
pub struct Host {
    /// Dropped before the connection.
    _shared: Option<Shared>,
    /// The connection.
    pub admin: Admin,
    /// Describes the daemon, for messages.
    pub words: String,
}

impl Host {
    /// Finds the daemon: the one at `runtime_dir` if given; else this user's if it answers and no other
    /// driver is requested; else a private one.
    ///
    /// # Errors
    /// The named daemon does not answer, there is no driver, or the private daemon does not start.
    pub fn find(runtime_dir: Option<&Path>, driver: &DriverOptions) -> Result<Host> {
        let dir = node::runtime_dir(runtime_dir);
        let words = format!("daemon at {}", dir.display());
        match Admin::connect(&dir) {
            Ok(admin) if runtime_dir.is_some() || !driver.is_some() => {
                Ok(Host { _shared: None, admin, words })
            }
            Err(error) if runtime_dir.is_some() => Err(error),
            Err(error) if error.is::<Untrusted>() => {
                out::note(&format!("not using the daemon: {error:#}"));
                Host::private(driver)
            }
            _ => Host::private(driver),
        }
    }

    fn private(driver: &DriverOptions) -> Result<Host> {
        let (driver, simulated) = driver.find()?;
        let (shared, admin) = Shared::join(&driver, simulated)?;
        let what = if simulated { "simulated GPU" } else { "driver" };
        let words =
            format!("private daemon at {}, {what} of {}", shared.dir().display(), driver.display());
        Ok(Host { _shared: Some(shared), admin, words })
    }
}

/// Removes the slice when dropped, however the command ended.
struct Admitted<'a> {
    admin: &'a Admin,
    container: ContainerId,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.admin.dismiss(self.container) {
            out::note(&format!("removing slice {}: {error:#}", self.container));
        }
    }
}

/// Runs the command and returns its exit status: 128 + signal if a signal ended it, 127 or 126 if it could not be
/// started.
///
/// # Errors
/// The slice was refused.
pub fn main(options: &Options) -> Result<ExitCode> {
    if let Some(wrong) = options.slice.wrong() {
        out::note(&wrong);
        return Ok(ExitCode::from(out::WRONG_WORDS));
    }
    child::catch_signals()?;
    let id = unique_id();
    // Rejects a malformed request before anything is created for it.
    options.slice.admit(&id, 0)?;
    let host = Host::find(options.runtime_dir.as_deref(), &options.driver)?;
    // A private daemon, started above, stays outside of the group.
    let cgroup = OwnCgroup::enter(&id);
    let admit = options.slice.admit(&id, cgroup.pid())?;
    if let Some(code) = child::interrupted() {
        return Ok(code);
    }
    let answer = host.admin.ask(&admit).context("no slice")?;
    let slice = Admitted { admin: &host.admin, container: ContainerId::new(&id)? };
    let Answer::Admitted { mounts } = answer else {
        bail!("unexpected answer from the daemon; check that it has the same version")
    };
    let Some((program, arguments)) = options.command.split_first() else { bail!("no command") };
    let mut command = Command::new(program);
    command.args(arguments);
    let gpus = gpus(&host.admin, &id)?;
    let visible: Vec<String> = gpus.iter().map(GpuUuid::to_string).collect();
    command.env("CUDA_VISIBLE_DEVICES", visible.join(","));
    let (method, _injected) = inject(&mut command, &mounts, options.inject)?;
    if !options.quiet {
        let profile = gpus.iter().find_map(|gpu| gpu.profile());
        let simulated =
            profile.map_or(String::new(), |it| format!(" (simulated GPU, profile {it})"));
        out::note(&format!(
            "{} on {}{simulated}; injection: {method}; {}",
            options.slice.told(),
            options.slice.gpus,
            host.words
        ));
    }
    match child::status(&mut command) {
        Ok(code) => {
            background::wait(&host.admin, slice.container);
            Ok(code)
        }
        Err(why) => {
            out::note(&format!("{}: {why:#}", program.to_string_lossy()));
            Ok(not_started(&program.to_string_lossy(), &why))
        }
    }
}

/// The exit status of a command that could not be started, as a shell has it: 127 if there is no such program,
/// else 126. With a directory in PATH that this user may not search, the system refuses permission instead.
fn not_started(program: &str, why: &anyhow::Error) -> ExitCode {
    let absent = |why: &std::io::Error| why.kind() == std::io::ErrorKind::NotFound;
    let by_path = !program.contains('/') && !node::is_in_path(program);
    match by_path || why.downcast_ref().is_some_and(absent) {
        true => ExitCode::from(127),
        false => ExitCode::from(126),
    }
}

/// The slice's GPUs, which CUDA numbers from 0; the node's other GPUs stay hidden.
fn gpus(admin: &Admin, container: &str) -> Result<Vec<GpuUuid>> {
    let view = View::of(admin.list()?);
    let ours = view.rows.iter().filter(|row| row.container == container);
    Ok(ours.map(|row| row.gpu).collect())
}

/// A unique id, also among earlier commands: the slice of a killed one may still exist.
fn unique_id() -> String {
    let ms = since_boot().0 / 1_000_000;
    format!("run-{}-{ms:x}", std::process::id())
}
