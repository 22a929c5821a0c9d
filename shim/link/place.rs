//! Is this process in a slice, and where is its daemon?
//!
//! In a container the hook mounts `/run/gpuslice`, and that alone decides: the environment is the
//! tenant's to change. Only where there is no such mount (plain processes started by `gpuslice run`
//! in preload form) is the socket named by `GPUSLICE_SOCKET`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// What the hook mounts into a container.
const SOCKET: &str = "/run/gpuslice/tenant.sock";
/// Also there, and there even while a restarting daemon has not made its socket again.
const DRIVER: &str = "/run/gpuslice/driver";

/// The socket to attach to; `None` outside of any slice.
pub fn socket() -> Option<PathBuf> {
    // Not to be allowed to look is no proof of absence.
    let there = |path| !matches!(Path::new(path).try_exists(), Ok(false));
    if there(SOCKET) || there(DRIVER) {
        return Some(PathBuf::from(SOCKET));
    }
    std::env::var_os("GPUSLICE_SOCKET")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}
