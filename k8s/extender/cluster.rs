//! The cluster's GPUs as a scheduler sees them: nodes by what they report, shares by what pods carry.
//!
//! Everything is in the API server's objects, so a scheduler that restarts knows all that its predecessor knew. A pod
//! counts from its binding on. What was decided and is not yet seen in the objects is kept beside them by the caller.

use crate::allocation::{self, ByGpu};
use crate::amounts::{self, BadAmounts};
use crate::api::objects::{ConfigMap, Node, Pod, amount};
use crate::names::{
    CORES, COUNT, MEMORY, PLACEMENT, ResourceNames, V1_ASSIGNED, V1_ASSUME_TIME, V1_DEVICE,
    V1_INDEX, V1_POD, V2_MEMORY,
};
use crate::place::{self, Ask, Gpu, Links, Placement};
use crate::plugin::identity::{self, Need};
use gpuslice_wire::units::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// GPUs of one node, at most; a node that reports more is not believed.
const GPUS_MAX: u64 = 64;

/// A node's GPUs with what pods have of them, in the node's unit of memory.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    pub name: String,
    pub gpus: Vec<Gpu>,
    pub placement: Placement,
    /// Whether the node offers compute.
    pub has_cores: bool,
    pub pods: Vec<Share>,
}

/// A pod's share.
#[derive(Debug, Clone)]
pub struct Share {
    pub name: String,
    pub namespace: String,
    pub memory: ByGpu,
}

/// Why a node does not take a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("the node {0} shares no GPU memory")]
    NotShared(String),
    #[error("the node {0} offers no percent of compute")]
    NoCores(String),
    #[error("insufficient GPU memory or compute in one device")]
    NoRoom,
    #[error("{0}")]
    Amounts(#[from] BadAmounts),
}

/// The node with the shares of its pods, without the GPUs that ConfigMaps exclude.
#[must_use]
pub fn shared<'a>(
    node: &Node,
    pods: impl IntoIterator<Item = &'a Pod>,
    unhealthy: impl IntoIterator<Item = &'a ConfigMap>,
) -> Shared {
    let capacity = |resource| amount(&node.status.capacity, resource);
    let count = capacity(COUNT).min(GPUS_MAX);
    let memory = Bytes(capacity(MEMORY).checked_div(count).unwrap_or(0));
    let sick: BTreeSet<u64> = unhealthy.into_iter().flat_map(sick).collect();
    let gpu = |at: u64| Gpu { unhealthy: sick.contains(&at), ..Gpu::new(memory) };
    let label = node.metadata.labels.get(PLACEMENT);
    let mut shared = Shared {
        name: node.metadata.name.clone(),
        gpus: (0..count).map(gpu).collect(),
        placement: label.and_then(|text| text.parse().ok()).unwrap_or_default(),
        has_cores: capacity(CORES) > 0,
        pods: Vec::new(),
    };
    let here = |pod: &&Pod| pod.spec.node_name == node.metadata.name && !pod.ended();
    pods.into_iter().filter(here).for_each(|pod| shared.add(pod));
    shared
}

/// The GPUs that a ConfigMap excludes: `0,3`. What is no number excludes nothing.
fn sick(map: &ConfigMap) -> BTreeSet<u64> {
    let text = map.data.get("gpus").map(String::as_str).unwrap_or_default();
    text.split(',').filter_map(|one| one.trim().parse().ok()).collect()
}

impl Shared {
    /// Counts a pod that is bound to the node.
    pub fn add(&mut self, pod: &Pod) {
        let memory = allocation::of_pod(pod).unwrap_or_default();
        let count = memory.len() as u64;
        let cores = need(pod).cores.checked_div(count).unwrap_or(0);
        for (&gpu, &amount) in &memory {
            if let Some(gpu) = self.gpus.get_mut(gpu as usize) {
                let cores = u32::try_from(cores).unwrap_or(u32::MAX);
                gpu.take(&Ask { memory: Bytes(amount), cores, count: 1, links: Links::Any });
            }
        }
        if !memory.is_empty() {
            let meta = &pod.metadata;
            let (name, namespace) = (meta.name.clone(), meta.namespace.clone());
            self.pods.push(Share { name, namespace, memory });
        }
    }

