//! The DRA driver, judged by the kubelet and by an API server.

use crate::kubelet::authority::{self, Reaction};
use crate::kubelet::drivers::named;
use crate::world::{Agent, World, until};
use gpuslice_k8s::api::store;
use gpuslice_k8s::dra::NAME;
use gpuslice_k8s::dra::driver::Driver;
use gpuslice_k8s::dra::publish::{PATH, Publisher, watch_path};
use gpuslice_k8s::dra::slices::NodeName;
use gpuslice_k8s::grpc;
use gpuslice_k8s::kubelet::Directories;
use gpuslice_k8s::kubelet::dra::{ClaimsRequest, PrepareResponse};
use gpuslice_k8s::place::Placement;
use gpuslice_wire::node::HealthState;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const SLICE: &str = "/apis/resource.k8s.io/v1/resourceslices/n-gpu.gpuslice.io";

/// Publishes the node's slice.
fn publish(world: &World, placement: Placement) -> impl Future<Output = ()> + Send + 'static {
    let (copy, slices) = watch::channel(None);
    let api = world.client();
    let publisher = Publisher {
        node: NodeName { name: "n".to_owned(), uid: "node-uid".to_owned() },
        api: api.clone(),
        ledger: world.ledger.clone(),
        placement,
        slices,
    };
    async move {
        tokio::select! {
            () = store::keep(api, watch_path("n"), copy) => {}
            () = publisher.run() => {}
        }
    }
}

/// Starts driver and publisher.
fn driver(world: &World, placement: Placement) -> Agent {
    let publish = publish(world, placement);
    let (api, ledger) = (world.client(), world.ledger.clone());
    let driver = Driver { node: "n".to_owned(), api, ledger };
    let directories = Directories::new(world.kubelet.root());
    Agent::run(async move {
        tokio::select! {
            () = publish => {}
            ended = Arc::new(driver).run(&directories) => ended.expect("runs"),
        }
    })
}

/// A claim as the scheduler leaves it: device, memory and compute of each result.
pub fn claim(name: &str, results: &[(&str, &str, &str)]) -> Value {
    let result = |(device, memory, cores): &(&str, &str, &str)| {
        json!({
            "request": "gpu", "driver": NAME, "pool": "n", "device": device, "shareID": "s1",
            "consumedCapacity": { "memory": memory, "cores": cores, "shares": "1" },
        })
    };
    let results: Vec<Value> = results.iter().map(result).collect();
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "status": { "allocation": { "devices": { "results": results } } },
    })
}

/// Creates a claim.
pub fn put(world: &World, claim: &Value) {
    let name = claim["metadata"]["name"].as_str().expect("a name");
    let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
    world.api.put(&path, claim.clone());
}

/// Requests by this method so far.
fn requests(world: &World, method: &str) -> usize {
    world.api.log().iter().filter(|it| it.starts_with(method)).count()
}

