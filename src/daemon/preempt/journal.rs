//! What was done to groups, or was once, on disk: files `stopped` and `sliced` in the container's directory, written before.
//!
//! Groups that are stopped or have a time slice of ours are the one thing on a GPU that outlives the daemon.
//! Each line names a group and how to reach it: the process, since when it lives (a number may be
//! another process's by now), and its descriptor; of a time slice also what it was before. A daemon that starts
//! lets all of them go on, and gives back what slices there were. The files need not survive the
//! machine, whose end is that of every group too, so nothing waits for a disk.

use super::controls::{ControlError, Controls};
use super::{ChannelGroup, kernel};
use crate::exit_watch::start_time;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::tenant::ObjectName;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The file of groups that are stopped.
pub const STOPPED: &str = "stopped";
/// The file of groups with a time slice of ours.
pub const SLICED: &str = "sliced";
/// More than a container's groups need, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// A group to which something was done, and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    pid: u32,
    /// In the kernel's ticks since it started.
    born: u64,
    named: ChannelGroup,
    /// The time slice it had before, µs, if that is what was changed.
    was_us: Option<u64>,
}

impl JournalEntry {
    /// Of a group that is about to be stopped.
    pub fn of(pid: u32, named: ChannelGroup) -> JournalEntry {
        JournalEntry {
            pid,
            born: start_time(pid).unwrap_or(0),
            named,
            was_us: None,
        }
    }

    /// Whether it is that group's.
    pub fn is_of(&self, named: &ChannelGroup) -> bool {
        self.named == *named
    }

    /// Of one whose time slice of `us` is about to be changed.
    pub fn with_slice(self, us: u64) -> JournalEntry {
        let was_us = Some(us);
        JournalEntry { was_us, ..self }
    }

    /// The process's open file, now; `None` if the process is gone.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn open(&self, controls: &Controls) -> Result<Option<OwnedFd>, ControlError> {
        let Ok(pidfd) = kernel::process(self.pid as i32) else {
            return Ok(None);
        };
        // The pidfd first: now the number cannot become another's between the two.
        if start_time(self.pid) != Some(self.born) {
            return Ok(None);
        }
        controls.open(&pidfd, self.named.fd).map(Some)
    }

    /// Lets the group go on, or gives it back the slice it had; whether there was still one.
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
        let JournalEntry {
            pid,
            born,
            named,
            was_us,
        } = self;
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
        Some(JournalEntry {
            pid: word(pid)?,
            born,
            named,
            was_us,
        })
    }
}

/// Writes down what was done to groups of a container; nothing takes the file away.
///
/// # Errors
/// What the system says.
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

/// What an earlier life left as it should not stay, by file.
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

/// Undoes all of it.
pub fn undo(left: Vec<(PathBuf, Vec<JournalEntry>)>, controls: &Controls) {
    for (path, lines) in left {
        for line in &lines {
            let pid = line.pid;
            match (line.undo(controls), line.was_us) {
                (Ok(true), None) => tracing::info!(pid, "stopped by an earlier life; goes on"),
                (Ok(_), _) => {}
                (Err(why), None) => tracing::error!(
                    pid, %why,
                    "stopped by an earlier settings, and cannot be resumed; end that process"
                ),
                (Err(why), Some(us)) => tracing::warn!(
                    pid, us, %why,
                    "its time slice was changed by an earlier settings, and cannot be changed back"
                ),
            }
        }
        if let Err(why) = fs::remove_file(&path) {
            tracing::error!(path = %path.display(), %why, "remove it by hand");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> JournalEntry {
        JournalEntry {
            pid: std::process::id(),
            born: start_time(std::process::id()).expect("it lives"),
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
        JournalEntry {
            was_us: Some(2_048),
            ..line()
        }
    }

    #[test]
    fn what_is_written_is_found_and_taken_away() {
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
    fn nonsense_is_no_line_and_a_number_used_again_is_nobody() {
        for text in [
            "",
            "1",
            "1 2 3 4 5",
            "a b c d e f",
            "-1 2 3 4 5 6",
            "1 2 3 4 5 300",
        ] {
            assert_eq!(JournalEntry::parse(text), None, "{text:?}");
        }
        for line in [line(), sliced()] {
            assert_eq!(JournalEntry::parse(line.text().trim_end()), Some(line));
        }
        let other = JournalEntry {
            born: line().born + 1,
            ..line()
        };
        assert!(matches!(other.undo(&Controls::Kernel), Ok(false)));
        // A living process without such a file is said to be in need of help.
        let nothing = JournalEntry {
            named: ChannelGroup {
                fd: 1 << 20,
                ..line().named
            },
            ..line()
        };
        assert!(nothing.undo(&Controls::Kernel).is_err());
    }
}
