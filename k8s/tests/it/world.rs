//! A node with its kubelet, API server and ledger, and the plugins under test.

use crate::api::Server;
use crate::kubelet::{Container, Failed, Kubelet};
use crate::ledger::Model;
use gpuslice_k8s::api::client::Client;
use gpuslice_k8s::api::store;
use gpuslice_k8s::names::ResourceNames;
use gpuslice_k8s::place::Placement;
use gpuslice_k8s::plugin::devices::{Offer, Unit};
use gpuslice_k8s::plugin::{self, state};
use serde_json::{Value, json};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

pub const MEMORY: &str = "aliyun.com/gpu-mem";
pub const WHOLE: &str = "aliyun.com/gpu";
pub const CORES: &str = "aliyun.com/gpu-core.percentage";

/// A node.
pub struct World {
    pub kubelet: Arc<Kubelet>,
    pub api: Arc<Server>,
    pub ledger: Arc<Model>,
}

/// A process of the agent, until dropped: a thread with its own runtime, whose sockets close with it.
pub struct Agent {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The pair in the test's own runtime, ended when dropped.
pub struct Here(tokio::task::JoinHandle<()>);

impl Drop for Here {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Agent {
    /// Runs until the agent is dropped.
    pub fn run(agent: impl Future<Output = ()> + Send + 'static) -> Agent {
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                tokio::select! {
                    () = agent => {}
                    _ = stopped => {}
                }
            });
        };
        Agent { stop: Some(stop), thread: Some(thread::spawn(run)) }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok(), "the agent panicked");
        }
    }
}

impl World {
    /// GPUs with this much memory, in MiB.
    pub async fn new(mib: &[u64]) -> World {
        let api = Server::start().await;
        api.put("/api/v1/nodes/n", json!({ "metadata": { "name": "n" } }));
        World { kubelet: Kubelet::start(7).await, api, ledger: Model::new(mib) }
    }

    pub fn client(&self) -> Client {
        Client::plain(&self.api.url()).expect("a URL")
    }

    /// Starts the pair, with memory in GiB and with compute.
    pub fn plugins(&self) -> Agent {
        self.offering(Offer::Both)
    }

    /// Starts the pair with what it is to offer.
    pub fn offering(&self, offer: Offer) -> Agent {
        Agent::run(self.pair(offer))
    }

    /// Starts the pair in the test's own runtime, so that both have one clock.
    pub fn here(&self) -> Here {
        Here(tokio::spawn(self.pair(Offer::Both)))
    }

    /// What an administrator would choose for this offer.
    pub fn settings(&self, offer: Offer) -> state::Settings {
        state::Settings {
            node: "n".to_owned(),
            names: match offer {
                Offer::Whole => ResourceNames { memory: WHOLE.to_owned(), cores: CORES.to_owned() },
                _ => ResourceNames::default(),
            },
            all_names: [MEMORY, CORES, WHOLE].map(str::to_owned).into(),
            offer,
            unit: match offer {
                Offer::Whole => Unit::WHOLE,
                _ => "GiB".parse().expect("a unit"),
            },
            placement: Placement::Binpack,
            kubelet: self.kubelet.directories(),
            config_maps: "gpuslice-system".to_owned(),
        }
    }

    fn pair(&self, offer: Offer) -> impl Future<Output = ()> + Send + 'static {
        let (copy, pods) = watch::channel(None);
        let path = "/api/v1/pods?fieldSelector=spec.nodeName=n".to_owned();
        let (settings, ledger) = (self.settings(offer), self.ledger.clone());
        let pair = Arc::new(state::Pair::new(settings, ledger, self.client(), pods));
        let client = self.client();
        async move {
            tokio::select! {
                () = store::keep(client, path, copy) => {}
                ended = plugin::run(pair) => ended.expect("runs"),
            }
        }
    }

    /// Waits until both resources have all of their devices.
    pub async fn registered(&self) {
        let all = |name: &str, state: &crate::kubelet::State| {
            state.plugins.get(name).is_some_and(|it| !it.devices.is_empty())
        };
        self.kubelet.until("both plugins", |state| all(MEMORY, state) && all(CORES, state)).await;
    }

    /// Creates a pod and admits it.
    pub async fn run(&self, pod: &Value) -> Result<Vec<Container>, Failed> {
        self.api.add_pod(pod);
        self.kubelet.admit(pod).await
    }

    /// Ends a pod: its object stays, with its phase.
    pub fn end(&self, pod: &Value, phase: &str) {
        let path = crate::api::pod_path(pod);
        let mut object = self.api.get(&path).expect("the pod");
        object["status"]["phase"] = json!(phase);
        self.api.put(&path, object);
        self.kubelet.remove(pod["metadata"]["uid"].as_str().expect("a uid"));
    }
}

/// A container that asks for memory and compute; 0: not for that.
pub fn container(name: &str, memory: u64, cores: u64) -> Value {
    let mut limits = json!({});
    for (resource, amount) in [(MEMORY, memory), (CORES, cores)] {
        if amount > 0 {
            limits[resource] = json!(amount.to_string());
        }
    }
    json!({ "name": name, "resources": { "limits": limits } })
}

/// A pod on the node; its uid is `uid-` and its name.
pub fn pod(name: &str, containers: &[Value]) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "nodeName": "n", "containers": containers },
        "status": { "phase": "Pending" },
    })
}

/// Waits until a condition holds, and fails after 20 s.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    until_asked(what, async || holds()).await;
}

/// The same for a condition that a server is asked for.
pub async fn until_asked(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..2000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 20 s: {what}");
}
