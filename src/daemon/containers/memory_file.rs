//! The memory file of a container: what it may have of each GPU, has, and should give back, for its own programs.
//!
//! # Problem
//! A container that borrows memory beyond its cap must give it back when another container lacks what it is promised,
//! and is suspended if it does not. A program that can free caches can avoid that, if it is told.
//!
//! # Idea
//! `/run/gpuslice/memory` in the container has a line for each GPU, in the manner of cgroup v2's nested keys:
//! ```text
//! GPU-67707573-696d-86e1-925e-46cf7f5bef3c cap=1073741824 limit=2147483648 used=1610612736 free=0 wanted=4096 over=0
//! ```
//! All amounts are bytes. `free` is what the container could be granted now, `wanted` what it should give back of the
//! memory beyond `cap`, `over` what it holds beyond `limit`: that was lowered, and no memory is granted until it fits.
//!
//! The file is rewritten in place, by one write of always the same length: so a program can wait for the next change by
//! inotify on the file itself (`IN_MODIFY`). For a file that takes the place of another it would have to watch the
//! directory, which a container's users may not read.
//!
//! A container's root may own the file and take a lease on it, and each process that opens it then waits for 45 s. So
//! it is kept open, which leaves no lease to be had, and a file that cannot be opened at once is replaced.
//!
//! It is rewritten when cap, limit or `wanted` change, and every second while another amount changes. Nothing reads it
//! back.

use super::Containers;
use crate::log_limit::LogLimit;
use gpuslice_engine::{LaneRecord, MemoryShare, Record};
use gpuslice_host::clock::now;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::Bytes;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The file's name in the directory that a container sees.
const NAME: &str = "memory";
/// Bytes of a line; the longest has 199.
const LINE_BYTES: usize = 200;

/// What a container's memory file says.
#[derive(Debug, Default)]
pub(super) struct MemoryFile {
    /// Open for writing.
    file: Option<File>,
    shares: Vec<MemoryShare>,
    failed: LogLimit,
}

fn text(shares: &[MemoryShare]) -> String {
    let line = |it: &MemoryShare| {
        let MemoryShare { gpu, .. } = it;
        let [cap, limit, used, free, wanted] =
            [it.cap, it.limit, it.used, it.free, it.wanted].map(|bytes| bytes.0);
        let over = used.saturating_sub(limit);
        let words = format!(
            "{gpu} cap={cap} limit={limit} used={used} free={free} wanted={wanted} over={over}"
        );
        format!("{words:<width$}\n", width = LINE_BYTES - 1)
    };
    shares.iter().map(line).collect()
}

impl MemoryFile {
    /// The file of a slice that begins, or goes on after a restart of the daemon: what is used is not known yet, and
    /// of what is free only that the cap is promised. A program that starts at once may read this.
    ///
    /// # Errors
    /// A system call failed.
    pub(super) fn of(dir: &Path, record: &Record) -> io::Result<MemoryFile> {
        let mut file = MemoryFile::default();
        let share = |lane: &LaneRecord| MemoryShare {
            gpu: lane.gpu,
            cap: lane.cap,
            limit: lane.limit,
            used: Bytes::ZERO,
            free: lane.cap,
            wanted: Bytes::ZERO,
        };
        file.write(dir, record.lanes.iter().map(share).collect())?;
        Ok(file)
    }

    fn write(&mut self, dir: &Path, shares: Vec<MemoryShare>) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(open(dir)?),
        };
        file.write_all_at(text(&shares).as_bytes(), 0)?;
        self.shares = shares;
        Ok(())
    }
}

/// Opens the file for writing; one on which a process has a lease is replaced.
fn open(dir: &Path) -> io::Result<File> {
    let path = dir.join(NAME);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o644);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(&path) {
        Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
            std::fs::remove_file(&path)?;
            options.open(&path)?
        }
        opened => opened?,
    };
    file.set_permissions(Permissions::from_mode(0o644))?;
    Ok(file)
}

impl Containers {
    /// Tells a container's programs what it may have, has and should give back.
    pub fn show_memory(&mut self, container: &ContainerId, shares: Vec<MemoryShare>) {
        let dir = self.state.inside(container);
        let Some(slice) = self.of_mut(container) else {
            return;
        };
        if slice.memory.shares != shares
            && let Err(why) = slice.memory.write(&dir, shares)
            && let Some(count) = slice.memory.failed.one_more(now())
        {
            tracing::warn!(%container, %why, count, "the container's memory file is not up to date");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::ids::GpuUuid;

    fn share(limit: u64, used: u64, wanted: u64) -> MemoryShare {
        let (limit, used, wanted) = (Bytes(limit), Bytes(used), Bytes(wanted));
        MemoryShare { gpu: GpuUuid([7; 16]), cap: Bytes(10), limit, used, free: used, wanted }
    }

    #[test]
    fn it_is_rewritten_in_place_and_keeps_its_length() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(NAME);
        let mut file = MemoryFile::default();
        file.write(dir.path(), vec![share(u64::MAX, u64::MAX, u64::MAX); 2]).expect("written");
        let first = std::fs::metadata(&path).expect("there");
        file.write(dir.path(), vec![share(20, 1, 5), share(10, 0, 0)]).expect("written");
        let second = std::fs::metadata(&path).expect("there");
        assert_eq!((first.ino(), first.len()), (second.ino(), second.len()));
        assert_eq!((first.len(), first.mode() & 0o777), (2 * LINE_BYTES as u64, 0o644));
        let text = std::fs::read_to_string(&path).expect("text");
        let words: Vec<&str> = text.lines().next().expect("a line").split_whitespace().collect();
        assert_eq!(words[1..], ["cap=10", "limit=20", "used=1", "free=1", "wanted=5", "over=0"]);
    }
}
