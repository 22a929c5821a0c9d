//! Pods that a kubelet has admitted, started by a real containerd with a real daemon behind its hook.

use crate::engine::{Containerd, Sandbox};
use crate::ports::Port;
use crate::programs::{Process, agent_with, build, daemon, skip};
use crate::world::{World, container, pod, until};
use gpuslice_k8s::ledger::{Rows, socket};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

/// GPUs of 15080 MiB: 14 units of a GiB, as those of the documents.
const GPUS: &str = "devices=2,mem=15080MiB";
/// What a container runs to be judged: it takes all that it gets, and stays.
const TENANT: [&str; 6] = ["/bin/tenant", "--step-mib", "64", "--seconds", "600", "--idle"];

/// A node with all that a pod meets, from the kubelet to the GPU.
struct Node {
    world: World,
    engine: Containerd,
    root: TempDir,
    build: PathBuf,
    /// Where the agent has its metrics.
    metrics: Port,
    /// The daemon and the agent.
    programs: [Process; 2],
}

/// A pod's sandbox and the ids of its containers.
struct Started {
    sandbox: Sandbox,
    containers: Vec<(String, String)>,
}

impl Node {
    /// `None`, with a printed reason, where it cannot be had.
    async fn start(test: &str, cdi: bool) -> Option<Node> {
        let build = build(test)?;
        let world = World::new(&[]).await;
        let root = tempfile::Builder::new().prefix("gpuslice-k8s-").tempdir().expect("made");
        let at = root.path();
        let started = Containerd::start(&build, &at.join("engine"), &at.join("run/cdi"), cdi).await;
        let engine = started.map_err(|why| skip(test, &why)).ok()?;
        let metrics = Port::reserve();
        let address = format!("--metrics={}", metrics.address);
        let programs = [daemon(&build, at, GPUS), agent_with(&world, at, &[&address])];
        world.registered().await;
        Some(Node { world, engine, root, build, metrics, programs })
    }

    /// Admits a pod and starts its containers.
    async fn run(&self, pod: &Value, variables: &[(&str, &str)], command: &[&str]) -> Started {
        let given = self.world.run(pod).await.expect("admitted");
        let sandbox = self.engine.pod(pod).await;
        let uid = pod["metadata"]["uid"].as_str().expect("a uid");
        let mut containers = Vec::new();
        for container in &given {
            let name = container.name.clone();
            self.world.kubelet.pre_start(uid, &name).await.expect("its claim is its own");
            let started = self.engine.run(&sandbox, container, variables, command).await;
            let id = started.unwrap_or_else(|why| panic!("{name}: {}", why.message()));
            let init = pod["spec"]["initContainers"].as_array();
            if init.is_some_and(|all| all.iter().any(|it| it["name"] == name.as_str())) {
                // The others start after its end, which its claim notices.
                let lives = || {
                    let rows = self.rows();
                    rows.claims.iter().any(|row| row.members.iter().any(|it| it.as_str() == id))
                };
                until("the init container has ended", || !lives()).await;
            }
            containers.push((name, id));
        }
        self.report(pod, &containers);
        Started { sandbox, containers }
    }

    /// Writes into the pod's status that its containers run, as a kubelet does.
    fn report(&self, pod: &Value, containers: &[(String, String)]) {
        let path = crate::api::pod_path(pod);
        let mut object = self.world.api.get(&path).expect("the pod");
        let one = |(name, id): &(String, String)| json!({ "name": name, "containerID": format!("containerd://{id}"), "state": { "running": {} } });
        let all: Vec<Value> = containers.iter().map(one).collect();
        object["status"] = json!({ "phase": "Running", "containerStatuses": all });
        self.world.api.put(&path, object);
    }

    fn rows(&self) -> Rows {
        socket::read(&self.root.path().join("run/node.sock")).expect("the daemon answers")
    }

