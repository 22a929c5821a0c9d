//! What would end a process, or hang the driver, if its memory were moved to the host.
//!
//! The driver copies the memory into ordinary memory of the process itself. It counts to the process's control groups,
//! and a limit of theirs ends the process in the middle of the copy. A process that is stopped or frozen does not
//! answer the driver, whose calls for it hang for as long, the lock's own timeout notwithstanding. Managed memory is
//! refused by the driver, but a refusal may end the process's context. (Measured with drivers 580.178.04 and 595.84 by
//! gpunap, `validation/FINDINGS.md`.) So all this is looked at before the driver is called.
//!
//! A process can be stopped, or its group's limit lowered, between the look and the move. Then the driver decides.

use gpuslice_host::cgroup;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Room that is to be left where the memory goes, bytes.
const MARGIN: u64 = 256 << 20;
/// The driver's file of unified memory. A process without managed memory has mapped it once.
const UNIFIED_MEMORY: &str = " /dev/nvidia-uvm";

/// The kernel's files of control groups and processes; others in tests.
#[derive(Clone, Debug)]
pub struct Kernel {
    proc: PathBuf,
    groups: Option<PathBuf>,
}

impl Kernel {
    /// This machine's.
    pub fn new() -> Kernel {
        Kernel { proc: "/proc".into(), groups: cgroup::mount() }
    }

    /// Names a process that would not answer the driver.
    pub fn silent(&self, processes: &[(u32, u64)]) -> Option<String> {
        processes.iter().find_map(|&(pid, _)| {
            if self.is_stopped(pid) {
                return Some(format!(
                    "process {pid} is stopped; continue it first (kill -CONT {pid})"
                ));
            }
            let frozen = self.groups_of(pid).into_iter().find(|group| is_frozen(group))?;
            Some(format!("{} is frozen; unpause the container first", frozen.display()))
        })
    }

    /// Says why so much memory of these processes cannot be on the host; `None`: nothing is known against it.
    pub fn refusal(&self, processes: &[(u32, u64)], memory: u64) -> Option<String> {
        let managed = processes.iter().find(|(pid, _)| self.has_managed_memory(*pid));
        if let Some((pid, _)) = managed {
            return Some(format!(
                "process {pid} has managed memory, which the driver does not move"
            ));
        }
        let groups: BTreeSet<PathBuf> =
            processes.iter().flat_map(|(pid, _)| self.groups_of(*pid)).collect();
        groups.into_iter().find_map(|group| {
            let room = room(&group)?;
            let needed = memory.saturating_add(MARGIN);
            (room < needed).then(|| {
                let [needed, room] = [needed, room].map(|bytes| bytes >> 20);
                let group = group.display();
                format!(
                    "its memory limit would end it: {needed} MiB more are needed and {room} MiB left in {group}; raise \
                     memory.max there"
                )
            })
        })
    }

    /// Whether this machine has so much memory left.
    pub fn has_room(&self, memory: u64) -> bool {
        let text = fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.is_none_or(|kib| kib << 10 >= memory.saturating_add(MARGIN))
    }

    fn is_stopped(&self, pid: u32) -> bool {
        let stat = fs::read(self.proc.join(format!("{pid}/stat"))).unwrap_or_default();
        // The name is in parentheses, and may have some itself.
        let after = stat.rsplit(|byte| *byte == b')').next().unwrap_or_default();
        matches!(after.trim_ascii_start().first(), Some(b'T' | b't'))
    }

    fn has_managed_memory(&self, pid: u32) -> bool {
        let maps = fs::read(self.proc.join(format!("{pid}/maps"))).unwrap_or_default();
        let mapped = maps.split(|byte| *byte == b'\n');
        mapped.filter(|line| line.ends_with(UNIFIED_MEMORY.as_bytes())).count() > 1
    }

