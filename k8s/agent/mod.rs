//! The agent of a node: an unprivileged process between the kubelet, the API server and the daemon.
//!
//! One program offers a node's GPUs. Which one, the node's label says, as in ACK; this agent offers them as device
//! plugins or by dynamic resource allocation, and offers nothing on a node that is another program's. Beside that it
//! watches that containers live in the claims that were reserved for them ([`unadmitted`]).

pub mod metrics;
mod mode;
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
use crate::names;
use crate::place::Placement;
use crate::plugin::devices::{Offer, Unit};
use crate::plugin::identity::ResourceNames;
use crate::plugin::{self, state};
use anyhow::{Context, Result, ensure};
use gpuslice_host::layout::{NODE_DIR, NODE_SOCKET};
use metrics::Metrics;
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
    /// Distribution of shares over GPUs [default: the node's label ack.node.gpu.placement, else binpack]
    #[arg(long, value_name = "PLACEMENT")]
    placement: Option<Placement>,
    /// Serve the agent's own metrics at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
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

/// Runs the agent until it fails or is told to end.
///
/// # Errors
/// The API server or the kubelet's directory cannot be used, or the node's labels are contradictory.
pub async fn run(options: &Options) -> Result<()> {
    let name = &options.node_name;
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    ensure!(!name.is_empty() && name.chars().all(valid), "{name:?} is no node's name");
    let api = match &options.api {
        Some(url) => Client::plain(url)?,
        None => Client::in_cluster()?,
    };
    let node: Node = api.get(&format!("/api/v1/nodes/{name}")).await?;
    let labels = &node.metadata.labels;
    let mode = match options.mode {
        Some(mode) => mode,
        None => mode::of_labels(labels)?,
    };
    let label = labels.get(names::PLACEMENT).map(|text| text.parse()).transpose();
    let label =
        label.map_err(anyhow::Error::msg).context("the node's label ack.node.gpu.placement")?;
    let placement = options.placement.or(label).unwrap_or_default();
    let socket = options.node_socket.clone();
    let socket = socket.unwrap_or_else(|| PathBuf::from(NODE_DIR).join(NODE_SOCKET));
    let ledger: Arc<dyn Ledger> = Arc::new(Socket::new(&socket));
    info!(node = name, ?mode, ?placement, "starting");
    let part = Part { options, api, ledger, placement, metrics: Metrics::default() };
    let metrics = async {
        match options.metrics {
            Some(address) => part.metrics.clone().serve(address).await,
            None => std::future::pending().await,
        }
    };
    let told = async {
        match mode {
            Mode::Off => std::future::pending().await,
            _ => usage::run(part.api.clone(), part.ledger.clone(), name.clone()).await,
        }
    };
    let serve = async {
        match mode {
            Mode::DevicePlugin => part.device_plugin(Offer::Both).await,
            Mode::Cgpu => part.device_plugin(Offer::Memory).await,
            Mode::Share => part.device_plugin(Offer::Share).await,
            Mode::Topology => part.device_plugin(Offer::Whole).await,
            Mode::Dra => part.dra(&node).await,
            Mode::Off => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = serve => ended,
        ended = metrics => ended,
        () = told => Ok(()),
        () = terminated() => Ok(()),
    }
}

/// What every way to offer GPUs needs.
struct Part<'a> {
    options: &'a Options,
    api: Client,
    ledger: Arc<dyn Ledger>,
    placement: Placement,
    metrics: Metrics,
}

impl Part<'_> {
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

    fn alarm(&self, names: ResourceNames, pods: watch::Receiver<Objects<Pod>>) -> Alarm {
        Alarm {
            node: self.options.node_name.clone(),
            api: self.api.clone(),
            ledger: self.ledger.clone(),
            names,
            pods,
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
        let settings = state::Settings {
            node: self.options.node_name.clone(),
            names: names.clone(),
            offer,
            unit,
            placement: self.placement,
            kubelet: Directories::new(&self.options.kubelet_dir),
        };
        let (copy, pods) = watch::channel(None);
        let alarm = self.alarm(names, pods.clone());
        let alarm = async {
            match offer {
                // Its containers join no claim.
                Offer::Share => std::future::pending().await,
                Offer::Memory | Offer::Both | Offer::Whole => alarm.run().await,
            }
        };
        let pair = state::Pair::new(settings, self.ledger.clone(), self.api.clone(), pods);
        tokio::select! {
            () = store::keep(self.api.clone(), self.pods_path(), copy) => Ok(()),
            () = alarm => Ok(()),
            ended = plugin::run(Arc::new(pair)) => ended,
        }
    }

    async fn dra(&self, node: &Node) -> Result<()> {
        let name = &self.options.node_name;
        let (copy, slices) = watch::channel(None);
        let (pods_copy, pods) = watch::channel(None);
        let (api, ledger) = (self.api.clone(), self.ledger.clone());
        let publisher = Publisher {
            node: NodeName { name: name.clone(), uid: node.metadata.uid.clone() },
            api: api.clone(),
            ledger: ledger.clone(),
            placement: self.placement,
            slices,
        };
        let driver = Arc::new(Driver { node: name.clone(), api: api.clone(), ledger });
        let directories = Directories::new(&self.options.kubelet_dir);
        tokio::select! {
            () = store::keep(api.clone(), publish::watch_path(name), copy) => Ok(()),
            () = store::keep(api, self.pods_path(), pods_copy) => Ok(()),
            () = self.alarm(self.names(), pods).run() => Ok(()),
            () = publisher.run() => Ok(()),
            ended = driver.run(&directories) => ended,
        }
    }
}

/// Waits for a signal that ends the process.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
