//! Containers that ended while no daemon was there to be told.
//!
//! The hook tells the daemon when a container has ended. Told to nobody, the slice would stay until
//! somebody removed it by hand. So the hook has noted the container's first process beside the
//! record, by its number and the time of its start, and a daemon that starts looks whether it still lives. Who
//! got a slice without the hook has no such note and keeps it.

use std::fs;
use std::path::Path;

/// The note's name in a container's directory.
const NOTE: &str = "container";

/// Whether the container of this directory has ended, as far as anybody can tell.
pub fn ended(dir: &Path) -> bool {
    let Ok(note) = fs::read_to_string(dir.join(NOTE)) else {
        return false;
    };
    let process = note.lines().nth(1).and_then(|line| line.split_once(' '));
    process.is_some_and(|(pid, start)| {
        pid.parse::<u32>()
            .is_ok_and(|pid| born(pid).is_none_or(|born| born.to_string() != start))
    })
}

/// When a process began, in the kernel's own count; `None` if there is none of this number.
pub fn born(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the program's name, which may have anything in it, come 19 fields and then the start.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_the_dead_and_the_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = std::process::id();
        let start = born(own).expect("we live");
        assert!(!ended(dir.path()), "no note");
        for (note, gone) in [
            (format!("1:2\n{own} {start}\n"), false),
            (format!("1:2\n{own} {start}1\n"), true),
            (format!("1:2\n{} 5\n", u32::MAX), true),
            ("1:2\n".to_owned(), false),
            ("1:2\nx y\n".to_owned(), false),
            (String::new(), false),
        ] {
            fs::write(dir.path().join(NOTE), &note).expect("a note");
            assert_eq!(ended(dir.path()), gone, "{note:?}");
        }
    }
}