    /// The directories of a process's group and of all above it, of the unified hierarchy.
    fn groups_of(&self, pid: u32) -> Vec<PathBuf> {
        let text = fs::read(self.proc.join(format!("{pid}/cgroup"))).unwrap_or_default();
        let (Some(mount), Some(name)) = (&self.groups, cgroup::unified(&text)) else {
            return Vec::new();
        };
        let own = cgroup::directory(mount, name);
        let all = own.ancestors().take_while(|dir| dir.starts_with(mount));
        all.map(Path::to_owned).collect()
    }
}

/// Whether a group's processes are frozen, by its own order or by one above it.
fn is_frozen(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "frozen 1")
}

/// The memory that a group may still take, bytes; `None` if it has no limit. Of files that it has read, those that were
/// not used for a while are dropped for it.
fn room(group: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    let (most, now) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let files = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
    Some(most.saturating_sub(now.saturating_sub(files.unwrap_or(0))))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine with 1 GiB left and one process, 1, in the group `/pod/container`.
    pub fn machine() -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().expect("a directory");
        let kernel =
            Kernel { proc: dir.path().join("proc"), groups: Some(dir.path().join("groups")) };
        let write = |path: &str, text: &str| put(dir.path(), path, text);
        write("proc/1/stat", "7 (a) T (b) S 1 7 7 0");
        write("proc/1/cgroup", "4:memory:/other\n0::/pod/container\n");
        write("proc/1/maps", "7f00-7f01 rw-s 0 00:06 1 /dev/nvidia-uvm\n7f02-7f03 r--p 0 0 0\n");
        write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 1048576 kB\n");
        write("groups/pod/memory.max", "max\n");
        write("groups/pod/container/cgroup.events", "populated 1\nfrozen 0\n");
        (dir, kernel)
    }

    pub fn put(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn a_process_that_would_not_answer_is_named() {
        let (dir, kernel) = machine();
        assert_eq!(kernel.silent(&[(1, 1), (2, 1)]), None, "2 has ended");
        put(dir.path(), "proc/1/stat", "7 (a) S (b) T 1 7 7 0");
        assert!(kernel.silent(&[(1, 1)]).is_some_and(|why| why.contains("kill -CONT 1")));
        put(dir.path(), "proc/1/stat", "7 (a) R 1 7 7 0");
        put(dir.path(), "groups/pod/cgroup.events", "populated 1\nfrozen 1\n");
        assert!(kernel.silent(&[(1, 1)]).is_some_and(|why| why.contains("groups/pod is frozen")));
    }

    #[test]
    fn a_limit_of_any_group_above_counts() {
        let (dir, kernel) = machine();
        let limit = |group: &str, most: u64, now: u64| {
            let (most, now) = ((most * MIB).to_string(), (now * MIB).to_string());
            put(dir.path(), &format!("groups/{group}/memory.max"), &most);
            put(dir.path(), &format!("groups/{group}/memory.current"), &now);
        };
        assert_eq!(kernel.refusal(&[(1, 1)], u64::MAX), None, "no group has a limit");
        limit("pod/container", 2000, 1000);
        assert_eq!(kernel.refusal(&[(1, 1)], 744 * MIB), None);
        let why = kernel.refusal(&[(1, 1)], 745 * MIB).expect("too much");
        assert!(why.contains("1001 MiB more are needed and 1000 MiB left"), "{why}");
        put(dir.path(), "groups/pod/container/memory.stat", "file 9\ninactive_file 1048576\n");
        assert_eq!(kernel.refusal(&[(1, 1)], 745 * MIB), None, "1 MiB is of files");
        limit("pod", 300, 200);
        assert!(
            kernel.refusal(&[(1, 1)], MIB).is_some_and(|why| why.ends_with("memory.max there"))
        );
        assert!(kernel.has_room(768 * MIB) && !kernel.has_room(769 * MIB));
    }

    #[test]
    fn managed_memory_is_refused() {
        let (dir, kernel) = machine();
        assert_eq!(kernel.refusal(&[(1, 1)], 0), None);
        put(dir.path(), "proc/1/maps", &"7f00-7f01 rw-s 0 00:06 1 /dev/nvidia-uvm\n".repeat(2));
        assert!(kernel.refusal(&[(1, 1)], 0).is_some_and(|why| why.contains("managed")));
    }
}
