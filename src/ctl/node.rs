//! Where things are on this node, and a daemon of one's own where none runs.

use crate::admin::Admin;
use anyhow::{Context, Result, bail};
use gpuslice_host::layout;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
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

/// Which driver a command is to use.
#[derive(clap::Args)]
pub struct DriverOptions {
    /// Directory with the libcuda.so.1 and libnvidia-ml.so.1 to use [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub driver_dir: Option<PathBuf>,
    /// Simulate a GPU, as GPUSLICE_SIM says (gpuslice sim --help); nothing is computed on it
    #[arg(long, conflicts_with = "driver_dir")]
    pub sim: bool,
}

impl DriverOptions {
    /// Whether one is named.
    pub fn is_some(&self) -> bool {
        self.sim || self.driver_dir.is_some()
    }

    /// The directory of the driver to use, and whether it is the simulated GPU's: the one asked for, else
    /// the system's.
    ///
    /// # Errors
    /// The directory asked for has no `libcuda.so.1`; none is, and the system's driver does not work.
    pub fn find(&self) -> Result<(PathBuf, bool)> {
        match &self.driver_dir {
            Some(dir) => named_driver(dir),
            None if self.sim => Ok((part("sim")?, true)),
            None => match layout::system_driver() {
                Ok(dir) => Ok((dir, false)),
                Err(why) => bail!(
                    "{why}; or give --sim for a simulated GPU, or --driver-dir for another driver"
                ),
            },
        }
    }
}

fn named_driver(dir: &Path) -> Result<(PathBuf, bool)> {
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

/// A daemon's process that we started.
pub struct Process {
    child: Child,
    /// What it says; without a name, so that it is gone with the last of us.
    log: File,
}

impl Process {
    /// Starts a daemon that ends with the last command that uses it. `device` is as below.
    ///
    /// # Errors
    /// What the system says.
    pub fn while_used(driver: &Path, dir: &Path, device: Option<&Path>) -> Result<Process> {
        let mut command = daemon(driver, dir, device, None)?;
        command.arg("--while-used");
        // It outlives us and our terminal if another command uses it.
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
        Process::start(command)
    }

    fn start(mut command: Command) -> Result<Process> {
        // In memory: a full disk is one of the things it may have to tell of.
        let log = memfd_create(c"gpusliced's log", MFdFlags::MFD_CLOEXEC)?;
        let log = File::from(log);
        command.stderr(log.try_clone()?);
        let child = command.spawn().context("starting gpusliced")?;
        Ok(Process { child, log })
    }

    /// Its number.
    pub fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }

    /// Its exit status, once it has ended.
    ///
    /// # Errors
    /// What the system says.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// What the daemon wrote to its log.
    pub fn log(&self) -> String {
        read_from_start(&self.log)
    }
}

/// The command that starts a daemon. `device` is the simulated GPU's directory, if it is the
/// simulated one; `work` another directory of ours. The daemon removes both at its end.
fn daemon(
    driver: &Path,
    dir: &Path,
    device: Option<&Path>,
    work: Option<&Path>,
) -> Result<Command> {
    let mut command = Command::new(part("gpusliced")?);
    command.arg("--runtime-dir").arg(dir);
    command.arg("--driver-dir").arg(driver);
    command.arg("--ephemeral");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    if let Some(device) = device {
        command.env("GPUSLICE_SIM_DEVICE", device);
    }
    for ours in device.iter().chain(&work) {
        command.arg("--remove").arg(ours);
    }
    Ok(command)
}

/// A daemon started for one command; ends with it.
pub struct PrivateDaemon {
    process: Process,
    /// Its runtime directory, removed at the end.
    pub dir: tempfile::TempDir,
}

impl PrivateDaemon {
    /// Starts one and waits until it answers. `device` is the simulated GPU's directory, if it is
    /// the simulated one; `work` another directory of ours. Both are removed also if we are killed.
    ///
    /// # Errors
    /// It ended or stays silent; what it wrote is in the error.
    pub fn start(
        driver: &Path,
        device: Option<&Path>,
        work: Option<&Path>,
    ) -> Result<PrivateDaemon> {
        let dir = temporary("gpuslice-")?;
        let mut command = daemon(driver, dir.path(), device, work)?;
        // What a person types at the terminal is for the command, not for its daemon.
        command.process_group(0);
        end_with_us(&mut command);
        let process = Process::start(command)?;
        let mut daemon = PrivateDaemon { process, dir };
        let until = Instant::now() + START;
        while Admin::connect(daemon.dir.path()).is_err() {
            let ended = daemon.process.ended()?;
            if ended.is_some() || Instant::now() > until {
                let said = daemon.log();
                let ended = ended.map_or("no answer".to_owned(), |status| status.to_string());
                bail!(
                    "the private gpusliced did not start ({ended}): {}",
                    said.trim()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// What the daemon wrote to its log.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

fn read_from_start(file: &File) -> String {
    let (mut said, mut place) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = file.read_at(&mut place, said.len() as u64) {
        said.extend_from_slice(&place[..read]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// The kernel asks a private daemon to end when we are gone, even killed; it then removes what is
/// ours too.
fn end_with_us(command: &mut Command) {
    let us = nix::unistd::getpid();
    // SAFETY: only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            // Gone before the kernel was told.
            match nix::unistd::getppid() == us {
                true => Ok(()),
                false => Err(Errno::ESRCH.into()),
            }
        });
    }
}

/// A directory of one's own, gone when dropped.
///
/// # Errors
/// There is no place for temporary files.
pub fn temporary(prefix: &str) -> Result<tempfile::TempDir> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir();
    made.context("a temporary directory; set TMPDIR to a directory that can be written")
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        let pid = self.process.id();
        // SIGTERM lets it remove its sockets; a daemon that does not end is killed.
        let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if matches!(self.process.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }
}
