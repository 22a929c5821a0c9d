//! The driver lock: one daemon per driver. Two daemons would each promise all memory and time of its GPUs.
//!
//! # Problem
//! An ordinary user's private daemon does not see the node's daemon or another user's, because each has its own
//! runtime directory. They share the driver, and through it the GPUs.
//!
//! # Idea
//! A daemon serves all GPUs of one driver. It holds a lock (`flock`) on a file of the driver that every process
//! sees and no other program locks: the library that `libcuda.so.1` leads to, or the state of a simulated GPU.
//! The kernel releases the lock when the daemon ends in any way, and `/proc/locks` shows the process that holds
//! it. A daemon that cannot get the lock does not start.
//!
//! Any user who can read the file can hold the lock, and the node's daemon, run by root, must not depend on
//! that: it logs a warning, serves, and takes the lock when it is free. It also writes a note with its driver
//! to its directory, so that no other daemon starts while it is being restarted.

use crate::paths::{Driver, Paths};
use gpuslice_host::layout::{ADMIN_SOCKET, NODE_DIR};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// This program's name.
const PROGRAM: &str = "gpusliced";
/// The note's name in the node's runtime directory.
const NOTE: &str = "gpus";
/// The file of a simulated GPU that is locked.
const STATE: &str = "state";

/// How often /proc/locks is read for the holder of a lock.
const READS: usize = 10;

/// Another daemon serves these GPUs.
#[derive(Debug, thiserror::Error)]
pub enum DriverLockError {
    /// It runs.
    #[error("the GPUs of {} are served by {holder}; ask that one for a slice, or end it first", .driver.display())]
    Held {
        /// The driver's directory.
        driver: PathBuf,
        /// The other daemon.
        holder: LockHolder,
    },
    /// The node's daemon, which may be restarting.
    #[error(
        "the GPUs of {} are served by root's gpusliced at {NODE_DIR}; ask it for a slice as root \
         (sudo gpuslice run), or use a simulated GPU (gpuslice sim --help); if it is gone for good, \
         remove {NODE_DIR}/{NOTE}", .0.display()
    )]
    Node(PathBuf),
}

/// The process that holds the lock, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockHolder {
    pid: Option<u32>,
    user: Option<u32>,
    runtime_dir: Option<String>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("another gpusliced")?;
        if let Some(pid) = self.pid {
            write!(out, " (process {pid}")?;
            if let Some(user) = self.user {
                write!(out, " of user {user}")?;
            }
            if let Some(dir) = &self.runtime_dir {
                write!(out, ", --runtime-dir {dir:?}")?;
            }
            out.write_str(")")?;
        }
        Ok(())
    }
}

impl LockHolder {
    fn of(file: &File) -> LockHolder {
        let found = || {
            let locks = fs::read_to_string("/proc/locks").ok()?;
            in_locks(&locks, &file.metadata().ok()?)
        };
        // The kernel leaves out locks where others are taken or released during the read.
        let Some(pid) = (0..READS).find_map(|_| found()) else {
            return LockHolder::default();
        };
        let process = PathBuf::from(format!("/proc/{pid}"));
        LockHolder {
            pid: Some(pid),
            user: fs::metadata(&process).ok().map(|status| status.uid()),
            runtime_dir: fs::read(process.join("cmdline")).ok().and_then(|line| runtime_dir(&line)),
        }
    }

    /// Whether it is a gpusliced run by root. A user's process may have locked the file and then have executed a
    /// set-user-id program, which inherits the descriptor; or it may have exited, and its pid may have been reused,
    /// even by this process. But no user can make root run this program. The root of a container, which sees the
    /// driver's library, can give any program its name; its processes have their own namespace of pids.
    fn is_roots_daemon(&self) -> bool {
        let Some(pid) = self.pid.filter(|pid| *pid != std::process::id()) else {
            return false;
        };
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let pids =
            |process: &str| fs::metadata(format!("/proc/{process}/ns/pid")).map(|it| it.ino());
        let is_on_the_node = pids(&pid.to_string()).ok() == pids("self").ok();
        let is_named_so = name.split(' ').next() == Some(PROGRAM); // "(deleted)" after an upgrade
        self.user == Some(0) && is_named_so && is_on_the_node
    }
}

