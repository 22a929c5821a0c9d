//! Control groups of the unified hierarchy: where they are mounted, and a process's own.
//!
//! A group's name is any bytes but NUL and a newline: a container that may make groups below its own
//! chooses them. So the crate procfs cannot serve here, whose names and mount points are UTF-8: one group
//! or mount of any user with another name would be an error for all. For the same reason the hierarchy is
//! looked for at its two usual places and not in /proc/self/mountinfo.
//!
//! /proc/PID/cgroup has a line `NUMBER:CONTROLLERS:NAME` per hierarchy, with the bytes of the name unescaped.
//! The line of the unified hierarchy begins with `0::`; on hybrid systems it exists beside the old ones.

use nix::mount::{MntFlags, MsFlags, mount as mount_at, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the unified hierarchy is on a hybrid system: beside the old ones.
const HYBRID: &str = "/sys/fs/cgroup/unified";
/// Its mount points.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", HYBRID];
/// Prefix of the line of the unified hierarchy.
pub const UNIFIED: &[u8] = b"0::";
/// Prefix of the groups that `gpuslice run` makes for plain commands. The daemon removes them once empty.
pub const RUN_PREFIX: &str = "gpuslice-run-";

/// The unified hierarchy's directory, if there is one.
pub fn mount() -> Option<PathBuf> {
    MOUNTS.iter().map(PathBuf::from).find(|path| {
        statfs(path.as_path()).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
    })
}

/// The text of /proc/PID/cgroup of a process, given by its pid or `self`; empty if it cannot be read.
pub fn text_of(process: impl Display) -> Vec<u8> {
    fs::read(format!("/proc/{process}/cgroup")).unwrap_or_default()
}

/// The name in the line of the unified hierarchy. A name has no newline, so it cannot imitate a line.
pub fn unified(text: &[u8]) -> Option<&[u8]> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let name = lines.find_map(|line| line.strip_prefix(UNIFIED))?;
    name.starts_with(b"/").then_some(name)
}

/// The unified group of a process, given by its pid or `self`.
pub fn of(process: impl Display) -> Option<Vec<u8>> {
    unified(&text_of(process)).map(<[u8]>::to_vec)
}

/// Whether `inner` is `outer` or below it.
pub fn within(inner: &[u8], outer: &[u8]) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Groups that one call of [`remove`] looks at: a container may have made any number.
const REMOVED_MOST: usize = 64;

/// Removes a group in which no process is, with the groups that were made below it.
///
/// # Errors
/// There are processes in one of them, or too many groups for one call; those that are removed are gone.
pub fn remove(dir: &Path) -> io::Result<()> {
    remove_below(dir, &mut 0)
}

fn remove_below(dir: &Path, seen: &mut usize) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(why) if why.raw_os_error() == Some(libc::EBUSY) && *seen < REMOVED_MOST => {
            *seen += 1;
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    remove_below(&entry.path(), seen)?;
                }
            }
            fs::remove_dir(dir)
        }
        done => done,
    }
}

/// A group's directory.
pub fn directory(mount: &Path, name: &[u8]) -> PathBuf {
    let below = name.strip_prefix(b"/").unwrap_or(name);
    mount.join(OsStr::from_bytes(below))
}

/// Whether both kinds of hierarchy are mounted.
pub fn is_hybrid() -> bool {
    Path::new(HYBRID).is_dir()
}

/// Gives this process a private mount namespace without the unified hierarchy. crun refuses hybrid systems.
/// Makes only system calls on constants, so it may run between fork and exec.
///
/// # Errors
/// A system call failed.
pub fn hide_unified() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount_at(None::<&str>, "/", None::<&str>, flags, None::<&str>)?;
    umount2(HYBRID, MntFlags::MNT_DETACH)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_name_is_taken_in_hybrid_systems_too() {
        let hybrid = b"9:memory:/old\n1:name=systemd:/sys\n0::/new/leaf\n";
        assert_eq!(unified(hybrid), Some(&b"/new/leaf"[..]));
        assert_eq!(unified(b"9:memory:/old\n"), None);
        assert_eq!(unified(b"0::\n"), None);
        assert!(of(std::process::id()).is_none_or(|name| name.starts_with(b"/")));
        assert_eq!(of("self"), of(std::process::id()));
    }

    #[test]
    fn a_name_is_any_bytes() {
        for name in [
            &b"/pods/web/\xff\xfe"[..],
            b"/pods/web/a\\012b",
            b"/pods/web/\x1b[2J 0::/other",
            b"/pods/web/x (deleted)",
            b"/pods/web",
        ] {
            let text = [b"4:cpu:/old\n0::", name, b"\n"].concat();
            let found = unified(&text).expect("a name");
            assert_eq!(found, name);
            assert!(within(found, b"/pods/web") && !within(found, b"/pods/we"));
            let path = directory(Path::new("/cg"), name);
            assert_eq!(path.as_os_str().as_bytes(), [b"/cg", name].concat());
        }
        // A sibling of that name, and the group itself once it is removed, are not in it.
        assert!(!within(b"/pods/web (deleted)", b"/pods/web"));
    }

    #[test]
    fn within_is_by_component() {
        assert!(within(b"/a/b", b"/a") && within(b"/a", b"/a"));
        assert!(!within(b"/ab", b"/a") && !within(b"/a", b"/a/b"));
    }
}
