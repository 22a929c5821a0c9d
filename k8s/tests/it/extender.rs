//! The scheduler extender, asked as a scheduler asks.

use crate::api::Server;
use crate::ports::{self, Port};
use crate::programs::Process;
use crate::webhook::renew;
use crate::world::{Agent, container, until, until_asked};
use gpuslice_k8s::api::client::{Client, status};
use gpuslice_k8s::extender::{Choices, serve};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const BASE: &str = "/gpushare-scheduler";
const SCHEDULER: &str = "ack-co-scheduler";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpuslice-extender";

fn choices() -> Choices {
    let namespaces = ["kube-system", "gpuslice-system"].map(str::to_owned);
    Choices { schedulers: vec![SCHEDULER.to_owned()], config_maps: namespaces.into() }
}

struct Scheduler {
    api: Arc<Server>,
    client: Client,
    /// Each agent gets a copy. So the port is the scheduler's between two of them.
    listener: std::net::TcpListener,
    address: std::net::SocketAddr,
    agent: Option<Agent>,
}

impl Scheduler {
    /// An extender for two nodes with two GPUs of 15 GiB.
    async fn start() -> Scheduler {
        let api = Server::start().await;
        for node in ["n1", "n2"] {
            let amounts = json!({
                "aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2", "aliyun.com/gpu-core.percentage": "200",
            });
            let object = json!({ "metadata": { "name": node }, "status": { "capacity": amounts } });
            api.put(&format!("/api/v1/nodes/{node}"), object);
        }
        let (listener, address) = ports::listener();
        let client = Client::plain(&format!("http://{address}")).expect("a URL");
        let mut scheduler = Scheduler { api, client, listener, address, agent: None };
        scheduler.restart().await;
        scheduler
    }

    async fn restart(&mut self) {
        drop(self.agent.take());
        let api = Client::plain(&self.api.url()).expect("a URL");
        let listener = self.listener.try_clone().expect("a socket");
        self.agent = Some(Agent::run(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            serve(api, listener, choices(), None, std::future::pending()).await.expect("serves");
        }));
        until_asked("the extender answers", async || {
            let inspected = self.client.get::<Value>(&format!("{BASE}/inspect")).await;
            inspected.is_ok_and(|it| it["nodes"].is_array())
        })
        .await;
    }

    fn pod(&self, name: &str, memory: u64, cores: u64) -> Value {
        let pod = json!({
            "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
            "spec": { "schedulerName": SCHEDULER, "containers": [container("main", memory, cores)] },
            "status": { "phase": "Pending" },
        });
        self.api.add_pod(&pod);
        pod
    }

    async fn filter(&self, pod: &Value) -> Value {
        let args = json!({ "Pod": pod, "Nodes": null, "NodeNames": ["n1", "n2", "n3"] });
        self.client.create(&format!("{BASE}/filter"), &args).await.expect("an answer")
    }

    /// Waits until a pod fits on these nodes and on no others. So a test knows that the extender has seen a change.
    async fn fits(&self, what: &str, pod: &Value, nodes: &[&str]) {
        until_asked(what, async || self.filter(pod).await["NodeNames"] == json!(nodes)).await;
    }

    async fn bind(&self, pod: &Value, node: &str) -> Result<(), String> {
        let meta = &pod["metadata"];
        let args = json!({
            "PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node,
        });
        let answer = self.client.create(&format!("{BASE}/bind"), &args).await;
        answer.map(drop).map_err(|error| {
            assert_eq!(status(&error).map(|it| it.as_u16()), Some(500), "{error:#}");
            error.to_string()
        })
    }

    fn index(&self, name: &str) -> Value {
        let pod =
            self.api.get(&format!("/api/v1/namespaces/default/pods/{name}")).expect("the pod");
        pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].clone()
    }
}