    /// `gpuslice doctor` with this containerd in the PATH.
    fn doctor(&self) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut doctor = Command::new(self.build.join("gpuslice"));
        doctor.args(["doctor", "--kubernetes", "--runtime-dir"]).arg(self.root.path().join("run"));
        doctor.arg("--driver-dir").arg(self.root.path().join("driver"));
        doctor.arg("--containerd-config").arg(self.engine.configuration());
        doctor.env("PATH", format!("{}:{path}", self.engine.programs().display()));
        doctor
            .env("GPUSLICE_SIM_DEVICE", self.root.path().join("device"))
            .env("GPUSLICE_SIM", GPUS);
        doctor.output().expect("it starts")
    }

    /// What Prometheus would read from the agent.
    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(self.metrics.address).expect("the agent listens");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n")
            .expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("text");
        text
    }

    /// The GPU's memory as a tenant saw it, MiB, and whether it got no more than that.
    async fn seen(&self, pod: &Started, container: &str) -> u64 {
        let find = || {
            let text = self.engine.output(&pod.sandbox, container);
            let line = text
                .lines()
                .find_map(|it| it.split_once("{\"event\":\"memory\""))
                .map(|it| it.1.to_owned());
            line.and_then(|rest| {
                serde_json::from_str::<Value>(&format!("{{\"event\":\"memory\"{rest}")).ok()
            })
        };
        until("the tenant has its memory", || find().is_some()).await;
        let memory = find().expect("just seen");
        assert_eq!(memory["refusal"], 2, "{memory}");
        let (total, got) = (memory["total"].as_u64(), memory["got"].as_u64());
        assert!(got <= total && got > total.map(|it| it / 2), "{memory}");
        total.expect("a number") >> 20
    }

    /// What `gpuslice ps --json` shows.
    fn slices(&self) -> Vec<Value> {
        let mut ps = Command::new(self.build.join("gpuslice"));
        ps.args(["ps", "--json", "--runtime-dir"]).arg(self.root.path().join("run"));
        let output = ps.output().expect("it starts");
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        all["slices"].as_array().expect("slices").clone()
    }
}

/// The documents' pods of 3 GiB and 5 GiB, and one with a part of compute: each sees its part of the GPU, whatever
/// its own variables say.
#[tokio::test]
async fn pods_see_their_caps_in_a_real_containerd() {
    let Some(node) = Node::start("pods_see_their_caps_in_a_real_containerd", true).await else {
        return;
    };
    let lies = [
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", "14"),
        ("CGPU_DISABLE", "true"),
    ];
    let mut pods = Vec::new();
    for (name, units, cores, variables) in [
        ("gpu-share-sample", 3, 0, &[][..]),
        ("gpushare-test-pod", 5, 0, &lies[..1]),
        ("core-sample", 2, 25, &lies[..]),
    ] {
        let one = pod(name, &[container("main", units, cores)]);
        let started = node.run(&one, variables, &TENANT).await;
        assert_eq!(node.seen(&started, "main").await, 15080 * units / 14, "{name}");
        // The runtime's id is the one that the alarm for containers without caps looks for.
        let claims = node.rows().claims;
        let row = claims.iter().find(|row| row.owner.pod.as_str() == name).expect("its claim");
        let members: Vec<&str> = row.members.iter().map(|id| id.as_str()).collect();
        assert_eq!(members, [started.containers[0].1.as_str()]);
        pods.push(started.sandbox);
    }
    let slices = node.slices();
    let names: Vec<&str> = slices.iter().filter_map(|it| it["pod"]["name"].as_str()).collect();
    assert_eq!(names.len(), 3, "{slices:?}");
    assert!(names.contains(&"gpushare-test-pod"), "{names:?}");
    let compute = slices.iter().find(|it| it["pod"]["name"] == "core-sample").expect("its slice");
    assert_eq!(compute["share"], 25);
    let doctor = node.doctor();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("passes CDI devices to containers"), "{said}");
    node.engine.end(pods).await;
}

