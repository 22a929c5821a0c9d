//! Several replicas of the extender: one binds at a time, whatever happens to it.

use crate::api::Server;
use crate::ports;
use crate::world::{Agent, container, until, until_asked};
use gpuslice_k8s::api::client::Client;
use gpuslice_k8s::api::store::Objects;
use gpuslice_k8s::extender::lease::{Elector, Leading};
use gpuslice_k8s::extender::{BindArgs, Choices, Extender, serve};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// How long a Lease holds without a renewal. A holder binds for half of it from its question, so a process that stalls
/// for up to 3 s on a busy machine still leads.
const DURATION: Duration = Duration::from_secs(9);
const SCHEDULER: &str = "ack-co-scheduler";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpuslice-extender";

/// A replica, ended when dropped.
struct Replica {
    client: Client,
    _agent: Agent,
}

impl Replica {
    fn start(api: &Server, me: &str) -> Replica {
        Replica::until(api, me, std::future::pending())
    }

    /// One that is told to end when `stop` is ready.
    fn until(api: &Server, me: &str, stop: impl Future<Output = ()> + Send + 'static) -> Replica {
        let (free, address) = ports::listener();
        let elector = elector(api, me);
        let client = Client::plain(&api.url()).expect("a URL");
        let agent = Agent::run(async move {
            let listener = tokio::net::TcpListener::from_std(free).expect("a socket");
            let (schedulers, config_maps) = (vec![SCHEDULER.to_owned()], Vec::new());
            let choices = Choices { schedulers, config_maps };
            serve(client, listener, choices, Some(elector), stop).await.expect("serves");
        });
        let client = Client::plain(&format!("http://{address}")).expect("a URL");
        Replica { client, _agent: agent }
    }

    async fn is_ready(&self) -> bool {
        // The answer is no JSON; only its status counts.
        let error = self.client.get::<Value>("/readyz").await.expect_err("text");
        gpuslice_k8s::api::client::status(&error).is_none()
            && !format!("{error:#}").contains("API server at")
    }

    async fn bind(&self, pod: &Value) -> bool {
        bind(&self.client, pod).await
    }
}

async fn bind(extender: &Client, pod: &Value) -> bool {
    let meta = &pod["metadata"];
    let args = json!({
        "PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1",
    });
    extender.create("/gpushare-scheduler/bind", &args).await.is_ok()
}

fn elector(api: &Server, me: &str) -> Elector {
    Elector {
        api: Client::plain(&api.url()).expect("a URL"),
        lease: "kube-system/gpuslice-extender".parse().expect("a lease"),
        me: me.to_owned(),
        duration: DURATION,
    }
}

async fn cluster() -> Arc<Server> {
    let api = Server::start().await;
    let amounts = json!({ "aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2" });
    api.put(
        "/api/v1/nodes/n1",
        json!({ "metadata": { "name": "n1" }, "status": { "capacity": amounts } }),
    );
    api
}

fn pod(api: &Server, name: &str) -> Value {
    let pod = json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "schedulerName": SCHEDULER, "containers": [container("main", 5, 0)] }, "status": { "phase": "Pending" },
    });
    api.add_pod(&pod);
    pod
}

fn holder(api: &Server) -> String {
    let lease = api.get(LEASE).unwrap_or_default();
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

async fn leads(replica: &Replica) {
    until_asked("it leads", async || replica.is_ready().await).await;
}

/// Pods on each GPU of the node.
fn fill(api: &Server) -> BTreeMap<String, usize> {
    let mut fill = BTreeMap::new();
    for pod in api.list("/api/v1/pods").iter().filter(|it| it["spec"]["nodeName"] == "n1") {
        let gpu = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].to_string();
        *fill.entry(gpu).or_default() += 1;
    }
    fill
}

#[tokio::test]
async fn the_next_replica_binds_after_the_holder_and_never_beside_it() {
    let api = cluster().await;
    let first = Replica::start(&api, "a");
    leads(&first).await;
    let second = Replica::start(&api, "b");
    assert_eq!(holder(&api), "a");
    let pods: Vec<Value> = (0..12).map(|n| pod(&api, &format!("p{n}"))).collect();
    // Both are asked for every pod, as by a scheduler whose service still routes to both.
    let mut bound = 0;
    for one in &pods[..4] {
        let (a, b) = tokio::join!(first.bind(one), second.bind(one));
        assert!(a && !b, "only the holder binds");
        bound += 1;
    }
    drop(first);
    leads(&second).await;
    assert_eq!(holder(&api), "b");
    assert_eq!(api.get(LEASE).expect("it stays")["spec"]["leaseTransitions"], 1);
    for one in &pods[4..] {
        bound += usize::from(second.bind(one).await);
    }
    assert_eq!(bound, 6, "two GPUs of 15 hold six pods of 5");
    assert_eq!(
        fill(&api).into_values().collect::<Vec<_>>(),
        [3, 3],
        "all of its predecessor's count"
    );
}