#[tokio::test]
async fn a_pod_is_filtered_bound_and_inspected() {
    let mut scheduler = Scheduler::start().await;
    let pod = scheduler.pod("a", 8, 40);
    let answer = scheduler.filter(&pod).await;
    assert_eq!(answer["NodeNames"], json!(["n1", "n2"]));
    assert_eq!(answer["FailedNodes"], json!({ "n3": "the node n3 is not known" }));
    scheduler.bind(&pod, "n1").await.expect("bound");
    let bound = scheduler.api.get("/api/v1/namespaces/default/pods/a").expect("the pod");
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let all = &bound["metadata"]["annotations"];
    assert_eq!(all["ALIYUN_COM_GPU_MEM_IDX"], "0");
    assert_eq!(all["ALIYUN_COM_GPU_MEM_ASSIGNED"], "false");
    assert_eq!(all["ALIYUN_COM_GPU_MEM_DEV"], "15");
    scheduler.bind(&scheduler.pod("b", 7, 0), "n1").await.expect("bound");
    assert_eq!(scheduler.index("b"), "0", "the smallest room");
    // What 16 units need is nowhere.
    let answer = scheduler.filter(&scheduler.pod("c", 16, 0)).await;
    assert_eq!(answer["NodeNames"], json!([]));
    assert_eq!(answer["FailedNodes"]["n1"], "insufficient GPU memory or compute in one device");
    // Its successor knows all from the objects.
    scheduler.restart().await;
    let inspected: Value = scheduler.client.get(&format!("{BASE}/inspect/n1")).await.expect("JSON");
    assert_eq!(
        inspected,
        json!({ "nodes": [{ "name": "n1", "totalGPU": 30, "usedGPU": 15, "devs": [
            { "id": 0, "totalGPU": 15, "usedGPU": 15, "pods": [
                { "name": "a", "namespace": "default", "usedGPU": 8 },
                { "name": "b", "namespace": "default", "usedGPU": 7 },
            ] },
            { "id": 1, "totalGPU": 15, "usedGPU": 0, "pods": [] },
        ] }] })
    );
    let unknown: Value = scheduler.client.get(&format!("{BASE}/inspect/n9")).await.expect("JSON");
    assert_eq!(unknown, json!({ "nodes": [], "error": "the node n9 is not known" }));
    assert_eq!(
        scheduler
            .client
            .get::<Value>("/nothing")
            .await
            .err()
            .and_then(|it| status(&it))
            .map(|it| it.as_u16()),
        Some(404)
    );
}

/// The version is a plain text, by both of gpushare's paths.
#[tokio::test]
async fn the_version_is_told() {
    let scheduler = Scheduler::start().await;
    for path in ["/version", "/gpushare-scheduler/version"] {
        let mut stream = TcpStream::connect(scheduler.address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut said = String::new();
        stream.read_to_string(&mut said).await.expect("text");
        let (head, body) = said.split_once("\r\n\r\n").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 ") && body == "0.1.0", "{path}: {said}");
    }
}

/// Binds of one node at the same time never give more than a GPU has.
#[tokio::test]
async fn racing_binds_fill_each_gpu_exactly() {
    let scheduler = Arc::new(Scheduler::start().await);
    let pods: Vec<Value> = (0..14).map(|n| scheduler.pod(&format!("p{n}"), 5, 0)).collect();
    let mut all = tokio::task::JoinSet::new();
    for pod in pods {
        let scheduler = scheduler.clone();
        all.spawn(async move { scheduler.bind(&pod, "n2").await.is_ok() });
    }
    let mut bound = 0;
    while let Some(one) = all.join_next().await {
        bound += usize::from(one.expect("no panic"));
    }
    assert_eq!(bound, 6, "two GPUs of 15 hold six pods of 5");
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    for pod in scheduler.api.list("/api/v1/pods") {
        if pod["spec"]["nodeName"] == "n2" {
            let index = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].to_string();
            *used.entry(index).or_default() += 1;
        }
    }
    assert_eq!(used.into_values().collect::<Vec<_>>(), [3, 3]);
}

