//! The private daemon of `gpuslice run`, shared by all commands that a user runs at the same time on the
//! same GPUs: their caps add up, and their weights compete.
//!
//! # Problem
//! Commands start and end in any order and can be killed at any moment, the one that started the daemon
//! included. Two of them must never have a daemon each, and the last one must leave nothing behind.
//!
//! # Idea
//! The name of the daemon's runtime directory follows from the user and the driver. A command holds a
//! shared lock (`flock`) on the directory while it runs, and connects to the daemon there. If none answers,
//! it starts one; if two commands do so at once, one daemon finds the directory taken and ends.
//!
//! The daemon ends with its last connection, so a killed command leaves nothing behind. A command that
//! ends by itself tries to get the lock exclusively. If it succeeds, it is the last one: it ends the
//! daemon and waits until its files are removed. A command that starts meanwhile waits for its shared
//! lock, finds the directory gone, and begins again.

use crate::admin::Admin;
use crate::mount_point::is_at;
use crate::node::{PAUSE, Process, StartWait};
use crate::sim::PrivateDevice;
use crate::trust::{self, Untrusted};
use anyhow::{Context, Result, anyhow};
use gpuslice_host::layout::TAKEN;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for the daemon's exit, which may take seconds on a busy machine. Until then its GPUs are given out by no
/// other daemon.
const END: Duration = Duration::from_secs(10);

/// A command's membership in the daemon, released when dropped; drop the connection after it.
pub struct Shared {
    membership: Flock<File>,
    dir: PathBuf,
    daemon: Pid,
}

impl Shared {
    /// Connects to the daemon for this driver; starts one if none answers.
    ///
    /// # Errors
    /// The daemon does not start (the error contains its log), or its directory cannot be used.
    pub fn join(driver: &Path, simulated: bool) -> Result<(Shared, Admin)> {
        let dir = place(driver, simulated);
        let joined = Shared::join_at(&dir, driver, simulated);
        if joined.is_err() {
            remove_unused(&dir);
        }
        joined
    }

    fn join_at(dir: &Path, driver: &Path, simulated: bool) -> Result<(Shared, Admin)> {
        let mut wait = StartWait::begin();
        let mut starting: Option<Starting> = None;
        loop {
            let membership = hold(dir)?;
            if let Some(admin) = answering(dir)?.filter(|_| is_at(&membership, dir)) {
                let daemon = admin.daemon()?;
                if let Some(started) = starting {
                    started.answered(daemon);
                }
                let shared = Shared { membership, dir: dir.to_owned(), daemon };
                return Ok((shared, admin));
            }
            starting = match starting {
                None => Some(Starting::begin(driver, simulated, dir)?),
                Some(begun) => begun.still()?,
            };
            if !wait.pause() {
                return Err(match starting {
                    Some(begun) => begun.process.failed_to_start(None),
                    None => anyhow!(
                        "the private gpusliced at {} does not answer; end it, or set TMPDIR to another directory",
                        dir.display()
                    ),
                });
            }
        }
    }

    /// The daemon's runtime directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn daemon_lives(&self) -> bool {
        // An exited process that is not reaped yet has no executable.
        fs::read_link(format!("/proc/{}/exe", self.daemon)).is_ok()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Fails and releases our lock if others share the daemon.
        let alone = self.membership.relock(FlockArg::LockExclusiveNonblock);
        if alone.is_err() || !is_at(&self.membership, &self.dir) {
            return;
        }
        // Our connection is open, so the pid is still the daemon's.
        let _ = kill(self.daemon, Signal::SIGTERM);
        let until = Instant::now() + END;
        while self.daemon_lives() && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
    }
}

/// A daemon that this command has started and that has not answered yet.
struct Starting {
    process: Process,
    /// Its simulated GPU, which the daemon removes at its end once it serves.
    device: Option<PrivateDevice>,
    serves: bool,
}

impl Starting {
    fn begin(driver: &Path, simulated: bool, dir: &Path) -> Result<Starting> {
        let own = simulated && env::var_os("GPUSLICE_SIM_DEVICE").is_none();
        let device = own.then(PrivateDevice::new).transpose()?;
        let process = Process::while_used(driver, dir, device.as_ref())?;
        Ok(Starting { process, device, serves: false })
    }

