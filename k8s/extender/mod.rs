//! The scheduler extender of gpushare: for clusters whose scheduler knows no consumable capacity.
//!
//! The scheduler asks `filter` which nodes have a GPU with room, and lets `bind` choose the GPU, write it into the
//! pod's annotations, and bind the pod. Paths, port and JSON are gpushare's. Binds run one after the other, and
//! each counts what earlier ones decided although the API server's events may come later.

pub mod cluster;
mod http;
pub mod lease;

use crate::api::client::Client;
use crate::api::objects::{ConfigMap, Node, Pod};
use crate::api::store::{self, Objects};
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
use tokio::time::Instant;
use tracing::info;

/// Serve the scheduler extender of gpushare
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:32766")]
    listen: SocketAddr,
    /// Serve only while holding this Lease, NAMESPACE/NAME; for several replicas
    #[arg(long, value_name = "LEASE")]
    lease: Option<LeaseName>,
    /// URL of an API server without TLS, as of kubectl proxy [default: the cluster's own]
    #[arg(long, value_name = "URL")]
    api: Option<String>,
}

/// What the scheduler sends to `filter`; the names are Go's.
#[derive(Debug, Deserialize)]
pub struct FilterArgs {
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Pod,
    /// Whole nodes, from a scheduler that is told no node cache.
    #[serde(rename = "Nodes", alias = "nodes")]
    pub nodes: Option<Value>,
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
    /// Those of `kube-system`, of which some exclude GPUs.
    pub maps: watch::Receiver<Objects<ConfigMap>>,
    /// Until when a binding may begin.
    pub leading: Leading,
    /// Pods that were bound and are not yet seen with their node, by uid.
    assumed: Mutex<BTreeMap<String, Pod>>,
}

impl Extender {
    /// An extender that has bound nothing.
    pub fn new(
        api: Client,
        nodes: watch::Receiver<Objects<Node>>,
        pods: watch::Receiver<Objects<Pod>>,
        maps: watch::Receiver<Objects<ConfigMap>>,
        leading: Leading,
    ) -> Extender {
        Extender { api, nodes, pods, maps, leading, assumed: Mutex::default() }
    }

    /// A node with its shares; `None`: no such node.
    fn shared(&self, name: &str, assumed: &mut BTreeMap<String, Pod>) -> Result<Option<Shared>> {
        let (nodes, pods) = (self.nodes.borrow().clone(), self.pods.borrow().clone());
        let (nodes, pods) =
            nodes.zip(pods).context("the API server has not told its pods and nodes yet")?;
        // The watch has caught up, or the pod is gone.
        assumed.retain(|uid, _| pods.get(uid).is_some_and(|pod| pod.spec.node_name.is_empty()));
        let maps = self.maps.borrow().clone();
        let wanted = format!("unhealthy-gpu-{name}");
        let map = maps.iter().flat_map(|it| it.values()).find(|it| it.metadata.name == wanted);
        let node = nodes.values().find(|node| node.metadata.name == name);
        Ok(node.map(|node| cluster::shared(node, pods.values().chain(assumed.values()), map)))
    }