    /// The GPUs, by index, for a pod that is not bound yet.
    ///
    /// # Errors
    /// [`Unfit`], as the scheduler shows it.
    pub fn choose(&self, pod: &Pod) -> Result<Vec<usize>, Unfit> {
        if self.gpus.iter().all(|gpu| gpu.memory == Bytes(0)) {
            return Err(Unfit::NotShared(self.name.clone()));
        }
        let ask = ask(pod)?;
        if ask.cores > 0 && !self.has_cores {
            return Err(Unfit::NoCores(self.name.clone()));
        }
        place::choose(&self.gpus, self.placement, &ask).ok_or(Unfit::NoRoom)
    }

    /// The answer of `inspect`.
    #[must_use]
    pub fn inspect(&self) -> Value {
        let device = |(id, gpu): (usize, &Gpu)| {
            let on = |share: &Share| share.memory.get(&(id as u32)).copied();
            let pods: Vec<Value> = self
                .pods
                .iter()
                .filter_map(|share| {
                    let used = on(share)?;
                    let (name, namespace) = (&share.name, &share.namespace);
                    Some(json!({ "name": name, "namespace": namespace, "usedGPU": used }))
                })
                .collect();
            let (total, used) = (gpu.memory.0, gpu.used.memory.0);
            json!({ "id": id, "totalGPU": total, "usedGPU": used, "pods": pods })
        };
        let sum = |of: fn(&Gpu) -> u64| self.gpus.iter().map(of).sum::<u64>();
        json!({
            "name": self.name,
            "totalGPU": sum(|gpu| gpu.memory.0),
            "usedGPU": sum(|gpu| gpu.used.memory.0),
            "devs": self.gpus.iter().enumerate().map(device).collect::<Vec<_>>(),
        })
    }
}

fn need(pod: &Pod) -> Need {
    identity::need(pod, ResourceNames::usual())
}

/// What a pod asks for on each of its GPUs.
fn ask(pod: &Pod) -> Result<Ask, Unfit> {
    let names = ResourceNames::usual();
    let count = amounts::count(pod.label(COUNT))?;
    let mut ask = Ask { memory: Bytes(0), cores: 0, count: count as usize, links: Links::Prefer };
    for limits in identity::claimants(pod, names).iter().map(|it| it.limits(names)) {
        if limits.memory == 0 && limits.cores == 0 {
            continue;
        }
        let each = amounts::on_each(limits, count, names)?;
        ask.memory = Bytes(ask.memory.0.saturating_add(each.memory));
        ask.cores = ask.cores.saturating_add(each.cores);
    }
    Ok(ask)
}

/// The annotations that bind a pod to GPUs: v1 for one GPU, v2 for several, as device plugins of both generations
/// read them.
#[must_use]
pub fn annotations(
    shared: &Shared,
    pod: &Pod,
    gpus: &[usize],
    now_ns: u128,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |key: &str, value: String| drop(all.insert(key.to_owned(), value));
    set(V1_ASSIGNED, "false".to_owned());
    set(V1_ASSUME_TIME, now_ns.to_string());
    let whole = need(pod).memory;
    set(V1_POD, whole.to_string());
    let device = gpus.first().and_then(|&gpu| shared.gpus.get(gpu)).map_or(0, |gpu| gpu.memory.0);
    set(V1_DEVICE, device.to_string());
    if let [gpu] = gpus {
        set(V1_INDEX, gpu.to_string());
        return all;
    }
    let each = |amount: u64| -> BTreeMap<usize, u64> {
        gpus.iter().map(|gpu| (*gpu, amount / gpus.len() as u64)).collect()
    };
    let containers = pod.spec.containers.iter().enumerate();
    let mut by_container: BTreeMap<usize, BTreeMap<usize, u64>> = containers
        .map(|(at, it)| (at, amount(&it.resources.limits, MEMORY)))
        .filter(|(_, memory)| *memory > 0)
        .map(|(at, memory)| (at, each(memory)))
        .collect();
    if by_container.is_empty() {
        // Only main containers have numbers; what its init containers get stands at the first one's.
        by_container.insert(0, each(whole));
    }
    set(V2_MEMORY, json!(by_container).to_string());
    all
}

#[cfg(test)]
mod tests;
