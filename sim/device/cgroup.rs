//! The control group of a process, independent of its view of the hierarchy.
//!
//! Groups of the unified hierarchy are known by their id, the inode number of their directory,
//! which the kernel gives once and never again. The device number is no part of it: each cgroup
//! namespace has its own for the same directory. A container mostly sees its own group as `/`, or none
//! at all, but the kernel tells the true id of a process's group through a pidfd (Linux 6.13). The
//! groups above are found where their directories are visible; for a process that cannot see them,
//! those that were noted when its group got a limit hold (see [`crate::quota`]).

#![allow(unsafe_code)]

use crate::limits::CGROUP_DEPTH;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

/// Where the unified hierarchy is mounted: alone, or beside the older ones.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Id of the root, which has no limits.
pub(crate) const ROOT: u64 = 1;

/// A group and those above it, nearest first, the root at the end if it is seen; zeros fill up.
pub(crate) type Chain = [u64; CGROUP_DEPTH];

/// The group of this process.
pub(crate) fn own() -> Chain {
    let id = own_id();
    let seen = own_path().and_then(|path| {
        let relative = path.strip_prefix("/").ok()?.to_path_buf();
        let dirs = MOUNTS.iter().map(|mount| Path::new(mount).join(&relative));
        dirs.filter_map(|dir| chain(&dir)).find(|chain| id.is_none_or(|id| id == chain[0]))
    });
    seen.unwrap_or_else(|| {
        let mut alone = [0; CGROUP_DEPTH];
        alone[0] = id.unwrap_or(0);
        alone
    })
}

/// What tells a move to another group at little cost: the id, or where the kernel does not tell it
/// the head of [`own`].
pub(crate) fn own_head() -> u64 {
    own_id().unwrap_or_else(|| own()[0])
}

/// The line of the unified hierarchy in `/proc/self/cgroup`; `None` where it names nothing in the
/// process's own view.
fn own_path() -> Option<PathBuf> {
    let text = fs::read("/proc/self/cgroup").ok()?;
    // Its name is any bytes but a newline.
    let mut lines = text.split(|byte| *byte == b'\n');
    let name = lines.find_map(|line| line.strip_prefix(b"0::"))?;
    let path = PathBuf::from(OsStr::from_bytes(name));
    let inside =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    inside.then_some(path)
}

/// A group by its directory, with those above it; `None` if it is none of the unified hierarchy.
pub(crate) fn chain(dir: &Path) -> Option<Chain> {
    let mut chain = [0; CGROUP_DEPTH];
    let ids = dir.ancestors().map_while(id_of);
    for (place, id) in chain.iter_mut().zip(ids) {
        *place = id;
    }
    Some(chain).filter(|chain| chain[0] != 0)
}

/// The id of the group whose directory this is.
pub(crate) fn id_of(dir: &Path) -> Option<u64> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: statfs is plain numbers, for which zero is a value.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a text closed by a zero, and a place of the right type.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut facts) } != 0 {
        return None;
    }
    let found = fs::metadata(dir).ok()?;
    let unified = facts.f_type == libc::CGROUP2_SUPER_MAGIC && found.is_dir();
    unified.then_some(found.ino())
}

/// `struct pidfd_info` of linux/pidfd.h in its first form; `mask` has the requested and returned fields.
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    pid: u32,
    rest: [u32; 11],
}

const WITH_CGROUP: u64 = 1 << 2;
const PIDFD_GET_INFO: u64 = 0xc040_ff0b;
const _: () = assert!(size_of::<PidfdInfo>() == 64);

/// A pidfd of this process, kept because asking is frequent and opening one dear.
static KEPT: AtomicI32 = AtomicI32::new(NOT_YET);
const NOT_YET: RawFd = -1;
const NEVER: RawFd = -2;

fn own_id() -> Option<u64> {
    let kept = KEPT.load(Ordering::Relaxed);
    if kept == NEVER {
        return None;
    }
    // Not ours: after a fork, or when the program has closed it and opened something else.
    if let Some(id) = told_by(kept) {
        return Some(id);
    }
    // SAFETY: both arguments are numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let id = told_by(fd.as_raw_fd());
    let keep = if id.is_some() { fd.as_raw_fd() } else { NEVER };
    let first = KEPT.compare_exchange(kept, keep, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_ok() && keep != NEVER {
        let _kept_open = fd.into_raw_fd();
    }
    id
}

/// This process's group, if the descriptor is a pidfd of this process and the kernel tells.
fn told_by(fd: RawFd) -> Option<u64> {
    let mut info = PidfdInfo { mask: WITH_CGROUP, cgroup: 0, pid: 0, rest: [0; 11] };
    // SAFETY: a structure of the size that is part of the request; what is no pidfd refuses it.
    let answer = unsafe { libc::ioctl(fd, PIDFD_GET_INFO as _, &raw mut info) };
    let ours = answer == 0 && info.pid == std::process::id();
    (ours && info.mask & WITH_CGROUP != 0 && info.cgroup != 0).then_some(info.cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_no_group_is_told() {
        assert_eq!(chain(Path::new("/proc")), None);
        assert_eq!(chain(Path::new("/sys/fs/cgroup/no such group")), None);
        assert_eq!(chain(Path::new("")), None);
    }

    /// Written directly, because the harness captures `println!`.
    fn skip(why: &str) {
        let line = format!("SKIP two_ways_to_the_own_group_agree: {why}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    #[test]
    fn two_ways_to_the_own_group_agree() {
        let (Some(id), Some(path)) = (own_id(), own_path()) else {
            return skip("the kernel does not tell a process's group, or not its path");
        };
        let relative = path.strip_prefix("/").unwrap();
        let seen = MOUNTS.map(|mount| id_of(&Path::new(mount).join(relative)));
        if seen == [None, None] {
            return skip("the unified hierarchy is not visible");
        }
        assert!(seen.contains(&Some(id)), "{id} in {seen:?}");
    }

    #[test]
    fn other_descriptors_tell_nothing() {
        let file = fs::File::open("/proc/self/status").unwrap();
        assert_eq!(told_by(file.as_raw_fd()), None);
        assert_eq!(told_by(NOT_YET), None);
        // SAFETY: both arguments are numbers; the descriptor is closed with the test program.
        let parent = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getppid(), 0) };
        assert_eq!(told_by(parent as RawFd), None, "it is another process's");
    }
}