    /// A daemon answers: this one, or another command's.
    fn answered(mut self, daemon: Pid) {
        if self.process.id() == daemon {
            self.serves = true;
            if let Some(device) = self.device.take() {
                device.keep();
            }
        }
    }

    /// `self` while it may still answer; `None` if another one is to be started.
    fn still(mut self) -> Result<Option<Starting>> {
        let Some(status) = self.process.ended()? else {
            return Ok(Some(self));
        };
        // Another command's daemon was first, or ours is no longer needed.
        if status.success() || self.process.log().contains(TAKEN) {
            return Ok(None);
        }
        Err(self.process.failed_to_start(Some(status)))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if !self.serves {
            self.process.kill();
        }
    }
}

/// A connection to a daemon that answers.
fn answering(dir: &Path) -> Result<Option<Admin>> {
    match Admin::connect(dir) {
        // A daemon that is about to exit still accepts, but does not answer.
        Ok(admin) => Ok(admin.list().is_ok().then_some(admin)),
        Err(why) if why.is::<Untrusted>() => Err(why),
        Err(_) => Ok(None),
    }
}

/// Opens the daemon's runtime directory with a shared lock, creating it if missing.
fn hold(dir: &Path) -> Result<Flock<File>> {
    loop {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => {
                return Err(why).with_context(|| {
                    let dir = dir.display();
                    format!("{dir}; set TMPDIR to a writable directory")
                });
            }
            _ => {}
        }
        let checked = match trust::directory(dir) {
            Err(why) if why.downcast_ref() == Some(&nix::Error::ENOENT) => continue, // just removed
            checked => checked.context("set TMPDIR to a directory owned by this user")?,
        };
        let opened = File::open(format!("/proc/self/fd/{}", checked.as_raw_fd()));
        let opened = opened.with_context(|| dir.display().to_string())?;
        let locked = Flock::lock(opened, FlockArg::LockShared).map_err(|(_, errno)| errno)?;
        // The last command may have removed it before it was locked.
        if is_at(&locked, dir) {
            return Ok(locked);
        }
    }
}

/// Removes the directory of a daemon that did not start, unless another command holds it.
fn remove_unused(dir: &Path) {
    let locked = File::open(dir).map(|it| Flock::lock(it, FlockArg::LockExclusiveNonblock));
    if matches!(locked, Ok(Ok(_))) {
        // Only if it is empty.
        let _ = fs::remove_dir(dir);
    }
}

/// Runtime directory of the daemon for a driver: one for each user, driver and simulated GPU.
fn place(driver: &Path, simulated: bool) -> PathBuf {
    let library = driver.join("libcuda.so.1");
    let library = library.canonicalize().unwrap_or(library);
    let simulation = ["GPUSLICE_SIM_DEVICE", "GPUSLICE_SIM"].map(|name| match simulated {
        true => env::var_os(name).unwrap_or_default(),
        false => OsString::new(),
    });
    let mut hasher = DefaultHasher::new();
    (geteuid().as_raw(), library, simulation).hash(&mut hasher);
    // Short, because a socket address holds 107 bytes.
    base().join(format!("{PRIVATE}{:08x}", hasher.finish() as u32))
}

/// How the names of private daemons' directories begin.
const PRIVATE: &str = "gpuslice-";

/// Whether a private daemon's directory may have this name.
pub fn is_private(name: &str) -> bool {
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    name.strip_prefix(PRIVATE).is_some_and(|end| end.len() == 8 && end.chars().all(is_hex))
}

/// The directories below which this user's private daemons are, also of commands that had another environment.
pub fn bases() -> [PathBuf; 2] {
    [base(), env::temp_dir()]
}

/// TMPDIR if set, else this user's runtime directory if it exists, else /tmp.
fn base() -> PathBuf {
    let set = |name| env::var_os(name).filter(|dir| !dir.is_empty());
    let own = |dir: &OsString| trust::directory(Path::new(dir)).is_ok();
    match (set("TMPDIR"), set("XDG_RUNTIME_DIR").filter(own)) {
        (None, Some(dir)) => dir.into(),
        _ => env::temp_dir(),
    }
}
