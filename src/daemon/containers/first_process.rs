//! The first process of a container: detects the end of a container without a request.
//!
//! A slice ends with its container's first process. The kernel makes that process's pidfd readable when the
//! whole pid namespace has ended, and before a container engine can observe the end. So no hook is needed at
//! the end (a registered one finds nothing left to do), and an engine that crashes leaves no slice behind.
//! A second container with the same id may start at once: it waits until the first one's slice is removed.
//!
//! A pid is valid in one pid namespace only, so the requesting process must be in the daemon's own. Beside the
//! record the daemon notes the first process by pid, start time and namespace, so that a restarted daemon
//! recognises a container that ended meanwhile. A slice requested without a process exists until it is removed.

use super::{Containers, Members};
use crate::poll::Source;
use crate::replies::Denied;
use gpuslice_engine::Record;
use gpuslice_host::process::{
    is_gone, namespace, own_pid_namespace, pidfd_of, pidfd_open, start_time,
};
use gpuslice_wire::admin::Denial;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::Instant;
use nix::errno::Errno;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The note's name in a container's directory.
pub(super) const NOTE: &str = "first";
/// The warning for a container whose end cannot be detected.
const UNSEEN: &str = "the end of this container cannot be detected: the process that asked for its slice is in another pid namespace than gpusliced; \
     run gpusliced in the host's, or register the hook for poststop as well. The container's processes cannot be identified either: \
     any process that reaches its socket may connect";

/// A container's first process.
#[derive(Debug)]
pub struct FirstProcess {
    /// Its pid.
    pub(super) pid: u32,
    /// Its pidfd.
    pub(super) pidfd: OwnedFd,
}

/// The state of a first process according to its note.
#[derive(Debug)]
pub(super) enum NotedProcess {
    /// The note cannot be read or is of another pid namespace.
    Unknown,
    /// The process has exited.
    Ended,
    /// The process of this pid runs.
    Lives(u32, OwnedFd),
}

impl NotedProcess {
    /// Reads the note in a container's directory.
    ///
    /// # Errors
    /// It cannot be told now, for want of descriptors or of memory.
    pub(super) fn of(dir: &Path) -> io::Result<NotedProcess> {
        let note = match fs::read_to_string(dir.join(NOTE)) {
            Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
                return Ok(NotedProcess::Unknown);
            }
            note => note?,
        };
        let Some((pid, born)) = parse(&note) else {
            return Ok(NotedProcess::Unknown);
        };
        match pidfd_of(pid, born) {
            Ok(Some(held)) => Ok(NotedProcess::Lives(pid, held)),
            Ok(None) => Ok(NotedProcess::Ended),
            Err(_) if is_gone(pid, born) => Ok(NotedProcess::Ended),
            Err(why @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => Err(why.into()),
            Err(_) => Ok(NotedProcess::Unknown),
        }
    }
}

/// Pid and start time of a note of this pid namespace.
fn parse(note: &str) -> Option<(u32, u64)> {
    let words: Vec<&str> = note.split_whitespace().collect();
    let &[pid, start, within] = words.as_slice() else {
        return None;
    };
    let numbers = Some((pid.parse().ok()?, start.parse().ok()?));
    numbers.filter(|_| Some(within) == own_pid_namespace())
}

/// Opens a pidfd of a container's first process while its slice is being made, and notes how to recognise the
/// container's processes. `asker`: pid and user id of the process that asks for the slice; `pid`: the first process,
/// 0 if there is none.
///
/// # Errors
/// The process, and hence the container, has ended.
pub fn examine_asker(
    asker: (i32, u32),
    pid: u32,
) -> Result<(Members, Option<FirstProcess>), Denied> {
    let (hook, uid) = (asker.0.unsigned_abs(), asker.1);
    if pid == 0 {
        return Ok((Members::of_command(uid, None), None));
    }
    let theirs = namespace(asker.0, "pid");
    if theirs.is_none() || theirs.as_deref() != own_pid_namespace() {
        tracing::warn!(pid, "{UNSEEN}");
        return Ok((Members::unknown(), None));
    }
    let members = match pid == hook {
        true => Members::of_command(uid, Some(pid)),
        false => Members::of_container(pid, hook),
    };
    match pidfd_open(pid) {
        Ok(pidfd) => Ok((members, Some(FirstProcess { pid, pidfd }))),
        Err(Errno::ESRCH) => Err((Denial::Invalid, format!("its process {pid} has ended"))),
        Err(why) => {
            tracing::warn!(pid, %why, "pidfd_open failed: the end of this container cannot be detected");
            Ok((members, None))
        }
    }
}

