//! Files below a descriptor: opened and made without a path that somebody else could bend.

use super::{cstring, owned, result};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Names the very file of a directory that is meant; no link, no way out (linux/openat2.h).
pub(crate) const PLAIN: u64 =
    libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
/// Symbolic links lead where they would lead inside the container, never out of it.
pub(crate) const CONTAINER: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;

/// A name for the calls below.
pub(crate) fn name(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Most attempts at a path with `..` while others rename and mount.
const ATTEMPTS_MAX: u32 = 1000;

/// Opens `path` relative to `dir` under the given rule of resolution. Where a link has `..`, the kernel
/// gives up as soon as anybody anywhere renames or mounts something meanwhile, which on a node
/// that starts many containers is most of the time: it cannot know that it did not get out.
/// Then it is tried again.
pub(crate) fn openat2(dir: &OwnedFd, path: &CStr, flags: i32, resolve: u64) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = if flags & libc::O_CREAT != 0 { 0o644 } else { 0 };
    how.resolve = resolve;
    let (fd, size) = (dir.as_raw_fd(), size_of::<libc::open_how>());
    let (path, how) = (path.as_ptr(), &raw const how);
    let mut attempts = 0;
    loop {
        // SAFETY: `path` and `how` live through the call, `size` is how's.
        let opened = owned(unsafe { libc::syscall(libc::SYS_openat2, fd, path, how, size) });
        attempts += 1;
        match opened {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && attempts < ATTEMPTS_MAX => {
            }
            done => return done,
        }
    }
}

/// Opens a directory by host path, not following a link at its end.
pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let path = cstring(path)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    owned(unsafe { libc::open(path.as_ptr(), flags) }.into())
}

/// Makes one directory in `parent`; one that is there already is as good.
pub(crate) fn mkdirat(parent: &OwnedFd, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is NUL-terminated and outlives the call.
    match result(unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o755) }.into()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

/// Opens a file that is held by an `O_PATH` descriptor, and so is known, for reading.
pub(crate) fn reopen(file: &OwnedFd) -> io::Result<File> {
    File::open(known(file))
}

/// A path to the very file a descriptor holds, whatever it is called elsewhere.
pub(crate) fn known(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// What we ask about an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    /// Device and inode: what tells one file from another, whatever it is called.
    pub identity: (u64, u64),
    /// A regular file.
    pub regular: bool,
    /// User and group it belongs to.
    pub owner: (u32, u32),
}

/// Looks at an open file.
pub(crate) fn status(file: &OwnedFd) -> io::Result<Status> {
    // SAFETY: all-zero is a valid stat to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is ours.
    result(unsafe { libc::fstat(file.as_raw_fd(), &mut stat) }.into())?;
    Ok(Status {
        identity: (stat.st_dev, stat.st_ino),
        regular: stat.st_mode & libc::S_IFMT == libc::S_IFREG,
        owner: (stat.st_uid, stat.st_gid),
    })
}