#[tokio::test]
async fn excluded_gpus_ended_pods_and_strange_requests() {
    let scheduler = Scheduler::start().await;
    let map = json!({ "metadata": { "name": "unhealthy-gpu-n1" }, "data": { "gpus": "0" } });
    scheduler.api.put("/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-n1", map);
    let mut pair = scheduler.pod("pair", 2, 0);
    pair["metadata"]["labels"] = json!({ "aliyun.com/gpu-count": "2" });
    scheduler.fits("n1 has one GPU", &pair, &["n2"]).await;
    let first = scheduler.pod("first", 15, 0);
    scheduler.bind(&first, "n1").await.expect("bound");
    assert_eq!(scheduler.index("first"), "1", "GPU 0 is excluded");
    let second = scheduler.pod("second", 15, 0);
    assert!(scheduler.bind(&second, "n1").await.expect_err("full").contains("insufficient"));
    let mut ended = scheduler.api.get("/api/v1/namespaces/default/pods/first").expect("the pod");
    ended["status"]["phase"] = json!("Succeeded");
    scheduler.api.put("/api/v1/namespaces/default/pods/first", ended);
    let inspect = async || -> Value {
        scheduler.client.get(&format!("{BASE}/inspect/n1")).await.expect("JSON")
    };
    let is_free = async || inspect().await["nodes"][0]["usedGPU"] == 0;
    until_asked("the pod has ended", is_free).await;
    scheduler.bind(&second, "n1").await.expect("the room of the pod that ended");
    let map = json!({ "metadata": { "name": "unhealthy-gpu-n2" }, "data": { "gpus": "1" } });
    scheduler.api.put("/api/v1/namespaces/gpuslice-system/configmaps/unhealthy-gpu-n2", map);
    let map = json!({ "metadata": { "name": "unhealthy-gpu-n2" }, "data": { "gpus": "0" } });
    scheduler.api.put("/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-n2", map);
    let small = scheduler.pod("small", 1, 0);
    scheduler.fits("each namespace excludes one, and n1 is full", &small, &[]).await;
    assert!(scheduler.api.delete("/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-n2"));
    scheduler.fits("one is not excluded any more", &small, &["n2"]).await;
    let mut other = scheduler.pod("third", 1, 0);
    other["metadata"]["uid"] = json!("of-its-predecessor");
    assert!(scheduler.bind(&other, "n2").await.expect_err("another").contains("made again"));
    other["metadata"]["name"] = json!("../nodes/n1");
    assert!(scheduler.bind(&other, "n2").await.expect_err("a path").contains("no pod's name"));
    for garbage in [json!([]), json!({ "Pod": 5 }), json!("x")] {
        let error = scheduler
            .client
            .create(&format!("{BASE}/filter"), &garbage)
            .await
            .expect_err("refused");
        assert_eq!(status(&error).map(|it| it.as_u16()), Some(400), "{garbage}");
    }
    assert_eq!(scheduler.filter(&scheduler.pod("fourth", 1, 0)).await["NodeNames"], json!(["n2"]));
}

/// Anything that reaches the port can ask to bind. What no scheduler of the extender would ask for changes nothing.
#[tokio::test]
async fn a_pod_is_bound_only_where_its_scheduler_would_bind_it() {
    let scheduler = Scheduler::start().await;
    let path = |name: &str| format!("/api/v1/namespaces/default/pods/{name}");
    let changed = |name: &str, pointer: &str, value: Value| {
        let mut pod = scheduler.pod(name, 3, 0);
        *pod.pointer_mut(pointer).expect("there") = value;
        scheduler.api.put(&path(name), pod.clone());
        pod
    };
    let mut closed = scheduler.api.get("/api/v1/nodes/n2").expect("the node");
    closed["spec"]["taints"] = json!([{ "key": "team", "value": "red", "effect": "NoSchedule" }]);
    scheduler.api.put("/api/v1/nodes/n2", closed);
    scheduler.fits("n2 has a taint", &scheduler.pod("seen", 3, 0), &["n1"]).await;
    let plain = json!([{ "name": "main" }]);
    for (pod, node, words) in [
        (
            changed("other", "/spec/schedulerName", json!("default-scheduler")),
            "n1",
            "serves ack-co",
        ),
        (changed("plain", "/spec/containers", plain), "n1", "asks for no aliyun.com/gpu-mem"),
        (changed("over", "/status/phase", json!("Failed")), "n1", "being deleted"),
        (scheduler.pod("big", 16, 0), "n1", "insufficient GPU memory"),
        (scheduler.pod("far", 3, 0), "n2", "the taint team=red:NoSchedule"),
        (scheduler.pod("lost", 3, 0), "n9", "the node n9 is not known"),
    ] {
        let why = scheduler.bind(&pod, node).await.expect_err("not bound");
        assert!(why.contains(words), "{why}");
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let kept = scheduler.api.get(&path(name)).expect("the pod");
        assert!(kept["spec"]["nodeName"].is_null(), "{kept}");
        assert!(kept["metadata"]["annotations"].is_null(), "{kept}");
    }
    let bound = scheduler.pod("bound", 3, 0);
    scheduler.bind(&bound, "n1").await.expect("bound");
    let why = scheduler.bind(&bound, "n1").await.expect_err("twice");
    assert!(why.contains("bound to the node n1 already"), "{why}");
    let fit = scheduler.filter(&scheduler.pod("near", 3, 0)).await;
    assert_eq!(fit["NodeNames"], json!(["n1"]));
    let whole = json!({ "Pod": bound, "Nodes": { "items": [] } });
    let answer = scheduler.client.create(&format!("{BASE}/filter"), &whole).await.expect("JSON");
    assert!(answer["Error"].as_str().is_some_and(|it| it.contains("nodeCacheCapable")), "{answer}");
}

