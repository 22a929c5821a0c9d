//! The cluster's GPUs and their pods, as annotations tell them.

use super::usage::{self, Usage};
use crate::allocation;
use crate::api::objects::{List, Node, Pod, amount};
use crate::names::{CORES, COUNT, MEMORY, ResourceNames};
use crate::plugin::identity::{self, Need};
use gpuslice_wire::node::{Health, HealthState};
use std::collections::BTreeMap;

/// Memory of a GPU above which the unit must be MiB. gpushare's limit is 100, and it takes the 141 GiB of an H200
/// for MiB.
const GIB_MAX: u64 = 1000;

/// What is asked of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// By name.
    pub nodes: Vec<Shared>,
}

/// A node that shares its GPUs. Memory is in the node's unit.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    pub name: String,
    pub address: Option<String>,
    pub gpus: u64,
    pub memory: u64,
    /// Percent, the sum over the GPUs; 0 where the node does not offer compute.
    pub cores: u64,
    /// In the order of the API's list: by namespace, then name.
    pub tenants: Vec<Tenant>,
    /// What the node's agent tells of its GPUs; empty without one.
    pub usage: Usage,
    /// The health of its GPUs, as the node's daemon tells it; empty from the API server, which does not.
    pub health: BTreeMap<u64, Health>,
}

/// A pod with shares.
#[derive(Debug, Clone, Default)]
pub struct Tenant {
    pub name: String,
    pub namespace: String,
    /// The memory that it has, by GPU. `None`: on a GPU that no annotation tells.
    pub memory: BTreeMap<Option<u64>, u64>,
    /// Percent.
    pub cores: u64,
}

impl Cluster {
    /// Reads the nodes that share GPUs, and the pods on them that have not ended.
    #[must_use]
    pub fn of(nodes: &List<Node>, pods: &List<Pod>) -> Cluster {
        let sharing = |node: &&Node| amount(&node.status.allocatable, MEMORY) > 0;
        let mut nodes: Vec<Shared> =
            nodes.items.iter().filter(sharing).map(|node| shared(node, &pods.items)).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Cluster { nodes }
    }

    /// The unit of memory. A cluster has one; the first node tells it by the size of its GPUs.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        let first = self.nodes.iter().find(|node| node.gpus > 0);
        match first.is_some_and(|node| node.memory / node.gpus > GIB_MAX) {
            true => "MiB",
            false => "GiB",
        }
    }

    /// Whether a pod's GPU is unknown.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.nodes.iter().any(Shared::has_pending)
    }

    /// Memory of all pods, and of all nodes.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        let sum = |of: fn(&Shared) -> u64| self.nodes.iter().map(of).sum();
        (sum(Shared::used), sum(|node| node.memory))
    }
}

fn shared(node: &Node, pods: &[Pod]) -> Shared {
    let capacity = |resource| amount(&node.status.capacity, resource);
    let gpus = capacity(COUNT);
    let here = |pod: &&Pod| {
        pod.spec.node_name == node.metadata.name && !pod.ended() && need(pod) != Need::default()
    };
    Shared {
        name: node.metadata.name.clone(),
        address: node.internal_address().map(str::to_owned),
        gpus,
        memory: capacity(MEMORY),
        cores: capacity(CORES),
        tenants: pods.iter().filter(here).map(|pod| tenant(pod, gpus)).collect(),
        usage: node
            .metadata
            .annotations
            .get(usage::ANNOTATION)
            .map_or_else(Usage::default, |it| usage::parse(it)),
        health: BTreeMap::new(),
    }
}

fn need(pod: &Pod) -> Need {
    identity::need(pod, ResourceNames::usual())
}

/// A malformed annotation, or one that names a GPU that the node lacks, tells nothing.
fn tenant(pod: &Pod, gpus: u64) -> Tenant {
    let told = allocation::of_pod(pod).unwrap_or_default();
    let mut memory = BTreeMap::new();
    for (gpu, amount) in told {
        let gpu = Some(u64::from(gpu)).filter(|gpu| *gpu < gpus);
        *memory.entry(gpu).or_default() += amount;
    }
    if memory.is_empty() {
        memory.insert(None, need(pod).memory);
    }
    Tenant {
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        memory,
        cores: need(pod).cores,
    }
}

impl Shared {
    /// Memory of one GPU; the node tells only the sum.
    #[must_use]
    pub fn memory_of_gpu(&self) -> u64 {
        self.memory.checked_div(self.gpus).unwrap_or(0)
    }

    /// Memory that pods have on a GPU, or on one that is unknown.
    #[must_use]
    pub fn used_on(&self, gpu: Option<u64>) -> u64 {
        self.tenants.iter().filter_map(|tenant| tenant.memory.get(&gpu)).sum()
    }

    /// Memory that pods have.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.tenants.iter().flat_map(|tenant| tenant.memory.values()).sum()
    }

    /// Percent of compute that pods have.
    #[must_use]
    pub fn used_cores(&self) -> u64 {
        self.tenants.iter().map(|tenant| tenant.cores).sum()
    }

    /// Claims in the node's ledger, and the memory that processes use, in MiB; none without the agent's word.
    #[must_use]
    pub fn real(&self) -> Option<(u64, u64)> {
        let sum = |of: fn(&usage::Gpu) -> u64| self.usage.values().map(of).sum();
        (!self.usage.is_empty()).then(|| (sum(|gpu| gpu.claims), sum(|gpu| gpu.used_mib)))
    }

    /// A line for each GPU that is not healthy.
    pub fn marks(&self) -> impl Iterator<Item = String> + '_ {
        let sick = self.health.iter().filter(|(_, health)| health.state != HealthState::Healthy);
        sick.map(|(gpu, health)| format!("GPU{gpu}: {health}"))
    }

    /// Whether a pod's GPU is unknown.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.tenants.iter().any(|tenant| tenant.memory.contains_key(&None))
    }
}