impl FirstProcess {
    /// The note of it; `None` if it has ended, or nothing is known of it.
    pub(super) fn note(&self) -> Option<String> {
        let (start, within) = (start_time(self.pid)?, own_pid_namespace()?);
        Some(format!("{} {start} {within}\n", self.pid))
    }
}

impl Containers {
    /// Opens page and socket of a restored slice, and watches its container's first process.
    ///
    /// # Errors
    /// A system call failed; nothing is left open. Where it cannot be told whether the first process runs, the slice
    /// is not opened either: the end of its container would never be noticed.
    pub fn reopen(&mut self, now: Instant, record: &Record) -> io::Result<()> {
        let container = &record.container;
        let noted = NotedProcess::of(&self.state.container_dir(container))?;
        self.open(now, record)?;
        if let NotedProcess::Lives(_, first) = noted
            && let Err(why) = self.watch_first(container, first)
        {
            tracing::warn!(%container, %why, "the end of this container cannot be detected");
        }
        Ok(())
    }

    /// Whether the first process of a restored slice is known to have exited.
    pub fn has_ended_meanwhile(&self, container: &ContainerId) -> bool {
        let noted = || NotedProcess::of(&self.state.container_dir(container));
        self.is_restored(container) && matches!(noted(), Ok(NotedProcess::Ended))
    }

    /// Watches the first process of a slice, which ends with it.
    pub(super) fn watch_first(
        &mut self,
        container: &ContainerId,
        first: OwnedFd,
    ) -> io::Result<()> {
        let Some(&key) = self.by_id.get(container) else {
            return Ok(());
        };
        self.watch.add(&first, Source::ContainerExit(key))?;
        if let Some(slice) = self.slots.get_mut(key) {
            slice.first = Some(first);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::fs::File;
    use std::iter;
    use std::process::Command;

    #[test]
    fn any_note_has_one_meaning() {
        let here = own_pid_namespace().expect("ours");
        gpuslice_fuzz::fuzz!("first-processes", |bytes| {
            // A corpus cannot know the namespace.
            let note = String::from_utf8_lossy(bytes).replace("HERE", here);
            if let Some((pid, start)) = parse(&note) {
                assert_eq!(parse(&format!("{pid} {start} {here}\n")), Some((pid, start)));
            }
        });
    }

    /// Then neither a process that runs nor one that has exited is said to have exited.
    #[test]
    fn without_descriptors_it_cannot_be_told() {
        const CHILD: &str = "GPUSLICE_TEST_DESCRIPTORS";
        if std::env::var_os(CHILD).is_none() {
            // The limit is of a whole process, and other tests run in this one.
            let exe = std::env::current_exe().expect("this test");
            let name = "containers::first_process::tests::without_descriptors_it_cannot_be_told";
            let output = Command::new(exe).args(["--exact", name]).env(CHILD, "1").output();
            let output = output.expect("it runs");
            let said = String::from_utf8_lossy(&output.stdout);
            return assert!(output.status.success() && said.contains("1 passed"), "{said}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (own, here) = (std::process::id(), own_pid_namespace().expect("ours"));
        let born = start_time(own).expect("we live");
        let note = format!("{own} {born} {here}\n");
        fs::write(dir.path().join(NOTE), note).expect("a note");
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, 64, most).expect("a lower limit");
        let mut held: Vec<File> = iter::from_fn(|| File::open("/").ok()).collect();
        let mut untold = 0;
        for free in 0..4 {
            match NotedProcess::of(dir.path()) {
                Err(why) => {
                    assert_eq!(why.raw_os_error(), Some(Errno::EMFILE as i32), "{free} are free");
                    untold += 1;
                }
                Ok(noted) => assert!(matches!(noted, NotedProcess::Lives(..)), "{free}: {noted:?}"),
            }
            held.pop();
        }
        assert!(untold > 1, "also where the note can be read");
        assert!(matches!(NotedProcess::of(dir.path()), Ok(NotedProcess::Lives(..))));
    }

    #[test]
    fn a_note_tells_running_exited_and_unknown_processes() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = std::process::id();
        let start = start_time(own).expect("we live");
        let here = own_pid_namespace().expect("ours");
        let found = || match NotedProcess::of(dir.path()).expect("it can be read") {
            NotedProcess::Unknown => "unknown",
            NotedProcess::Ended => "ended",
            NotedProcess::Lives(..) => "lives",
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
