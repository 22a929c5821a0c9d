//! What is stopped, on disk: a file `stopped` in the container's directory, written before.
//!
//! Stopped groups are the one thing on a GPU that outlives the daemon. Each line names a group and how to
//! reach it: the process, since when it lives (a number may be another process's by now), and its
//! descriptor. A daemon that starts lets all of them go on. The file need not survive the machine,
//! whose end is that of every group too, so nothing waits for a disk.

use super::controls::Controls;
use super::worker::Target;
use super::{Named, kernel};
use crate::ended::born;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::tenant::ObjectName;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const FILE: &str = "stopped";
/// More than a container's groups need, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// A group that was stopped, and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pid: u32,
    /// In the kernel's ticks since it started.
    born: u64,
    named: Named,
}

impl Line {
    /// Of a group that is about to be stopped.
    pub fn of(target: &Target) -> Line {
        Line {
            pid: target.pid,
            born: born(target.pid).unwrap_or(0),
            named: target.named,
        }
    }

    fn text(&self) -> String {
        let Line { pid, born, named } = self;
        let (fd, lane) = (named.fd, named.lane.0);
        let (client, group) = (named.client.0, named.group.0);
        format!("{pid} {born} {fd} {client} {group} {lane}\n")
    }

    fn parse(line: &str) -> Option<Line> {
        let mut numbers = line.split(' ').map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (pid, born, fd) = (next()?, next()?, next()?);
        let (client, group, lane) = (next()?, next()?, next()?);
        let word = |number: u64| u32::try_from(number).ok();
        let named = Named {
            lane: Lane(u8::try_from(lane).ok()?),
            fd: word(fd)?,
            client: ObjectName(word(client)?),
            group: ObjectName(word(group)?),
            subdevice: ObjectName(0),
        };
        Some(Line {
            pid: word(pid)?,
            born,
            named,
        })
    }
}

fn path(dir: &Path, container: &ContainerId) -> PathBuf {
    dir.join("c").join(container.as_str()).join(FILE)
}

/// Writes down what is stopped of a container; nothing takes the file away.
///
/// # Errors
/// What the system says.
pub fn write(dir: &Path, container: &ContainerId, lines: &[Line]) -> io::Result<()> {
    let path = path(dir, container);
    if lines.is_empty() {
        return match fs::remove_file(path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
            _ => Ok(()),
        };
    }
    let text: String = lines.iter().map(Line::text).collect();
    let beside = path.with_extension("new");
    fs::write(&beside, text)?;
    fs::rename(beside, path)
}

/// What an earlier life left stopped, by file.
pub fn left_behind(dir: &Path) -> Vec<(PathBuf, Vec<Line>)> {
    let entries = fs::read_dir(dir.join("c")).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path().join(FILE));
    let read = |path: PathBuf| {
        let mut text = String::new();
        let file = fs::File::open(&path).ok()?;
        file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        Some((path, text.lines().filter_map(Line::parse).collect()))
    };
    files.filter_map(read).collect()
}

/// Lets all of it go on.
pub fn resume(left: Vec<(PathBuf, Vec<Line>)>, controls: &Controls) {
    for (path, lines) in left {
        for line in &lines {
            match resume_one(line, controls) {
                Ok(true) => tracing::info!(pid = line.pid, "stopped by an earlier life; goes on"),
                Ok(false) => {}
                Err(why) => tracing::error!(
                    pid = line.pid,
                    why,
                    "stopped by an earlier life, and cannot be resumed; end that process"
                ),
            }
        }
        if let Err(why) = fs::remove_file(&path) {
            tracing::error!(path = %path.display(), %why, "remove it by hand");
        }
    }
}

/// Whether there was something to let go on.
fn resume_one(line: &Line, controls: &Controls) -> Result<bool, String> {
    let Ok(pidfd) = kernel::process(line.pid as i32) else {
        return Ok(false);
    };
    // The pidfd first: now the number cannot become another's between the two.
    if born(line.pid) != Some(line.born) {
        return Ok(false);
    }
    let done = controls
        .open(&pidfd, line.named.fd)
        .and_then(|file| controls.resume(&file, &line.named));
    match done {
        Ok(()) => Ok(true),
        Err(refused) if refused.is_gone() => Ok(false),
        Err(refused) => Err(refused.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line {
            pid: std::process::id(),
            born: born(std::process::id()).expect("it lives"),
            named: Named {
                lane: Lane(3),
                fd: 7,
                client: ObjectName(0xc1d0_0001),
                group: ObjectName(9),
                subdevice: ObjectName(0),
            },
        }
    }

    #[test]
    fn what_is_written_is_found_and_taken_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let container = ContainerId::new("web").expect("an id");
        assert!(
            write(dir.path(), &container, &[line()]).is_err(),
            "no slice"
        );
        fs::create_dir_all(dir.path().join("c/web")).expect("made");
        write(dir.path(), &container, &[line(), line()]).expect("written");
        let found = left_behind(dir.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, [line(), line()]);
        write(dir.path(), &container, &[]).expect("removed");
        write(dir.path(), &container, &[]).expect("and not there is good too");
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
            assert_eq!(Line::parse(text), None, "{text:?}");
        }
        assert_eq!(Line::parse(line().text().trim_end()), Some(line()));
        let other = Line {
            born: line().born + 1,
            ..line()
        };
        assert_eq!(resume_one(&other, &Controls::Kernel), Ok(false));
        // A living process without such a file is said to be in need of help.
        let nothing = Line {
            named: Named {
                fd: 1 << 20,
                ..line().named
            },
            ..line()
        };
        assert!(resume_one(&nothing, &Controls::Kernel).is_err());
    }
}