/// The process that has the file locked, according to the text of /proc/locks.
fn in_locks(locks: &str, file: &fs::Metadata) -> Option<u32> {
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    let name = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let mut lines = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END; waiting locks have an arrow.
    let found =
        lines.find(|words| words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&&*name))?;
    found[4].parse().ok().filter(|pid| *pid > 0)
}

/// The runtime directory in a daemon's command line.
fn runtime_dir(command_line: &[u8]) -> Option<String> {
    let mut words = command_line.split(|byte| *byte == 0);
    words.find(|word| *word == b"--runtime-dir")?;
    Some(String::from_utf8_lossy(words.next()?).into_owned())
}

/// The exclusive right to serve a driver's GPUs; released when dropped.
#[derive(Debug)]
pub struct DriverLock {
    _lock: Option<Flock<File>>,
    /// The file of a lock that another process has, until a thread waits for it.
    awaited: Option<File>,
    note: Option<PathBuf>,
}

impl DriverLock {
    /// Takes the lock. A daemon run by root that is not `ephemeral` is the node's.
    ///
    /// # Errors
    /// [`DriverLockError`]: another daemon has it.
    pub fn take(paths: &Paths, ephemeral: bool) -> Result<DriverLock, DriverLockError> {
        let (driver, file) = (&paths.driver, file_of(&paths.driver));
        let node = Path::new(NODE_DIR);
        let is_node = paths.runtime_dir == node;
        if !is_node && is_noted(node, &file) {
            return Err(DriverLockError::Node(driver.dir.clone()));
        }
        let locked = lock(driver, &file, !ephemeral && geteuid().is_root())?;
        let note = (is_node && geteuid().is_root()).then(|| node.join(NOTE));
        let (lock, awaited) = match locked {
            Locked::Here(lock) => (Some(lock), None),
            Locked::Elsewhere(file) => (None, Some(file)),
            Locked::Unknown => (None, None),
        };
        Ok(DriverLock { _lock: lock, awaited, note })
    }

    /// Waits in a thread for a lock that another process has, and writes the note; call it once the runtime directory
    /// is locked and the privileges are lowered, which a thread keeps that began before.
    pub fn publish(&mut self, driver: &Driver) {
        self.awaited.take().into_iter().for_each(wait_for);
        let Some(note) = &self.note else { return };
        let written = fs::write(note, file_of(driver).to_string_lossy().as_bytes())
            .and_then(|()| fs::set_permissions(note, Permissions::from_mode(0o644)));
        if let Err(why) = written {
            tracing::warn!(note = %note.display(), %why, "not written: while this daemon is restarted, other users' daemons may start on its GPUs");
        }
    }

    /// Removes the note when the daemon ends for good.
    pub fn withdraw(self) {
        if let Some(note) = &self.note {
            // The note may not exist if it could not be written.
            let _ = fs::remove_file(note);
        }
    }
}

/// The file that is locked: the same for every daemon of these GPUs.
fn file_of(driver: &Driver) -> PathBuf {
    match driver.device.is_empty() {
        false => Path::new(driver.device.as_str()).join(STATE),
        true => {
            let cuda = PathBuf::from(driver.cuda.as_str());
            cuda.canonicalize().unwrap_or(cuda)
        }
    }
}

/// Whether the node's daemon serves these GPUs, running or not: its socket exists until it is ended for good.
fn is_noted(node: &Path, file: &Path) -> bool {
    let noted =
        fs::read(node.join(NOTE)).is_ok_and(|note| note == file.to_string_lossy().as_bytes());
    noted && fs::symlink_metadata(node.join(ADMIN_SOCKET)).is_ok()
}

/// Where the lock of the driver's file is.
#[derive(Debug)]
enum Locked {
    /// This process has it.
    Here(Flock<File>),
    /// An ordinary user's process has it.
    Elsewhere(File),
    /// The file cannot be locked.
    Unknown,
}

/// Locks the file. `goes_on`: continue without the lock if an ordinary user's process holds it.
fn lock(driver: &Driver, path: &Path, goes_on: bool) -> Result<Locked, DriverLockError> {
    let unknown = |why: io::Error| {
        tracing::warn!(file = %path.display(), %why, "cannot be locked: another daemon of these GPUs would not be detected");
        Ok(Locked::Unknown)
    };
    // Without a wait for the end of a lease, which a container's root can take on a file that it sees.
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(why) => return unknown(why),
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Locked::Here(lock)),
        Err((file, Errno::EWOULDBLOCK)) => {
            let holder = LockHolder::of(&file);
            if !goes_on || holder.is_roots_daemon() {
                let driver = driver.dir.clone();
                return Err(DriverLockError::Held { driver, holder });
            }
            tracing::warn!(driver = %driver.dir.display(), "{holder} serves these GPUs too, and its slices are not counted here; end it");
            Ok(Locked::Elsewhere(file))
        }
        Err((_, why)) => unknown(why.into()),
    }
}

