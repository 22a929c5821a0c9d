//! NVIDIA's MPS on this node.
//!
//! Its control daemon starts a server for the first client that reaches its pipe directory; the server then has a
//! context on each GPU that it serves. NVML lists the server as a process like any other, so its name tells what it is.
//! The control daemon alone uses no GPU, and NVML does not know it.
//!
//! Any program can have that name, and a container can start a server of its own. So a process that may belong to a
//! slice is never taken for the node's MPS: one container could otherwise close a GPU to all others.
//! [`crate::accounting::mps`] decides from several samples.

use crate::containers::Members;
use gpuslice_host::cgroup::text_of;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;

/// The kernel's name of nvidia-cuda-mps-server and nvidia-cuda-mps-control, cut to its 15 bytes.
const NAME: &str = "nvidia-cuda-mps";

/// A process by which NVML shows that MPS uses a GPU: a server, or one of its clients.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct MpsProcess {
    /// Its pid.
    pub pid: u32,
    /// The text of its /proc/PID/cgroup.
    pub groups: Vec<u8>,
}

impl MpsProcess {
    /// This process, unless it has ended or is ending.
    pub fn of(pid: u32) -> Option<MpsProcess> {
        let groups = text_of(pid);
        // Last, so that the groups are not those of a process that was ending already.
        has_memory(pid).then_some(MpsProcess { pid, groups })
    }
}

/// Whether a process has an address space. One that is ending has lost it before it gives up its descriptors, while its
/// container's slice may have ended already.
fn has_memory(pid: u32) -> bool {
    let pages = fs::read_to_string(format!("/proc/{pid}/statm"));
    pages.is_ok_and(|pages| !pages.starts_with("0 "))
}

/// The processes by which MPS shows: its clients, and those of all the `listed` ones with a server's name.
pub fn among(
    listed: impl IntoIterator<Item = u32>,
    clients: impl IntoIterator<Item = u32>,
) -> Vec<MpsProcess> {
    let servers = listed.into_iter().filter(|pid| is_named_so(*pid));
    let all: BTreeSet<u32> = servers.chain(clients).collect();
    all.into_iter().filter_map(MpsProcess::of).collect()
}

/// Whether a process has the name of a server or a control daemon.
fn is_named_so(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == NAME)
}

/// Whether a process may be of one of these containers.
pub fn may_be_one_of(slices: &[Members], process: &MpsProcess) -> bool {
    slices.iter().any(|members| members.may_hold(&process.groups))
}

/// All servers and control daemons that this process's pid namespace shows, but those that `may_be_slices`.
pub fn processes(may_be_slices: impl Fn(&MpsProcess) -> bool) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let named = pids.filter(|pid| is_named_so(*pid)).filter_map(MpsProcess::of);
    let mut its: Vec<u32> = named.filter(|it| !may_be_slices(it)).map(|it| it.pid).collect();
    its.sort_unstable();
    its
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_none() {
        let own = std::process::id();
        assert!(MpsProcess::of(own).is_some_and(|it| it.groups == text_of(own)));
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let pid = child.id();
        while has_memory(pid) {
            std::thread::yield_now();
        }
        assert_eq!(MpsProcess::of(pid), None, "it has not been waited for");
        child.wait().expect("ours");
        assert!(!is_named_so(own) && !is_named_so(pid));
    }
}
