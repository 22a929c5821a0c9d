//! The program itself, between the kubelet, the API server and a real daemon with simulated GPUs.

use crate::dra;
use crate::kubelet::drivers::named;
use crate::ports::Port;
use crate::programs::{Process, agent, agent_with, build, daemon};
use crate::world::{CORES, MEMORY, WHOLE, World, container, pod, until};
use gpuslice_k8s::kubelet::pod_resources::ContainerDevices;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use tempfile::TempDir;

const NODE: &str = "/api/v1/nodes/n";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const SLICE: &str = "/apis/resource.k8s.io/v1/resourceslices/n-gpu.gpuslice.io";

/// A daemon with two GPUs of 16 GiB, in a directory of its own.
fn two_gpus(test: &str) -> Option<(TempDir, Process)> {
    let build = build(test)?;
    let root = tempfile::Builder::new().prefix("gpuslice-k8s-").tempdir().expect("a directory");
    let daemon = daemon(&build, root.path(), "devices=2,mem=16GiB");
    Some((root, daemon))
}

/// CDI files: one for each claim.
fn cdi_files(root: &TempDir) -> usize {
    fs::read_dir(root.path().join("run/cdi")).map_or(0, |all| all.count())
}

/// Drivers of dynamic resource allocation that the kubelet can find.
fn announced(world: &World) -> usize {
    fs::read_dir(world.kubelet.directories().plugins_registry()).expect("listed").count()
}

/// Changes a part of the node's object.
fn change(world: &World, part: &str, value: Value) {
    let mut node = world.api.get(NODE).expect("the node");
    let (parent, key) = part.rsplit_once('/').expect("a path");
    let parent = match parent {
        "metadata" => &mut node["metadata"],
        _ => &mut node["status"],
    };
    parent[key] = value;
    world.api.put(NODE, node);
}

fn told(world: &World, reason: &str, words: &str) -> bool {
    let said = |it: &Value| it["message"].as_str().is_some_and(|it| it.contains(words));
    world.api.list(EVENTS).iter().any(|it| it["reason"] == reason && said(it))
}

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

/// Another plugin offers the second GPU: it is offered by that plugin alone, and again by this one when that has left.
#[tokio::test]
async fn a_gpu_with_another_owner_is_not_offered() {
    let Some((root, _daemon)) = two_gpus("a GPU with another owner") else {
        return;
    };
    let world = World::new(&[]).await;
    let port = Port::reserve();
    let _agent = agent_with(&world, root.path(), &["--metrics", &port.address.to_string()]);
    world.registered().await;
    assert_eq!(world.kubelet.allocatable(MEMORY), 32);
    let ids: Vec<String> = world.kubelet.state().plugins[MEMORY].devices.keys().cloned().collect();
    let uuid = ids.last().and_then(|id| id.split_once("::")).expect("an id").0.to_owned();
    world.kubelet.state().foreign = vec![ContainerDevices {
        resource_name: "nvidia.com/gpu".to_owned(),
        device_ids: vec![uuid.clone()],
    }];
    change(
        &world,
        "status/capacity",
        json!({ "nvidia.com/gpu": "1", "aliyun.com/gpu-count": "2" }),
    );
    until("it is withdrawn", || world.kubelet.allocatable(MEMORY) == 16).await;
    until("both resources", || world.kubelet.allocatable(CORES) == 100).await;
    let words = format!("does not offer {uuid}, since NVIDIA's device plugin offers it");
    until("the node's event", || told(&world, "GPUHasAnotherOwner", &words)).await;
    let mut metrics = TcpStream::connect(port.address).expect("it serves");
    metrics
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    metrics.read_to_string(&mut text).expect("an answer");
    let row = format!(
        "gpuslice_agent_gpu_of_other{{UUID=\"{uuid}\",owner=\"NVIDIA's device plugin\"}} 1"
    );
    assert!(text.contains(&row), "{text}");
    let pods: Vec<Value> =
        (0..2).map(|at| pod(&format!("p{at}"), &[container("main", 10, 0)])).collect();
    world.run(&pods[0]).await.expect("the other GPU has room");
    world.run(&pods[1]).await.expect_err("and this one is not ours");
    world.end(&pods[0], "Succeeded");
    change(
        &world,
        "status/capacity",
        json!({ "nvidia.com/gpu": "0", "aliyun.com/gpu-count": "2" }),
    );
    until("it is offered again", || world.kubelet.allocatable(MEMORY) == 32).await;
}