    /// Whether the objects have been read.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let known = self.nodes.borrow().is_some() && self.pods.borrow().is_some();
        known && self.maps.borrow().is_some()
    }

    /// Which nodes have room for a pod.
    ///
    /// # Errors
    /// The API server has not answered yet.
    pub async fn filter(&self, args: FilterArgs) -> Result<Value> {
        let mut assumed = self.assumed.lock().await;
        let whole = args.nodes.as_ref().and_then(|it| it["items"].as_array());
        let name = |node: &Value| node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let names = args.node_names.clone();
        let names = names.or_else(|| whole.map(|all| all.iter().map(name).collect()));
        let (mut fit, mut failed) = (Vec::new(), BTreeMap::new());
        for name in names.unwrap_or_default() {
            let chosen = match self.shared(&name, &mut assumed)? {
                None => Err(format!("the node {name} is not known")),
                Some(shared) => shared.choose(&args.pod).map_err(|error| error.to_string()),
            };
            match chosen {
                Ok(_) => fit.push(name),
                Err(why) => drop(failed.insert(name, why)),
            }
        }
        let mut answer =
            json!({ "Nodes": null, "NodeNames": null, "FailedNodes": failed, "Error": "" });
        match (args.node_names, whole) {
            (None, Some(all)) => {
                let kept: Vec<&Value> = all.iter().filter(|it| fit.contains(&name(it))).collect();
                answer["Nodes"] = json!({ "items": kept });
            }
            _ => answer["NodeNames"] = json!(fit),
        }
        Ok(answer)
    }

    /// Chooses the pod's GPUs and binds it.
    ///
    /// # Errors
    /// The node has no room any more, or the API server refuses; the scheduler tries again then.
    pub async fn bind(&self, args: &BindArgs) -> Result<()> {
        let mut assumed = self.assumed.lock().await;
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
        let shared = self.shared(&args.node, &mut assumed)?;
        let shared = shared.with_context(|| format!("the node {} is not known", args.node))?;
        let gpus = shared.choose(&pod)?;
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
        assumed.insert(pod.metadata.uid.clone(), pod);
        Ok(())
    }

    /// Another extender may bind from a time on that this one cannot know exactly; it stops well before.
    fn check_leading(&self) -> Result<()> {
        let leads = self.leading.borrow().is_some_and(|until| Instant::now() < until);
        anyhow::ensure!(leads, "another extender leads; try again");
        Ok(())
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
            let shared = self.shared(name, &mut assumed)?;
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

/// Runs the extender until it fails.
///
/// # Errors
/// The address is in use, or the API server's credentials cannot be read.
pub async fn run(options: &Options) -> Result<()> {
    let api = match &options.api {
        Some(url) => Client::plain(url)?,
        None => Client::in_cluster()?,
    };
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.with_context(|| format!("listening at {}", options.listen))?;
    let elector = options.lease.clone().map(|lease| {
        let (api, me) = (api.clone(), lease::identity());
        Elector { api, lease, me, duration: lease::DURATION }
    });
    serve(api, listener, elector).await
}

/// Serves the extender on a socket; without an elector it always leads.
///
/// # Errors
/// The socket fails.
pub async fn serve(api: Client, listener: TcpListener, elector: Option<Elector>) -> Result<()> {
    let (led, leading) = watch::channel(None);
    let elect = async {
        match elector {
            Some(elector) => elector.run(led).await,
            None => {
                let always = Instant::now() + Duration::from_secs(u64::from(u32::MAX));
                led.send_replace(Some(always));
                std::future::pending().await
            }
        }
    };
    let (current, extender) = watch::channel(None);
    tokio::select! {
        () = elect => Ok(()),
        () = lead(api, leading, current) => Ok(()),
        ended = http::serve(extender, listener) => ended,
    }
}

/// Whether an extender serves now: it leads, and has read the objects since it does.
pub type Current = watch::Receiver<Option<Arc<Extender>>>;

/// Makes an extender each time this process leads. Its copies of the objects are read after the election, so they
/// have all that the predecessor bound.
async fn lead(api: Client, mut leading: Leading, current: watch::Sender<Option<Arc<Extender>>>) {
    while leading.wait_for(Option::is_some).await.is_ok() {
        let (nodes_copy, nodes) = watch::channel(None);
        let (pods_copy, pods) = watch::channel(None);
        let (maps_copy, maps) = watch::channel(None);
        let extender = Extender::new(api.clone(), nodes, pods, maps, leading.clone());
        current.send_replace(Some(Arc::new(extender)));
        let maps = "/api/v1/namespaces/kube-system/configmaps".to_owned();
        tokio::select! {
            () = store::keep(api.clone(), "/api/v1/nodes".to_owned(), nodes_copy) => {}
            () = store::keep(api.clone(), "/api/v1/pods".to_owned(), pods_copy) => {}
            () = store::keep(api.clone(), maps, maps_copy) => {}
            _ = leading.wait_for(Option::is_none) => {}
        }
        current.send_replace(None);
    }
}
