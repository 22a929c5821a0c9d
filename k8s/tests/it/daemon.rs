//! The program itself, between the kubelet, the API server and a real daemon with simulated GPUs.

use crate::programs::{agent, build, daemon};
use crate::world::{CORES, MEMORY, World, container, pod, until};
use std::fs;

#[tokio::test]
async fn a_pod_gets_its_claim_from_the_daemon() {
    let Some(build) = build("the agent with a daemon") else {
        return;
    };
    let world = World::new(&[]).await;
    let root = tempfile::Builder::new().prefix("gpuslice-k8s-").tempdir().expect("a directory");
    let root = root.path();
    let started = daemon(&build, root, "devices=2,mem=16GiB");
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
    let _started = daemon(&build, root, "devices=2,mem=16GiB");
    let _running = agent(&world, root);
    world.kubelet.until("again", |it| it.plugins[MEMORY].registrations == 2).await;
    world.registered().await;
    let failed = world.run(&pod("big", &[container("main", 17, 0)])).await.expect_err("too big");
    assert!(failed.message.contains("GPU 0 has 13 and 75 percent free"), "{failed:?}");
    world.end(&first, "Succeeded");
    until("the claim is gone", || cdi() == 0).await;
}
