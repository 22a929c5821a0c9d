//! The agent of a node: an unprivileged process between the kubelet, the API server and the daemon.
//!
//! One program offers a node's GPUs. Which one, the node's label says, as in ACK; this agent offers them as device
//! plugins or by dynamic resource allocation, and offers no GPU that another program offers ([`owners`]). Beside that
//! it watches that containers live in the claims that were reserved for them ([`unadmitted`]).
//!
//! The agent has no memory: all that it knows is the ledger's and the API server's. So it ends when a label of its node
//! asks for another mode, and its program begins anew: no socket and no stream of the old mode stays.

pub mod exclusive;
mod labels;
pub mod metrics;
mod mode;
pub mod owners;
pub mod unadmitted;
mod usage;

pub use mode::Mode;

use crate::api::client::Client;
use crate::api::objects::{Node, Pod};
use crate::api::store::{self, Objects};
use crate::dra::driver::Driver;
use crate::dra::publish::{self, Publisher};
use crate::dra::slices::NodeName;
use crate::kubelet::Directories;
use crate::ledger::Ledger;
use crate::ledger::socket::Socket;
use crate::names::{self, ResourceNames};
use crate::place::Placement;
use crate::plugin::devices::{Offer, Unit};
use crate::plugin::{self, state};
use crate::signals::terminated;
use anyhow::{Result, ensure};
use exclusive::Exclusive;
use gpuslice_host::layout::{NODE_DIR, NODE_SOCKET};
use labels::Asked;
use metrics::Metrics;
use owners::Search;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::info;
use unadmitted::Alarm;

/// What tells the agent's events.
const COMPONENT: &str = "gpuslice.io/agent";

/// Offer this node's GPUs to the cluster
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Name of the node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: String,
    /// How GPUs are offered [default: by the node's labels]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// URL of an API server without TLS, as of kubectl proxy [default: the cluster's own]
    #[arg(long, value_name = "URL")]
    api: Option<String>,
    /// Directory of the kubelet
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// The daemon's socket for agents [default: /run/gpuslice/node.sock]
    #[arg(long, value_name = "FILE")]
    node_socket: Option<PathBuf>,
    /// Memory of one device: GiB, MiB or a size
    #[arg(long, value_name = "UNIT", default_value = "GiB")]
    memory_unit: Unit,
    /// Distribution of shares over GPUs, binpack or spread [default: the node's label
    /// ack.node.gpu.placement, else binpack]
    #[arg(long, value_name = "PLACEMENT")]
    placement: Option<Placement>,
    /// Serve the agent's own metrics at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Namespace of the ConfigMaps that schedulers read
    #[arg(long, value_name = "NAMESPACE", default_value = names::CONFIG_MAPS)]
    config_maps: String,
    /// Name of the resource for memory
    #[arg(long, value_name = "NAME", default_value = names::MEMORY)]
    memory_resource: String,
    /// Name of the resource for percent of compute
    #[arg(long, value_name = "NAME", default_value = names::CORES)]
    core_resource: String,
    /// Name of the resource for whole GPUs
    #[arg(long, value_name = "NAME", default_value = names::WHOLE)]
    whole_resource: String,
}

/// Why the agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By a signal.
    Told,
    /// The node's labels ask for something else: the program begins anew.
    Relabelled,
}

/// Runs the agent until it fails, is told to end, or is to begin anew.
///
/// # Errors
/// The API server or the kubelet's directory cannot be used, or the node's labels are contradictory.
pub async fn run(options: &Options) -> Result<Ended> {
    let name = &options.node_name;
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    ensure!(!name.is_empty() && name.chars().all(valid), "{name:?} is no node's name");
    let namespace = &options.config_maps;
    ensure!(namespace.chars().all(valid), "{namespace:?} is no namespace's name");
    let api = match &options.api {
        Some(url) => Client::plain(url)?,
        None => Client::in_cluster()?,
    };
    let node: Node = api.get(&format!("/api/v1/nodes/{name}")).await?;
    let asked = Asked { mode: options.mode, placement: options.placement };
    let offered = asked.by(&node.metadata.labels)?;
    let socket = options.node_socket.clone();
    let socket = socket.unwrap_or_else(|| PathBuf::from(NODE_DIR).join(NODE_SOCKET));
    let daemon: Arc<dyn Ledger> = Arc::new(Socket::new(&socket));
    info!(node = name, mode = ?offered.mode, placement = ?offered.placement, "starting");
    let ((nodes_copy, nodes), (pods_copy, pods)) = (watch::channel(None), watch::channel(None));
    let (found, owners) = watch::channel(None);
    let ledger = Exclusive::new(daemon.clone(), owners.clone(), offered.foreign());
    let metrics = Metrics::of(owners);
    let search = Search {
        name: name.clone(),
        api: api.clone(),
        ledger: daemon.clone(),
        nodes: nodes.clone(),
        pods: pods.clone(),
        pod_resources: Directories::new(&options.kubelet_dir).pod_resources(),
        found,
    };
    let placement = offered.placement;
    let part = Part { options, api, ledger: ledger.clone(), pods, placement, metrics };
    let relabelled = labels::changed(&part.api, name, asked, offered, nodes);
    let own_node = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{name}");
    tokio::select! {
        ended = part.serve(offered.mode, &node) => ended.map(|()| Ended::Told),
        ended = part.measure() => ended.map(|()| Ended::Told),
        () = part.help(offered.mode, &daemon, search, &ledger, pods_copy) => Ok(Ended::Told),
        () = store::keep(part.api.clone(), own_node, nodes_copy) => Ok(Ended::Told),
        () = relabelled => Ok(Ended::Relabelled),
        () = terminated() => Ok(Ended::Told),
    }
}

