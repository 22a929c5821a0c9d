//! Lists of pods and of devices: too long for one side, late, absent for a while, and with pods that have ended.

use crate::world::{CORES, MEMORY, World, container, pod, until};
use gpuslice_k8s::grpc::{
    Answer, Empty, Methods, Service, ask, connect, listen, server_stream, unknown,
};
use gpuslice_k8s::kubelet::device_plugin::{
    ListAndWatchResponse, MESSAGE_MAX, RegisterRequest, VERSION, method,
};
use gpuslice_k8s::ledger::Ledger;
use gpuslice_k8s::plugin;
use gpuslice_k8s::plugin::devices::{Inventory, Offer, Resource};
use gpuslice_k8s::plugin::state::Pair;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::transport::Server;

/// One entry for each device id: with many ids the list of pods is longer than what a client reads by default.
#[tokio::test]
async fn a_list_of_pods_may_be_longer_than_four_mebibytes() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let ids: Vec<String> = (0..70_000).map(|n| format!("{n:056}")).collect();
    assert!(ids.len() * 56 + ids.len() * MEMORY.len() > MESSAGE_MAX);
    {
        let mut state = world.kubelet.state();
        state.pods.push(pod("many", &[container("main", 0, 0)]));
        let key = ("uid-many".to_owned(), "main".to_owned());
        state.allocated.insert(key, [("other.example/device".to_owned(), ids)].into());
    }
    let got = world.run(&pod("p", &[container("main", 2, 10)])).await.expect("admitted").remove(0);
    assert_eq!(got.cdi_devices, BTreeSet::from(["gpuslice.io/gpu=uid-p-c0".to_owned()]));
    world.kubelet.pre_start("uid-p", "main").await.expect("its claim is its own");
}

/// A slow list is waited for, and not for ever: the pod is refused with a reason, and the next one is not.
#[tokio::test(start_paused = true)]
async fn a_list_of_pods_may_be_late() {
    let world = World::new(&[16384]).await;
    let _plugins = world.here();
    world.registered().await;
    world.kubelet.state().asks_no_advice = true;
    world.kubelet.state().next_list_takes = Duration::from_secs(5);
    world
        .run(&pod("slow", &[container("main", 2, 10)]))
        .await
        .expect("five seconds are waited for");
    assert!(world.kubelet.state().next_list_takes.is_zero(), "it was late indeed");
    world.kubelet.state().next_list_takes = Duration::from_secs(3600);
    let late = pod("late", &[container("main", 2, 0)]);
    let failed = world.run(&late).await.expect_err("an hour is not");
    assert_eq!(failed.reason, "UnexpectedAdmissionError");
    assert_eq!(world.ledger.told(), ["uid-slow-c0 on 0 with 2048 and 10"], "nothing is guessed");
    world.run(&pod("next", &[container("main", 2, 0)])).await.expect("admitted");
}

/// Kubelets before 1.34 list pods that have ended, without devices, as they list the one that they admit.
#[tokio::test]
async fn a_pod_that_has_ended_is_not_the_one_that_is_admitted() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    for (name, phase) in [("a-failed", "Failed"), ("a-succeeded", "Succeeded")] {
        let mut ended = pod(name, &[container("main", 2, 10)]);
        ended["status"]["phase"] = json!(phase);
        world.api.add_pod(&ended);
        world.kubelet.state().pods.push(ended);
    }
    world.run(&pod("new", &[container("main", 2, 10)])).await.expect("admitted");
    assert_eq!(world.ledger.told(), ["uid-new-c0 on 0 with 2048 and 10"]);
}

/// A plugin with more devices than a kubelet reads.
struct TooLong(ListAndWatchResponse);

impl Methods for TooLong {
    const NAME: &'static str = "v1beta1.DevicePlugin";

    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        match method {
            "ListAndWatch" => {
                server_stream(request, move |_: Empty| tokio_stream::once(Ok(self.0.clone())))
            }
            other => unknown(other),
        }
    }
}

/// Such a plugin registers, and its devices are missing without a word. So ours does not start.
#[tokio::test]
async fn a_list_of_devices_that_no_kubelet_reads_is_refused_at_the_start() {
    let world = World::new(&[81_920; 2]).await;
    let directories = world.kubelet.directories();
    let mebibytes = "MiB".parse().expect("a unit");
    let all = Inventory::of(&world.ledger.gpus().borrow(), mebibytes).list(Resource::Memory);
    let listener = listen(&directories.device_plugins().join("long@x.sock")).expect("a socket");
    let router = Server::builder().add_service(Service::new(Arc::new(TooLong(all))));
    tokio::spawn(listener.serve(router, std::future::pending()));
    let registry = connect(&directories.device_plugin_registry()).await.expect("it listens");
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: "long@x.sock".to_owned(),
        resource_name: "x.example/long".to_owned(),
        options: None,
    };
    let _: Empty = ask(&registry, method::REGISTER, request, 1 << 20).await.expect("registered");
    let failed = || {
        let state = world.kubelet.state();
        let plugin = state.plugins.get("x.example/long");
        plugin.and_then(|it| it.failure.as_ref()).map(|it| it.message().to_owned())
    };
    until("the kubelet cannot read it", || failed().is_some()).await;
    assert!(failed().expect("a reason").contains("too large"), "{:?}", failed());
    assert_eq!(world.kubelet.allocatable("x.example/long"), 0);

    let mut settings = world.settings(Offer::Both);
    settings.unit = mebibytes;
    let (_copy, pods) = watch::channel(None);
    let pair = Pair::new(settings, world.ledger.clone(), world.client(), pods);
    let refused = timeout(Duration::from_secs(20), plugin::run(Arc::new(pair))).await;
    let refused = refused.expect("it ends").expect_err("163,840 devices").to_string();
    assert!(refused.contains("163840") && refused.contains("4MiB is the smallest"), "{refused}");
    let ours = |name: &str| world.kubelet.state().plugins.contains_key(name);
    assert!(!ours(MEMORY) && !ours(CORES), "it has not registered");
}
