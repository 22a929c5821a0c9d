//! A control group of its own for a plain command, where this user may create one. A container has one
//! from its runtime. With one, accounting also sees processes of a plain command that bypass the shim,
//! and the driver can enforce the cap.
//!
//! `gpuslice run` moves itself into the group, and the command inherits it. Without the unified
//! hierarchy, or without the right to write it, the command runs without a group. The group lies below
//! the one that `gpuslice run` was started in, whose limits stay in force.

use gpuslice_host::cgroup::{RUN_PREFIX, directory, mount, of, remove};
use gpuslice_host::process::exists;
use std::fs;
use std::path::{Path, PathBuf};

/// The process's own group, if any; removed when dropped unless processes still run in it.
pub struct OwnCgroup(Option<Group>);

struct Group {
    dir: PathBuf,
    parent: PathBuf,
}

impl OwnCgroup {
    /// Creates the group and moves this process into it.
    pub fn enter(id: &str) -> OwnCgroup {
        let parent = own();
        if let Some(parent) = &parent {
            sweep(parent);
        }
        let group = parent.map(|parent| Group { dir: parent.join(name(id)), parent });
        OwnCgroup(group.filter(Group::enter))
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
        // Processes that the command left running keep the group; the daemon or the next
        // `gpuslice run` removes it later.
        if move_to(&self.parent) {
            let _ = remove(&self.dir);
        }
    }
}

fn name(id: &str) -> String {
    format!("{RUN_PREFIX}{}", id.trim_start_matches("run-"))
}

/// Removes groups left here by killed commands. The kernel refuses to remove one with processes.
fn sweep(parent: &Path) {
    let all = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in all {
        let gone = |pid| !exists(pid);
        if entry.file_name().to_str().and_then(maker).is_some_and(gone) {
            let _ = remove(&entry.path());
        }
    }
}

/// The owner's pid in a group's name: `gpuslice-run-PID-TIME`.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(RUN_PREFIX)?.split('-').next()?.parse().ok()
}

/// Moves this process.
fn move_to(group: &Path) -> bool {
    fs::write(group.join("cgroup.procs"), "0").is_ok()
}

/// The directory of this process's group.
fn own() -> Option<PathBuf> {
    Some(directory(&mount()?, &of("self")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_cannot_be_entered_is_not_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = Group { dir: dir.path().join("none/below"), parent: dir.path().to_owned() };
        assert!(!group.enter());
        std::mem::forget(group); // moves to the parent, which is not a group
        assert_eq!(name("run-12-ab"), "gpuslice-run-12-ab");
        assert_eq!(OwnCgroup(None).pid(), 0);
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
