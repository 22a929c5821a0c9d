//! Checks whether the kernel has, and permits, the system calls that the hook and the daemon need: makes each
//! with invalid arguments, which a kernel that has the call reports as such. And whether NVIDIA's kernel modules let
//! GPUs use pages of the host's memory by themselves (HMM).

// nix wraps none of these calls.
#![allow(unsafe_code)]

use nix::errno::Errno;
use serde_json::{Value, json};
use std::fs;

/// Name and number of each call. The newest, `mount_setattr`, came with Linux 5.12.
const CALLS: [(&str, libc::c_long); 6] = [
    ("open_tree", libc::SYS_open_tree),
    ("move_mount", libc::SYS_move_mount),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("openat2", libc::SYS_openat2),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
];

/// What NVIDIA's kernel modules are.
const MODULES: &str = "/proc/driver/nvidia/version";
/// As the open kernel modules name themselves there; only these have HMM.
const OPEN: &str = "Open Kernel Module";
/// `Y` or `N`, once the module is loaded. Source: `uvm_hmm.c` of NVIDIA's open kernel modules.
const DISABLES_HMM: &str = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm";

/// The kernel's release, the calls it lacks, and whether NVIDIA's modules permit HMM: null if they are not loaded.
pub fn facts() -> Value {
    let release = nix::sys::utsname::uname();
    let release = release.map(|name| name.release().to_string_lossy().into_owned());
    let absent = CALLS.iter().filter(|(_, number)| is_absent(*number));
    let absent: Vec<&str> = absent.map(|(name, _)| *name).collect();
    let [modules, disables] = [MODULES, DISABLES_HMM].map(|file| fs::read_to_string(file).ok());
    let hmm = modules.zip(disables).map(|(modules, disables)| permits_hmm(&modules, &disables));
    json!({ "release": release.ok(), "absent": absent, "hmm": hmm })
}

fn permits_hmm(modules: &str, disables: &str) -> bool {
    modules.contains(OPEN) && disables.trim() == "N"
}

fn is_absent(number: libc::c_long) -> bool {
    const WRONG: libc::c_long = -1;
    // SAFETY: no flag, size, descriptor or address is -1, so none of these calls does anything.
    let done = unsafe { libc::syscall(number, WRONG, WRONG, WRONG, WRONG, WRONG) };
    done == -1 && Errno::last() == Errno::ENOSYS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_call_is_absent() {
        assert!(is_absent(9_999) && !is_absent(libc::SYS_openat2));
        assert!(facts()["release"].is_string());
    }

    #[test]
    fn open_modules_permit_hmm_unless_it_is_disabled() {
        let modules = |kind| {
            format!("NVRM version: NVIDIA UNIX {kind} for x86_64  580.159.04\nGCC version:\n")
        };
        let [open, closed] = ["Open Kernel Module", "x86_64 Kernel Module"].map(modules);
        let permits = [(&open, "N\n"), (&open, "Y\n"), (&closed, "N\n")]
            .map(|(modules, disables)| permits_hmm(modules, disables));
        assert_eq!(permits, [true, false, false]);
    }
}
