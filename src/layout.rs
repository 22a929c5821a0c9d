//! Where an installation keeps its parts, and where a node's daemon, driver and GPUs are: what the
//! daemon and the CLI must agree on. A module of both programs.

use std::path::{Path, PathBuf};

/// In the runtime directory: where the daemon is asked for everything.
pub const ADMIN_SOCKET: &str = "admin.sock";
/// Where it answers lists and nothing else, if a service manager made it.
pub const OBSERVE_SOCKET: &str = "observe.sock";

/// Where distributions put the driver's libraries.
const SYSTEM_LIBRARIES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];
/// Device nodes of which one exists where a driver is loaded (Linux, WSL).
const DRIVER_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];
/// Where a part is, seen from a program's directory: as built, then as installed. The hook is first
/// looked for where only a static one is put.
const PARTS: [&str; 6] = [
    "libexec",
    ".",
    "../libexec/gpuslice",
    "../lib/gpuslice",
    "../sbin",
    "../bin",
];
/// The file behind the simulated GPU's `libcuda.so.1`.
const SIMULATED_CUDA: &str = "libgpuslice_sim_cuda.so";

/// The runtime directory of this user's daemon; root's is the node's.
pub fn runtime_dir() -> PathBuf {
    let uid = nix::unistd::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        _ if uid.is_root() => "/run/gpuslice".into(),
        Some(dir) => Path::new(&dir).join("gpuslice"),
        None => format!("/tmp/gpuslice-{uid}").into(),
    }
}

/// A program, library or directory that was built or installed together with the program in
/// `beside`.
pub fn part(beside: &Path, name: &str) -> Option<PathBuf> {
    let places = PARTS.iter().map(|place| beside.join(place).join(name));
    places
        .into_iter()
        .find(|path| path.exists())
        .and_then(|path| std::path::absolute(path).ok())
}

/// The directory of the system's driver, if this machine has a GPU.
pub fn system_driver() -> Option<PathBuf> {
    if !DRIVER_NODES.iter().any(|node| Path::new(node).exists()) {
        return None;
    }
    SYSTEM_LIBRARIES
        .iter()
        .map(PathBuf::from)
        .find(|dir| dir.join("libcuda.so.1").exists())
}

/// Whether a `libcuda.so.1` is the simulated GPU's.
pub fn is_simulated(cuda: &Path) -> bool {
    cuda.canonicalize()
        .is_ok_and(|real| real.ends_with(SIMULATED_CUDA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_as_built_and_as_installed() {
        let root = tempfile::tempdir().expect("a directory");
        let make = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(&path, "").expect("a file");
        };
        make("bin/gpuslice");
        make("lib/gpuslice/libgpuslice.so");
        make("libexec/gpuslice/gpuslice-hook");
        let bin = root.path().join("bin");
        for name in ["libgpuslice.so", "gpuslice-hook", "gpuslice"] {
            assert!(
                part(&bin, name).is_some_and(|path| path.ends_with(name)),
                "{name}"
            );
        }
        assert_eq!(part(&bin, "none"), None);
        make("bin/gpuslice-hook");
        make("bin/libexec/gpuslice-hook");
        assert_eq!(
            part(&bin, "gpuslice-hook"),
            Some(bin.join("libexec/gpuslice-hook"))
        );
    }
}