/// Takes the lock in a thread when it is free, and holds it until the process ends.
fn wait_for(file: File) {
    let thread = std::thread::Builder::new().name("claim".to_owned());
    let waits = thread.spawn(move || {
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusive) {
            tracing::info!("no other gpusliced serves these GPUs any more");
            std::mem::forget(lock);
        }
    });
    if let Err(why) = waits {
        tracing::warn!(%why, "another daemon of these GPUs would not be detected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::text::{HostPath, Text};

    fn driver(dir: &Path) -> Driver {
        Driver {
            dir: dir.to_owned(),
            cuda: Text::new(dir.join("libcuda.so.1").to_str().expect("plain")).expect("short"),
            nvml: HostPath::EMPTY,
            device: HostPath::EMPTY,
        }
    }

    #[test]
    fn a_driver_is_locked_once_and_the_holder_is_named() {
        let root = tempfile::tempdir().expect("a directory");
        let real = root.path().join("libcuda.so.999.1");
        fs::write(&real, "").expect("a driver");
        let names = ["one", "two"].map(|name| root.path().join(name));
        for dir in &names {
            fs::create_dir(dir).expect("a directory");
            std::os::unix::fs::symlink(&real, dir.join("libcuda.so.1")).expect("a link");
        }
        let [one, two] = names.map(|dir| driver(&dir));
        assert_eq!(file_of(&one), file_of(&two), "by whatever name");
        let first = lock(&one, &file_of(&one), false).expect("free");
        assert!(matches!(first, Locked::Here(_)));
        let Err(DriverLockError::Held { holder, .. }) = lock(&two, &file_of(&two), false) else {
            panic!("locked twice")
        };
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.user, Some(geteuid().as_raw()));
        drop(first);
        assert!(matches!(lock(&two, &file_of(&two), false), Ok(Locked::Here(_))));
        assert!(matches!(lock(&two, Path::new("/nonexistent"), false), Ok(Locked::Unknown)));
    }

    #[test]
    fn a_holder_is_found_among_others_and_described() {
        let file = File::open("/proc/self/exe").expect("this program");
        let file = file.metadata().expect("a status");
        let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
        let at = format!("{major:02x}:{minor:02x}:{}", file.ino());
        let locks = format!(
            "1: POSIX  ADVISORY  WRITE 11 {at} 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 {at}1 0 EOF\n\
             3: FLOCK  ADVISORY  WRITE 13 {at} 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 14 {at} 0 EOF\n"
        );
        assert_eq!(in_locks(&locks, &file), Some(13));
        assert_eq!(in_locks(&locks.replace(" 13 ", " 0 "), &file), None);
        assert_eq!(in_locks("3: FLOCK\n\n", &file), None);
        let line = b"gpusliced\0--runtime-dir\0/tmp/a b\0--ephemeral\0";
        assert_eq!(runtime_dir(line).as_deref(), Some("/tmp/a b"));
        assert_eq!(runtime_dir(b"gpusliced\0--runtime-dir"), None);
        let holder =
            LockHolder { pid: Some(7), user: Some(1000), runtime_dir: Some("/tmp/a".to_owned()) };
        let said = "another gpusliced (process 7 of user 1000, --runtime-dir \"/tmp/a\")";
        assert_eq!(holder.to_string(), said);
        assert_eq!(LockHolder::default().to_string(), "another gpusliced");
    }

    #[test]
    fn the_nodes_note_counts_while_its_socket_is_there() {
        let node = tempfile::tempdir().expect("a directory");
        let file = Path::new("/lib/libcuda.so.1");
        assert!(!is_noted(node.path(), file));
        fs::write(node.path().join(NOTE), "/lib/libcuda.so.1").expect("written");
        assert!(!is_noted(node.path(), file), "it was ended for good");
        fs::write(node.path().join(ADMIN_SOCKET), "").expect("written");
        assert!(is_noted(node.path(), file));
        assert!(!is_noted(node.path(), Path::new("/lib/other.so")));
    }
}
