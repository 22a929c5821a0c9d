//! This process: its namespaces, capabilities and deadline.

use super::{file, owned, result};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Drops state inherited from the runtime: its open descriptors and its umask. (Under 077 the preload
/// list would be unreadable for a container's users, and the loader would silently ignore it.) Also
/// makes the process undumpable, so that other processes cannot inspect it.
pub(crate) fn settle() -> io::Result<()> {
    // SAFETY: umask takes and returns a number.
    unsafe { libc::umask(0o022) };
    // SAFETY: this program has opened no descriptor above standard error.
    result(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) })?;
    // SAFETY: five numbers.
    result(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into()).map(drop)
}

/// Makes the kernel end this process after this many seconds, wherever it hangs, for example on a volume
/// whose server does not answer. A signal with a handler would not interrupt such a wait.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: the default action for a signal; two system calls without pointers.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::alarm(seconds);
    }
}

/// The mount namespace of a live process, if it is not our own. A pidfd pins the pid meanwhile.
pub(crate) fn mount_namespace(pid: i32) -> io::Result<File> {
    // SAFETY: pidfd_open takes two integers.
    let pinned = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let theirs = file::open_file(format!("/proc/{pid}/ns/mnt").as_ref())?;
    let mut poll = libc::pollfd { fd: pinned.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd of ours, no waiting.
    if result(unsafe { libc::poll(&mut poll, 1, 0) }.into())? != 0 {
        return Err(io::Error::other("the container's process has ended"));
    }
    let ours = fs::metadata("/proc/self/ns/mnt")?;
    let same =
        theirs.metadata().map(|meta| (meta.dev(), meta.ino()) == (ours.dev(), ours.ino()))?;
    if same {
        return Err(io::Error::other("the container has no mount namespace of its own"));
    }
    Ok(theirs)
}

/// A capability, by its number (linux/capability.h).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Right {
    DacOverride = 1,
    SetGid = 6,
    SetUid = 7,
    SysChroot = 18,
    SysAdmin = 21,
}

/// Drops all capabilities but these, of which the process may have fewer.
pub(crate) fn keep(rights: &[Right]) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// 32 of the capabilities.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Part {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let (mut header, mut parts) = (Header { version: VERSION_3, pid: 0 }, [Part::default(); 2]);
    // SAFETY: both are ours and of the shape of that version.
    result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, parts.as_mut_ptr()) })?;
    let kept = rights.iter().fold(0, |kept, right| kept | 1u64 << *right as u32);
    for (part, kept) in parts.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        part.permitted &= kept;
        (part.effective, part.inheritable) = (part.permitted, 0);
    }
    // SAFETY: as above.
    result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, parts.as_ptr()) }).map(drop)
}

/// Enters a mount namespace; the process has one thread.
pub(crate) fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: setns changes only this single-threaded process.
    result(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) }.into()).map(drop)
}

/// Runs a file operation as another user. A file system of a container's user namespace rejects files
/// of users that the namespace does not map.
pub(crate) fn as_owner<T>(
    (user, group): (u32, u32),
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    // SAFETY: numbers; only this thread's file system identity changes.
    let before = unsafe { (libc::setfsgid(group), libc::setfsuid(user)) };
    let done = act();
    // SAFETY: as above; restores the previous ids.
    unsafe { (libc::setfsuid(before.1 as u32), libc::setfsgid(before.0 as u32)) };
    done
}
