//! Where an installation keeps its parts, and where a node's daemon, driver and GPUs are: what the
//! daemon and the CLI must agree on.

use std::path::{Path, PathBuf};

/// In the runtime directory: where the daemon is asked for everything.
pub const ADMIN_SOCKET: &str = "admin.sock";
/// Where it answers lists and nothing else, if a service manager made it.
pub const OBSERVE_SOCKET: &str = "observe.sock";

/// Where an agent of the node reads what there is, and reserves.
pub const NODE_SOCKET: &str = "node.sock";

/// The runtime directory of the node's daemon, which is root's.
pub const NODE_DIR: &str = "/run/gpuslice";
/// What a daemon says that finds another one in its runtime directory.
pub const TAKEN: &str = "another gpusliced serves it";

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
/// Device nodes that every container with a GPU needs, where they exist.
const COMMON_NODES: [&str; 5] = [
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/dxg",
];
/// NVIDIA's driver gives GPUs minor numbers below this one; 254 is modesetting, 255 the control node.
const GPU_MINORS: u32 = 254;
/// Where a part is, seen from a program's directory: as built, then as installed. The hook is first
/// looked for where only a static one is put.
const PARTS: [&str; 6] =
    ["libexec", ".", "../libexec/gpuslice", "../lib/gpuslice", "../sbin", "../bin"];
/// The file behind the simulated GPU's `libcuda.so.1`.
const SIMULATED_CUDA: &str = "libgpuslice_sim_cuda.so";

/// The runtime directory of this user's daemon; root's is the node's.
pub fn runtime_dir() -> PathBuf {
    let uid = nix::unistd::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        _ if uid.is_root() => NODE_DIR.into(),
        Some(dir) => Path::new(&dir).join("gpuslice"),
        None => format!("/tmp/gpuslice-{uid}").into(),
    }
}

/// A program, library or directory that was built or installed together with the program in
/// `beside`.
pub fn part(beside: &Path, name: &str) -> Option<PathBuf> {
    let places = PARTS.iter().map(|place| beside.join(place).join(name));
    places.into_iter().find(|path| path.exists()).and_then(|path| std::path::absolute(path).ok())
}

/// Why this machine's own driver cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDriver {
    /// Its part in the kernel is not there.
    #[error(
        "no NVIDIA driver is loaded: there is neither {} nor {}; load it, and check that nvidia-smi works",
        DRIVER_NODES[0],
        DRIVER_NODES[1]
    )]
    NotLoaded,
    /// Its libraries are not there.
    #[error(
        "an NVIDIA driver is loaded, but none of {} has its libcuda.so.1; install the driver's libraries",
        SYSTEM_LIBRARIES.join(", ")
    )]
    NoLibrary,
}

/// The directory of the system's driver.
///
/// # Errors
/// What is missing of it.
pub fn system_driver() -> Result<PathBuf, NoDriver> {
    driver_in(Path::new("/"))
}

/// The same in another root.
fn driver_in(root: &Path) -> Result<PathBuf, NoDriver> {
    let at = |path: &&str| root.join(path.trim_start_matches('/'));
    if !DRIVER_NODES.iter().any(|node| at(node).exists()) {
        return Err(NoDriver::NotLoaded);
    }
    let mut dirs = SYSTEM_LIBRARIES.iter().map(at);
    dirs.find(|dir| dir.join("libcuda.so.1").exists()).ok_or(NoDriver::NoLibrary)
}

/// Those device nodes that every container with a GPU needs and that exist.
pub fn common_nodes() -> Vec<&'static str> {
    COMMON_NODES.into_iter().filter(|node| Path::new(node).exists()).collect()
}

/// The device nodes of all GPUs.
pub fn gpu_nodes() -> Vec<PathBuf> {
    (0..GPU_MINORS).map(gpu_node).filter(|node| node.exists()).collect()
}

/// The device node of the GPU with this minor number.
pub fn gpu_node(minor: u32) -> PathBuf {
    format!("/dev/nvidia{minor}").into()
}

/// Whether a `libcuda.so.1` is the simulated GPU's.
pub fn is_simulated(cuda: &Path) -> bool {
    cuda.canonicalize().is_ok_and(|real| real.ends_with(SIMULATED_CUDA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_has_two_parts_and_the_missing_one_is_named() {
        let root = tempfile::tempdir().expect("a directory");
        let make = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(&path, "").expect("a file");
        };
        make("usr/lib64/libcuda.so.1");
        assert_eq!(driver_in(root.path()), Err(NoDriver::NotLoaded));
        make("dev/nvidiactl");
        assert_eq!(driver_in(root.path()), Ok(root.path().join("usr/lib64")));
        std::fs::remove_file(root.path().join("usr/lib64/libcuda.so.1")).expect("ours");
        assert_eq!(driver_in(root.path()), Err(NoDriver::NoLibrary));
        let words = NoDriver::NoLibrary.to_string();
        assert!(words.contains("/usr/lib64") && words.contains("libcuda.so.1"));
    }

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
            assert!(part(&bin, name).is_some_and(|path| path.ends_with(name)), "{name}");
        }
        assert_eq!(part(&bin, "none"), None);
        make("bin/gpuslice-hook");
        make("bin/libexec/gpuslice-hook");
        assert_eq!(part(&bin, "gpuslice-hook"), Some(bin.join("libexec/gpuslice-hook")));
    }
}
