//! Mounts as descriptors (Linux 5.12 and later): copied, protected and moved without a path.

use super::{cstring, owned, result};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Mount attributes (linux/mount.h).
pub(crate) const ATTR_RDONLY: u64 = 0x1;
pub(crate) const ATTR_NOSUID: u64 = 0x2;
pub(crate) const ATTR_NODEV: u64 = 0x4;
pub(crate) const ATTR_NOEXEC: u64 = 0x8;

const COPY: u32 = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;

/// A detached copy of the mount at `path`; only such copies are moved into a container.
pub(crate) fn copy_of(path: &Path) -> io::Result<OwnedFd> {
    let path = cstring(path)?;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), COPY) })
}

/// Another copy of a mount that has been moved into our namespace, with the same attributes.
pub(crate) fn another(mount: &OwnedFd) -> io::Result<OwnedFd> {
    let (fd, flags) = (mount.as_raw_fd(), COPY | libc::AT_EMPTY_PATH as u32);
    // SAFETY: the empty string and a descriptor.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, fd, c"".as_ptr(), flags) })
}

/// Sets attributes of a detached mount and takes it out of any peer group.
pub(crate) fn protect(mount: &OwnedFd, set: u64) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let (fd, size) = (mount.as_raw_fd(), size_of::<libc::mount_attr>());
    let (empty, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
    let set = &raw const attr;
    // SAFETY: the empty path and `attr` live through the call, `size` is attr's.
    result(unsafe { libc::syscall(libc::SYS_mount_setattr, fd, empty, flags, set, size) }).map(drop)
}

/// Moves a detached mount onto the file or directory `target` refers to.
pub(crate) fn move_onto(mount: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let (from, to, empty) = (mount.as_raw_fd(), target.as_raw_fd(), c"".as_ptr());
    // SAFETY: both paths are the empty string; descriptors are checked by the kernel.
    result(unsafe { libc::syscall(libc::SYS_move_mount, from, empty, to, empty, flags) }).map(drop)
}
