//! Checks whether the kernel has, and permits, the system calls that the hook and the daemon need: makes each
//! with invalid arguments, which a kernel that has the call reports as such.

// nix wraps none of these calls.
#![allow(unsafe_code)]

use nix::errno::Errno;
use serde_json::{Value, json};

/// Name and number of each call. The newest, `mount_setattr`, came with Linux 5.12.
const CALLS: [(&str, libc::c_long); 6] = [
    ("open_tree", libc::SYS_open_tree),
    ("move_mount", libc::SYS_move_mount),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("openat2", libc::SYS_openat2),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
];

/// The kernel's release, and the calls it lacks.
pub fn facts() -> Value {
    let release = nix::sys::utsname::uname();
    let release = release.map(|name| name.release().to_string_lossy().into_owned());
    let absent = CALLS.iter().filter(|(_, number)| is_absent(*number));
    let absent: Vec<&str> = absent.map(|(name, _)| *name).collect();
    json!({ "release": release.ok(), "absent": absent })
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
}
