//! Determines whether a process belongs to the same slice.
//!
//! In a container with its own pid namespace, foreign pids do not exist, and those that exist
//! are in the container's cgroup. For plain processes in a slice on a shared machine, the cgroup decides
//! too if the slice has one of its own. If all share one (a login session), the session's processes are
//! shown: more than the slice's, but never another user's.
#![forbid(unsafe_code)]

use std::fs;

/// The calling process's pid and cgroup, read once per query.
pub struct Peers {
    pid: u32,
    cgroup: Option<Vec<u8>>,
}

impl Peers {
    /// Reads both.
    pub fn look() -> Peers {
        Peers { pid: std::process::id(), cgroup: fs::read("/proc/self/cgroup").ok() }
    }

    /// Whether `pid`, in this process's pid namespace, belongs to the same slice.
    pub fn include(&self, pid: u32) -> bool {
        pid == self.pid
            || self.cgroup.as_ref().is_some_and(|ours| {
                fs::read(format!("/proc/{pid}/cgroup")).is_ok_and(|theirs| theirs == *ours)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_is_a_peer_and_a_dead_one_is_not() {
        let peers = Peers::look();
        assert!(peers.include(std::process::id()));
        assert!(!peers.include(u32::MAX));
    }
}
