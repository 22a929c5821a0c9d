//! The device plugin pair, judged by the kubelet.

use crate::kubelet::authority::{self, Reaction, Style};
use crate::world::{CORES, MEMORY, WHOLE, World, container, pod, until};
use gpuslice_k8s::plugin::devices::Offer;
use gpuslice_wire::node::HealthState;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test]
async fn both_resources_of_a_container_are_one_decision() {
    let world = World::new(&[15079, 15079]).await;
    let _plugins = world.plugins();
    world.registered().await;
    assert_eq!(world.kubelet.allocatable(MEMORY), 28);
    assert_eq!(world.kubelet.allocatable(CORES), 200);
    for n in 0..4 {
        let one = pod(&format!("p{n}"), &[container("main", 3, 20)]);
        let got = world.run(&one).await.expect("admitted").remove(0);
        let device = format!("gpuslice.io/gpu=uid-p{n}-c0");
        assert_eq!(got.cdi_devices, BTreeSet::from([device.clone()]));
        assert_eq!(got.annotations["cdi.k8s.io/gpuslice"], device);
        assert_eq!(got.envs["ALIYUN_COM_GPU_MEM_CONTAINER"], "3");
        assert_eq!(got.envs["ALIYUN_COM_GPU_MEM_DEV"], "14");
        assert_eq!(got.envs["ALIYUN_COM_GPU_MEM_IDX"], "0");
        // The ids name the GPU, so that other programs find it.
        let gpu = crate::ledger::uuid(0).to_string();
        let ids = got.devices.values().flatten();
        assert!(ids.clone().count() == 23 && ids.clone().all(|id| id.starts_with(&gpu)), "{got:?}");
    }
    assert_eq!(world.kubelet.state().orders.len(), 2, "memory first, and compute first");
    let fifth = world.run(&pod("p4", &[container("main", 3, 20)])).await.expect("admitted");
    assert_eq!(fifth[0].envs["ALIYUN_COM_GPU_MEM_IDX"], "1", "GPU 0 has 2 GiB left");
    assert_eq!(world.ledger.told()[0], "uid-p0-c0 on 0 with 3231 and 20");
    assert!(world.kubelet.state().log.is_empty(), "{:?}", world.kubelet.state().log);
}

