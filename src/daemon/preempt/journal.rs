//! A journal of changed channel groups: the files `stopped` and `sliced` in the container's directory, written
//! before each change.
//!
//! A stopped group, and a changed time slice, are the only state on a GPU that outlives the daemon. Each line names a
//! group and how to reach it: its process, the process's start time (a pid can be reused) and its descriptor; for
//! a time slice also the previous value. A starting daemon resumes all these groups and restores their time slices.
//! The files need not survive a reboot, which ends all groups, so they are not synced.

use super::controls::{ControlError, Controls};
use crate::clients::ChannelGroup;
use gpuslice_host::process;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::tenant::ObjectName;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The file of stopped groups.
pub const STOPPED: &str = "stopped";
/// The file of groups with a changed time slice.
pub const SLICED: &str = "sliced";
/// Longest file, bytes; more than a container's groups need.
const BYTES_MAX: u64 = 1 << 20;

/// A changed group and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    pid: u32,
    /// The process's start time, in the kernel's clock ticks since boot.
    born: u64,
    named: ChannelGroup,
    /// The previous time slice, µs, if the time slice was changed.
    was_us: Option<u64>,
}

impl JournalEntry {
    /// The entry of a group about to be stopped.
    pub fn of(pid: u32, named: ChannelGroup) -> JournalEntry {
        JournalEntry { pid, born: process::start_time(pid).unwrap_or(0), named, was_us: None }
    }

    /// Whether it is this group's entry.
    pub fn is_of(&self, named: &ChannelGroup) -> bool {
        self.named == *named
    }

    /// The entry of a group whose time slice of `us` is about to be changed.
    pub fn with_slice(self, us: u64) -> JournalEntry {
        let was_us = Some(us);
        JournalEntry { was_us, ..self }
    }

    /// Duplicates the process's descriptor; `None` if the process has exited.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn open(&self, controls: &Controls) -> Result<Option<OwnedFd>, ControlError> {
        let Ok(Some(pidfd)) = process::pidfd_of(self.pid, self.born) else {
            return Ok(None);
        };
        controls.open(&pidfd, self.named.fd).map(Some)
    }

    /// Resumes the group or restores its time slice; returns whether the group still exists.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn undo(&self, controls: &Controls) -> Result<bool, ControlError> {
        let done = self.open(controls).and_then(|file| {
            let Some(file) = file else { return Ok(false) };
            match self.was_us {
                None => controls.resume(&file, &self.named)?,
                Some(us) => controls.set_time_slice(&file, &self.named, us)?,
            }
            Ok(true)
        });
        match done {
            Err(refused) if refused.is_gone() => Ok(false),
            done => done,
        }
    }

    fn text(&self) -> String {
        let JournalEntry { pid, born, named, was_us } = self;
        let (fd, lane) = (named.fd, named.lane.0);
        let (client, group) = (named.client.0, named.group.0);
        let was = was_us.map_or(String::new(), |us| format!(" {us}"));
        format!("{pid} {born} {fd} {client} {group} {lane}{was}\n")
    }

    fn parse(line: &str) -> Option<JournalEntry> {
        let mut numbers = line.split(' ').map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (pid, born, fd) = (next()?, next()?, next()?);
        let (client, group, lane) = (next()?, next()?, next()?);
        let was_us = next();
        let word = |number: u64| u32::try_from(number).ok();
        let named = ChannelGroup {
            lane: Lane(u8::try_from(lane).ok()?),
            fd: word(fd)?,
            client: ObjectName(word(client)?),
            group: ObjectName(word(group)?),
            subdevice: ObjectName(0),
        };
        Some(JournalEntry { pid: word(pid)?, born, named, was_us })
    }
}

/// Writes the entries of a container's groups; without entries, removes the file.
///
/// # Errors
/// A file operation failed.
pub fn write(
    dir: &Path,
    container: &ContainerId,
    file: &str,
    lines: &[JournalEntry],
) -> io::Result<()> {
    let path = dir.join("c").join(container.as_str()).join(file);
    if lines.is_empty() {
        return match fs::remove_file(path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
            _ => Ok(()),
        };
    }
    let text: String = lines.iter().map(JournalEntry::text).collect();
    let beside = path.with_extension("new");
    fs::write(&beside, text)?;
    fs::rename(beside, path)
}

