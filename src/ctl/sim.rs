//! `gpuslice sim`: creates, describes and removes simulated GPUs.

use crate::out;
use anyhow::{Context, Result};
use clap::Subcommand;
use gpuslice_sim_device as device;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;

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
        /// Configuration as in GPUSLICE_SIM, e.g. devices=2,mem=16GiB [default: that of GPUSLICE_SIM]
        #[arg(long)]
        config: Option<String>,
    },
    /// Let NVML list a client of an MPS server on GPUs of a device, as if one had started or ended
    Mps {
        /// Directory of the device
        dir: PathBuf,
        /// The GPUs with such a client from now on: none, or numbers joined by +
        #[arg(value_parser = gpus)]
        gpus: u32,
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
            let config = chosen(config.as_deref(), self::config)?;
            device::create(dir, &config)?;
            out::line(&variable(dir)?)?;
        }
        Action::Mps { dir, gpus } => device::set_mps(dir, *gpus)?,
        Action::Remove { dir } => device::destroy(dir)?,
        Action::Libraries => out::line(&crate::node::part("sim")?.display().to_string())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The variable by which programs find a device, also those that run in other directories.
fn variable(dir: &Path) -> Result<String> {
    let dir = std::path::absolute(dir)?;
    Ok(format!("GPUSLICE_SIM_DEVICE={}", dir.display()))
}

/// The bits of GPUs.
fn gpus(text: &str) -> Result<u32, &'static str> {
    device::numbers(text).ok_or("expected none, or numbers joined by +, such as 0+2")
}

/// The profile of the simulated GPU that `GPUSLICE_SIM` describes.
///
/// # Errors
/// `GPUSLICE_SIM` is malformed.
pub fn profile() -> Result<&'static str> {
    Ok(if config()?.strict { "strict" } else { "kind" })
}

/// The configuration of a device to create: the one given, else that of the environment.
fn chosen(
    given: Option<&str>,
    environment: impl Fn() -> Result<device::Config>,
) -> Result<device::Config> {
    given.map_or_else(environment, |text| device::Config::parse(text).context("--config"))
}

fn config() -> Result<device::Config> {
    let config = std::env::var("GPUSLICE_SIM").unwrap_or_default();
    device::Config::parse(&config).context("GPUSLICE_SIM")
}

/// A simulated GPU for one daemon, in memory, removed when dropped.
///
/// Processes make a device that they do not find. One that starts late, as a child of a daemon that was killed, would
/// make this one again after its removal. So the device is a directory in a directory of its own, and to open a device
/// makes no directory above it.
pub struct PrivateDevice {
    /// What the removal removes.
    outer: TempDir,
}

/// The device's directory in that.
const DEVICE: &str = "device";

impl PrivateDevice {
    /// A device as `GPUSLICE_SIM` describes it.
    ///
    /// # Errors
    /// `GPUSLICE_SIM` is malformed, or `/dev/shm` is full.
    pub fn new() -> Result<PrivateDevice> {
        let config = config()?;
        let outer = tempfile::Builder::new()
            .prefix(&format!("gpuslice-sim-{}-", std::process::id()))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in("/dev/shm")
            .context("a simulated GPU in /dev/shm")?;
        device::create(&outer.path().join(DEVICE), &config)?;
        Ok(PrivateDevice { outer })
    }

    /// The device, for `GPUSLICE_SIM_DEVICE`.
    pub fn path(&self) -> PathBuf {
        self.outer.path().join(DEVICE)
    }

    /// The directory to remove.
    pub fn outer(&self) -> &Path {
        self.outer.path()
    }

    /// Leaves the removal to the daemon.
    pub fn keep(self) {
        let _removed_by_the_daemon = self.outer.keep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_as_the_environment_describes_it_unless_one_is_given() {
        let environment = || device::Config::parse("profile=strict").context("a profile");
        let is_strict = |given| chosen(given, environment).is_ok_and(|it| it.strict);
        assert!(is_strict(None) && !is_strict(Some("")) && !is_strict(Some("profile=kind")));
    }

    #[test]
    fn a_relative_directory_is_told_as_an_absolute_one() {
        let told = |dir: &str| variable(Path::new(dir)).expect("a current directory");
        let here = std::env::current_dir().expect("a current directory");
        assert_eq!(told("dev"), format!("GPUSLICE_SIM_DEVICE={}/dev", here.display()));
        assert_eq!(told("/dev/shm/x"), "GPUSLICE_SIM_DEVICE=/dev/shm/x");
    }

    /// A child of a killed daemon opens the device after its removal.
    #[test]
    fn a_removed_device_is_not_made_again() {
        let device = PrivateDevice::new().expect("a device");
        let (path, outer) = (device.path(), device.outer().to_owned());
        assert!(device::prepare(&path).is_ok(), "while it is there");
        drop(device);
        let why = device::prepare(&path).expect_err("it is gone").to_string();
        assert!(why.contains(&path.display().to_string()), "{why}");
        assert!(!outer.exists(), "{} is back", outer.display());
    }
}
