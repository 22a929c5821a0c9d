//! The scheduler extender of gpushare: for clusters whose scheduler knows no consumable capacity.
//!
//! The scheduler asks `filter` which nodes have a GPU with room, and lets `bind` choose the GPU, write it into the
//! pod's annotations, and bind the pod. Paths, port and JSON are gpushare's, and so is that callers prove nothing: what
//! is bound is what its own scheduler would have bound ([`admits`]). Binds run one after the other, and
//! each counts what earlier ones decided although the API server's events may come later.

pub mod admits;
pub mod cluster;
mod http;
pub mod lease;

use crate::api::client::Client;
use crate::api::objects::{ConfigMap, Node, Pod};
use crate::api::store::{self, LATE_MAX, Objects};
use crate::listen::listen;
use crate::names;
use crate::signals::unrouted;
use anyhow::{Context, Result};
use cluster::Shared;
use lease::{Elector, Leading, LeaseName};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

/// The schedulers of gpushare's and of ACK's documents.
const SCHEDULERS: [&str; 2] = ["ack-co-scheduler", "default-scheduler"];
/// Nodes of one request, at most: three times as many as Kubernetes is made for.
const NODES_MAX: usize = 15_000;

/// Serve the scheduler extender of gpushare
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:32766")]
    listen: SocketAddr,
    /// Serve only while holding this Lease, NAMESPACE/NAME; for several replicas
    #[arg(long, value_name = "LEASE")]
    lease: Option<LeaseName>,
    /// Scheduler whose pods are bound; may be repeated
    #[arg(long = "scheduler", value_name = "NAME", default_values = SCHEDULERS)]
    schedulers: Vec<String>,
    /// Namespace with ConfigMaps that exclude GPUs; may be repeated
    #[arg(long, value_name = "NAMESPACE", default_values = [names::CONFIG_MAPS])]
    config_maps: Vec<String>,
    /// URL of an API server without TLS, as of kubectl proxy [default: the cluster's own]
    #[arg(long, value_name = "URL")]
    api: Option<String>,
}

/// What the scheduler sends to `filter`; the names are Go's.
#[derive(Debug, Deserialize)]
pub struct FilterArgs {
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Pod,
    #[serde(rename = "NodeNames", alias = "nodenames", alias = "nodeNames")]
    pub node_names: Option<Vec<String>>,
}

/// What the scheduler sends to `bind`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct BindArgs {
    pub pod_name: String,
    pub pod_namespace: String,
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    pub node: String,
}

/// The extender.
pub struct Extender {
    pub api: Client,
    pub nodes: watch::Receiver<Objects<Node>>,
    pub pods: watch::Receiver<Objects<Pod>>,
    /// Those of each namespace, of which some exclude GPUs.
    pub maps: Vec<watch::Receiver<Objects<ConfigMap>>>,
    /// Those whose pods are bound.
    pub schedulers: Vec<String>,
    /// Until when a binding may begin.
    pub leading: Leading,
    /// Pods that were bound and are not yet seen with their node, by uid.
    assumed: Arc<Mutex<Assumed>>,
}

/// Pods by uid, and what the copy of the server's pods has had of each.
type Assumed = BTreeMap<String, AssumedPod>;

/// A pod that counts where it was bound.
#[derive(Debug)]
struct AssumedPod {
    pod: Pod,
    /// The copy has had it: when it has it no more, the pod is gone.
    was_seen: bool,
    /// A copy that does not have it by then is not merely late.
    until: Instant,
}

/// Leaves out the pods with which the copy has caught up, and those that are gone.
fn catch_up(assumed: &mut Assumed, pods: &BTreeMap<String, Pod>, now: Instant) {
    assumed.retain(|uid, it| match pods.get(uid) {
        Some(pod) => {
            it.was_seen = true;
            pod.spec.node_name.is_empty()
        }
        None => !it.was_seen && now < it.until,
    });
}

impl Extender {
    /// An extender that has bound nothing.
    pub fn new(
        api: Client,
        nodes: watch::Receiver<Objects<Node>>,
        pods: watch::Receiver<Objects<Pod>>,
        maps: Vec<watch::Receiver<Objects<ConfigMap>>>,
        schedulers: Vec<String>,
        leading: Leading,
    ) -> Extender {
        Extender { api, nodes, pods, maps, schedulers, leading, assumed: Arc::default() }
    }

