//! Where things are on this node, and a daemon of one's own where none runs.

use crate::admin::Admin;
use crate::layout;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a private daemon may take to answer.
const START: Duration = Duration::from_secs(10);

/// The runtime directory to ask at: the one given, else this user's.
pub fn runtime_dir(given: Option<&Path>) -> PathBuf {
    given.map_or_else(layout::runtime_dir, Path::to_owned)
}

/// A program or library that was built or installed together with this one.
///
/// # Errors
/// It is in none of the places where it could be.
pub fn part(name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().context("where this program is")?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    layout::part(beside, name).with_context(|| {
        format!(
            "{name} is not installed with {}; run make build",
            exe.display()
        )
    })
}

/// The directory of the driver to use, and whether it is the simulated GPU's: the one asked for,
/// else the system's if this machine has a GPU, else the simulated one.
///
/// # Errors
/// The directory asked for has no `libcuda.so.1`.
pub fn driver_dir(given: Option<&Path>) -> Result<(PathBuf, bool)> {
    let Some(dir) = given else {
        let system = layout::system_driver().map(|dir| (dir, false));
        return system.map_or_else(|| part("sim").map(|dir| (dir, true)), Ok);
    };
    let dir = dir
        .canonicalize()
        .with_context(|| format!("--driver-dir {}", dir.display()))?;
    let library = dir.join("libcuda.so.1");
    if !library.exists() {
        bail!("--driver-dir {} has no libcuda.so.1", dir.display());
    }
    let simulated = layout::is_simulated(&library);
    Ok((dir, simulated))
}

/// A daemon started for one command; ends with it.
pub struct PrivateDaemon {
    child: Child,
    /// Its runtime directory, removed at the end.
    pub dir: tempfile::TempDir,
}

impl PrivateDaemon {
    /// Starts one and waits until it answers. `device` is the simulated GPU's directory, if it is
    /// the simulated one.
    ///
    /// # Errors
    /// It ended or stays silent; what it wrote is in the error.
    pub fn start(driver: &Path, device: Option<&Path>) -> Result<PrivateDaemon> {
        let dir = tempfile::Builder::new().prefix("gpuslice-").tempdir()?;
        let log = dir.path().join("log");
        let mut command = Command::new(part("gpusliced")?);
        command
            .arg("--runtime-dir")
            .arg(dir.path())
            .arg("--driver-dir")
            .arg(driver);
        command
            .arg("--ephemeral")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(std::fs::File::create(&log)?);
        if let Some(device) = device {
            command.env("GPUSLICE_SIM_DEVICE", device);
        }
        let child = command.spawn().context("starting gpusliced")?;
        let mut daemon = PrivateDaemon { child, dir };
        let until = Instant::now() + START;
        while Admin::connect(daemon.dir.path()).is_err() {
            let ended = daemon.child.try_wait()?;
            if ended.is_some() || Instant::now() > until {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("the private gpusliced did not start: {}", said.trim());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// What the daemon wrote to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        // SIGTERM lets it remove its sockets; a daemon that does not end is killed.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