/// Memory alone fits GPU 0 and compute alone GPU 1.
#[tokio::test]
async fn split_resources_go_to_the_gpu_that_has_both() {
    let world = World::new(&[16384, 16384, 16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    for (name, memory, cores) in [("a", 12, 90), ("b", 16, 1)] {
        world.run(&pod(name, &[container("main", memory, cores)])).await.expect("admitted");
    }
    for n in 0..8 {
        let name = format!("c{n}");
        let one = pod(&name, &[container("main", 4, 50)]);
        let got = world.run(&one).await.expect("admitted").remove(0);
        assert_eq!(got.envs["ALIYUN_COM_GPU_MEM_IDX"], "2");
        world.end(&one, "Succeeded");
        // Released when the pod has ended, not before the kubelet has forgotten it.
        until("released", || world.ledger.told().len() == 2).await;
    }
    assert!(world.kubelet.state().log.is_empty(), "{:?}", world.kubelet.state().log);
}

#[tokio::test]
async fn a_fragmented_node_refuses_with_a_sentence() {
    let world = World::new(&[8192, 8192]).await;
    let _plugins = world.plugins();
    world.registered().await;
    for name in ["a", "b"] {
        let mut one = pod(name, &[container("main", 4, 0)]);
        let gpu = if name == "a" { "0" } else { "1" };
        one["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": gpu });
        world.run(&one).await.expect("admitted");
    }
    let failed =
        world.run(&pod("c", &[container("main", 6, 0)])).await.expect_err("4 + 4 are not 6");
    assert_eq!(failed.reason, "UnexpectedAdmissionError");
    assert!(failed.message.contains("memory of different GPUs cannot be added up"), "{failed:?}");
    assert_eq!(world.ledger.told().len(), 2, "nothing is reserved for it");
    world.run(&pod("d", &[container("main", 4, 0)])).await.expect("a smaller one fits");
}

#[tokio::test]
async fn every_container_of_a_pod_has_its_own_share() {
    let world = World::new(&[16384, 16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let mut several =
        pod("p", &[container("a", 1, 10), container("b", 2, 0), container("c", 1, 10)]);
    several["spec"]["initContainers"] = json!([container("i", 2, 0)]);
    let got = world.run(&several).await.expect("admitted");
    let devices: Vec<&str> =
        got.iter().map(|it| it.cdi_devices.first().expect("one").as_str()).collect();
    let ours = |position: &str| format!("gpuslice.io/gpu=uid-p-{position}");
    assert_eq!(devices, [ours("c1"), ours("c0"), ours("c1"), ours("c2")]);
    assert_eq!(
        world.ledger.told().len(),
        3,
        "the init container ends before b starts, and has b's claim"
    );
    // Devices of the init container are used again.
    let first: BTreeSet<&String> = got[0].devices[MEMORY].iter().collect();
    assert!(got[1].devices[MEMORY].iter().any(|id| first.contains(id)), "{got:?}");
    until("annotations", || {
        let pod = world.api.get("/api/v1/namespaces/default/pods/p").expect("the pod");
        let text =
            pod["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"].clone();
        text == r#"{"0":{"0":1},"1":{"0":2},"2":{"0":1}}"#
    })
    .await;
}

/// An extender counts what the pod's claims take, also where the plugin placed the pod itself.
#[tokio::test]
async fn the_claim_of_an_init_container_is_in_the_annotations() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let mut one = pod("p", &[container("a", 4, 0)]);
    one["spec"]["initContainers"] = json!([container("i", 5, 0)]);
    world.run(&one).await.expect("admitted");
    assert_eq!(
        world.ledger.told(),
        ["uid-p-i0 on 0 with 5120 and 0", "uid-p-c0 on 0 with 4096 and 0"]
    );
    until("both are told", || {
        let pod = world.api.get("/api/v1/namespaces/default/pods/p").expect("the pod");
        let all = &pod["metadata"]["annotations"];
        all["scheduler.framework.gpushare.allocation"] == r#"{"0":{"0":9}}"#
            && all["ALIYUN_COM_GPU_MEM_POD"] == "9"
    })
    .await;
}

/// A kubelet was advised for a pod that it then did not admit. What it allocates next is for the next pod, although
/// both want as much.
#[tokio::test]
async fn advice_that_was_not_taken_is_forgotten() {
    let world = World::new(&[16384, 16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let first = pod("first", &[container("main", 2, 0)]);
    world.api.add_pod(&first);
    assert_eq!(world.kubelet.advise(&first, MEMORY, 2).await.len(), 2);
    let got = world.run(&pod("second", &[container("main", 2, 0)])).await.expect("admitted");
    assert_eq!(got[0].cdi_devices, BTreeSet::from(["gpuslice.io/gpu=uid-second-c0".to_owned()]));
    // Nor is it if the kubelet takes other devices, without asking again.
    let third = pod("third", &[container("main", 2, 0)]);
    world.api.add_pod(&third);
    assert_eq!(world.kubelet.advise(&third, MEMORY, 2).await.len(), 2);
    world.kubelet.state().asks_no_advice = true;
    let got = world.run(&pod("fourth", &[container("main", 2, 0)])).await.expect("admitted");
    assert_eq!(got[0].cdi_devices, BTreeSet::from(["gpuslice.io/gpu=uid-fourth-c0".to_owned()]));
    assert_eq!(world.ledger.told().len(), 2, "{:?}", world.ledger.told());
}

/// The search for claims of ended pods has read the pods before this one came.
#[tokio::test]
async fn a_claim_that_is_made_during_a_search_is_kept() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let first = pod("first", &[container("main", 2, 0)]);
    world.run(&first).await.expect("admitted");
    world.kubelet.state().next_list_takes = Duration::from_secs(1);
    world.end(&first, "Succeeded");
    world.kubelet.until("a search has begun", |state| state.next_list_takes.is_zero()).await;
    world.run(&pod("second", &[container("main", 3, 0)])).await.expect("admitted");
    until("the first is released", || world.ledger.told().len() == 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.ledger.told(), ["uid-second-c0 on 0 with 3072 and 0"]);
}

#[tokio::test]
async fn a_schedulers_annotation_is_obeyed_and_confirmed() {
    let world = World::new(&[16384, 16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let mut first = pod("v1", &[container("main", 3, 0)]);
    first["metadata"]["annotations"] = json!({
        "ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "ALIYUN_COM_GPU_MEM_POD": "3",
    });
    let got = world.run(&first).await.expect("admitted");
    assert_eq!(got[0].envs["ALIYUN_COM_GPU_MEM_IDX"], "1");
    until("confirmed", || {
        let pod = world.api.get("/api/v1/namespaces/default/pods/v1").expect("the pod");
        let all = &pod["metadata"]["annotations"];
        all["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true" && all["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] != "1"
    })
    .await;
    let mut lying = pod("lying", &[container("main", 3, 0)]);
    lying["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": "99" });
    let failed = world.run(&lying).await.expect_err("there is no GPU 99");
    assert!(failed.message.contains("a scheduler chose GPU 99"), "{failed:?}");
}

#[tokio::test]
async fn both_register_again_after_a_restart_of_the_kubelet() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    world.run(&pod("before", &[container("main", 10, 50)])).await.expect("admitted");
    for _ in 0..3 {
        world.kubelet.restart().await;
        world.registered().await;
    }
    assert_eq!(world.ledger.told(), ["uid-before-c0 on 0 with 10240 and 50"]);
    world.run(&pod("after", &[container("main", 6, 50)])).await.expect("the rest is free");
    world.run(&pod("more", &[container("main", 1, 0)])).await.expect_err("nothing is left");
}

#[tokio::test]
async fn a_restarted_plugin_finds_its_claims() {
    let world = World::new(&[16384]).await;
    let plugins = world.plugins();
    world.registered().await;
    world.run(&pod("before", &[container("main", 10, 0)])).await.expect("admitted");
    drop(plugins);
    world.kubelet.until("gone", |state| state.plugins[MEMORY].devices.is_empty()).await;
    let _plugins = world.plugins();
    world.kubelet.until("back", |state| state.plugins[MEMORY].registrations == 2).await;
    world.registered().await;
    world.run(&pod("more", &[container("main", 7, 0)])).await.expect_err("6 GiB are left");
    world.run(&pod("rest", &[container("main", 6, 0)])).await.expect("they are");
}

#[tokio::test]
async fn health_and_recovery_reach_the_kubelet() {
    let world = World::new(&[4096, 4096]).await;
    let _plugins = world.plugins();
    world.registered().await;
    world.run(&pod("runs", &[container("main", 2, 0)])).await.expect("admitted");
    world.ledger.health(0, HealthState::Xid);
    until("unhealthy", || world.kubelet.allocatable(MEMORY) == 4).await;
    assert_eq!(world.ledger.told().len(), 1, "the running pod keeps its claim");
    let got = world.run(&pod("other", &[container("main", 2, 0)])).await.expect("GPU 1");
    assert_eq!(got[0].envs["ALIYUN_COM_GPU_MEM_IDX"], "1");
    world.ledger.health(0, HealthState::Healthy);
    until("healthy again", || world.kubelet.allocatable(MEMORY) == 8).await;
    until("both resources", || world.kubelet.allocatable(CORES) == 200).await;
    // A change of the unreserved memory is no news to the kubelet.
    let updates = world.kubelet.state().plugins[MEMORY].updates;
    world.run(&pod("third", &[container("main", 1, 0)])).await.expect("admitted");
    assert_eq!(world.kubelet.state().plugins[MEMORY].updates, updates);
}

#[tokio::test]
async fn kubelets_dial_with_two_authorities() {
    let world = World::new(&[4096]).await;
    world.kubelet.state().authority = Style::Escaped;
    let _plugins = world.plugins();
    world.registered().await;
    world.run(&pod("p", &[container("main", 2, 10)])).await.expect("admitted");
    let socket = world.kubelet.directories().device_plugins().join("gpu-mem@gpuslice.sock");
    let options = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    let dial = |authority: String| {
        let socket = socket.clone();
        async move { authority::raw(&socket, &authority, options).await }
    };
    assert_eq!(dial("localhost".to_owned()).await, Reaction::Headers);
    assert_eq!(dial(authority::escaped(&socket)).await, Reaction::Headers);
    // Why the file's name has an @; and why kubelets before 1.26, which send the raw path, are not promised.
    let without = authority::escaped(&socket).replace('@', "-");
    assert_eq!(dial(without).await, Reaction::Reset(1));
    assert_eq!(dial(socket.display().to_string()).await, Reaction::Reset(1));
}

/// gpushare's scheduler and inspect divide by the number of GPUs; a kubelet that starts sets it to zero.
#[tokio::test]
async fn schedulers_are_told_the_number_of_gpus_and_the_sick_ones() {
    let world = World::new(&[4096, 4096]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let count = || {
        let node = world.api.get("/api/v1/nodes/n").expect("the node");
        let of = |part: &str| node["status"][part]["aliyun.com/gpu-count"] == "2";
        of("capacity") && of("allocatable")
    };
    until("counted", count).await;
    let map = "/api/v1/namespaces/gpuslice-system/configmaps/unhealthy-gpu-n";
    assert!(world.api.get(map).is_none());
    world.ledger.health(1, HealthState::Xid);
    let gpus = || world.api.get(map).map(|it| it["data"]["gpus"].clone());
    until("excluded", || gpus() == Some(json!("1"))).await;
    world.ledger.health(1, HealthState::Healthy);
    until("and back", || gpus() == Some(json!(""))).await;
    let zero = json!({ "aliyun.com/gpu-count": "0" });
    let status = json!({ "capacity": zero, "allocatable": zero });
    world.api.put("/api/v1/nodes/n", json!({ "metadata": { "name": "n" }, "status": status }));
    world.kubelet.restart().await;
    until("counted again", count).await;
}

/// A connection to the server may be open and silent. Pods that it does not tell are read before they are refused, once
/// for each resource.
#[tokio::test]
async fn a_pod_that_a_silent_watch_does_not_tell_is_read() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    world.run(&pod("told", &[container("main", 1, 0)])).await.expect("admitted");
    world.api.silence();
    let before = world.api.log().len();
    world.run(&pod("untold", &[container("main", 2, 10)])).await.expect("admitted");
    let all = ["uid-told-c0 on 0 with 1024 and 0", "uid-untold-c0 on 0 with 2048 and 10"];
    assert_eq!(world.ledger.told(), all);
    let reads = || {
        let is_list = |it: &&String| it.starts_with("GET /api/v1/pods?") && !it.contains("watch=1");
        world.api.log()[before..].iter().filter(is_list).count()
    };
    // For memory and for compute: a call for advice and the allocation after it have one decision.
    assert_eq!(reads(), 2, "{:?}", &world.api.log()[before..]);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(
        world.ledger.told(),
        all,
        "its claim is kept, although the watch has not told the pod"
    );
}

/// The server may be busy, or have another change of the pod at the same time.
#[tokio::test]
async fn annotations_are_written_again_after_a_failure() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    world.api.refuse("/namespaces/default/pods/p");
    let two = pod("p", &[container("a", 2, 10), container("b", 3, 0)]);
    world.run(&two).await.expect("admitted");
    let tried =
        || world.api.log().iter().any(|it| it.starts_with("PATCH ") && it.contains("/pods/p"));
    until("tried", tried).await;
    world.api.refuse("");
    let key = "scheduler.framework.gpushare.allocation";
    let written = || {
        world.api.get("/api/v1/namespaces/default/pods/p").expect("the pod")["metadata"]["annotations"][key].clone()
    };
    until("both are told", || written() == r#"{"0":{"0":2},"1":{"0":3}}"#).await;
}

/// The kubelet asks before each start, and knows by then which container has the devices.
#[tokio::test]
async fn a_container_starts_with_its_own_claim_alone() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let mut one = pod("p", &[container("a", 2, 10), container("b", 3, 0)]);
    one["spec"]["initContainers"] = json!([container("i", 3, 0)]);
    world.run(&one).await.expect("admitted");
    for name in ["i", "a", "b", "b"] {
        world.kubelet.pre_start("uid-p", name).await.expect("its claim is reserved");
    }
    // The claim was given up behind the kubelet's back.
    let claim = gpuslice_wire::owner::ClaimId::new("uid-p-c1").expect("an id");
    gpuslice_k8s::ledger::Ledger::release(&*world.ledger, claim).await.expect("released");
    let refused = world.kubelet.pre_start("uid-p", "b").await.expect_err("it has no claim");
    assert!(refused.contains("container b of pod p has no share reserved"), "{refused}");
    world.kubelet.pre_start("uid-p", "a").await.expect("the other container has its claim");
}

/// ACK's labels: `cgpu` offers memory alone, and `share` places containers and caps none.
#[tokio::test]
async fn a_node_offers_what_its_label_says() {
    for (offer, devices) in [(Offer::Memory, 1), (Offer::Share, 0)] {
        let world = World::new(&[16384, 16384]).await;
        let _plugins = world.offering(offer);
        world.kubelet.until("memory", |it| it.plugins.contains_key(MEMORY)).await;
        until("its devices", || world.kubelet.allocatable(MEMORY) == 32).await;
        let got =
            world.run(&pod("p", &[container("main", 10, 0)])).await.expect("admitted").remove(0);
        assert_eq!(got.cdi_devices.len(), devices, "{offer:?}");
        assert_eq!(got.annotations.len(), devices, "{offer:?}");
        assert_eq!(got.envs["ALIYUN_COM_GPU_MEM_IDX"], "0");
        assert_eq!(got.envs["NVIDIA_VISIBLE_DEVICES"], crate::ledger::uuid(0).to_string());
        world.kubelet.pre_start("uid-p", "main").await.expect("it starts");
        // Both count in the ledger, so that the next pod is placed beside it.
        let next =
            world.run(&pod("q", &[container("main", 10, 0)])).await.expect("admitted").remove(0);
        assert_eq!(next.envs["ALIYUN_COM_GPU_MEM_IDX"], "1", "{offer:?}");
        assert!(!world.kubelet.state().plugins.contains_key(CORES), "{offer:?}");
    }
}

/// `aliyun.com/gpu`: whole GPUs, the set that is connected best, and a ConfigMap for schedulers.
#[tokio::test]
async fn whole_gpus_are_chosen_by_their_links() {
    let world = World::new(&[15079, 15079, 16384, 16384]).await;
    world.ledger.link(1, 3, 4);
    let _plugins = world.offering(Offer::Whole);
    until("its devices", || world.kubelet.allocatable(WHOLE) == 4).await;
    let map = "/api/v1/namespaces/gpuslice-system/configmaps/gpu-topology-n";
    until("the map", || world.api.get(map).is_some()).await;
    let map = world.api.get(map).expect("the map");
    assert_eq!(map["metadata"]["labels"]["nodename"], "n");
    let kinds = map["data"]["linkType"].as_str().expect("text");
    assert!(kinds.contains(r#"["SYS","N-A","SYS","NV4"]"#), "{kinds}");
    let whole = |name: &str, count: u64| {
        let mut one = pod(name, &[container("main", 0, 0)]);
        one["spec"]["containers"][0]["resources"]["limits"][WHOLE] = json!(count.to_string());
        one
    };
    let got = world.run(&whole("two", 2)).await.expect("admitted").remove(0);
    assert_eq!(got.cdi_devices.len(), 1);
    let uuid = |number| crate::ledger::uuid(number).to_string();
    let visible = &got.envs["NVIDIA_VISIBLE_DEVICES"];
    assert_eq!(*visible, format!("{},{}", uuid(1), uuid(3)));
    assert!(
        got.devices[WHOLE].iter().all(|id| id.starts_with(&uuid(1)) || id.starts_with(&uuid(3)))
    );
    // All memory of the smaller one, and all time.
    assert_eq!(world.ledger.told(), ["uid-two-c0 on 1,3 with 15079 and 100"]);
    until("annotated", || {
        let pod = world.api.get("/api/v1/namespaces/default/pods/two").expect("the pod");
        pod["metadata"]["annotations"]["topology.kubernetes.io/gpu-group"] == "1,3"
    })
    .await;
    let mut chosen = whole("chosen", 1);
    chosen["metadata"]["annotations"] = json!({ "topology.kubernetes.io/gpu-group": "2" });
    let got = world.run(&chosen).await.expect("admitted").remove(0);
    assert_eq!(got.envs["NVIDIA_VISIBLE_DEVICES"], uuid(2));
    let failed = world.run(&whole("more", 2)).await.expect_err("one is left");
    assert_eq!(failed.reason, "UnexpectedAdmissionError");
    world.run(&whole("last", 1)).await.expect("the last one");
}
