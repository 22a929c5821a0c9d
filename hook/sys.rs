//! The system calls of the hook, each a small safe function; the only room with unsafe code.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Mount attributes (linux/mount.h).
pub(crate) const ATTR_RDONLY: u64 = 0x1;
pub(crate) const ATTR_NOSUID: u64 = 0x2;
pub(crate) const ATTR_NODEV: u64 = 0x4;
pub(crate) const ATTR_NOEXEC: u64 = 0x8;

/// Ways of resolving a path (linux/openat2.h).
pub(crate) const RESOLVE_BENEATH_PLAIN: u64 =
    libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
/// Symbolic links lead where they would lead inside the container, never out of it.
pub(crate) const RESOLVE_CONTAINER: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;

fn cstring(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn result(value: libc::c_long) -> io::Result<i32> {
    if value < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value as i32)
    }
}

fn owned(value: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY: a non-negative result of the calls below is a new descriptor nobody else owns.
    result(value).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A detached copy of what is mounted at `path`; the only kind of thing that is ever moved into a
/// container.
pub(crate) fn open_tree(path: &Path) -> io::Result<OwnedFd> {
    let path = cstring(path)?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// Sets attributes of a detached mount and takes it out of any peer group.
pub(crate) fn protect(mount: &OwnedFd, set: u64) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let size = size_of::<libc::mount_attr>();
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the empty path and `attr` live through the call, `size` is attr's.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size,
        )
    };
    result(set).map(drop)
}

/// Moves a detached mount onto the file or directory `target` refers to.
pub(crate) fn move_mount(mount: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let (from, to, empty) = (mount.as_raw_fd(), target.as_raw_fd(), c"".as_ptr());
    // SAFETY: both paths are the empty string; descriptors are checked by the kernel.
    result(unsafe { libc::syscall(libc::SYS_move_mount, from, empty, to, empty, flags) }).map(drop)
}

/// Opens `path` relative to `dir` under the given rule of resolution.
pub(crate) fn openat2(dir: &OwnedFd, path: &CStr, flags: i32, resolve: u64) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = if flags & libc::O_CREAT != 0 { 0o644 } else { 0 };
    how.resolve = resolve;
    let size = size_of::<libc::open_how>();
    // SAFETY: `path` and `how` live through the call, `size` is how's.
    owned(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size,
        )
    })
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

/// The mount namespace of a live process, if it is not our own. The pid is pinned while we look.
pub(crate) fn mount_namespace(pid: i32) -> io::Result<File> {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: pidfd_open takes two integers.
    let pinned = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let theirs = File::open(format!("/proc/{pid}/ns/mnt"))?;
    let mut poll = libc::pollfd {
        fd: pinned.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd of ours, no waiting.
    if result(unsafe { libc::poll(&mut poll, 1, 0) }.into())? != 0 {
        return Err(io::Error::other("the container's process has ended"));
    }
    let ours = std::fs::metadata("/proc/self/ns/mnt")?;
    let same = theirs
        .metadata()
        .map(|meta| (meta.dev(), meta.ino()) == (ours.dev(), ours.ino()))?;
    if same {
        return Err(io::Error::other(
            "the container has no mount namespace of its own",
        ));
    }
    Ok(theirs)
}

/// Enters a mount namespace; the process has one thread.
pub(crate) fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: setns changes only this single-threaded process.
    result(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) }.into()).map(drop)
}

/// Whether `file` is a regular file.
pub(crate) fn is_regular(file: &OwnedFd) -> io::Result<bool> {
    status(file).map(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// What tells one file from another, whatever it is called: device and inode.
pub(crate) fn identity(file: &OwnedFd) -> io::Result<(u64, u64)> {
    status(file).map(|stat| (stat.st_dev, stat.st_ino))
}

fn status(file: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: all-zero is a valid stat to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is ours.
    result(unsafe { libc::fstat(file.as_raw_fd(), &mut stat) }.into())?;
    Ok(stat)
}

/// A connected SOCK_SEQPACKET socket on which every wait ends after `deadline`.
pub(crate) fn connect(path: &Path, deadline: Duration) -> io::Result<OwnedFd> {
    // SAFETY: socket takes three integers.
    let socket = owned(
        unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) }.into(),
    )?;
    let time = libc::timeval {
        tv_sec: deadline.as_secs() as i64,
        tv_usec: deadline.subsec_micros().into(),
    };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let (value, size) = ((&raw const time).cast(), size_of::<libc::timeval>() as u32);
        let fd = socket.as_raw_fd();
        // SAFETY: `time` lives through the call, `size` is its size.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value, size) };
        result(set.into())?;
    }
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::other("the path is too long for a socket"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let size = size_of::<libc::sockaddr_un>() as u32;
    // SAFETY: `address` lives through the call, `size` is its size.
    result(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) }.into())?;
    Ok(socket)
}

/// Sends one frame.
pub(crate) fn send(socket: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    let (data, len) = (frame.as_ptr().cast(), frame.len());
    // SAFETY: `frame` is `len` readable bytes.
    let sent = unsafe { libc::send(socket.as_raw_fd(), data, len, libc::MSG_NOSIGNAL) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Receives one frame; its length.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (data, len) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: `buffer` is `len` writable bytes.
    let got = unsafe { libc::recv(socket.as_raw_fd(), data, len, libc::MSG_TRUNC) };
    match usize::try_from(got) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(got) if got <= len => Ok(got),
        Ok(_) => Err(io::Error::other("an oversized frame")),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
