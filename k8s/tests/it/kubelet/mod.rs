//! A kubelet: what the real one of Kubernetes 1.36 was seen to do with device plugins and drivers.
//!
//! It admits one pod at a time. For each container and resource, in random order, it may ask for preferred devices,
//! and then allocates; nothing in these calls names the pod. While a call runs, it lists the pod without the devices.
//! The first refusal ends the pod. A restart removes every plugin's socket and keeps the allocations.

mod admission;
pub mod authority;
pub mod drivers;
mod registry;

pub use admission::{Container, Failed};

use gpuslice_k8s::grpc::{Answer, Empty, Methods, Service, listen, unary, unknown};
use gpuslice_k8s::kubelet::Directories;
use gpuslice_k8s::kubelet::device_plugin::Options;
use gpuslice_k8s::kubelet::pod_resources::{
    AllocatableResponse, ContainerDevices, ContainerResources, ListResponse, PodResources,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::transport::{Channel, Server};

/// Resource and device ids, of one container.
pub type Devices = BTreeMap<String, Vec<String>>;

/// The kubelet of a node.
pub struct Kubelet {
    root: TempDir,
    pub state: Arc<Mutex<State>>,
    servers: Mutex<Vec<JoinHandle<()>>>,
    admission: tokio::sync::Mutex<()>,
}

/// What the kubelet knows.
#[derive(Default)]
pub struct State {
    pub plugins: BTreeMap<String, Plugin>,
    /// Pods that are being admitted or run.
    pub pods: Vec<Value>,
    /// By pod's uid and container's name.
    pub allocated: BTreeMap<(String, String), Devices>,
    /// What plugins answered that a kubelet cannot follow.
    pub log: Vec<String>,
    /// The resources of each container, in the order in which it was asked for them.
    pub orders: BTreeSet<Vec<String>>,
    /// How long the next list of pods is on its way.
    pub next_list_takes: Duration,
    /// It chooses devices by itself, as a kubelet does for some containers.
    pub asks_no_advice: bool,
    /// Devices of plugins that are not ours.
    pub foreign: Vec<ContainerDevices>,
    /// How plugins' sockets are dialled.
    pub authority: authority::Style,
    seed: u64,
}

/// A plugin that has registered.
pub struct Plugin {
    pub channel: Channel,
    pub options: Options,
    /// Whether each device is healthy.
    pub devices: BTreeMap<String, bool>,
    /// Why the stream of devices ended.
    pub failure: Option<tonic::Status>,
    /// Messages of the stream.
    pub updates: usize,
    pub registrations: usize,
}

impl State {
    /// The next random number below `end`.
    pub fn random(&mut self, end: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) as usize % end.max(1)
    }
}

impl Kubelet {
    /// A kubelet with its directories; `seed` determines its choices.
    pub async fn start(seed: u64) -> Arc<Kubelet> {
        let root = tempfile::Builder::new().prefix("kubelet").tempdir().expect("a directory");
        for name in ["device-plugins", "pod-resources", "plugins_registry", "plugins"] {
            std::fs::create_dir(root.path().join(name)).expect("a directory");
        }
        let state = Arc::new(Mutex::new(State { seed, ..State::default() }));
        let (servers, admission) = (Mutex::default(), tokio::sync::Mutex::default());
        let kubelet = Arc::new(Kubelet { root, state, servers, admission });
        kubelet.serve();
        kubelet
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn directories(&self) -> Directories {
        Directories::new(self.root())
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    fn serve(&self) {
        let directories = self.directories();
        let registry =
            registry::Registry { directories: directories.clone(), state: self.state.clone() };
        let lister = Lister(self.state.clone());
        let mut servers = self.servers.lock().expect("no panic");
        for (path, router) in [
            (
                directories.device_plugin_registry(),
                Server::builder().add_service(Service::new(Arc::new(registry))),
            ),
            (
                directories.pod_resources(),
                Server::builder().add_service(Service::new(Arc::new(lister))),
            ),
        ] {
            let listener = listen(&path).expect("a socket");
            servers.push(tokio::spawn(async move {
                listener.serve(router, std::future::pending()).await.expect("serves");
            }));
        }
    }

    /// Stops, removes every socket of plugins, and starts again with the same allocations.
    pub async fn restart(&self) {
        let servers = std::mem::take(&mut *self.servers.lock().expect("no panic"));
        servers.iter().for_each(JoinHandle::abort);
        self.state().plugins.clear();
        for entry in std::fs::read_dir(self.directories().device_plugins()).expect("listed") {
            std::fs::remove_file(entry.expect("an entry").path()).expect("removed");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.serve();
    }

    /// Waits until a condition holds, and fails after 20 s.
    pub async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        for _ in 0..2000 {
            if holds(&self.state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not within 20 s: {what}");
    }

    /// The number of healthy devices of a resource.
    pub fn allocatable(&self, resource: &str) -> usize {
        let state = self.state();
        let plugin = state.plugins.get(resource);
        plugin.map_or(0, |it| it.devices.values().filter(|healthy| **healthy).count())
    }
}

/// The list of pods with their devices.
struct Lister(Arc<Mutex<State>>);

impl Methods for Lister {
    const NAME: &'static str = "v1.PodResourcesLister";

    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        match method {
            "List" => unary(request, async move |_: Empty| {
                let (pods, takes) = {
                    let mut state = self.0.lock().expect("no panic");
                    let pods = state.pods.iter().map(|pod| state.listed(pod)).collect();
                    (pods, std::mem::take(&mut state.next_list_takes))
                };
                tokio::time::sleep(takes).await;
                Ok(ListResponse { pods })
            }),
            "GetAllocatableResources" => unary(request, async move |_: Empty| {
                let devices = self.0.lock().expect("no panic").foreign.clone();
                Ok(AllocatableResponse { devices })
            }),
            other => unknown(other),
        }
    }
}

impl State {
    /// A pod as it is listed: one entry for each device id.
    fn listed(&self, pod: &Value) -> PodResources {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let uid = text(&pod["metadata"]["uid"]);
        let container = |name: String| {
            let devices = self.allocated.get(&(uid.clone(), name.clone()));
            let entries = devices.into_iter().flatten().flat_map(|(resource, ids)| {
                ids.iter().map(|id| ContainerDevices {
                    resource_name: resource.clone(),
                    device_ids: vec![id.clone()],
                })
            });
            ContainerResources { devices: entries.collect(), name }
        };
        // An init container that ends is never listed.
        let lasting = admission::containers(pod).filter(|(_, ends)| !ends);
        let names = lasting.map(|(it, _)| text(&it["name"]));
        PodResources {
            name: text(&pod["metadata"]["name"]),
            namespace: text(&pod["metadata"]["namespace"]),
            containers: names.map(container).collect(),
        }
    }
}
