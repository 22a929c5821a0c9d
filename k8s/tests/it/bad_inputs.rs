//! The pair with hostile callers, and with parts of the node missing.

use crate::ledger::uuid;
use crate::world::{CORES, MEMORY, World, container, pod, until};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;

#[tokio::test]
async fn ids_of_no_device_are_refused_by_name() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let waiting = pod("waits", &[container("main", 2, 0)]);
    world.api.add_pod(&waiting);
    world.kubelet.state().pods.push(waiting);
    let id = |card: u8, n: u32| format!("{}::{n}", uuid(card));
    let many: Vec<String> = (0..70_001).map(|n| id(0, n)).collect();
    for (ids, words) in [
        (vec!["x".to_owned()], "no device of this plugin"),
        (vec![id(0, 0), id(0, 16)], "no device of this plugin"),
        (vec![id(5, 0), id(0, 1)], "does not have"),
        (vec![id(0, 1), id(0, 1)], "named twice"),
        (many, "70001 devices"),
        (vec![], "no device"),
    ] {
        let text = world.kubelet.refused(MEMORY, &ids).await;
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = world.kubelet.refused(MEMORY, &[id(0, 1)]).await;
    assert!(text.contains("no pod of this node waits for 1 x aliyun.com/gpu-mem"), "{text}");
    assert!(world.ledger.told().is_empty(), "nothing is reserved");
}

#[tokio::test]
async fn fifty_pods_of_one_size_get_their_annotated_gpus() {
    let world = World::new(&[81_920; 8]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let pods: Vec<_> = (0..50)
        .map(|n| {
            let mut one = pod(&format!("p{n}"), &[container("main", 10, 10)]);
            let gpu = (n * 5 % 8).to_string();
            one["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": gpu });
            one
        })
        .collect();
    pods.iter().for_each(|pod| world.api.add_pod(pod));
    let mut all = tokio::task::JoinSet::new();
    for one in pods.clone() {
        let kubelet = world.kubelet.clone();
        all.spawn(async move {
            let got = kubelet.admit(&one).await.expect("admitted").remove(0);
            let wanted = one["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].clone();
            (got.envs["ALIYUN_COM_GPU_MEM_IDX"].clone(), wanted)
        });
    }
    while let Some(one) = all.join_next().await {
        let (got, wanted) = one.expect("no panic");
        assert_eq!(wanted, got.as_str());
    }
    assert_eq!(world.ledger.told().len(), 50);
    assert!(world.kubelet.state().log.is_empty());
    let failed = world.run(&pod("more", &[container("main", 30, 0)])).await.expect_err("full");
    assert!(failed.message.contains("30 x GiB"), "{failed:?}");
}

#[tokio::test]
async fn without_the_list_of_pods_nothing_is_guessed() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    fs::remove_file(world.kubelet.directories().pod_resources()).expect("removed");
    let failed = world.run(&pod("p", &[container("main", 2, 0)])).await.expect_err("refused");
    assert!(failed.message.contains("does not list its pods"), "{failed:?}");
    assert!(world.ledger.told().is_empty());
}

#[tokio::test]
async fn without_the_daemon_a_pod_is_refused_and_the_next_is_not() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    *world.ledger.gone.lock().expect("no panic") = true;
    let failed = world.run(&pod("p", &[container("main", 2, 0)])).await.expect_err("refused");
    assert!(failed.message.contains("gpusliced does not answer"), "{failed:?}");
    *world.ledger.gone.lock().expect("no panic") = false;
    world.run(&pod("q", &[container("main", 2, 0)])).await.expect("admitted");
}

/// The kubelet admits a pod before the agent has heard of it, and the server has forgotten the agent's version.
#[tokio::test]
async fn a_pod_may_be_admitted_before_it_is_seen() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let late = pod("late", &[container("main", 2, 10)]);
    let (api, seen) = (world.api.clone(), late.clone());
    tokio::spawn(async move {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        api.compact();
        api.add_pod(&seen);
    });
    let got = world.kubelet.admit(&late).await.expect("admitted");
    assert_eq!(got[0].cdi_devices, BTreeSet::from(["gpuslice.io/gpu=uid-late-c0".to_owned()]));
}

/// The agent dies after it has reserved and before the kubelet has the answer; its successor decides the same.
#[tokio::test]
async fn an_agent_that_dies_within_a_call_leaves_one_claim() {
    let world = World::new(&[16384, 16384]).await;
    let plugins = world.plugins();
    world.registered().await;
    let one = pod("p", &[container("main", 4, 30)]);
    world.run(&one).await.expect("admitted");
    drop(plugins);
    // The kubelet has no answer, so the pod has no devices; it asks again.
    world.kubelet.remove("uid-p");
    let _plugins = world.plugins();
    until("registered again", || {
        world.kubelet.state().plugins.values().all(|it| it.registrations == 2)
    })
    .await;
    world.registered().await;
    let got = world.kubelet.admit(&one).await.expect("admitted");
    assert_eq!(got[0].cdi_devices.len(), 1);
    assert_eq!(world.ledger.told(), ["uid-p-c0 on 0 with 4096 and 30"]);
}

/// Pods that are gone from the API server, but not from the node, keep what they have.
#[tokio::test]
async fn claims_end_with_their_pods() {
    let world = World::new(&[16384]).await;
    let _plugins = world.plugins();
    world.registered().await;
    let names = ["ends", "forced", "runs"];
    for name in names {
        world.run(&pod(name, &[container("main", 2, 10)])).await.expect("admitted");
    }
    world.api.delete("/api/v1/namespaces/default/pods/forced");
    world.end(&pod("ends", &[]), "Failed");
    until("one is released", || world.ledger.told().len() == 2).await;
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(
        world.ledger.told().len(),
        2,
        "the node still runs the pod that was deleted by force"
    );
    world.kubelet.remove("uid-forced");
    until("and now the other", || world.ledger.told().len() == 1).await;
    assert!(world.ledger.told()[0].starts_with("uid-runs-c0"));
    assert_eq!(world.kubelet.allocatable(CORES), 100);
}

/// A successor of the same name, as of a StatefulSet, is another pod.
#[tokio::test]
async fn a_patch_names_the_pod_by_uid() {
    let world = World::new(&[16384]).await;
    world.api.add_pod(&pod("p", &[]));
    let client = world.client();
    let path = "/api/v1/namespaces/default/pods/p";
    let fields = json!({ "metadata": { "uid": "another", "annotations": { "a": "b" } } });
    let error = client.merge(path, &fields).await.expect_err("refused");
    let status = gpuslice_k8s::api::client::status(&error).map(|it| it.as_u16());
    assert_eq!(status, Some(409), "{error:#}");
}

/// Without a cluster's variables the agent says how to reach an API server.
#[test]
fn an_agent_outside_a_pod_is_told_what_to_do() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    command.args(["agent", "--node-name", "n"]).env_remove("KUBERNETES_SERVICE_HOST");
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("KUBERNETES_SERVICE_HOST is not set"),
        "{said}"
    );
    assert!(
        said.contains("kubectl proxy") && said.contains("--api http://127.0.0.1:8001"),
        "{said}"
    );
}
