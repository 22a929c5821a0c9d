//! `gpuslice sim`: creates, describes and removes simulated GPUs.

use crate::out;
use anyhow::{Context, Result};
use clap::Subcommand;
use gpuslice_sim_device as device;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `gpuslice sim`.
#[derive(clap::Args)]
#[command(after_help = device::describe())]
pub struct Options {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create a device directory; programs find it through GPUSLICE_SIM_DEVICE=DIR
    Create {
        /// Directory to create; must not exist
        dir: PathBuf,
        /// Configuration as in GPUSLICE_SIM, e.g. devices=2,mem=16GiB
        #[arg(long, default_value = "")]
        config: String,
    },
    /// Remove a device directory that no process uses
    Remove {
        /// Directory to remove
        dir: PathBuf,
    },
    /// Print the directory of the simulated driver's libraries
    Libraries,
}

/// Runs `gpuslice sim`.
///
/// # Errors
/// The configuration is malformed, or the directory cannot be created or removed.
pub fn main(options: &Options) -> Result<ExitCode> {
    match &options.command {
        Action::Create { dir, config } => {
            let config = device::Config::parse(config).context("--config")?;
            device::create(dir, &config)?;
            out::line(&format!("GPUSLICE_SIM_DEVICE={}", dir.display()))?;
        }
        Action::Remove { dir } => device::destroy(dir)?,
        Action::Libraries => out::line(&crate::node::part("sim")?.display().to_string())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The profile of the simulated GPU that `GPUSLICE_SIM` describes.
///
/// # Errors
/// `GPUSLICE_SIM` is malformed.
pub fn profile() -> Result<&'static str> {
    Ok(if config()?.strict { "strict" } else { "kind" })
}

fn config() -> Result<device::Config> {
    let config = std::env::var("GPUSLICE_SIM").unwrap_or_default();
    device::Config::parse(&config).context("GPUSLICE_SIM")
}

/// A private simulated GPU as described by `GPUSLICE_SIM`, in memory, removed when dropped.
///
/// # Errors
/// `GPUSLICE_SIM` is malformed, or `/dev/shm` is full.
pub fn private_device() -> Result<tempfile::TempDir> {
    let config = config()?;
    let dir = tempfile::Builder::new()
        .prefix(&format!("gpuslice-sim-{}-", std::process::id()))
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in("/dev/shm")
        .context("a simulated GPU in /dev/shm")?;
    device::create(dir.path(), &config)?;
    Ok(dir)
}
