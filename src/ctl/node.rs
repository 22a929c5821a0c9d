//! Paths of this node's parts, and a private daemon where none runs.

use crate::admin::Admin;
use crate::out;
use crate::sim::PrivateDevice;
use anyhow::{Context, Error, Result, anyhow, bail};
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

/// How long a command waits for a private daemon's first answer: the unit's `TimeoutStartSec`, for the same reason. A
/// driver without nvidia-persistenced needs half a minute to start on a machine with many GPUs.
const START_MAX: Duration = Duration::from_secs(180);
/// The command tells the user of a longer wait.
const TOLD_AFTER: Duration = Duration::from_secs(10);
/// Interval between two looks at a private daemon that starts or ends.
pub const PAUSE: Duration = Duration::from_millis(5);

/// The runtime directory: the one given, else this user's.
pub fn runtime_dir(given: Option<&Path>) -> PathBuf {
    given.map_or_else(layout::runtime_dir, Path::to_owned)
}

/// Finds a program or library that was built or installed together with this one.
///
/// # Errors
/// It is in none of the installation's directories.
pub fn part(name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find this program's own path")?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    layout::part(beside, name)
        .with_context(|| format!("{name} is not installed with {}; run make build", exe.display()))
}

/// Whether the user can call a program by its name alone.
pub fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

/// Options that choose the driver.
#[derive(clap::Args)]
pub struct DriverOptions {
    /// Directory of libcuda.so.1 and libnvidia-ml.so.1 [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub driver_dir: Option<PathBuf>,
    /// Simulate a GPU configured by GPUSLICE_SIM (see gpuslice sim --help); it computes nothing
    #[arg(long, conflicts_with = "driver_dir")]
    pub sim: bool,
}

impl DriverOptions {
    /// Whether an option is given.
    pub fn is_some(&self) -> bool {
        self.sim || self.driver_dir.is_some()
    }

    /// The driver's directory, and whether it is the simulated GPU's: the requested one, else the
    /// system's.
    ///
    /// # Errors
    /// The requested directory has no `libcuda.so.1`, or the system's driver does not work.
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
    let dir = dir.canonicalize().with_context(|| format!("--driver-dir {}", dir.display()))?;
    let library = dir.join("libcuda.so.1");
    if !library.exists() {
        bail!("--driver-dir {} has no libcuda.so.1", dir.display());
    }
    let simulated = layout::is_simulated(&library);
    Ok((dir, simulated))
}

/// A daemon process started by this command.
pub struct Process {
    child: Child,
    /// Its log, an unnamed file that disappears with the last process that has it open.
    log: File,
}

impl Process {
    /// Starts a daemon that ends with the last command that uses it. `device` is as below.
    ///
    /// # Errors
    /// The daemon cannot be started.
    pub fn while_used(
        driver: &Path,
        dir: &Path,
        device: Option<&PrivateDevice>,
    ) -> Result<Process> {
        let mut command = daemon(driver, dir, device, None)?;
        command.arg("--while-used");
        // It outlives this command and its terminal if another command uses it.
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
        Process::start(command)
    }

    fn start(mut command: Command) -> Result<Process> {
        // In memory, because a full disk may be the error to report.
        let log = memfd_create(c"gpusliced's log", MFdFlags::MFD_CLOEXEC)?;
        let log = File::from(log);
        command.stderr(log.try_clone()?);
        let child = command.spawn().context("starting gpusliced")?;
        Ok(Process { child, log })
    }

    /// Its pid.
    pub fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Kills it.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }

    /// Its exit status, once it has ended.
    ///
    /// # Errors
    /// The wait fails.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The daemon's log.
    pub fn log(&self) -> String {
        read_from_start(&self.log)
    }

    /// The error of a command whose daemon has ended, or has not answered in time, with the daemon's log.
    pub fn failed_to_start(&self, ended: Option<ExitStatus>) -> Error {
        let how = ended.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        match self.log().trim() {
            "" => anyhow!("the private gpusliced did not start ({how}), and has logged nothing"),
            said => anyhow!("the private gpusliced did not start ({how}): {said}"),
        }
    }
}

/// A wait for a private daemon's first answer.
pub struct StartWait {
    begun: Instant,
    told: bool,
}

impl StartWait {
    /// It begins now.
    pub fn begin() -> StartWait {
        StartWait { begun: Instant::now(), told: false }
    }

    /// Pauses before the next attempt. Returns whether the time for another one is left.
    pub fn pause(&mut self) -> bool {
        let passed = self.begun.elapsed();
        if passed > TOLD_AFTER && !self.told {
            self.told = true;
            out::note(&format!(
                "the private gpusliced has not answered for {} s: a driver may take that long to start; waiting for \
                 {} s at most",
                TOLD_AFTER.as_secs(),
                START_MAX.as_secs()
            ));
        }
        std::thread::sleep(PAUSE);
        passed <= START_MAX
    }
}

/// The command that starts a daemon. `device` is its simulated GPU, if any; `work` is another directory of this
/// command. The daemon removes both at its end.
fn daemon(
    driver: &Path,
    dir: &Path,
    device: Option<&PrivateDevice>,
    work: Option<&Path>,
) -> Result<Command> {
    let mut command = Command::new(part("gpusliced")?);
    command.arg("--runtime-dir").arg(dir);
    command.arg("--driver-dir").arg(driver);
    command.arg("--ephemeral");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    if let Some(device) = device {
        command.env("GPUSLICE_SIM_DEVICE", device.path());
    }
    for ours in device.map(PrivateDevice::outer).into_iter().chain(work) {
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
    /// Starts a daemon and waits until it answers. `device` is its simulated GPU, if any; `work` is another
    /// directory of this command. Both are removed even if this command is killed.
    ///
    /// # Errors
    /// It ended or does not answer; the error contains its log.
    pub fn start(
        driver: &Path,
        device: Option<&PrivateDevice>,
        work: Option<&Path>,
    ) -> Result<PrivateDaemon> {
        let dir = temporary("gpuslice-")?;
        let mut command = daemon(driver, dir.path(), device, work)?;
        // Signals from the terminal are for the command, not for its daemon.
        command.process_group(0);
        end_with_us(&mut command);
        let process = Process::start(command)?;
        let mut daemon = PrivateDaemon { process, dir };
        let mut wait = StartWait::begin();
        while Admin::connect(daemon.dir.path()).is_err() {
            let ended = daemon.process.ended()?;
            if ended.is_some() || !wait.pause() {
                return Err(daemon.process.failed_to_start(ended));
            }
        }
        Ok(daemon)
    }

    /// The daemon's log.
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

/// Makes the kernel send a private daemon SIGTERM when this process ends, even if killed; the daemon
/// then removes this process's directories too.
fn end_with_us(command: &mut Command) {
    let us = nix::unistd::getpid();
    // SAFETY: only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            // The parent died before PR_SET_PDEATHSIG took effect.
            match nix::unistd::getppid() == us {
                true => Ok(()),
                false => Err(Errno::ESRCH.into()),
            }
        });
    }
}

/// A private temporary directory, removed when dropped.
///
/// # Errors
/// It cannot be created.
pub fn temporary(prefix: &str) -> Result<tempfile::TempDir> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir();
    made.context("a temporary directory; set TMPDIR to a writable directory")
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        let pid = self.process.id();
        // SIGTERM lets it remove its sockets; a daemon that does not exit is killed.
        let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if matches!(self.process.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }
}