fn devices(world: &World) -> Vec<String> {
    let slice = world.api.get(SLICE).unwrap_or_default();
    let all = slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
    all.iter().map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn a_claim_is_prepared_and_released_any_number_of_times() {
    let world = World::new(&[81_920; 4]).await;
    let agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    assert_eq!((found.info.kind.as_str(), found.info.name.as_str()), ("DRAPlugin", NAME));
    assert_eq!(found.info.supported_versions[0], "v1.DRAPlugin");
    let one = claim("c", &[("gpu-1", "20Gi", "30"), ("gpu-2", "20Gi", "30")]);
    put(&world, &one);
    let first = world.kubelet.prepare(&found, &named(&one)).await;
    assert_eq!((first.error.as_str(), first.devices.len()), ("", 2));
    assert_eq!(first.devices[0].device_name, "gpu-1");
    assert_eq!(first.devices[0].cdi_device_ids, ["gpuslice.io/gpu=uid-c-r0"]);
    assert_eq!(first.devices[1].share_id.as_deref(), Some("s1"));
    assert_eq!(world.kubelet.prepare(&found, &named(&one)).await, first);
    assert_eq!(world.ledger.told(), ["uid-c-r0 on 1,2 with 20480 and 30"]);
    // The driver restarts, and the kubelet waits for it.
    drop(agent);
    let (kubelet, again, wanted) = (world.kubelet.clone(), found.clone(), named(&one));
    let waiting = tokio::spawn(async move { kubelet.prepare(&again, &wanted).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let _agent = driver(&world, Placement::Binpack);
    assert_eq!(waiting.await.expect("no panic"), first);
    for _ in 0..2 {
        assert_eq!(world.kubelet.unprepare(&found, &named(&one)).await, "");
    }
    assert!(world.ledger.told().is_empty());
    let unknown = claim("never-seen", &[]);
    assert_eq!(world.kubelet.unprepare(&found, &named(&unknown)).await, "");
}

/// Of alternatives the result names the one that was taken, and the container the request.
#[tokio::test]
async fn a_claim_with_alternatives_has_the_name_of_its_request() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    let mut one = claim("c", &[("gpu-1", "20Gi", "30")]);
    one["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/small".into();
    put(&world, &one);
    let prepared = world.kubelet.prepare(&found, &named(&one)).await;
    assert_eq!(prepared.error, "");
    assert_eq!(prepared.devices[0].request_names, ["gpu"]);
}

#[tokio::test]
async fn a_claim_that_is_not_the_pods_is_refused() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    let one = claim("c", &[("gpu-1", "20Gi", "30")]);
    let absent = world.kubelet.prepare(&found, &named(&one)).await;
    assert!(absent.error.contains("404"), "{}", absent.error);
    put(&world, &one);
    let mut other = named(&one);
    other.uid = "uid-of-its-predecessor".to_owned();
    let text = world.kubelet.prepare(&found, &other).await.error;
    assert!(text.contains("another uid (uid-c)"), "{text}");
    let mut path = named(&one);
    path.name = "../../nodes/n".to_owned();
    assert!(world.kubelet.prepare(&found, &path).await.error.contains("no claim's name"));
    let big = claim("big", &[("gpu-0", "81Gi", "30")]);
    put(&world, &big);
    let text = world.kubelet.prepare(&found, &named(&big)).await.error;
    assert!(text.contains("less memory left"), "{text}");
    assert!(world.ledger.told().is_empty());
}

#[tokio::test]
async fn the_slice_is_published_again_after_deletion_health_and_fill() {
    let world = World::new(&[81_920; 3]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    until("published", || devices(&world) == ["gpu-0", "gpu-1", "gpu-2"]).await;
    let slice = world.api.get(SLICE).expect("the slice");
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    // A kubelet that starts deletes it.
    world.api.delete(SLICE);
    until("published again", || devices(&world).len() == 3).await;
    // The fullest GPU is first, so that the scheduler packs.
    let one = claim("c", &[("gpu-2", "20Gi", "30")]);
    put(&world, &one);
    world.kubelet.prepare(&found, &named(&one)).await;
    until("packed", || devices(&world) == ["gpu-2", "gpu-0", "gpu-1"]).await;
    let slice = world.api.get(SLICE).expect("the slice");
    assert!(slice["spec"]["pool"]["generation"].as_i64().expect("a number") > 1);
    assert_eq!(slice["spec"]["devices"][0]["capacity"]["memory"]["value"], "80Gi");
    let taint = || world.api.get(SLICE).expect("the slice")["spec"]["devices"][1]["taints"].clone();
    world.ledger.health(0, HealthState::Xid);
    until("tainted", || taint()[0]["effect"] == "NoExecute").await;
    world.ledger.health(0, HealthState::Healthy);
    until("untainted", || taint().is_null()).await;
    // Another program changes it, or leaves one behind.
    let mut edited = world.api.get(SLICE).expect("the slice");
    edited["spec"]["devices"].as_array_mut().expect("devices").pop();
    world.api.put(SLICE, edited);
    let mut left = world.api.get(SLICE).expect("the slice");
    left["metadata"] = json!({ "name": "left-behind" });
    let stale = format!("{PATH}/left-behind");
    world.api.put(&stale, left);
    until("repaired", || devices(&world).len() == 3 && world.api.get(&stale).is_none()).await;
}

#[tokio::test]
async fn an_unchanged_node_writes_nothing() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Spread);
    until("published", || devices(&world).len() == 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let writes = || world.api.log().iter().filter(|it| !it.starts_with("GET")).count();
    assert_eq!(writes(), 1, "{:?}", world.api.log());
}

#[tokio::test]
async fn a_gate_that_is_off_leaves_nothing_published() {
    let world = World::new(&[81_920; 2]).await;
    world.api.gate_off();
    let _agent = driver(&world, Placement::Binpack);
    let log = || world.api.log().join("\n");
    until("tried and taken back", || log().contains("POST") && log().contains("DELETE")).await;
    assert!(world.api.list(PATH).is_empty());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.api.list(PATH).is_empty(), "and it stays so");
}

/// A server whose gate is off may be started again with another one.
#[tokio::test(start_paused = true)]
async fn a_gate_that_is_off_is_tried_once_a_minute() {
    let world = World::new(&[81_920]).await;
    world.api.gate_off();
    let publishing = tokio::spawn(publish(&world, Placement::Binpack));
    until("taken back", || requests(&world, "DELETE") == 1).await;
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(requests(&world, "POST"), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((requests(&world, "POST"), requests(&world, "DELETE")), (2, 2));
    assert!(world.api.list(PATH).is_empty());
    publishing.abort();
}

/// Another program changes the slice while the driver's change is on its way.
#[tokio::test]
async fn a_change_that_meets_another_is_made_again() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Binpack);
    until("published", || devices(&world).len() == 2).await;
    world.api.hold("/resourceslices/");
    world.ledger.health(0, HealthState::Xid);
    until("on its way", || requests(&world, "PUT") == 1).await;
    let mut edited = world.api.get(SLICE).expect("the slice");
    edited["spec"]["devices"] = json!([]);
    let edited = world.api.put(SLICE, edited);
    world.api.hold("");
    until("repaired", || devices(&world).len() == 2).await;
    assert!(requests(&world, "PUT") > 1, "the first one met a conflict");
    let slice = world.api.get(SLICE).expect("the slice");
    assert_eq!(slice["spec"]["devices"][0]["taints"][0]["effect"], "NoExecute");
    assert_eq!(slice["metadata"]["uid"], edited["metadata"]["uid"], "it was not deleted meanwhile");
}

