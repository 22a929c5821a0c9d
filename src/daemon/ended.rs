//! The end of a container, of which nobody need tell.
//!
//! A slice ends with its container's first process: the kernel makes that one's pidfd readable before
//! anybody can know that the container has ended, and when all of a pid namespace is gone. So no hook is
//! called at the end (one that is called all the same finds nothing left to do), and an engine that
//! dies or forgets leaves no slice behind. A second container of the same id may come at once: it waits
//! until nothing of the first one's slice is left.
//!
//! Numbers of processes count only within one pid namespace, so who asks must be in the daemon's own. The
//! daemon notes the first process beside the record, by its number, the time of its start and that
//! namespace: one that was away when the container ended finds out by it. Who got a slice without naming a
//! process keeps it until somebody ends it.

use crate::admin::Denied;
use crate::daemon::Daemon;
use crate::effects::{NOBODY, key_of};
use crate::members::Members;
use crate::peer::process;
use crate::slots::Key;
use gpuslice_engine::{Event, Record, Token};
use gpuslice_wire::admin::{Command, Denial};
use gpuslice_wire::ids::ContainerId;
use nix::errno::Errno;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;

/// The note's name in a container's directory.
const NOTE: &str = "first";
/// What somebody should know of whose end we cannot know.
const UNSEEN: &str = "the end of this container will not be seen: whoever asked for its slice is in another pid namespace than gpusliced; \
     run gpusliced in the host's, or register the hook for poststop as well. Nor can it be told which processes are the container's: \
     any that reaches its socket may connect";

/// A container's first process.
#[derive(Debug)]
pub struct First {
    pid: u32,
    pidfd: OwnedFd,
}

/// What a note tells of one.
#[derive(Debug)]
enum Noted {
    /// Nothing that can be read, or nothing about this namespace.
    Unknown,
    /// It has ended.
    Ended,
    /// It lives.
    Lives(OwnedFd),
}

impl Noted {
    /// What the note in a container's directory says.
    fn of(dir: &Path) -> Noted {
        let Ok(note) = fs::read_to_string(dir.join(NOTE)) else {
            return Noted::Unknown;
        };
        let words: Vec<&str> = note.split_whitespace().collect();
        let &[pid, start, within] = words.as_slice() else {
            return Noted::Unknown;
        };
        let Some(pid) = pid.parse().ok().filter(|_| Some(within) == own_namespace()) else {
            return Noted::Unknown;
        };
        // The descriptor first: what is read then is of the process that it holds, if of any.
        let held = process(pid);
        let lives = born(pid).is_some_and(|born| born.to_string() == start);
        match held {
            Ok(held) if lives => Noted::Lives(held),
            Err(why) if lives && why != Errno::ESRCH => Noted::Unknown,
            _ => Noted::Ended,
        }
    }
}

/// The daemon's own pid namespace.
pub fn own_namespace() -> Option<&'static str> {
    static OWN: OnceLock<Option<String>> = OnceLock::new();
    OWN.get_or_init(|| namespace("self", "pid")).as_deref()
}

/// A namespace of a process, by the process's number or `self`.
pub fn namespace(of: &str, kind: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{of}/ns/{kind}")).ok()?;
    link.to_str().map(str::to_owned)
}

