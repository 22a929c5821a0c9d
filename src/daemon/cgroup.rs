//! Checks that a container's cgroup belongs to that container alone.
//!
//! A driver limit, and NVML's report of unattached processes, apply to a container only if its cgroup holds
//! that container's processes and no others. The runtime creates such a leaf before it calls the hook; a plain
//! command may run in its user's session and then has none.
//!
//! A name is bytes (`gpuslice_host::cgroup`), and the kernel appends ` (deleted)` to the name of a removed
//! group. Only an exiting process is in a removed group; a group whose real name ends so is recognised by its
//! directory.

use gpuslice_host::cgroup::{RUN_PREFIX, directory, mount, of, remove, within};
use gpuslice_wire::text::CgroupPath;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::ops::Deref;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

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
    judged(&asked, of("self").as_deref(), others)
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
    match others.into_iter().any(|other| !other.is_empty() && shared(other)) {
        true => Err(NotItsOwn::Shared),
        false => Ok(name),
    }
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

/// Removes a group that `gpuslice run` made, if no process is in it; leaves all other groups. Returns whether nothing
/// is left to remove.
pub fn remove_own(mount: &Path, name: &[u8]) -> bool {
    let last = name.rsplit(|byte| *byte == b'/').next();
    let dir = directory(mount, name);
    // `gpuslice run` may have removed it already, or a process may still run in it.
    !last.is_some_and(|last| last.starts_with(RUN_PREFIX.as_bytes()))
        || remove(&dir).is_ok()
        || !dir.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_bytes_may_be_its_own_and_reaches_the_child() {
        for name in [&b"/pods/web/\xff\xfe"[..], b"/pods/web/x (deleted)"] {
            let dir = Dir(directory(Path::new("/cg"), name));
            let line = serde_json::to_string(&dir).expect("JSON");
            assert_eq!(serde_json::from_str::<Dir>(&line).expect("the same"), dir);
            let own = judged(name, None, [&b"/pods/other"[..]]).expect("its own");
            assert_eq!(own.as_bytes(), name);
        }
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