/// Starts the driver for the claims that are prepared.
fn finish(world: &World) -> Agent {
    let (api, ledger) = (world.client(), world.ledger.clone());
    let driver = Arc::new(Driver { node: "n".to_owned(), api, ledger });
    let directories = Directories::new(world.kubelet.root());
    Agent::run(async move { driver.finish(&directories).await })
}

/// The node's GPUs are offered in another way, and a pod with a claim runs on: the kubelet can end it.
#[tokio::test]
async fn the_driver_stays_until_its_claims_are_unprepared() {
    let world = World::new(&[81_920]).await;
    let agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    let one = claim("c", &[("gpu-0", "20Gi", "30")]);
    put(&world, &one);
    let prepared = world.kubelet.prepare(&found, &named(&one)).await;
    assert_eq!(prepared.error, "");
    drop(agent);
    let _finishing = finish(&world);
    let again = world.kubelet.find_driver().await;
    assert_eq!(world.kubelet.unprepare(&again, &named(&one)).await, "");
    assert!(world.ledger.told().is_empty(), "{:?}", world.ledger.told());
    until("withdrawn", || !again.announcement.exists()).await;
    // Without a claim the kubelet does not see the driver again.
    std::fs::write(&again.announcement, "").expect("a file that is left");
    let _finishing = finish(&world);
    until("withdrawn at once", || !again.announcement.exists()).await;
}

/// The kubelet's directory cannot be written at first: pods with claims end as soon as it can.
#[tokio::test]
async fn a_driver_that_cannot_serve_its_claims_tries_again() {
    let world = World::new(&[81_920]).await;
    let agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    let one = claim("c", &[("gpu-0", "20Gi", "30")]);
    put(&world, &one);
    assert_eq!(world.kubelet.prepare(&found, &named(&one)).await.error, "");
    drop(agent);
    let own = world.kubelet.directories().driver(NAME);
    std::fs::remove_dir_all(&own).expect("the driver's directory");
    std::fs::write(&own, "").expect("a file in its place");
    let _finishing = finish(&world);
    tokio::time::sleep(Duration::from_millis(500)).await;
    std::fs::remove_file(&own).expect("the file");
    let again = world.kubelet.find_driver().await;
    assert_eq!(world.kubelet.unprepare(&again, &named(&one)).await, "");
    assert!(world.ledger.told().is_empty(), "{:?}", world.ledger.told());
    until("withdrawn", || !again.announcement.exists()).await;
}