    /// A node's object and its shares; `None`: no such node.
    fn shared(&self, name: &str, assumed: &mut Assumed) -> Result<Option<(Node, Shared)>> {
        let (nodes, pods) = (self.nodes.borrow().clone(), self.pods.borrow().clone());
        let (nodes, pods) =
            nodes.zip(pods).context("the API server has not told its pods and nodes yet")?;
        catch_up(assumed, &pods, Instant::now());
        let maps: Vec<_> = self.maps.iter().filter_map(|it| it.borrow().clone()).collect();
        let wanted = format!("unhealthy-gpu-{name}");
        let maps = maps.iter().flat_map(|it| it.values()).filter(|it| it.metadata.name == wanted);
        let node = nodes.values().find(|node| node.metadata.name == name);
        let all = || pods.values().chain(assumed.values().map(|it| &it.pod));
        Ok(node.map(|node| (node.clone(), cluster::shared(node, all(), maps))))
    }

    /// The GPUs for a pod on a node, if it may be there.
    fn choose(
        &self,
        pod: &Pod,
        node: &str,
        assumed: &mut Assumed,
    ) -> Result<Result<(Shared, Vec<usize>), String>> {
        let Some((node, shared)) = self.shared(node, assumed)? else {
            return Ok(Err(format!("the node {node} is not known")));
        };
        let open = admits::check_node(&node, pod).map_err(|error| error.to_string());
        let chosen = open.and_then(|()| shared.choose(pod).map_err(|error| error.to_string()));
        Ok(chosen.map(|gpus| (shared, gpus)))
    }

    /// Whether the objects have been read.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let known = self.nodes.borrow().is_some() && self.pods.borrow().is_some();
        known && self.maps.iter().all(|it| it.borrow().is_some())
    }

    /// Which nodes have room for a pod.
    ///
    /// # Errors
    /// The API server has not answered yet.
    pub async fn filter(&self, args: FilterArgs) -> Result<Value> {
        let names = args.node_names.context(
            "the scheduler names no nodes; write nodeCacheCapable: true into the extender's part of its configuration",
        )?;
        let most = NODES_MAX;
        anyhow::ensure!(
            names.len() <= most,
            "{} nodes are named, and {most} are read",
            names.len()
        );
        let mut assumed = self.assumed.lock().await;
        let (mut fit, mut failed) = (Vec::new(), BTreeMap::new());
        for name in names {
            match self.choose(&args.pod, &name, &mut assumed)? {
                Ok(_) => fit.push(name),
                Err(why) => drop(failed.insert(name, why)),
            }
        }
        Ok(json!({ "Nodes": null, "NodeNames": fit, "FailedNodes": failed, "Error": "" }))
    }

    /// Chooses the pod's GPUs and binds it. A binding that has begun goes on when its caller waits no longer.
    ///
    /// # Errors
    /// The node has no room any more, or the API server refuses; the scheduler tries again then.
    pub async fn bind(self: &Arc<Self>, args: BindArgs) -> Result<()> {
        let (ours, mut assumed) = (self.clone(), self.assumed.clone().lock_owned().await);
        tokio::spawn(async move { ours.bind_now(&args, &mut assumed).await }).await?
    }

    async fn bind_now(&self, args: &BindArgs, assumed: &mut Assumed) -> Result<()> {
        let plain = |text: &str| {
            let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            !text.is_empty() && text.chars().all(valid)
        };
        let (name, namespace) = (&args.pod_name, &args.pod_namespace);
        anyhow::ensure!(plain(name) && plain(namespace), "{namespace:?}/{name:?} is no pod's name");
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let mut pod: Pod = self.api.get(&path).await?;
        anyhow::ensure!(
            pod.metadata.uid == args.pod_uid,
            "the pod {name} was deleted and made again"
        );
        admits::check_pod(&pod, &self.schedulers)?;
        let chosen = self.choose(&pod, &args.node, assumed)?;
        let (shared, gpus) = chosen.map_err(anyhow::Error::msg)?;
        self.check_leading()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let annotations = cluster::annotations(&shared, &pod, &gpus, now);
        let fields = json!({ "metadata": { "uid": pod.metadata.uid, "annotations": annotations } });
        self.api.merge(&path, &fields).await?;
        self.check_leading()?;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": name, "namespace": namespace, "uid": pod.metadata.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": args.node },
        });
        self.api.create(&format!("{path}/binding"), &binding).await?;
        info!(pod = %name, node = %args.node, ?gpus, "bound");
        pod.metadata.annotations.extend(annotations);
        pod.spec.node_name.clone_from(&args.node);
        let (was_seen, until) = (false, Instant::now() + LATE_MAX);
        assumed.insert(pod.metadata.uid.clone(), AssumedPod { pod, was_seen, until });
        Ok(())
    }

    /// Another extender may bind from a time on that this one cannot know exactly; it stops well before.
    fn check_leading(&self) -> Result<()> {
        let leads = self.leading.borrow().is_some_and(|until| Instant::now() < until);
        anyhow::ensure!(leads, "another extender leads; try again");
        Ok(())
    }

    /// Binds no more, and gives the Lease up after the binding that goes on.
    async fn end(&self, elector: &Elector, led: &watch::Sender<Option<Instant>>) {
        let ended = async {
            let _turn = self.assumed.lock().await;
            led.send_replace(None);
            elector.give_up().await
        };
        let ended = tokio::time::timeout(lease::GIVE_UP_LIMIT, ended).await;
        if let Err(error) = ended.context("no answer in time").flatten() {
            warn!("the lease {} is not given up: {error:#}", elector.lease.name);
        }
    }

    /// The GPUs of one node or of all, with their pods.
    ///
    /// # Errors
    /// The API server has not answered yet.
    pub async fn inspect(&self, node: Option<&str>) -> Result<Value> {
        let mut assumed = self.assumed.lock().await;
        let all =
            self.nodes.borrow().clone().context("the API server has not told its nodes yet")?;
        let mut names: Vec<&str> = all.values().map(|it| it.metadata.name.as_str()).collect();
        names.retain(|name| node.is_none_or(|node| node == *name));
        names.sort_unstable();
        let mut nodes = Vec::new();
        for name in &names {
            let shared = self.shared(name, &mut assumed)?.map(|it| it.1);
            let shares = |it: &Shared| it.gpus.iter().any(|gpu| gpu.memory.0 > 0);
            nodes.extend(shared.filter(|it| node.is_some() || shares(it)).map(|it| it.inspect()));
        }
        let mut answer = json!({ "nodes": nodes });
        if let Some(node) = node.filter(|_| names.is_empty()) {
            answer["error"] = json!(format!("the node {node} is not known"));
        }
        Ok(answer)
    }
}

