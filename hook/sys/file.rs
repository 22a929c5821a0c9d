//! Files below a descriptor: opened and created without a path that another process could redirect.

use super::{cstring, owned, result};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Resolves to an entry of this very directory: no links, no escape (linux/openat2.h).
pub(crate) const PLAIN: u64 =
    libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
/// Symbolic links resolve as inside the container, never out of it.
pub(crate) const CONTAINER: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;

/// A NUL-terminated name for the calls below.
pub(crate) fn name(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Largest number of attempts at a path with `..` during concurrent renames and mounts.
const ATTEMPTS_MAX: u32 = 1000;

/// Opens `path` relative to `dir` under the given rule of resolution. Where a link has `..`, the kernel
/// fails if any process renames or mounts meanwhile, because it cannot rule out an escape. On a node that
/// starts many containers that is frequent, so the call is repeated.
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

/// Opens a host path in one call; the C library's function adds a second one for old kernels.
fn open(path: &Path, flags: i32) -> io::Result<OwnedFd> {
    let (path, flags, mode) = (cstring(path)?, flags | libc::O_CLOEXEC, 0o666);
    // SAFETY: `path` is NUL-terminated and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode) })
}

/// Opens a host file for reading.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    open(path, libc::O_RDONLY).map(File::from)
}

/// Creates a host file, or truncates an existing one.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC).map(File::from)
}

/// Opens a directory by host path, not following a link at its end.
pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    open(path, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
}

/// Creates one directory in `parent`; an existing one is fine.
pub(crate) fn mkdirat(parent: &OwnedFd, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is NUL-terminated and outlives the call.
    match result(unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o755) }.into()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

/// Opens a file that is held by an `O_PATH` descriptor for reading, through the descriptor, so that it
/// is the same file whatever its names are now.
pub(crate) fn reopen(file: &OwnedFd) -> io::Result<File> {
    open_file(format!("/proc/self/fd/{}", file.as_raw_fd()).as_ref())
}

/// Size of the buffer for directory entries, in words of 8 bytes.
const ENTRIES_WORDS: usize = 4 << 10;

/// Calls `each` with the names in a directory that is open for reading, and with their types (`DT_REG`…)
/// if the file system reports them.
pub(crate) fn entries(dir: &OwnedFd, mut each: impl FnMut(&[u8], u8)) -> io::Result<()> {
    let mut buffer: Vec<u64> = Vec::with_capacity(ENTRIES_WORDS);
    let (to, size) = (buffer.as_mut_ptr().cast::<u8>(), ENTRIES_WORDS * size_of::<u64>());
    loop {
        // SAFETY: `to` is `size` writable bytes.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), to, size) };
        let got = usize::try_from(result(got)?).unwrap_or(0);
        if got == 0 {
            return Ok(());
        }
        // SAFETY: the kernel has written so many bytes.
        let mut left = unsafe { std::slice::from_raw_parts(to, got) };
        // An inode's number, an offset, the entry's length, its kind, its name (getdents64(2)).
        while let Some(&[low, high, kind]) = left.get(16..).and_then(<[u8]>::first_chunk) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let (entry, rest) = left.split_at(length.clamp(19, left.len()));
            let name = entry[19..].split(|&byte| byte == 0).next();
            each(name.unwrap_or_default(), kind);
            left = rest;
        }
    }
}

/// Which mount an open file is reached through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountId(u64);

/// A file's status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    /// Device and inode: the file's identity, under any name.
    pub identity: (u32, u32, u64),
    /// The mount it is reached through.
    pub mount: MountId,
    /// A regular file.
    pub regular: bool,
    /// A directory.
    pub directory: bool,
    /// It is empty.
    pub empty: bool,
    /// User and group it belongs to.
    pub owner: (u32, u32),
}

/// Status of an open file.
pub(crate) fn status(file: &OwnedFd) -> io::Result<Status> {
    statx(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

/// Status of a directory entry; does not follow a link.
pub(crate) fn status_in(dir: &OwnedFd, last: &str) -> io::Result<Status> {
    statx(dir.as_raw_fd(), &name(last)?, libc::AT_SYMLINK_NOFOLLOW)
}

/// Status of a host path; does not follow a link.
pub(crate) fn status_at(path: &Path) -> io::Result<Status> {
    statx(libc::AT_FDCWD, &cstring(path)?, libc::AT_SYMLINK_NOFOLLOW)
}

fn statx(fd: i32, path: &CStr, flags: i32) -> io::Result<Status> {
    // SAFETY: all-zero is a valid statx to be overwritten.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    let wanted = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
    let (path, to) = (path.as_ptr(), &raw mut statx);
    // SAFETY: `path` and `statx` live through the call.
    result(unsafe { libc::syscall(libc::SYS_statx, fd, path, flags, wanted, to) })?;
    if statx.stx_mask & libc::STATX_MNT_ID == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let kind = u32::from(statx.stx_mode) & libc::S_IFMT;
    Ok(Status {
        identity: (statx.stx_dev_major, statx.stx_dev_minor, statx.stx_ino),
        mount: MountId(statx.stx_mnt_id),
        regular: kind == libc::S_IFREG,
        directory: kind == libc::S_IFDIR,
        empty: statx.stx_size == 0,
        owner: (statx.stx_uid, statx.stx_gid),
    })
}
