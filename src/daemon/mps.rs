//! NVIDIA's MPS on this node.
//!
//! Its control daemon starts a server for the first client that reaches its pipe directory; the server then has a
//! context on each GPU that it serves. NVML lists the server as a process like any other, so its name tells what it is.
//! The control daemon alone uses no GPU, and NVML does not know it.

use std::fs;

/// The kernel's name of nvidia-cuda-mps-server and nvidia-cuda-mps-control, cut to its 15 bytes.
const NAME: &str = "nvidia-cuda-mps";

/// Whether a process is a server or a control daemon.
fn is_its(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == NAME)
}

/// All servers and control daemons that this process's pid namespace shows.
pub fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut its: Vec<u32> = pids.filter(|pid| is_its(*pid)).collect();
    its.sort_unstable();
    its
}