/// Runs the extender until it fails or is told to end.
///
/// # Errors
/// The address is in use, or the API server's credentials cannot be read.
pub async fn run(options: &Options) -> Result<()> {
    let api = match &options.api {
        Some(url) => Client::plain(url)?,
        None => Client::in_cluster()?,
    };
    let listener = listen(options.listen).await?;
    let elector = options.lease.clone().map(|lease| {
        let (api, me) = (api.clone(), lease::identity());
        Elector { api, lease, me, duration: lease::DURATION }
    });
    let (schedulers, config_maps) = (options.schedulers.clone(), options.config_maps.clone());
    serve(api, listener, Choices { schedulers, config_maps }, elector, unrouted()).await
}

/// What an administrator chooses.
#[derive(Debug, Clone)]
pub struct Choices {
    /// Those whose pods are bound.
    pub schedulers: Vec<String>,
    /// Namespaces with ConfigMaps that exclude GPUs.
    pub config_maps: Vec<String>,
}

/// Serves the extender on a socket, until `stop` is ready; without an elector it always leads.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    api: Client,
    listener: TcpListener,
    choices: Choices,
    elector: Option<Elector>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let (led, leading) = watch::channel(None);
    let elect = async {
        match &elector {
            Some(elector) => elector.run(&led).await,
            None => {
                let always = Instant::now() + Duration::from_secs(u64::from(u32::MAX));
                led.send_replace(Some(always));
                std::future::pending().await
            }
        }
    };
    let (current, extender) = watch::channel(None);
    let ended = tokio::select! {
        () = elect => Ok(()),
        () = lead(api, choices, leading, current) => Ok(()),
        ended = http::serve(extender.clone(), listener, stop) => ended,
    };
    let last = extender.borrow().clone();
    if let (Some(elector), Some(last)) = (&elector, last) {
        last.end(elector, &led).await;
    }
    ended
}

/// Whether an extender serves now: it leads, and has read the objects since it does.
pub type Current = watch::Receiver<Option<Arc<Extender>>>;

/// Makes an extender each time this process leads. Its copies of the objects are read after the election, so they
/// have all that the predecessor bound.
async fn lead(
    api: Client,
    choices: Choices,
    mut leading: Leading,
    current: watch::Sender<Option<Arc<Extender>>>,
) {
    while leading.wait_for(Option::is_some).await.is_ok() {
        let (nodes_copy, nodes) = watch::channel(None);
        let (pods_copy, pods) = watch::channel(None);
        let mut kept = JoinSet::new();
        let maps = choices.config_maps.iter().map(|namespace| {
            let (copy, maps) = watch::channel(None);
            kept.spawn(store::keep(api.clone(), names::config_maps(namespace), copy));
            maps
        });
        let maps = maps.collect();
        let (schedulers, leads) = (choices.schedulers.clone(), leading.clone());
        let extender = Extender::new(api.clone(), nodes, pods, maps, schedulers, leads);
        current.send_replace(Some(Arc::new(extender)));
        tokio::select! {
            () = store::keep(api.clone(), "/api/v1/nodes".to_owned(), nodes_copy) => {}
            () = store::keep(api.clone(), "/api/v1/pods".to_owned(), pods_copy) => {}
            Some(_) = kept.join_next() => {}
            _ = leading.wait_for(Option::is_none) => {}
        }
        current.send_replace(None);
    }
}
