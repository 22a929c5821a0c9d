//! Exit watch: detects the end of a container without a request.
//!
//! A slice ends with its container's first process. The kernel makes that process's pidfd readable when the
//! whole pid namespace has ended, and before a container engine can observe the end. So no hook is needed at
//! the end (a registered one finds nothing left to do), and an engine that crashes leaves no slice behind.
//! A second container with the same id may start at once: it waits until the first one's slice is removed.
//!
//! A pid is valid in one pid namespace only, so the requesting process must be in the daemon's own. Beside the
//! record the daemon notes the first process by pid, start time and namespace, so that a restarted daemon
//! recognises a container that ended meanwhile. A slice requested without a process exists until it is removed.

use crate::admin::Denied;
use crate::daemon::Daemon;
use crate::executor::{NO_REPLY, key_of};
use crate::members::Members;
use crate::slab::Key;
use gpuslice_engine::{Event, Record, Token};
use gpuslice_host::process::{namespace, own_pid_namespace, pidfd_of, pidfd_open, start_time};
use gpuslice_wire::admin::{Command, Denial};
use gpuslice_wire::ids::ContainerId;
use nix::errno::Errno;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The note's name in a container's directory.
const NOTE: &str = "first";
/// The warning for a container whose end cannot be detected.
const UNSEEN: &str = "the end of this container cannot be detected: the process that asked for its slice is in another pid namespace than gpusliced; \
     run gpusliced in the host's, or register the hook for poststop as well. The container's processes cannot be identified either: \
     any process that reaches its socket may connect";

/// A container's first process.
#[derive(Debug)]
pub struct FirstProcess {
    pid: u32,
    pidfd: OwnedFd,
}

/// The state of a first process according to its note.
#[derive(Debug)]
enum NotedProcess {
    /// The note cannot be read or is of another pid namespace.
    Unknown,
    /// The process has exited.
    Ended,
    /// The process runs.
    Lives(OwnedFd),
}

impl NotedProcess {
    /// Reads the note in a container's directory.
    fn of(dir: &Path) -> NotedProcess {
        let Ok(note) = fs::read_to_string(dir.join(NOTE)) else {
            return NotedProcess::Unknown;
        };
        let words: Vec<&str> = note.split_whitespace().collect();
        let &[pid, start, within] = words.as_slice() else {
            return NotedProcess::Unknown;
        };
        let Some(pid) = pid
            .parse()
            .ok()
            .filter(|_| Some(within) == own_pid_namespace())
        else {
            return NotedProcess::Unknown;
        };
        let Ok(born) = start.parse() else {
            return NotedProcess::Unknown;
        };
        match pidfd_of(pid, born) {
            Ok(Some(held)) => NotedProcess::Lives(held),
            Err(_) if start_time(pid) == Some(born) => NotedProcess::Unknown,
            _ => NotedProcess::Ended,
        }
    }
}

impl Daemon {
    /// Opens a pidfd of the container's first process while its slice is being made, and records how to
    /// recognise the container's processes.
    ///
    /// # Errors
    /// The process, and hence the container, has ended.
    pub fn hold_first_process(&mut self, key: Key, pid: u32) -> Result<(), Denied> {
        let Some(admin) = self.admins.get_mut(key) else {
            return Ok(());
        };
        if pid == 0 {
            admin.members = Members::of_command(admin.uid, None);
            return Ok(());
        }
        admin.members = Members::unknown();
        let theirs = namespace(admin.pid, "pid");
        if theirs.is_none() || theirs.as_deref() != own_pid_namespace() {
            tracing::warn!(pid, "{UNSEEN}");
            return Ok(());
        }
        let hook = admin.pid.unsigned_abs();
        admin.members = match pid == hook {
            true => Members::of_command(admin.uid, Some(pid)),
            false => Members::of_container(pid, hook),
        };
        match pidfd_open(pid) {
            Ok(pidfd) => admin.first = Some(FirstProcess { pid, pidfd }),
            Err(Errno::ESRCH) => {
                return Err((Denial::Invalid, format!("its process {pid} has ended")));
            }
            Err(why) => {
                tracing::warn!(pid, %why, "pidfd_open failed: the end of this container cannot be detected")
            }
        }
        Ok(())
    }

    /// Watches the first process of a new slice, which ends with it.
    pub fn watch_first_process(&mut self, token: Token, record: &Record) -> io::Result<()> {
        let admin = self.admins.get_mut(key_of(token));
        let Some(FirstProcess { pid, pidfd }) = admin.and_then(|admin| admin.first.take()) else {
            return Ok(());
        };
        let note = self.state.container_dir(&record.container).join(NOTE);
        if let (Some(start), Some(within)) = (start_time(pid), own_pid_namespace()) {
            fs::write(note, format!("{pid} {start} {within}\n"))?;
        }
        self.slices.watch(&self.poll, &record.container, pidfd)
    }

    /// Watches the first process of a restored slice; ends the slice if the process has exited.
    pub fn watch_restored(&mut self, container: ContainerId) {
        if self.slices.of(&container).is_none() {
            return;
        }
        match NotedProcess::of(&self.state.container_dir(&container)) {
            NotedProcess::Unknown => {}
            NotedProcess::Ended => {
                tracing::info!(%container, "its container ended while no daemon ran; slice ended");
                self.dismiss(container);
            }
            NotedProcess::Lives(first) => {
                if let Err(why) = self.slices.watch(&self.poll, &container, first) {
                    tracing::warn!(%container, %why, "the end of this container cannot be detected");
                }
            }
        }
    }

    /// Ends the slice of a container whose first process has exited.
    pub fn container_exited(&mut self, key: Key) {
        if let Some(slice) = self.slices.get(key) {
            let container = slice.container;
            tracing::info!(%container, "its container ended; slice ended");
            self.dismiss(container);
        }
    }

    /// Whether an earlier container with this id has ended and its slice is still being removed.
    pub fn earlier_slice_is_ending(&mut self, container: &ContainerId) -> bool {
        let slice = self.slices.of(container);
        if slice.is_some_and(|slice| slice.is_over()) {
            tracing::info!(%container, "its container ended; slice ended");
            self.dismiss(*container);
        }
        self.cgroup_limits.is_clearing(container)
    }

    /// Lets a command wait until the earlier slice is removed.
    pub fn park(&mut self, key: Key, command: Command) {
        match self.parked.iter().any(|(parked, _)| *parked == key) {
            true => self.deny(key, Denial::Protocol, "send one command at a time"),
            false => self.parked.push((key, command)),
        }
    }

    /// Runs the commands that waited for the end of a container's slice.
    pub fn unpark(&mut self, container: &ContainerId) {
        let waits = |(_, command): &mut (Key, Command)| matches!(command, Command::Admit { container: whose, .. } | Command::AdmitFrom { container: whose, .. } if whose == container);
        let ready: Vec<(Key, Command)> = self.parked.extract_if(.., waits).collect();
        for (key, command) in ready {
            // A client that disconnected meanwhile is skipped.
            if self.admins.get(key).is_some() {
                self.command(key, command);
            }
        }
    }

    fn dismiss(&mut self, container: ContainerId) {
        let token = NO_REPLY;
        self.deliver(Event::Dismiss { token, container });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_running_exited_and_unknown_processes() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = std::process::id();
        let start = start_time(own).expect("we live");
        let here = own_pid_namespace().expect("ours");
        let found = || match NotedProcess::of(dir.path()) {
            NotedProcess::Unknown => "unknown",
            NotedProcess::Ended => "ended",
            NotedProcess::Lives(_) => "lives",
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