/// What every way to offer GPUs needs.
struct Part<'a> {
    options: &'a Options,
    api: Client,
    /// Without the GPUs of other owners.
    ledger: Arc<dyn Ledger>,
    /// The pods of this node.
    pods: watch::Receiver<Objects<Pod>>,
    placement: Placement,
    metrics: Metrics,
}

impl Part<'_> {
    /// Offers the GPUs. What pods have from another mode goes on until they end.
    async fn serve(&self, mode: Mode, node: &Node) -> Result<()> {
        let finished = async {
            if mode != Mode::Dra {
                self.driver().finish(&Directories::new(&self.options.kubelet_dir)).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            ended = self.offer(mode, node) => ended,
            () = finished => Ok(()),
        }
    }

    fn driver(&self) -> Arc<Driver> {
        let (node, api) = (self.options.node_name.clone(), self.api.clone());
        Arc::new(Driver { node, api, ledger: self.ledger.clone() })
    }

    async fn offer(&self, mode: Mode, node: &Node) -> Result<()> {
        if mode != Mode::Dra {
            publish::withdraw(&self.api, node).await;
        }
        if matches!(mode, Mode::Dra | Mode::Off) {
            plugin::report::withdraw(&self.api, node).await;
        }
        match mode {
            Mode::DevicePlugin => self.device_plugin(Offer::Both).await,
            Mode::Cgpu => self.device_plugin(Offer::Memory).await,
            Mode::Share => self.device_plugin(Offer::Share).await,
            Mode::Topology => self.device_plugin(Offer::Whole).await,
            Mode::Dra => self.dra(node).await,
            Mode::Off => {
                self.release_ended().await;
                Ok(())
            }
        }
    }

    /// Pods that got their claims from device plugins run on, and end.
    async fn release_ended(&self) {
        let pair = self.pair(Offer::Both, self.names(), self.options.memory_unit);
        plugin::release(&pair).await;
    }

    async fn measure(&self) -> Result<()> {
        match self.options.metrics {
            Some(address) => self.metrics.clone().serve(address).await,
            None => std::future::pending().await,
        }
    }

    /// What goes on beside the offer. Where there is none, only the node's pods are followed.
    async fn help(
        &self,
        mode: Mode,
        daemon: &Arc<dyn Ledger>,
        search: Search,
        ledger: &Exclusive,
        pods: watch::Sender<Objects<Pod>>,
    ) {
        let pods = store::keep(self.api.clone(), self.pods_path(), pods);
        if mode == Mode::Off {
            return pods.await;
        }
        let name = &self.options.node_name;
        tokio::select! {
            () = search.run() => {}
            () = ledger.run() => {}
            () = pods => {}
            () = usage::run(self.api.clone(), daemon.clone(), name.clone()) => {}
        }
    }

    fn names(&self) -> ResourceNames {
        ResourceNames {
            memory: self.options.memory_resource.clone(),
            cores: self.options.core_resource.clone(),
        }
    }

    /// The path of a list of the node's pods.
    fn pods_path(&self) -> String {
        format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.options.node_name)
    }

    fn alarm(&self, names: ResourceNames) -> Alarm {
        Alarm {
            node: self.options.node_name.clone(),
            api: self.api.clone(),
            ledger: self.ledger.clone(),
            names,
            pods: self.pods.clone(),
            metrics: self.metrics.clone(),
        }
    }

    async fn device_plugin(&self, offer: Offer) -> Result<()> {
        let mut names = self.names();
        ensure!(names.memory != names.cores, "both resources have the name {}", names.memory);
        let mut unit = self.options.memory_unit;
        if offer == Offer::Whole {
            names.memory.clone_from(&self.options.whole_resource);
            unit = Unit::WHOLE;
        }
        let pair = self.pair(offer, names.clone(), unit);
        let alarm = self.alarm(names);
        let alarm = async {
            match offer {
                // Its containers join no claim.
                Offer::Share => std::future::pending().await,
                Offer::Memory | Offer::Both | Offer::Whole => alarm.run().await,
            }
        };
        tokio::select! {
            () = alarm => Ok(()),
            ended = plugin::run(Arc::new(pair)) => ended,
        }
    }

    fn pair(&self, offer: Offer, names: ResourceNames, unit: Unit) -> state::Pair {
        let Options { memory_resource, core_resource, whole_resource, .. } = self.options;
        let settings = state::Settings {
            node: self.options.node_name.clone(),
            names,
            all_names: [memory_resource, core_resource, whole_resource].map(String::clone).into(),
            offer,
            unit,
            placement: self.placement,
            kubelet: Directories::new(&self.options.kubelet_dir),
            config_maps: self.options.config_maps.clone(),
        };
        let (ledger, pods) = (self.ledger.clone(), self.pods.clone());
        state::Pair::new(settings, ledger, self.api.clone(), pods)
    }

    async fn dra(&self, node: &Node) -> Result<()> {
        let name = &self.options.node_name;
        let (copy, slices) = watch::channel(None);
        let (api, ledger) = (self.api.clone(), self.ledger.clone());
        let publisher = Publisher {
            node: NodeName { name: name.clone(), uid: node.metadata.uid.clone() },
            api: api.clone(),
            ledger,
            placement: self.placement,
            slices,
        };
        let driver = self.driver();
        let directories = Directories::new(&self.options.kubelet_dir);
        tokio::select! {
            () = store::keep(api, publish::watch_path(name), copy) => Ok(()),
            () = self.alarm(self.names()).run() => Ok(()),
            () = publisher.run() => Ok(()),
            () = self.release_ended() => Ok(()),
            ended = driver.run(&directories) => ended,
        }
    }
}
