//! A control group for a test, with processes in it.

use crate::harness::agent::Agent;
use crate::harness::process::KillOnDrop;
use crate::harness::{is_root, skip};
use gpuslice_host::cgroup;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed when dropped, with all its processes.
pub struct Group {
    pub dir: PathBuf,
    /// Removed after `dir`.
    parent: Option<PathBuf>,
}

/// The unified hierarchy, if this test may make groups in it.
pub fn mount(test: &str) -> Option<PathBuf> {
    let mount = cgroup::mount();
    if mount.is_none() || !is_root() {
        skip(test, "needs root and a cgroup v2 hierarchy");
        return None;
    }
    mount
}

impl Group {
    /// A group inside a parent of its own, as runtimes make them.
    pub fn new(mount: &Path) -> Group {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let parent = mount.join(format!("gpuslice-it-{}-{number}", std::process::id()));
        let mut group = Group::within(&parent, "leaf");
        group.parent = Some(parent);
        group
    }

    /// A group inside another.
    pub fn within(parent: &Path, name: impl AsRef<Path>) -> Group {
        let dir = parent.join(name);
        fs::create_dir_all(&dir).expect("a group");
        Group { dir, parent: None }
    }

    /// The group around it.
    pub fn parent(&self) -> &Path {
        self.dir.parent().expect("not the root")
    }

    /// Starts the command in this group.
    pub fn holds(&self, command: &mut Command) {
        let procs = self.dir.join("cgroup.procs");
        // SAFETY: a write, after a fork of a test that has no other thread's lock to wait for here.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }

    /// A process in the group that connects to sockets on request.
    pub fn agent(&self) -> Agent {
        let procs = self.dir.join("cgroup.procs");
        Agent::start_after(move || fs::write(&procs, "0"))
    }

    /// An idle process in the group, like a container before its first program.
    pub fn idle(&self) -> Idle {
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null());
        self.holds(&mut command);
        Idle::of(&mut command)
    }

    /// Whether its processes are stopped by the kernel.
    pub fn is_frozen(&self) -> bool {
        let events = fs::read_to_string(self.dir.join("cgroup.events")).expect("a group");
        events.lines().any(|line| line == "frozen 1")
    }

    /// Kills all processes in the group and removes it.
    pub fn remove(&self) {
        let _ = fs::write(self.dir.join("cgroup.kill"), "1");
        crate::harness::eventually("an empty group", || {
            fs::remove_dir(&self.dir).is_ok() || !self.dir.exists()
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
        if let Some(parent) = &self.parent {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// A process that does nothing.
pub struct Idle(KillOnDrop);

impl Idle {
    pub fn of(command: &mut Command) -> Idle {
        Idle(KillOnDrop(command.spawn().expect("it starts")))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}
