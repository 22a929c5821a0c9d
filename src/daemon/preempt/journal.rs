//! A journal of changed channel groups: the files `stopped` and `sliced` in the container's directory, written
//! before each change.
//!
//! Disabled channels of a group, and a changed time slice, are the only state on a GPU that outlives a worker. Each
//! line names a group and how to reach it: its process, the process's start time (a pid can be reused) and its
//! descriptor; for a stop its channels, for a time slice the previous value. The next worker of the container resumes
//! all these groups and restores their time slices, be it after a worker that hung or after a restart of the daemon.
//! The files need not survive a reboot, which ends all groups, so they are not synced.

use super::controls::{ControlError, Controls};
use crate::clients::{ChannelGroup, channels_of};
use crate::slab::Key;
use gpuslice_host::process;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::limits::CHANNELS_PER_GROUP_MAX;
use gpuslice_wire::tenant::ObjectName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The file of stopped groups.
pub const STOPPED: &str = "stopped";
/// The file of groups with a changed time slice.
pub const SLICED: &str = "sliced";
/// Longest file, bytes; more than a container's groups need.
const BYTES_MAX: u64 = 1 << 20;

/// Identifies a group: connection, client, group.
pub type Ident = (Key, ObjectName, ObjectName);

/// A changed group and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    pid: u32,
    /// The process's start time, in the kernel's clock ticks since boot.
    born: u64,
    named: ChannelGroup,
    /// The previous time slice, µs, if the time slice was changed.
    was_us: Option<u64>,
}

impl JournalEntry {
    /// The entry of a process's group that is not changed.
    pub fn of(pid: u32, born: u64, named: ChannelGroup) -> JournalEntry {
        JournalEntry { pid, born, named, was_us: None }
    }

    /// Identifies its group among those of the container's connections.
    pub fn ident(&self, key: Key) -> Ident {
        (key, self.named.client, self.named.group)
    }

    /// The group.
    pub fn named(&self) -> &ChannelGroup {
        &self.named
    }

    /// The process's pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the group was stopped; if not, its time slice was changed.
    pub fn is_stop(&self) -> bool {
        self.was_us.is_none()
    }

    /// The entry of a group whose time slice of `us` is about to be changed.
    pub fn with_slice(self, us: u64) -> JournalEntry {
        let named = ChannelGroup { channels: channels_of([]), ..self.named };
        JournalEntry { was_us: Some(us), named, ..self }
    }

    /// Duplicates the process's descriptor; `None` if the process has exited.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn open(&self, controls: &Controls) -> Result<Option<OwnedFd>, ControlError> {
        let pidfd = process::pidfd_of(self.pid, self.born);
        let Some(pidfd) = pidfd.map_err(|why| ControlError::System(why.into()))? else {
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

    /// A stop ends with the channels, a changed time slice with `was` and its previous value.
    fn text(&self) -> String {
        let JournalEntry { pid, born, named, was_us } = self;
        let (fd, lane) = (named.fd, named.lane.0);
        let (client, group, subdevice) = (named.client.0, named.group.0, named.subdevice.0);
        let channels: String = named.channels().map(|channel| format!(" {}", channel.0)).collect();
        let rest = was_us.map_or(channels, |us| format!(" was {us}"));
        format!("{pid} {born} {fd} {client} {group} {subdevice} {lane}{rest}\n")
    }

    fn parse(line: &str) -> Option<JournalEntry> {
        let (line, was_us) = match line.split_once(" was ") {
            Some((line, us)) => (line, Some(us.parse().ok()?)),
            None => (line, None),
        };
        let numbers: Vec<u64> =
            line.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [pid, born, fd, client, group, subdevice, lane, names @ ..] = &numbers[..] else {
            return None;
        };
        let word = |number: &u64| u32::try_from(*number).ok();
        let names: Vec<u32> = names.iter().map(word).collect::<Option<_>>()?;
        let fits = names.len() <= CHANNELS_PER_GROUP_MAX && !names.contains(&0);
        let named = ChannelGroup {
            lane: Lane(u8::try_from(*lane).ok()?),
            fd: word(fd)?,
            client: ObjectName(word(client)?),
            group: ObjectName(word(group)?),
            subdevice: ObjectName(word(subdevice)?),
            channels: channels_of(names),
        };
        let one = was_us.is_none() || named.channels().next().is_none();
        (fits && one).then_some(JournalEntry { pid: word(pid)?, born: *born, named, was_us })
    }
}

/// Writes the entries of groups to a file of this directory; without entries, removes it.
///
/// # Errors
/// A file operation failed; the container has ended, and its directory is gone.
pub fn write(dir: &Path, file: &str, lines: &[JournalEntry]) -> io::Result<()> {
    let path = dir.join(file);
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

/// The entries in a container's directory, or `None` without a journal. An unreadable one has none.
pub fn read(dir: &Path) -> Option<Vec<JournalEntry>> {
    let read = |file| {
        let file = fs::File::open(dir.join(file)).ok()?;
        let mut text = String::new();
        // What was read before an error counts.
        let _ = file.take(BYTES_MAX).read_to_string(&mut text);
        Some(text.lines().filter_map(JournalEntry::parse).collect::<Vec<_>>())
    };
    let both = [STOPPED, SLICED].map(read);
    both.iter().any(Option::is_some).then(|| both.into_iter().flatten().flatten().collect())
}

/// Entries left by an earlier daemon, by container.
pub fn left_behind(runtime_dir: &Path) -> BTreeMap<ContainerId, Vec<JournalEntry>> {
    let entries = fs::read_dir(runtime_dir.join("c")).into_iter().flatten().flatten();
    let journal = |entry: fs::DirEntry| {
        let container = ContainerId::new(entry.file_name().to_str()?).ok()?;
        Some((container, read(&entry.path())?))
    };
    entries.filter_map(journal).collect()
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
                subdevice: ObjectName(8),
                channels: channels_of([5, 6]),
            },
            was_us: None,
        }
    }

    fn sliced() -> JournalEntry {
        let named = ChannelGroup { channels: channels_of([]), ..line().named };
        JournalEntry { was_us: Some(2_048), named, ..line() }
    }

    #[test]
    fn entries_are_written_read_and_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let web = dir.path().join("c/web");
        let write = |file, lines: &[JournalEntry]| write(&web, file, lines);
        assert!(write(STOPPED, &[line()]).is_err(), "no slice");
        fs::create_dir_all(&web).expect("made");
        fs::create_dir_all(dir.path().join("c/without")).expect("made");
        write(STOPPED, &[line(), line()]).expect("written");
        write(SLICED, &[sliced()]).expect("written");
        let container = ContainerId::new("web").expect("an id");
        let expected = BTreeMap::from([(container, vec![line(), line(), sliced()])]);
        assert_eq!(left_behind(dir.path()), expected);
        for file in [STOPPED, SLICED] {
            write(file, &[]).expect("removed");
            write(file, &[]).expect("and not there is good too");
        }
        assert!(left_behind(dir.path()).is_empty());
    }

    #[test]
    fn an_invalid_line_is_skipped_and_a_reused_pid_is_no_process() {
        let many = "1 2 3 4 5 6 7".to_owned() + &" 8".repeat(CHANNELS_PER_GROUP_MAX + 1);
        for text in [
            "",
            "1",
            "1 2 3 4 5 6",
            "a b c d e f g",
            "-1 2 3 4 5 6 7",
            "1 2 3 4 5 6 300",
            "1 2 3 4 5 6 7 0",
            "1 2 3 4 5 6 7 8 was 9",
            "1 2 3 4 5 6 7 was",
            &many,
        ] {
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