/// Two containers of one pod and its init container: each has its own cap, and the init container has the one of the
/// container that uses its devices again.
#[tokio::test]
async fn containers_of_a_pod_have_their_own_caps() {
    let Some(node) = Node::start("containers_of_a_pod_have_their_own_caps", true).await else {
        return;
    };
    let mut one = pod("several", &[container("a", 1, 0), container("b", 2, 20)]);
    one["spec"]["initContainers"] = json!([container("i", 2, 20)]);
    let started =
        node.run(&one, &[], &["/bin/tenant", "--step-mib", "64", "--seconds", "3", "--idle"]).await;
    for (name, units) in [("i", 2), ("a", 1), ("b", 2)] {
        assert_eq!(node.seen(&started, name).await, 15080 * units / 14, "{name}");
    }
    assert_eq!(node.rows().claims.len(), 2);
    node.engine.end(vec![started.sandbox]).await;
}

/// While the daemon cannot write the file again, the engine refuses the container; then it starts.
#[tokio::test]
async fn a_container_without_its_cdi_file_does_not_start() {
    let test = "a_container_without_its_cdi_file_does_not_start";
    let Some(node) = Node::start(test, true).await else {
        return;
    };
    let one = pod("late", &[container("main", 3, 0)]);
    let given = node.world.run(&one).await.expect("admitted").remove(0);
    let sandbox = node.engine.pod(&one).await;
    let daemon = Pid::from_raw(node.programs[0].0.id().cast_signed());
    kill(daemon, Signal::SIGSTOP).expect("ours");
    let file = node.root.path().join("run/cdi/gpuslice.io-uid-late-c0.json");
    std::fs::remove_file(&file).expect("there");
    let refused = node.engine.run(&sandbox, &given, &[], &TENANT).await.expect_err("no device");
    assert!(refused.message().contains("CDI"), "{}", refused.message());
    kill(daemon, Signal::SIGCONT).expect("ours");
    until("the file is written again", || file.exists()).await;
    let id = node.engine.run(&sandbox, &given, &[], &TENANT).await.expect("it starts");
    let started = Started { sandbox, containers: vec![("main".to_owned(), id)] };
    assert_eq!(node.seen(&started, "main").await, 15080 * 3 / 14);
    node.engine.end(vec![started.sandbox]).await;
}

/// containerd 1.7 with its default configuration starts the container without its cap, and tells it to no one: doctor
/// refuses the node, and the agent raises an event and a metric.
#[tokio::test]
async fn an_engine_that_ignores_cdi_is_named() {
    let Some(node) = Node::start("an_engine_that_ignores_cdi_is_named", false).await else {
        return;
    };
    let doctor = node.doctor();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1), "{said}");
    assert!(said.contains("missing cdi") && said.contains("enable_cdi = false"), "{said}");
    assert!(said.contains("gpuslice setup containerd --cdi"), "{said}");
    let one = pod("uncapped", &[container("main", 3, 0)]);
    let started = node.run(&one, &[], &["/bin/sleep", "600"]).await;
    assert!(node.rows().claims[0].members.is_empty(), "no hook has run");
    assert!(node.metrics().contains("gpuslice_agent_unadmitted_containers 0\n"));
    let events = || node.world.api.list("/api/v1/namespaces/default/events");
    for _ in 0..600 {
        if !events().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let all = events();
    let [event] = &all[..] else { panic!("one event, not {all:?}") };
    assert_eq!(event["reason"], "GPUCapNotEnforced");
    assert_eq!(event["involvedObject"]["uid"], "uid-uncapped");
    let text = node.metrics();
    assert!(text.contains("gpuslice_agent_unadmitted_containers 1\n"), "{text}");
    assert!(text.contains("pod=\"uncapped\""), "{text}");
    node.engine.end(vec![started.sandbox]).await;
}
