//! The files of the node that every container sees: the shim's and the driver's libraries, kept open.
//!
//! A container's root may be the host's, and then owns these files as the host's root does. A lease for writing on one
//! of them (`F_SETLEASE`) would let every other process that opens it wait for 45 s, also another container's program
//! as it starts. The kernel gives no such lease on a file that another process has open.

use crate::paths::Paths;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// See the file's head.
#[derive(Debug)]
pub struct SharedFiles {
    /// Those on which a process had a lease when they were opened last. That ended it, some time later.
    leased: Vec<PathBuf>,
    open: Vec<File>,
}

impl SharedFiles {
    /// The most that it has open.
    pub const MOST: u64 = 5;

    /// Opens the files that are there.
    pub fn of(paths: &Paths) -> SharedFiles {
        let (driver, shim) = (&paths.driver, &paths.shim);
        let all = [driver.cuda.as_str(), driver.nvml.as_str()].into_iter();
        let all = all.chain([&shim.preload, &shim.mount, &shim.nvml_shim].map(|it| it.as_str()));
        let all = all.filter(|path| !path.is_empty()).map(PathBuf::from).collect();
        let mut files = SharedFiles { leased: all, open: Vec::new() };
        files.open_leased();
        files
    }

    /// Opens those that could not be opened before; each attempt takes no time.
    pub fn open_leased(&mut self) {
        let open = &mut self.open;
        self.leased.retain(|path| {
            let mut options = OpenOptions::new();
            match options.read(true).custom_flags(libc::O_NONBLOCK).open(path) {
                Ok(file) => open.push(file),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return true,
                // Containers that need it are refused where it is mounted.
                Err(_) => {}
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::path::Path;

    /// Takes a lease for writing, as a container's root can.
    #[allow(unsafe_code)]
    fn lease(path: &Path) -> nix::Result<File> {
        let file = File::open(path).expect("a file");
        // SAFETY: a number and a descriptor of ours.
        let done = unsafe {
            use std::os::fd::AsRawFd as _;
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        Errno::result(done).map(|_| file)
    }

    #[test]
    fn no_lease_is_to_be_had_on_a_file_that_is_open() {
        // A lease that is broken sends SIGIO, which would end this process.
        // SAFETY: no handler is set.
        #[allow(unsafe_code)]
        unsafe {
            use nix::sys::signal::{SigHandler, Signal, signal};
            signal(Signal::SIGIO, SigHandler::SigIgn).expect("ignored");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("libcuda.so.1");
        std::fs::write(&path, "").expect("written");
        let leased = lease(&path).expect("nobody has it open");
        let mut files = SharedFiles { leased: vec![path.clone()], open: Vec::new() };
        files.open_leased();
        assert_eq!((files.leased.len(), files.open.len()), (1, 0), "it did not wait");
        drop(leased);
        files.open_leased();
        assert_eq!((files.leased.len(), files.open.len()), (0, 1));
        assert_eq!(lease(&path).map(drop), Err(Errno::EAGAIN));
    }
}
