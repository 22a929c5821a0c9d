//! The program itself, between the kubelet, the API server and a real daemon with simulated GPUs.

use crate::world::{CORES, MEMORY, World, container, pod, until};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program, killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The directory of a build with everything in it; none, with a printed reason, where the daemon is not built.
fn build() -> Option<PathBuf> {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    let dir = own.parent().expect("a directory").to_owned();
    let parts = ["gpusliced", "libgpuslice_sim_cuda.so", "libgpuslice_sim_nvml.so"];
    match parts.iter().find(|part| !dir.join(part).exists()) {
        None => Some(dir),
        Some(part) => {
            let line = format!("SKIP the agent with a daemon: {part} is not built\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
    }
}

fn daemon(build: &Path, root: &Path) -> Process {
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
    let mut command = Command::new(build.join("gpusliced"));
    command.arg("--runtime-dir").arg(root.join("run")).arg("--driver-dir").arg(driver);
    command.env("GPUSLICE_SIM", "devices=2,mem=16GiB").stdin(Stdio::null());
    command.env("GPUSLICE_SIM_DEVICE", root.join("device"));
    let log = fs::File::options().append(true).create(true).open(root.join("log")).expect("a log");
    Process(command.stderr(log).spawn().expect("gpusliced starts"))
}

fn agent(world: &World, root: &Path) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    command.args(["agent", "--node-name", "n", "--api", &world.api.url(), "--kubelet-dir"]);
    command.arg(world.kubelet.root()).arg("--node-socket").arg(root.join("run/node.sock"));
    let log = fs::File::options().append(true).create(true).open(root.join("log")).expect("a log");
    Process(command.stderr(log).spawn().expect("the agent starts"))
}

#[tokio::test]
async fn a_pod_gets_its_claim_from_the_daemon() {
    let Some(build) = build() else {
        return;
    };
    let world = World::new(&[]).await;
    let root = tempfile::Builder::new().prefix("gpuslice-k8s-").tempdir().expect("a directory");
    let root = root.path();
    let started = daemon(&build, root);
    let running = agent(&world, root);
    world.registered().await;
    let all = (world.kubelet.allocatable(MEMORY), world.kubelet.allocatable(CORES));
    assert_eq!(all, (32, 200));
    let first = pod("first", &[container("main", 3, 25)]);
    let got = world.run(&first).await.expect("admitted").remove(0);
    let device = got.cdi_devices.first().expect("one").clone();
    assert!(device.ends_with("=uid-first-c0"), "{device}");
    let cdi = || fs::read_dir(root.join("run/cdi")).map_or(0, |all| all.count());
    assert_eq!(cdi(), 1, "the daemon has written the CDI file");
    // Both are killed; the claim is the daemon's, and the agent has no memory of its own.
    drop((started, running));
    let _started = daemon(&build, root);
    let _running = agent(&world, root);
    world.kubelet.until("again", |it| it.plugins[MEMORY].registrations == 2).await;
    world.registered().await;
    let failed = world.run(&pod("big", &[container("main", 17, 0)])).await.expect_err("too big");
    assert!(failed.message.contains("GPU 0 has 13 and 75 percent free"), "{failed:?}");
    world.end(&first, "Succeeded");
    until("the claim is gone", || cdi() == 0).await;
}
