//! A control group of its own for a plain command, where this user may make one. A container has one
//! from its runtime; with one, what walks around the shim is seen in a plain command too, and the
//! driver can hold the cap.
//!
//! We move into it ourselves, and the command is born there. Without the unified hierarchy, or without
//! the right to write it, there is none, and the command runs as well. The group lies below the one
//! we were started in, whose limits go on to hold.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the unified hierarchy is mounted: alone, or beside the old ones.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
/// By this the daemon knows a group that it may remove once nobody is in it.
const PREFIX: &str = "gpuslice-run-";

/// The group we are in while it lives, if there is one; gone when dropped, as far as nothing else
/// was left running in it.
pub struct Leaf(Option<Group>);

struct Group {
    dir: PathBuf,
    parent: PathBuf,
}

impl Leaf {
    /// Makes the group and moves this process into it.
    pub fn enter(id: &str) -> Leaf {
        let parent = own();
        if let Some(parent) = &parent {
            sweep(parent);
        }
        let group = parent.map(|parent| Group {
            dir: parent.join(name(id)),
            parent,
        });
        Leaf(group.filter(Group::enter))
    }

    /// A process in the group; 0 if there is none.
    pub fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, |_| std::process::id())
    }
}

impl Group {
    fn enter(&self) -> bool {
        let made = fs::create_dir(&self.dir).is_ok();
        let entered = made && move_to(&self.dir);
        if made && !entered {
            let _ = fs::remove_dir(&self.dir); // empty, and ours
        }
        entered
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What the command left running keeps the group; the daemon removes it later, or the next
        // `gpuslice run` does.
        if move_to(&self.parent) {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

fn name(id: &str) -> String {
    format!("{PREFIX}{}", id.trim_start_matches("run-"))
}

/// Removes groups that commands of others left here when they were killed. One in which anything
/// still runs the kernel does not remove.
fn sweep(parent: &Path) {
    let all = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in all {
        let gone = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
        if entry.file_name().to_str().and_then(maker).is_some_and(gone) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Whose group it is by its name: `gpuslice-run-PID-TIME`.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Moves this process.
fn move_to(group: &Path) -> bool {
    fs::write(group.join("cgroup.procs"), "0").is_ok()
}

/// The directory of the group that this process is in.
fn own() -> Option<PathBuf> {
    let text = fs::read("/proc/self/cgroup").ok()?;
    // Its name is any bytes but a newline.
    let mut lines = text.split(|byte| *byte == b'\n');
    let name = OsStr::from_bytes(lines.find_map(|line| line.strip_prefix(b"0::/"))?);
    let under = |mount: &&&str| Path::new(mount).join("cgroup.procs").exists();
    MOUNTS
        .iter()
        .find(under)
        .map(|mount| Path::new(mount).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_cannot_be_entered_is_not_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = Group {
            dir: dir.path().join("none/below"),
            parent: dir.path().to_owned(),
        };
        assert!(!group.enter());
        std::mem::forget(group); // it moves to the parent, which is no group
        assert_eq!(name("run-12-ab"), "gpuslice-run-12-ab");
        assert_eq!(Leaf(None).pid(), 0);
    }

    #[test]
    fn only_groups_whose_maker_is_gone_are_swept() {
        assert_eq!(maker("gpuslice-run-12-ab"), Some(12));
        for other in ["gpuslice-run-x-ab", "user.slice", "gpuslice-it-12-0"] {
            assert_eq!(maker(other), None, "{other}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let [own, dead, other] = [
            name(&format!("run-{}-1", std::process::id())),
            name("run-4294967295-1"),
            "gpuslice-it-4294967295-1".to_owned(),
        ]
        .map(|name| dir.path().join(name));
        for group in [&own, &dead, &other] {
            fs::create_dir(group).expect("a directory");
        }
        sweep(dir.path());
        assert!(own.exists() && !dead.exists() && other.exists());
    }
}
