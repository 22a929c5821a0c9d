//! Control groups: finds a container's cgroup and checks that it belongs to that container alone.
//!
//! A driver limit, and NVML's report of unattached processes, apply to a container only if its cgroup holds
//! that container's processes and no others. The runtime creates such a leaf before it calls the hook; a plain
//! command may run in its user's session and then has none. Names are those of the unified hierarchy (`0::`
//! in /proc/PID/cgroup), which on hybrid systems exists beside the old ones.
//!
//! A name is bytes: a container that may make groups below its own chooses them, and the kernel rejects only
//! NUL, `/` and a newline. /proc/PID/cgroup shows the bytes unescaped (unlike mountinfo) and appends
//! ` (deleted)` to the name of a removed group. Only an exiting process is in a removed group; a group whose
//! real name ends so is recognised by its directory.

use gpuslice_wire::text::CgroupPath;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Mount points of the unified hierarchy: alone, or beside the old ones.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Prefix of the groups that `gpuslice run` makes for plain commands.
pub const OWN_PREFIX: &str = "gpuslice-run-";
/// Suffix of a removed group's name.
const REMOVED: &[u8] = b" (deleted)";

/// Why a container has no cgroup of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotItsOwn {
    /// No process was named.
    #[error("the request for the slice named no process of the container")]
    NoProcess,
    /// The process has exited, or is in no group of the unified hierarchy.
    #[error("its process is in no cgroup of the unified hierarchy")]
    Unknown,
    /// Longer than a record's field, or outside the daemon's cgroup namespace.
    #[error("its cgroup's name is too long, or outside the daemon's cgroup namespace")]
    Unrepresentable,
    /// `/`, which holds all processes.
    #[error("it is in the root cgroup")]
    Root,
    /// The daemon is in it too.
    #[error("its cgroup holds gpusliced too")]
    TheDaemons,
    /// It equals, contains or is inside another slice's.
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
pub fn of(pid: u32) -> Option<Vec<u8>> {
    let text = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    unified(&text).map(<[u8]>::to_vec)
}

/// The daemon's own.
pub fn own() -> Option<Vec<u8>> {
    of(std::process::id())
}

/// The name in the line of the unified hierarchy. A name has no newline, so it cannot imitate a line.
pub fn unified(text: &[u8]) -> Option<&[u8]> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let name = lines.find_map(|line| line.strip_prefix(b"0::"))?;
    name.starts_with(b"/").then_some(name)
}

/// Whether `inner` is `outer` or below it.
pub fn within(inner: &[u8], outer: &[u8]) -> bool {
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// The cgroup of `pid`, if it is a container's own. `others` are the cgroups of the other slices.
///
/// # Errors
/// [`NotItsOwn`].
pub fn admitted<'a>(
    pid: u32,
    others: impl IntoIterator<Item = &'a [u8]>,
) -> Result<CgroupPath, NotItsOwn> {
    if pid == 0 {
        return Err(NotItsOwn::NoProcess);
    }
    let asked = of(pid).ok_or(NotItsOwn::Unknown)?;
    let is_there = |mount: PathBuf| directory(&mount, &asked).is_dir();
    if asked.ends_with(REMOVED) && !mount().is_some_and(is_there) {
        return Err(NotItsOwn::Unknown);
    }
    judged(&asked, own().as_deref(), others)
}

fn judged<'a>(
    asked: &[u8],
    daemon: Option<&[u8]>,
    others: impl IntoIterator<Item = &'a [u8]>,
) -> Result<CgroupPath, NotItsOwn> {
    if asked == b"/" {
        return Err(NotItsOwn::Root);
    }
    // A name from outside the daemon's cgroup namespace begins with `/..`.
    let name = CgroupPath::new(asked).map_err(|_| NotItsOwn::Unrepresentable)?;
    if asked.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return Err(NotItsOwn::Unrepresentable);
    }
    if daemon.is_some_and(|daemon| within(daemon, asked)) {
        return Err(NotItsOwn::TheDaemons);
    }
    let shared = |other: &[u8]| within(other, asked) || within(asked, other);
    match others
        .into_iter()
        .any(|other| !other.is_empty() && shared(other))
    {
        true => Err(NotItsOwn::Shared),
        false => Ok(name),
    }
}

/// A cgroup's directory.
pub fn directory(mount: &Path, name: &[u8]) -> PathBuf {
    let below = name.strip_prefix(b"/").unwrap_or(name);
    mount.join(OsStr::from_bytes(below))
}

/// The directory as a C string for NVML.
pub fn named(directory: &Path) -> CString {
    CString::new(directory.as_os_str().as_bytes()).unwrap_or_default()
}

/// A cgroup's directory. In messages to and from the NVML child it is a list of bytes, because JSON strings
/// are UTF-8.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(from = "Vec<u8>", into = "Vec<u8>")]
pub struct Dir(pub PathBuf);

impl From<Vec<u8>> for Dir {
    fn from(bytes: Vec<u8>) -> Dir {
        Dir(OsString::from_vec(bytes).into())
    }
}

impl From<Dir> for Vec<u8> {
    fn from(dir: Dir) -> Vec<u8> {
        dir.0.into_os_string().into_vec()
    }
}

impl Deref for Dir {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

/// Removes a group that `gpuslice run` made, if it is empty; leaves all other groups. Returns whether nothing
/// is left to remove.
pub fn remove_own(mount: &Path, name: &[u8]) -> bool {
    let last = name.rsplit(|byte| *byte == b'/').next();
    let dir = directory(mount, name);
    // `gpuslice run` may have removed it already, or a process may still run in it.
    !last.is_some_and(|last| last.starts_with(OWN_PREFIX.as_bytes()))
        || fs::remove_dir(&dir).is_ok()
        || !dir.exists()
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
            let dir = Dir(path);
            let line = serde_json::to_string(&dir).expect("JSON");
            assert_eq!(serde_json::from_str::<Dir>(&line).expect("the same"), dir);
            let own = judged(name, None, [&b"/pods/other"[..]]).expect("its own");
            assert_eq!(own.as_bytes(), name);
        }
        // A sibling of that name, and the group itself once it is removed, are not in it.
        assert!(!within(b"/pods/web (deleted)", b"/pods/web"));
    }

    #[test]
    fn within_is_by_component() {
        assert!(within(b"/a/b", b"/a") && within(b"/a", b"/a"));
        assert!(!within(b"/ab", b"/a") && !within(b"/a", b"/a/b"));
    }

    #[test]
    fn a_containers_cgroup_is_its_own_or_none() {
        let daemon = Some(&b"/system.slice/gpusliced.service"[..]);
        let judge = |asked: &str| judged(asked.as_bytes(), daemon, [&b"/pods/one"[..], b""]);
        let name = judge("/pods/two").expect("its own");
        assert_eq!(name.as_bytes(), b"/pods/two");
        for (asked, why) in [
            ("/", NotItsOwn::Root),
            ("/../elsewhere", NotItsOwn::Unrepresentable),
            ("/system.slice", NotItsOwn::TheDaemons),
            ("/system.slice/gpusliced.service", NotItsOwn::TheDaemons),
            ("/pods", NotItsOwn::Shared),
            ("/pods/one", NotItsOwn::Shared),
            ("/pods/one/inner", NotItsOwn::Shared),
        ] {
            assert_eq!(judge(asked), Err(why), "{asked}");
        }
        let long = format!("/{}", "x".repeat(300));
        assert_eq!(judge(&long), Err(NotItsOwn::Unrepresentable));
        assert!(judge("/system.slice/web").is_ok());
        assert_eq!(admitted(0, []), Err(NotItsOwn::NoProcess));
    }
}