/// The labels are obeyed while the agent runs: the old mode's resources end, and the new one's are there.
#[tokio::test]
async fn the_nodes_labels_are_obeyed_as_they_change() {
    let Some((root, _daemon)) = two_gpus("labels that change") else {
        return;
    };
    let world = World::new(&[]).await;
    let mut running = agent(&world, root.path());
    world.registered().await;
    let pid = running.0.id();
    let mode = |mode: &str| {
        change(&world, "metadata/labels", json!({ "gpuslice.io/mode": mode }));
    };
    mode("cgpu");
    let ended = |resource: &str| {
        world.kubelet.state().plugins.get(resource).is_some_and(|it| it.failure.is_some())
    };
    until("compute is offered no more", || ended(CORES)).await;
    world.kubelet.until("memory again", |it| it.plugins[MEMORY].registrations == 2).await;
    mode("maybe");
    until("the node's event", || told(&world, "GPUModeUnknown", "\"maybe\"; device-plugin, dra"))
        .await;
    let labels = json!({ "gpuslice.io/mode": "cgpu", "ack.node.gpu.placement": "Spread" });
    change(&world, "metadata/labels", labels);
    until("its event", || told(&world, "GPUModeUnknown", "ack.node.gpu.placement: ")).await;
    assert!(!ended(MEMORY), "and nothing changes");
    assert_eq!(world.kubelet.state().plugins[MEMORY].registrations, 2);
    mode("dra");
    until("a slice", || world.api.get(SLICE).is_some()).await;
    assert!(ended(MEMORY));
    assert_eq!(announced(&world), 1);
    let devices = || {
        let slice = world.api.get(SLICE).unwrap_or_default();
        let all = slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
        all.iter().map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(devices(), ["gpu-0", "gpu-1"]);
    mode("off");
    until("no slice", || world.api.get(SLICE).is_none()).await;
    until("no driver", || announced(&world) == 0).await;
    let count = || {
        world.api.get(NODE).expect("the node")["status"]["capacity"]["aliyun.com/gpu-count"].clone()
    };
    until("no number of GPUs", || count() == "0").await;
    mode("core_mem");
    world.kubelet.until("once more", |it| it.plugins[MEMORY].registrations == 3).await;
    // The first pod has GPU 0, as by binpack, and beside it the next one: by the label it has the other GPU.
    world.registered().await;
    let mut gpus = Vec::new();
    for (times, placement) in [(3, "binpack"), (4, "spread")] {
        let labels = json!({ "gpuslice.io/mode": "core_mem", "ack.node.gpu.placement": placement });
        change(&world, "metadata/labels", labels);
        world.kubelet.until("again", |it| it.plugins[MEMORY].registrations == times).await;
        world.registered().await;
        let got = world.run(&pod(placement, &[container("main", 3, 25)])).await.expect("admitted");
        gpus.push(got[0].envs["ALIYUN_COM_GPU_MEM_IDX"].clone());
    }
    assert_eq!(gpus, ["0", "1"]);
    assert!(running.0.try_wait().expect("ours").is_none() && running.0.id() == pid, "one process");
}

/// Pods that device plugins admitted run on when the mode changes, and their claims end with them.
#[tokio::test]
async fn claims_of_device_plugins_end_with_their_pods_in_other_modes() {
    let Some((root, _daemon)) = two_gpus("claims of another mode") else {
        return;
    };
    let world = World::new(&[]).await;
    let _running = agent(&world, root.path());
    let ended = || {
        let plugins = &world.kubelet.state().plugins;
        plugins.get(MEMORY).is_some_and(|it| it.failure.is_some())
    };
    for (times, mode) in [(1, "dra"), (2, "off")] {
        world
            .kubelet
            .until("registered", |it| {
                it.plugins.get(MEMORY).is_some_and(|it| it.registrations == times)
            })
            .await;
        world.registered().await;
        let old = pod(mode, &[container("main", 3, 25)]);
        world.run(&old).await.expect("admitted");
        change(&world, "metadata/labels", json!({ "gpuslice.io/mode": mode }));
        until("nothing is offered by plugins", ended).await;
        assert_eq!(cdi_files(&root), 1, "it runs on");
        world.end(&old, "Succeeded");
        until("its claim is gone", || cdi_files(&root) == 0).await;
        change(&world, "metadata/labels", json!({ "gpuslice.io/mode": "device-plugin" }));
    }
}

/// ACK's labels: `share` places containers and caps none, and `topology` offers whole GPUs.
#[tokio::test]
async fn the_labels_share_and_topology_are_obeyed() {
    let Some((root, _daemon)) = two_gpus("labels share and topology") else {
        return;
    };
    let world = World::new(&[]).await;
    let label = |value: &str| {
        change(&world, "metadata/labels", json!({ "ack.node.gpu.schedule": value }));
    };
    label("share");
    let _running = agent(&world, root.path());
    until("memory", || world.kubelet.allocatable(MEMORY) == 32).await;
    let shared = pod("shared", &[container("main", 10, 0)]);
    let got = world.run(&shared).await.expect("admitted").remove(0);
    assert!(got.cdi_devices.is_empty() && got.annotations.is_empty(), "{got:?}");
    assert_eq!(cdi_files(&root), 1, "its share is reserved all the same");
    world.end(&shared, "Succeeded");
    until("released", || cdi_files(&root) == 0).await;
    label("topology");
    until("whole GPUs", || world.kubelet.allocatable(WHOLE) == 2).await;
    assert!(world.kubelet.state().plugins[MEMORY].failure.is_some());
    let mut both = pod("both", &[container("main", 0, 0)]);
    both["spec"]["containers"][0]["resources"]["limits"][WHOLE] = json!("2");
    let got = world.run(&both).await.expect("admitted").remove(0);
    assert_eq!((got.cdi_devices.len(), got.devices[WHOLE].len()), (1, 2), "{got:?}");
    assert!(!world.kubelet.state().plugins.contains_key(CORES), "compute goes with a GPU");
}

/// A pod with a claim of the DRA driver runs on in mode `off`: the kubelet finds the driver until it has unprepared the
/// claim.
#[tokio::test]
async fn the_driver_stays_in_mode_off_until_its_claims_are_unprepared() {
    let Some((root, _daemon)) = two_gpus("a driver in mode off") else {
        return;
    };
    let world = World::new(&[]).await;
    change(&world, "metadata/labels", json!({ "gpuslice.io/mode": "dra" }));
    let _running = agent(&world, root.path());
    let found = world.kubelet.find_driver().await;
    let one = dra::claim("c", &[("gpu-0", "3Gi", "25")]);
    dra::put(&world, &one);
    until("a slice", || world.api.get(SLICE).is_some()).await;
    assert_eq!(world.kubelet.prepare(&found, &named(&one)).await.error, "");
    change(&world, "metadata/labels", json!({ "gpuslice.io/mode": "off" }));
    until("no slice", || world.api.get(SLICE).is_none()).await;
    let again = world.kubelet.find_driver().await;
    assert_eq!((announced(&world), cdi_files(&root)), (1, 1));
    assert_eq!(world.kubelet.unprepare(&again, &named(&one)).await, "");
    assert_eq!(cdi_files(&root), 0);
    until("no driver", || announced(&world) == 0).await;
}