/// The webhook's program at an address, and the directory of its certificate.
fn webhook(api: &Server, address: &str) -> (Process, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    renew(dir.path());
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    program.args(["webhook", "--listen", address, "--api", &api.url()]);
    program.arg("--certificate").arg(dir.path().join("tls.crt"));
    program.arg("--key").arg(dir.path().join("tls.key"));
    program.stdin(Stdio::null()).stderr(Stdio::null());
    (Process(program.spawn().expect("it starts")), dir)
}

/// A process's exit status, once it has ended.
async fn status_of(process: &mut Process) -> Option<i32> {
    loop {
        if let Some(status) = process.0.try_wait().expect("its state") {
            return status.code();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What an HTTP server answers to a plain question.
async fn answers(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n").await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
}

/// As the kubelet ends them: by SIGTERM, with a grace of 30 s. The nodes stop to route to them a moment later.
#[tokio::test]
async fn the_programs_end_with_success_when_they_are_told() {
    let api = Server::start().await;
    let ports = [Port::reserve(), Port::reserve()];
    let [address, beside] = ports.each_ref().map(|it| it.address.to_string());
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    program.args(["extender", "--listen", &address, "--api", &api.url()]);
    program.args(["--lease", "kube-system/gpuslice-extender"]);
    program.stdin(Stdio::null()).stderr(Stdio::null());
    let mut extender = Process(program.spawn().expect("it starts"));
    let (mut webhook, _certificate) = webhook(&api, &beside);
    let holder = || {
        let lease = api.get(LEASE).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    until("it has the Lease", || !holder().is_empty()).await;
    until("it reads the cluster", || api.log().iter().any(|it| it.contains("/api/v1/pods"))).await;
    until("the webhook listens", || std::net::TcpStream::connect(&beside).is_ok()).await;
    // It listens before it awaits the signal, and awaits the signal before it asks for anything.
    let asked = || api.log().iter().any(|it| it.contains("/api/v1/namespaces?"));
    until("the webhook reads the cluster", asked).await;
    // Before the signals: what it measures is no shorter than a program's own time.
    let told = Instant::now();
    for process in [&extender, &webhook] {
        let pid = Pid::from_raw(process.0.id().cast_signed());
        kill(pid, Signal::SIGTERM).expect("it lives");
    }
    while told.elapsed() < Duration::from_secs(4) {
        let answers = answers(&address).await;
        let connects = TcpStream::connect(&beside).await;
        // Both programs listen for 5 s more. On a busy machine one question may take longer than the time left.
        if told.elapsed() < Duration::from_secs(5) {
            assert!(answers.expect("it still listens").starts_with("HTTP/1.1 "));
            connects.expect("so does the webhook");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let left = Duration::from_secs(15).saturating_sub(told.elapsed());
    let both = async { (status_of(&mut extender).await, status_of(&mut webhook).await) };
    let both = tokio::time::timeout(left, both).await.expect("within 15 s");
    assert_eq!((both, holder()), ((Some(0), Some(0)), String::new()), "the Lease is given up");
}