/// Entries left by an earlier daemon, by file.
pub fn left_behind(dir: &Path) -> Vec<(PathBuf, Vec<JournalEntry>)> {
    let entries = fs::read_dir(dir.join("c")).into_iter().flatten().flatten();
    let files = entries.flat_map(|entry| [STOPPED, SLICED].map(|file| entry.path().join(file)));
    let read = |path: PathBuf| {
        let mut text = String::new();
        let file = fs::File::open(&path).ok()?;
        file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        Some((path, text.lines().filter_map(JournalEntry::parse).collect()))
    };
    files.filter_map(read).collect()
}

/// Undoes all entries and removes the files.
pub fn undo(left: Vec<(PathBuf, Vec<JournalEntry>)>, controls: &Controls) {
    for (path, lines) in left {
        for line in &lines {
            let pid = line.pid;
            match (line.undo(controls), line.was_us) {
                (Ok(true), None) => tracing::info!(pid, "stopped by an earlier daemon; resumed"),
                (Ok(_), _) => {}
                (Err(why), None) => tracing::error!(
                    pid, %why,
                    "stopped by an earlier daemon, and cannot be resumed; end that process"
                ),
                (Err(why), Some(us)) => tracing::warn!(
                    pid, us, %why,
                    "its time slice was changed by an earlier daemon, and cannot be restored"
                ),
            }
        }
        if let Err(why) = fs::remove_file(&path) {
            tracing::error!(path = %path.display(), %why, "delete it by hand");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> JournalEntry {
        JournalEntry {
            pid: std::process::id(),
            born: process::start_time(std::process::id()).expect("it lives"),
            named: ChannelGroup {
                lane: Lane(3),
                fd: 7,
                client: ObjectName(0xc1d0_0001),
                group: ObjectName(9),
                subdevice: ObjectName(0),
            },
            was_us: None,
        }
    }

    fn sliced() -> JournalEntry {
        JournalEntry { was_us: Some(2_048), ..line() }
    }

    #[test]
    fn entries_are_written_read_and_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let container = ContainerId::new("web").expect("an id");
        let write = |file, lines: &[JournalEntry]| write(dir.path(), &container, file, lines);
        assert!(write(STOPPED, &[line()]).is_err(), "no slice");
        fs::create_dir_all(dir.path().join("c/web")).expect("made");
        write(STOPPED, &[line(), line()]).expect("written");
        write(SLICED, &[sliced()]).expect("written");
        let found = left_behind(dir.path());
        let found: Vec<_> = found.into_iter().map(|(_, lines)| lines).collect();
        assert_eq!(found, [vec![line(), line()], vec![sliced()]]);
        for file in [STOPPED, SLICED] {
            write(file, &[]).expect("removed");
            write(file, &[]).expect("and not there is good too");
        }
        assert!(left_behind(dir.path()).is_empty());
    }

    #[test]
    fn an_invalid_line_is_skipped_and_a_reused_pid_is_no_process() {
        for text in ["", "1", "1 2 3 4 5", "a b c d e f", "-1 2 3 4 5 6", "1 2 3 4 5 300"] {
            assert_eq!(JournalEntry::parse(text), None, "{text:?}");
        }
        for line in [line(), sliced()] {
            assert_eq!(JournalEntry::parse(line.text().trim_end()), Some(line));
        }
        let other = JournalEntry { born: line().born + 1, ..line() };
        assert!(matches!(other.undo(&Controls::Kernel), Ok(false)));
        // A running process without such a file is logged as not resumed.
        let nothing =
            JournalEntry { named: ChannelGroup { fd: 1 << 20, ..line().named }, ..line() };
        assert!(nothing.undo(&Controls::Kernel).is_err());
    }

    #[test]
    fn any_line_has_one_meaning() {
        gpuslice_fuzz::fuzz!("journal", |bytes| {
            let Ok(line) = std::str::from_utf8(bytes) else { return };
            if let Some(entry) = JournalEntry::parse(line) {
                assert_eq!(JournalEntry::parse(entry.text().trim_end()), Some(entry));
            }
        });
    }
}
