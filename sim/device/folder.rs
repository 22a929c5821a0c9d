//! A directory by its descriptor, so that the target of a name cannot change between two steps.
//!
//! All users write into `/dev/shm` and `/tmp`: under the name that a device directory is going to have,
//! another user can put a link to root's files first, or a directory with such links in it. So no
//! link is followed, neither to the directory nor in it, and everything in it is opened relative to
//! the descriptor whose owner was checked.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Permissions of the directory on the host: its owner's alone.
pub(crate) const PRIVATE: u32 = 0o700;

/// An open directory and its name.
pub(crate) struct Folder {
    dir: File,
    path: PathBuf,
}

/// The user whose rights this process has.
pub(crate) fn user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

impl Folder {
    /// Makes the directory, its owner's alone. One that is there stays as it is.
    pub(crate) fn make(path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(PRIVATE).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Opens a directory; a link to one is refused.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Without a slash at the end, which would have a link followed.
        let path: PathBuf = path.components().collect();
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let dir = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        Ok(Self { dir, path })
    }

    /// The same directory.
    pub(crate) fn again(&self) -> io::Result<Self> {
        let (dir, path) = (self.dir.try_clone()?, self.path.clone());
        Ok(Self { dir, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn facts(&self) -> io::Result<Metadata> {
        self.dir.metadata()
    }

    /// Opens a file or directory in it that is no link. `flags` as of openat(2).
    pub(crate) fn entry(&self, name: &str, flags: i32) -> io::Result<File> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let (name, mode) = (CString::new(name)?, 0o600);
        // SAFETY: an open directory and a text closed by a zero.
        let fd = unsafe { libc::openat(self.dir.as_raw_fd(), name.as_ptr(), flags, mode) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { File::from_raw_fd(fd) })
    }

    /// A directory in it.
    pub(crate) fn sub(&self, name: &str) -> io::Result<Self> {
        let dir = self.entry(name, libc::O_PATH | libc::O_DIRECTORY)?;
        let path = self.path.join(name);
        Ok(Self { dir, path })
    }

    /// Makes a directory in it; one that is there stays as it is.
    pub(crate) fn make_sub(&self, name: &str) -> io::Result<Self> {
        let text = CString::new(name)?;
        // SAFETY: an open directory and a text closed by a zero.
        let made = unsafe { libc::mkdirat(self.dir.as_raw_fd(), text.as_ptr(), PRIVATE) };
        match (made, io::Error::last_os_error()) {
            (0, _) => self.sub(name),
            (_, error) if error.kind() == ErrorKind::AlreadyExists => self.sub(name),
            (_, error) => Err(error),
        }
    }

    /// Whether it has something of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entry(name, libc::O_PATH).is_ok()
    }

    /// Gives a file in it another name, in place of whatever has that.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to, dir) = (CString::new(from)?, CString::new(to)?, self.dir.as_raw_fd());
        // SAFETY: an open directory and two texts closed by a zero.
        done(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) })
    }

    /// Removes a file, or with `AT_REMOVEDIR` an empty directory; a missing one counts as removed.
    pub(crate) fn remove(&self, name: &str, flags: i32) -> io::Result<()> {
        let text = CString::new(name)?;
        // SAFETY: an open directory and a text closed by a zero.
        let removed = done(unsafe { libc::unlinkat(self.dir.as_raw_fd(), text.as_ptr(), flags) });
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

fn done(answer: i32) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
