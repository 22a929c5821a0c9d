//! The programs of a build: the daemon with simulated GPUs, and the agent.

use crate::world::World;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program, killed when dropped.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says past the harness's capture why a test does not run.
pub fn skip(test: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIP {test}: {why}\n").as_bytes());
}

/// The directory of a build with everything in it; none, with a printed reason, where the daemon is not built.
pub fn build(test: &str) -> Option<PathBuf> {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    let dir = own.parent().expect("a directory").to_owned();
    let parts = [
        "gpusliced",
        "gpuslice",
        "tenant",
        "libgpuslice_sim_cuda.so",
        "libgpuslice_sim_nvml.so",
        "libexec/gpuslice-hook",
    ];
    match parts.iter().find(|part| !dir.join(part).exists()) {
        None => Some(dir),
        Some(part) => {
            skip(test, &format!("{part} is not built; run packaging/stage debug"));
            None
        }
    }
}

/// Starts a daemon in `root` with these GPUs.
pub fn daemon(build: &Path, root: &Path, gpus: &str) -> Process {
    let driver = root.join("driver");
    if !driver.exists() {
        fs::create_dir(&driver).expect("a directory");
        for (name, real) in [
            ("libcuda.so.1", "libgpuslice_sim_cuda.so"),
            ("libnvidia-ml.so.1", "libgpuslice_sim_nvml.so"),
        ] {
            symlink(build.join(real), driver.join(name)).expect("a link");
        }
    }
    // With more weight than what else runs, as the packaged unit gives the daemon, where this user may: a hook waits
    // for its answer for half a second.
    let mut command = Command::new("nice");
    command.args(["-n", "-15"]).arg(build.join("gpusliced"));
    command.arg("--runtime-dir").arg(root.join("run")).arg("--driver-dir").arg(driver);
    command.env("GPUSLICE_SIM", gpus).stdin(Stdio::null());
    command.env("GPUSLICE_SIM_DEVICE", root.join("device"));
    Process(command.stderr(log(root)).spawn().expect("gpusliced starts"))
}

/// Starts an agent of the daemon in `root`.
pub fn agent(world: &World, root: &Path) -> Process {
    agent_with(world, root, &[])
}

/// Starts an agent with more options.
pub fn agent_with(world: &World, root: &Path, more: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    command.args(["agent", "--node-name", "n", "--api", &world.api.url(), "--kubelet-dir"]);
    command.arg(world.kubelet.root()).arg("--node-socket").arg(root.join("run/node.sock"));
    command.args(more);
    Process(command.stderr(log(root)).spawn().expect("the agent starts"))
}

fn log(root: &Path) -> fs::File {
    fs::File::options().append(true).create(true).open(root.join("log")).expect("a log")
}