/// A holder that ends in order leaves the Lease to the next one, which does not wait for its end.
#[tokio::test]
async fn a_holder_that_is_told_to_end_gives_its_lease_up() {
    let api = cluster().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let first = Replica::until(&api, "a", async { drop(stopped.await) });
    leads(&first).await;
    assert!(first.bind(&pod(&api, "one")).await);
    elector(&api, "b").give_up().await.expect("nothing to give up");
    assert_eq!(holder(&api), "a", "it is another's");
    drop(stop);
    until("given up", || holder(&api).is_empty()).await;
    assert!(!first.bind(&pod(&api, "two")).await, "it binds no more");
    let second = Replica::start(&api, "c");
    until("the next one holds it", || holder(&api) == "c").await;
    assert_eq!(api.get(LEASE).expect("it stays")["spec"]["leaseTransitions"], 1);
    leads(&second).await;
    assert!(second.bind(&pod(&api, "three")).await);
    assert_eq!(fill(&api).into_values().collect::<Vec<_>>(), [2], "its predecessor's counts");
}

/// The server has not answered the last binding yet. Its caller waits for it, or has left.
#[tokio::test]
async fn the_lease_is_not_given_up_during_a_binding() {
    for waits in [true, false] {
        let api = cluster().await;
        let (stop, stopped) = oneshot::channel::<()>();
        let first = Replica::until(&api, "a", async { drop(stopped.await) });
        leads(&first).await;
        api.hold("/binding");
        let one = pod(&api, "one");
        let bound = tokio::spawn({
            let client = first.client.clone();
            async move { bind(&client, &one).await }
        });
        let asked = || api.log().iter().any(|it| it.ends_with("/binding"));
        until("it binds", asked).await;
        if !waits {
            bound.abort();
        }
        drop(stop);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(holder(&api), "a", "the caller waits: {waits}");
        api.hold("");
        until("given up", || holder(&api).is_empty()).await;
        assert_eq!(fill(&api).len(), 1, "the binding is done");
        assert_eq!(bound.await.unwrap_or(false), waits, "its caller is told");
    }
}

/// A scheduler that waits no longer ends no binding: it counts when the next one is decided.
#[tokio::test]
async fn a_binding_goes_on_when_its_caller_has_left() {
    let api = cluster().await;
    let (extender, _senders) = without_news(&api, Duration::from_secs(60));
    let one = pod(&api, "one");
    tokio::select! {
        biased;
        _ = extender.bind(asked(&one)) => panic!("it takes calls of the API server"),
        () = std::future::ready(()) => {}
    }
    until("bound", || fill(&api).len() == 1).await;
}

/// The holder cannot renew: it stops to bind by itself, before another may begin.
#[tokio::test]
async fn a_holder_without_renewals_stops() {
    let api = cluster().await;
    let first = Replica::start(&api, "a");
    leads(&first).await;
    api.refuse("leases");
    let one = pod(&api, "one");
    until_asked("it stops", async || !first.is_ready().await).await;
    assert!(!first.bind(&one).await, "it has not renewed");
    api.refuse("");
    leads(&first).await;
    assert!(first.bind(&one).await);
    until("bound", || fill(&api).len() == 1).await;
}

