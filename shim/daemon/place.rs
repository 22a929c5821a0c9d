//! Finds the daemon's socket, if this process is in a slice.
//!
//! In a container the hook mounts `/run/gpuslice`, and that alone decides, since the tenant controls the
//! environment. Only without such a mount (plain processes started by `gpuslice run` in preload form)
//! `GPUSLICE_SOCKET` names the socket.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// The socket that the hook mounts into a container.
const SOCKET: &str = "/run/gpuslice/tenant.sock";
/// Mounted too; exists even while a restarting daemon has not recreated its socket.
const DRIVER: &str = "/run/gpuslice/driver";

/// The socket to attach to; `None` outside of any slice.
pub fn socket() -> Option<PathBuf> {
    // A denied lookup is no proof of absence.
    let there = |path: &str| !matches!(Path::new(path).try_exists(), Ok(false));
    if is_mounted(there) {
        return Some(PathBuf::from(SOCKET));
    }
    std::env::var_os("GPUSLICE_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Whether the hook has mounted something into a container in which these paths are `there`.
fn is_mounted(there: impl Fn(&str) -> bool) -> bool {
    there(SOCKET) || there(DRIVER)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{in_child, set_variable};
    use super::*;

    #[test]
    fn a_container_is_in_a_slice_while_its_daemon_restarts() {
        assert!(is_mounted(|path| path == SOCKET) && is_mounted(|path| path == DRIVER));
        assert!(!is_mounted(|_| false));
    }

    /// The environment is of a whole process, so a child of this one tries it.
    #[test]
    fn without_a_mount_the_environment_names_the_socket() {
        let found = |value| {
            set_variable(c"GPUSLICE_SOCKET", value);
            socket()
        };
        assert!(in_child(|| found(c"").is_none() && found(c"/there") == Some("/there".into())));
    }
}
