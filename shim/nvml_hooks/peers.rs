//! Is that process one of ours?
//!
//! In a container with a pid namespace of its own, foreign pids do not exist, and those that exist
//! are in the container's cgroup. For plain processes in a slice on a shared machine, the cgroup tells
//! too where the slice has one of its own; where all share one (a login session), what is shown
//! is the session's processes: more than the slice's, never another user's.
#![forbid(unsafe_code)]

use std::fs;

/// The calling process's cgroup and pid, read once per query.
pub struct Peers {
    pid: u32,
    cgroup: Option<Vec<u8>>,
}

impl Peers {
    /// Reads who we are.
    pub fn look() -> Peers {
        Peers {
            pid: std::process::id(),
            cgroup: fs::read("/proc/self/cgroup").ok(),
        }
    }

    /// Whether `pid`, as this process sees pids, belongs to the same slice.
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
    fn we_are_our_own_peer_and_the_dead_are_not() {
        let peers = Peers::look();
        assert!(peers.include(std::process::id()));
        assert!(!peers.include(u32::MAX));
    }
}