/// A holder binds for half the duration from its question, however late the answer comes. So it has stopped when the
/// next one begins, even if it learns of nothing any more.
#[tokio::test(start_paused = true)]
async fn a_holders_time_is_over_before_the_next_ones_begins() {
    let api = cluster().await;
    let run = |me: &str| {
        let (elector, (led, leading)) = (elector(&api, me), watch::channel(None));
        (tokio::spawn(async move { elector.run(&led).await }), leading)
    };
    let leads = async |leading: &mut Leading| {
        let until = *leading.wait_for(Option::is_some).await.expect("it runs");
        until.expect("it leads")
    };
    api.hold("leases");
    let asked = Instant::now();
    let (first, mut led_by_first) = run("a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    api.hold("");
    assert_eq!(leads(&mut led_by_first).await, asked + DURATION / 2);
    let (_second, mut led_by_second) = run("b");
    tokio::time::sleep(2 * DURATION).await;
    assert!(led_by_second.borrow().is_none(), "the first one renews");
    first.abort();
    let last = leads(&mut led_by_first).await;
    leads(&mut led_by_second).await;
    let begun = Instant::now();
    assert!(last < begun, "the first one may bind for {:?} more", last - begun);
    assert_eq!(holder(&api), "b");
}

/// Replicas that start at the same time: one creates the Lease, and the others wait.
#[tokio::test]
async fn of_replicas_that_start_together_one_leads() {
    let api = cluster().await;
    let all = ["a", "b", "c"].map(|me| (me, Replica::start(&api, me)));
    let ready = async || {
        let mut ready = Vec::new();
        for (me, replica) in &all {
            if replica.is_ready().await {
                ready.push(*me);
            }
        }
        ready
    };
    until_asked("one leads", async || !ready().await.is_empty()).await;
    // Another one that led too would be ready when each has looked at the Lease again.
    let looks = || api.log().iter().filter(|it| **it == format!("GET {LEASE}")).count();
    let enough = looks() + 2 * all.len();
    until("each has looked again", || looks() >= enough).await;
    assert_eq!(ready().await, [holder(&api)]);
}

/// An extender with copies of the objects that no watch updates.
fn without_news(api: &Server, leads_for: Duration) -> (Arc<Extender>, impl Sized) {
    fn known<T: DeserializeOwned>(all: Vec<Value>) -> Objects<T> {
        let one = |object: Value| {
            let uid = object["metadata"]["uid"].as_str().expect("a uid").to_owned();
            (uid, serde_json::from_value(object).expect("an object"))
        };
        Some(Arc::new(all.into_iter().map(one).collect()))
    }
    let (nodes, nodes_copy) = watch::channel(known(api.list("/api/v1/nodes")));
    let (pods, pods_copy) = watch::channel(known(api.list("/api/v1/pods")));
    let (maps, maps_copy) = watch::channel(known(Vec::new()));
    let (led, leading) = watch::channel(Some(Instant::now() + leads_for));
    let client = Client::plain(&api.url()).expect("a URL");
    let extender = Extender::new(
        client,
        nodes_copy,
        pods_copy,
        vec![maps_copy],
        vec![SCHEDULER.to_owned()],
        leading,
    );
    (Arc::new(extender), (nodes, pods, maps, led))
}

fn asked(pod: &Value) -> BindArgs {
    let text = |name: &str| pod["metadata"][name].as_str().expect("text").to_owned();
    BindArgs {
        pod_name: text("name"),
        pod_namespace: text("namespace"),
        pod_uid: text("uid"),
        node: "n1".to_owned(),
    }
}

/// The server's events are late: what was bound meanwhile counts.
#[tokio::test]
async fn a_binding_counts_before_its_event_comes() {
    let api = cluster().await;
    let pods: Vec<Value> = (0..7).map(|n| pod(&api, &format!("p{n}"))).collect();
    let (extender, _senders) = without_news(&api, Duration::from_secs(60));
    for one in &pods[..6] {
        extender.bind(asked(one)).await.expect("bound");
    }
    let full = extender.bind(asked(&pods[6])).await.expect_err("two GPUs of 15 hold six pods of 5");
    assert!(format!("{full:#}").contains("insufficient"), "{full:#}");
    assert_eq!(fill(&api).into_values().collect::<Vec<_>>(), [3, 3]);
}

/// The copy of the pods is late and has none of those that are bound: they count all the same.
#[tokio::test]
async fn a_binding_counts_of_a_pod_that_the_copy_never_had() {
    let api = cluster().await;
    let (extender, _senders) = without_news(&api, Duration::from_secs(60));
    let pods: Vec<Value> = (0..7).map(|n| pod(&api, &format!("p{n}"))).collect();
    for one in &pods[..6] {
        extender.bind(asked(one)).await.expect("bound");
    }
    let full = extender.bind(asked(&pods[6])).await.expect_err("two GPUs of 15 hold six pods of 5");
    assert!(format!("{full:#}").contains("insufficient"), "{full:#}");
}

/// A holder whose time is over binds nothing, whether or not it has heard of its successor.
#[tokio::test]
async fn an_extender_whose_lease_is_over_binds_nothing() {
    let api = cluster().await;
    let one = pod(&api, "one");
    let (extender, _senders) = without_news(&api, Duration::ZERO);
    let late = extender.bind(asked(&one)).await.expect_err("its lease is over");
    assert!(format!("{late:#}").contains("another extender leads"), "{late:#}");
    let pod = api.get("/api/v1/namespaces/default/pods/one").expect("the pod");
    assert!(pod["metadata"]["annotations"].is_null() && pod["spec"]["nodeName"].is_null(), "{pod}");
}