/// When a process began, in the kernel's own count; `None` if there is none of this number.
pub fn born(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // After the process's name, which is any bytes it likes, come 19 fields and then the start.
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = str::from_utf8(&stat[name_ends + 1..]).ok()?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

impl Daemon {
    /// Holds the first process of the container for which a slice is asked, as long as that is being made;
    /// and notes what tells the container's processes from others.
    ///
    /// # Errors
    /// It has ended, and the container with it.
    pub fn note_first(&mut self, key: Key, pid: u32) -> Result<(), Denied> {
        let Some(admin) = self.admins.get_mut(key) else {
            return Ok(());
        };
        if pid == 0 {
            admin.members = Members::of_command(admin.uid, None);
            return Ok(());
        }
        admin.members = Members::unknown();
        let theirs = namespace(&admin.pid.to_string(), "pid");
        if theirs.is_none() || theirs.as_deref() != own_namespace() {
            tracing::warn!(pid, "{UNSEEN}");
            return Ok(());
        }
        let hook = admin.pid.unsigned_abs();
        admin.members = match pid == hook {
            true => Members::of_command(admin.uid, Some(pid)),
            false => Members::of_container(pid, hook),
        };
        match process(pid) {
            Ok(pidfd) => admin.first = Some(First { pid, pidfd }),
            Err(Errno::ESRCH) => {
                return Err((Denial::Invalid, format!("its process {pid} has ended")));
            }
            Err(why) => {
                tracing::warn!(pid, %why, "pidfd_open: the end of this container will not be seen")
            }
        }
        Ok(())
    }

    /// The slice is open: from now on it ends with its first process.
    pub fn watch_first(&mut self, token: Token, record: &Record) -> io::Result<()> {
        let admin = self.admins.get_mut(key_of(token));
        let Some(First { pid, pidfd }) = admin.and_then(|admin| admin.first.take()) else {
            return Ok(());
        };
        let note = self.state.container_dir(&record.container).join(NOTE);
        if let (Some(start), Some(within)) = (born(pid), own_namespace()) {
            fs::write(note, format!("{pid} {start} {within}\n"))?;
        }
        self.slices.watch(&self.poll, &record.container, pidfd)
    }

    /// A slice of an earlier life: it ends if its container has, or when it does.
    pub fn look_after(&mut self, container: ContainerId) {
        if self.slices.of(&container).is_none() {
            return;
        }
        match Noted::of(&self.state.container_dir(&container)) {
            Noted::Unknown => {}
            Noted::Ended => {
                tracing::info!(%container, "its container ended while no daemon was there; slice ended");
                self.dismiss(container);
            }
            Noted::Lives(first) => {
                if let Err(why) = self.slices.watch(&self.poll, &container, first) {
                    tracing::warn!(%container, %why, "the end of this container will not be seen");
                }
            }
        }
    }

    /// A container's first process ended.
    pub fn container_over(&mut self, key: Key) {
        if let Some(slice) = self.slices.get(key) {
            let container = slice.container;
            tracing::info!(%container, "its container ended; slice ended");
            self.dismiss(container);
        }
    }

    /// Whether an earlier container of this id has ended, but not yet its slice.
    pub fn earlier_ends(&mut self, container: &ContainerId) -> bool {
        let slice = self.slices.of(container);
        if slice.is_some_and(|slice| slice.is_over()) {
            tracing::info!(%container, "its container ended; slice ended");
            self.dismiss(*container);
        }
        self.cgroup_limits.is_clearing(container)
    }

    /// Lets a command wait for that.
    pub fn park(&mut self, key: Key, command: Command) {
        match self.parked.iter().any(|(parked, _)| *parked == key) {
            true => self.deny(key, Denial::Protocol, "one question at a time"),
            false => self.parked.push((key, command)),
        }
    }

    /// Nothing of a container's slice is left: who waited for that goes on.
    pub fn unpark(&mut self, container: &ContainerId) {
        let waits = |(_, command): &mut (Key, Command)| matches!(command, Command::Admit { container: whose, .. } | Command::AdmitFrom { container: whose, .. } if whose == container);
        let ready: Vec<(Key, Command)> = self.parked.extract_if(.., waits).collect();
        for (key, command) in ready {
            // One who did not wait is not asked for any more.
            if self.admins.get(key).is_some() {
                self.command(key, command);
            }
        }
    }

    fn dismiss(&mut self, container: ContainerId) {
        let token = NOBODY;
        self.tell(Event::Dismiss { token, container });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_the_dead_and_the_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = std::process::id();
        let start = born(own).expect("we live");
        let here = own_namespace().expect("ours");
        let found = || match Noted::of(dir.path()) {
            Noted::Unknown => "unknown",
            Noted::Ended => "ended",
            Noted::Lives(_) => "lives",
        };
        assert_eq!(found(), "unknown", "no note");
        for (note, noted) in [
            (format!("{own} {start} {here}\n"), "lives"),
            (format!("{own} {start}1 {here}\n"), "ended"),
            (format!("{} 5 {here}\n", i32::MAX), "ended"),
            (format!("{own} {start} pid:[7]\n"), "unknown"),
            (format!("{own} {start}\n"), "unknown"),
            (format!("x {start} {here}\n"), "unknown"),
            (String::new(), "unknown"),
        ] {
            fs::write(dir.path().join(NOTE), &note).expect("a note");
            assert_eq!(found(), noted, "{note:?}");
        }
    }
}
