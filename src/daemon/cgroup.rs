//! Control groups: which one is a container's, and whether it is that container's alone.
//!
//! A driver limit, and what NVML shows for processes nobody knows, belong to a container only if
//! its cgroup holds that container's processes and no others. The runtime made such a leaf before the
//! hook was called; a plain command may well run in its user's session, and then has none. The names
//! used are those of the unified hierarchy (`0::` in /proc/PID/cgroup), which on hybrid systems
//! lies beside the old ones.

use gpuslice_wire::text::{HostPath, Text};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the unified hierarchy is mounted: alone, or beside the old ones.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Of the groups that `gpuslice run` makes for plain commands.
pub const OWN_PREFIX: &str = "gpuslice-run-";

/// Why a container has no cgroup of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotItsOwn {
    /// No process was named.
    #[error("whoever asked for the slice named no process of it")]
    NoProcess,
    /// The process is gone, or has no name in the unified hierarchy.
    #[error("its process is in no cgroup of the unified hierarchy")]
    Unknown,
    /// Longer than a record has room for, or outside what this daemon sees.
    #[error("its cgroup's name is too long, or outside the daemon's cgroup namespace")]
    Unspeakable,
    /// `/`, where everybody is.
    #[error("it is in the root cgroup")]
    Root,
    /// The daemon is in it too.
    #[error("its cgroup holds gpusliced too")]
    TheDaemons,
    /// Another slice has it, or is within it, or around it.
    #[error("its cgroup is another slice's too")]
    Shared,
}

/// The unified hierarchy's directory, if there is one.
pub fn mount() -> Option<PathBuf> {
    MOUNTS.iter().map(PathBuf::from).find(|path| {
        statfs(path.as_path()).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
    })
}

/// The cgroup of a process in the unified hierarchy.
pub fn of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    unified(&text).map(str::to_owned)
}

/// The daemon's own.
pub fn own() -> Option<String> {
    of(std::process::id())
}

fn unified(text: &str) -> Option<&str> {
    let name = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    name.starts_with('/').then_some(name)
}

/// Whether `inner` is `outer` or below it.
pub fn within(inner: &str, outer: &str) -> bool {
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The cgroup of `pid` as a container's own. `others` are those of the other slices.
///
/// # Errors
/// [`NotItsOwn`].
pub fn admitted<'a>(
    pid: u32,
    others: impl IntoIterator<Item = &'a str>,
) -> Result<HostPath, NotItsOwn> {
    if pid == 0 {
        return Err(NotItsOwn::NoProcess);
    }
    let asked = of(pid).ok_or(NotItsOwn::Unknown)?;
    judged(&asked, own().as_deref(), others)
}

fn judged<'a>(
    asked: &str,
    daemon: Option<&str>,
    others: impl IntoIterator<Item = &'a str>,
) -> Result<HostPath, NotItsOwn> {
    if asked == "/" {
        return Err(NotItsOwn::Root);
    }
    // A name from outside the daemon's cgroup namespace begins with `/..`.
    let name: HostPath = Text::new(asked).map_err(|_| NotItsOwn::Unspeakable)?;
    if asked.split('/').any(|part| part == "..") {
        return Err(NotItsOwn::Unspeakable);
    }
    if daemon.is_some_and(|daemon| within(daemon, asked)) {
        return Err(NotItsOwn::TheDaemons);
    }
    let shared = |other: &str| within(other, asked) || within(asked, other);
    match others
        .into_iter()
        .any(|other| !other.is_empty() && shared(other))
    {
        true => Err(NotItsOwn::Shared),
        false => Ok(name),
    }
}

/// A cgroup's directory.
pub fn directory(mount: &Path, name: &str) -> PathBuf {
    mount.join(name.trim_start_matches('/'))
}

/// The same as NVML wants it.
pub fn named(directory: &Path) -> CString {
    use std::os::unix::ffi::OsStrExt;
    CString::new(directory.as_os_str().as_bytes()).unwrap_or_default()
}

/// Removes a group that `gpuslice run` made, if nothing runs in it. Others are their makers'. Whether
/// there is nothing more to remove.
pub fn remove_own(mount: &Path, name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or_default();
    let dir = directory(mount, name);
    // Its maker may have been faster, or something may still run in it.
    !last.starts_with(OWN_PREFIX) || fs::remove_dir(&dir).is_ok() || !dir.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_name_is_taken_in_hybrid_systems_too() {
        let hybrid = "9:memory:/old\n1:name=systemd:/sys\n0::/new/leaf\n";
        assert_eq!(unified(hybrid), Some("/new/leaf"));
        assert_eq!(unified("9:memory:/old\n"), None);
        assert_eq!(unified("0::\n"), None);
        assert!(of(std::process::id()).is_none_or(|name| name.starts_with('/')));
    }

    #[test]
    fn within_is_by_component() {
        assert!(within("/a/b", "/a") && within("/a", "/a"));
        assert!(!within("/ab", "/a") && !within("/a", "/a/b"));
    }

    #[test]
    fn a_containers_cgroup_is_its_own_or_none() {
        let daemon = Some("/system.slice/gpusliced.service");
        let judge = |asked: &str| judged(asked, daemon, ["/pods/one", ""]);
        let name = judge("/pods/two").expect("its own");
        assert_eq!(name.as_str(), "/pods/two");
        for (asked, why) in [
            ("/", NotItsOwn::Root),
            ("/../elsewhere", NotItsOwn::Unspeakable),
            ("/system.slice", NotItsOwn::TheDaemons),
            ("/system.slice/gpusliced.service", NotItsOwn::TheDaemons),
            ("/pods", NotItsOwn::Shared),
            ("/pods/one", NotItsOwn::Shared),
            ("/pods/one/inner", NotItsOwn::Shared),
        ] {
            assert_eq!(judge(asked), Err(why), "{asked}");
        }
        let long = format!("/{}", "x".repeat(300));
        assert_eq!(judge(&long), Err(NotItsOwn::Unspeakable));
        assert!(judge("/system.slice/web").is_ok());
        assert_eq!(admitted(0, []), Err(NotItsOwn::NoProcess));
    }
}