#[tokio::test]
async fn removed_sockets_are_made_again() {
    let world = World::new(&[81_920]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    std::fs::remove_file(&found.announcement).expect("removed");
    until("announced", || found.announcement.exists()).await;
    let again = world.kubelet.find_driver().await;
    let made = || again.announcement.metadata().and_then(|it| it.modified()).ok();
    let before = made();
    std::fs::remove_file(Path::new(&again.info.endpoint)).expect("removed");
    // The announcement is made again after the driver's socket.
    until("announced again", || made().is_some_and(|it| Some(it) != before)).await;
    // The announcement's name has an @, without which no kubelet could register the driver.
    let dial =
        async |authority: String| authority::raw(&again.announcement, &authority, "/x").await;
    assert_eq!(dial(authority::escaped(&again.announcement)).await, Reaction::Headers);
    let without = authority::escaped(&again.announcement).replace('@', "-");
    assert_eq!(dial(without).await, Reaction::Reset(1));
}

/// It lists the directory again, removes nothing there, and deletes the node's slices.
#[tokio::test]
async fn a_kubelet_that_restarts_finds_the_same_driver() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    let one = claim("c", &[("gpu-1", "20Gi", "30")]);
    put(&world, &one);
    let first = world.kubelet.prepare(&found, &named(&one)).await;
    until("published", || devices(&world).len() == 2).await;
    let sockets = |it: &crate::kubelet::drivers::Driver| {
        [&it.announcement, Path::new(&it.info.endpoint)]
            .map(|path| grpc::identity(path).expect("there"))
    };
    let before = sockets(&found);
    for _ in 0..3 {
        world.kubelet.restart().await;
        world.api.delete(SLICE);
        let again = world.kubelet.find_driver().await;
        assert_eq!(again.info, found.info);
        assert_eq!(sockets(&again), before, "the sockets are those of before");
        until("published again", || devices(&world).len() == 2).await;
        assert_eq!(world.kubelet.prepare(&again, &named(&one)).await, first);
    }
    assert_eq!(world.ledger.told(), ["uid-c-r0 on 1 with 20480 and 30"]);
}

/// Kubelets before 1.34 know an older name of the same service.
#[tokio::test]
async fn the_driver_is_asked_by_its_older_name() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    assert_eq!(found.info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    let one = claim("c", &[("gpu-1", "20Gi", "30")]);
    put(&world, &one);
    let channel = grpc::connect(Path::new(&found.info.endpoint)).await.expect("it listens");
    let request = ClaimsRequest { claims: vec![named(&one)] };
    let method = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";
    let answer: PrepareResponse =
        grpc::ask(&channel, method, request, 4 << 20).await.expect("an answer");
    assert_eq!(answer.claims["uid-c"], world.kubelet.prepare(&found, &named(&one)).await);
}

/// What no scheduler writes is refused with words, and nothing of it is reserved.
#[tokio::test]
async fn claims_that_no_scheduler_wrote_reserve_nothing() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    let changed = |name: &str, pointer: &str, value: Value| {
        let mut claim = claim(name, &[("gpu-0", "20Gi", "30")]);
        let all = "/status/allocation/devices/results";
        *claim.pointer_mut(&format!("{all}{pointer}")).expect("there") = value;
        claim
    };
    let mut many = claim("many", &[]);
    let whole = claim("x", &[("gpu-0", "1Gi", "1")]);
    many["status"] = whole["status"].clone();
    let result = whole["status"]["allocation"]["devices"]["results"][0].clone();
    many["status"]["allocation"]["devices"]["results"] = json!(vec![result; 33]);
    for (bad, words) in [
        (changed("foreign", "/0/driver", json!("gpu.nvidia.com")), "no device of driver"),
        (changed("elsewhere", "/0/pool", json!("another-node")), "no device of driver"),
        (many, "33 results"),
        (changed("huge", "/0/consumedCapacity/memory", json!("9999999Ei")), "less memory left"),
        (changed("negative", "/0/consumedCapacity/memory", json!("-1Gi")), "-1Gi"),
        (changed("cores", "/0/consumedCapacity/cores", json!("101")), "more than 100"),
        (changed("gate", "/0/consumedCapacity", json!({})), "DRAConsumableCapacity"),
        (changed("lost", "/0/device", json!("gpu-7")), "no GPU of this node"),
    ] {
        put(&world, &bad);
        let answer = world.kubelet.prepare(&found, &named(&bad)).await;
        assert!(answer.error.contains(words), "{words}: {}", answer.error);
        assert!(answer.devices.is_empty() && world.ledger.told().is_empty(), "{words}");
    }
}

/// The first pod ends, and the second one's preparation has the same device.
#[tokio::test]
async fn one_claim_of_two_pods_is_one_reservation() {
    let world = World::new(&[81_920; 2]).await;
    let _agent = driver(&world, Placement::Binpack);
    let found = world.kubelet.find_driver().await;
    let mut one = claim("c", &[("gpu-1", "20Gi", "30")]);
    let pod =
        |name: &str| json!({ "resource": "pods", "name": name, "uid": format!("uid-{name}") });
    let mut answers = Vec::new();
    for users in [json!([pod("p")]), json!([pod("p"), pod("q")]), json!([pod("q")])] {
        one["status"]["reservedFor"] = users;
        put(&world, &one);
        answers.push(world.kubelet.prepare(&found, &named(&one)).await);
    }
    assert_eq!(answers[0].error, "");
    assert!(answers.iter().all(|it| *it == answers[0]), "{answers:?}");
    assert_eq!(world.ledger.told(), ["uid-c-r0 on 1 with 20480 and 30"]);
}
