//! Who else offers this node's GPUs.
//!
//! A GPU has one owner: two programs that place pods on it would each promise all of it. NVIDIA's device plugin, alone
//! or from the GPU Operator, offers whole GPUs, and KAI divides those; NVIDIA's DRA driver publishes devices. What they
//! offer is read from the node, from the kubelet and from their slices. GPUs with another owner are not offered, and
//! the node's events, the log and the metrics say whose they are.

use crate::api::client::{Client, status};
use crate::api::event::Warning;
use crate::api::objects::{Node, Pod, amount};
use crate::api::store::Objects;
use crate::kubelet::pod_resources::{self, ContainerDevices};
use crate::ledger::Ledger;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::GpuFacts;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// Time between two looks; what the node's object tells is looked at when it changes.
const LOOK: Duration = Duration::from_secs(30);
/// The event's reason.
const REASON: &str = "GPUHasAnotherOwner";
/// NVIDIA's driver of dynamic resource allocation.
const NVIDIA_DRIVER: &str = "gpu.nvidia.com";
/// Node label of the GPU Operator: its device plugin runs here.
const OPERATOR: &str = "nvidia.com/gpu.deploy.device-plugin";
/// Pod label of KAI: the group of pods that divide a GPU.
const KAI: &str = "runai-gpu-group";

/// A program that offers GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    DevicePlugin,
    Operator,
    Kai,
    Driver,
}

impl Owner {
    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Owner::DevicePlugin => "NVIDIA's device plugin",
            Owner::Operator => "the GPU Operator's device plugin",
            Owner::Kai => "KAI by NVIDIA's device plugin",
            Owner::Driver => "NVIDIA's DRA driver",
        }
    }

    /// How it is told to leave the node.
    fn cure(self) -> &'static str {
        match self {
            Owner::DevicePlugin => "keep its DaemonSet off this node by a node selector",
            Owner::Operator => "label the node nvidia.com/gpu.deploy.device-plugin=false",
            Owner::Kai => {
                "move KAI's pods with gpu-fraction to other nodes, and keep NVIDIA's device plugin off this one"
            }
            Owner::Driver => "keep its kubelet plugin off this node by a node selector",
        }
    }
}

/// The GPUs that have another owner.
pub type Owners = BTreeMap<GpuUuid, Owner>;

/// What is known of other programs.
#[derive(Debug, Default)]
pub struct Evidence<'a> {
    pub node: Option<&'a Node>,
    pub pods: Vec<&'a Pod>,
    /// The devices of all plugins, as the kubelet lists them.
    pub devices: Vec<ContainerDevices>,
    /// Slices of NVIDIA's driver for this node.
    pub slices: Vec<Value>,
}

/// The GPUs that other programs offer.
#[must_use]
pub fn owners(evidence: &Evidence<'_>, gpus: &[GpuFacts]) -> Owners {
    let mut all = Owners::new();
    let published = evidence.slices.iter().filter_map(|it| it["spec"]["devices"].as_array());
    for device in published.flatten() {
        let uuid = device["attributes"]["uuid"]["string"].as_str().and_then(|it| it.parse().ok());
        all.extend(uuid.map(|uuid: GpuUuid| (uuid, Owner::Driver)));
    }
    if let Some(owner) = plugin(evidence) {
        let ids = evidence.devices.iter().filter(|it| is_nvidias(&it.resource_name));
        let uuids = ids.flat_map(|it| &it.device_ids).filter_map(|id| uuid_of(id));
        let named: Vec<GpuUuid> = uuids.collect();
        let ours = || gpus.iter().map(|gpu| gpu.uuid);
        match ours().any(|uuid| named.contains(&uuid)) {
            true => all.extend(named.into_iter().map(|uuid| (uuid, owner))),
            // Parts of GPUs, or a kubelet that does not say: then all of them may be offered.
            false => all.extend(ours().map(|uuid| (uuid, owner))),
        }
    }
    all.retain(|uuid, _| gpus.iter().any(|gpu| gpu.uuid == *uuid));
    all
}

/// Whose device plugin offers GPUs on the node; `None`: there is none, or it offers nothing.
fn plugin(evidence: &Evidence<'_>) -> Option<Owner> {
    let node = evidence.node?;
    let offers = |name: &String| is_nvidias(name) && amount(&node.status.capacity, name) > 0;
    if !node.status.capacity.keys().any(offers) {
        return None;
    }
    let kai = |pod: &&Pod| !pod.ended() && pod.metadata.labels.contains_key(KAI);
    let operator = node.metadata.labels.get(OPERATOR).is_some_and(|value| value == "true");
    Some(match () {
        () if evidence.pods.iter().any(kai) => Owner::Kai,
        () if operator => Owner::Operator,
        () => Owner::DevicePlugin,
    })
}

/// Whether a resource is whole GPUs or parts of them, as NVIDIA's plugin names these.
fn is_nvidias(resource: &str) -> bool {
    matches!(resource, "nvidia.com/gpu" | "nvidia.com/gpu.shared")
        || resource.starts_with("nvidia.com/mig-")
}

/// The GPU of a device id: `GPU-…`, or `GPU-…::3` where GPUs are shared by time.
fn uuid_of(id: &str) -> Option<GpuUuid> {
    id.split_once("::").map_or(id, |it| it.0).parse().ok()
}

/// Looks for other owners.
pub struct Search {
    pub name: String,
    pub api: Client,
    pub ledger: Arc<dyn Ledger>,
    pub nodes: watch::Receiver<Objects<Node>>,
    pub pods: watch::Receiver<Objects<Pod>>,
    /// The kubelet's socket that lists devices.
    pub pod_resources: PathBuf,
    /// `None` until it has been looked once.
    pub found: watch::Sender<Option<Arc<Owners>>>,
}

impl Search {
    /// Looks until the process ends.
    pub async fn run(self) {
        let (mut gpus, mut nodes) = (self.ledger.gpus(), self.nodes.clone());
        crate::plugin::server::first_facts(&mut gpus).await;
        let _ = nodes.wait_for(Option::is_some).await;
        loop {
            let facts = gpus.borrow_and_update().clone();
            nodes.mark_unchanged();
            let now = self.look(&facts).await;
            let before = self.found.borrow().clone().unwrap_or_default();
            self.tell(&before, &now).await;
            let changed = |old: &mut Option<Arc<Owners>>| {
                let fresh = old.as_deref() != Some(&now);
                *old = Some(Arc::new(now.clone()));
                fresh
            };
            self.found.send_if_modified(changed);
            let plugin = self.plugin();
            let other = async { while nodes.changed().await.is_ok() && self.plugin() == plugin {} };
            let _ = tokio::time::timeout(LOOK, other).await;
        }
    }

    /// Whose device plugin the node's object tells.
    fn plugin(&self) -> Option<Owner> {
        let (nodes, pods) = (self.nodes.borrow().clone(), self.pods.borrow().clone());
        plugin(&self.evidence(&nodes, &pods))
    }

    fn evidence<'a>(&self, nodes: &'a Objects<Node>, pods: &'a Objects<Pod>) -> Evidence<'a> {
        let mut all = nodes.iter().flat_map(|all| all.values());
        Evidence {
            node: all.find(|it| it.metadata.name == self.name),
            pods: pods.iter().flat_map(|all| all.values()).collect(),
            ..Evidence::default()
        }
    }

    async fn look(&self, gpus: &[GpuFacts]) -> Owners {
        let path = format!(
            "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{NVIDIA_DRIVER}%2Cspec.nodeName%3D{}",
            self.name
        );
        let (nodes, pods) = (self.nodes.borrow().clone(), self.pods.borrow().clone());
        let mut evidence = self.evidence(&nodes, &pods);
        if plugin(&evidence).is_some() {
            let listed = pod_resources::allocatable(&self.pod_resources).await;
            // A kubelet before 1.23 lists none.
            evidence.devices = listed.unwrap_or_default();
        }
        evidence.slices = match self.api.list::<Value>(&path).await {
            Ok(list) => list.items,
            // A server without these objects, or an account that does not use them.
            Err(error) if status(&error).is_some_and(|it| matches!(it.as_u16(), 403 | 404)) => {
                Vec::new()
            }
            // It does not say now, so what it said last holds.
            Err(_) => {
                let before = self.found.borrow().clone().unwrap_or_default();
                let theirs = before.iter().filter(|it| *it.1 == Owner::Driver);
                let known = theirs.map(|it| (*it.0, *it.1));
                return owners(&evidence, gpus).into_iter().chain(known).collect();
            }
        };
        let theirs = |it: &Value| {
            it["spec"]["driver"] == NVIDIA_DRIVER && it["spec"]["nodeName"] == self.name.as_str()
        };
        evidence.slices.retain(theirs);
        owners(&evidence, gpus)
    }

    async fn tell(&self, before: &Owners, now: &Owners) {
        for uuid in before.keys().filter(|uuid| !now.contains_key(uuid)) {
            info!(%uuid, "the GPU has no other owner any more, and is offered");
        }
        for (uuid, owner) in now.iter().filter(|(uuid, owner)| before.get(uuid) != Some(owner)) {
            let warning = warning(&self.name, uuid, *owner);
            error!("{}", warning.message);
            if let Err(why) = warning.write(&self.api).await {
                warn!("the event of node {} is not written: {why:#}", self.name);
            }
        }
    }
}

fn warning<'a>(node: &'a str, uuid: &GpuUuid, owner: Owner) -> Warning<'a> {
    let short: String = node.chars().take(180).collect();
    Warning {
        object: json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node }),
        name: format!("{short}.owner-{}", uuid.to_string().to_ascii_lowercase()),
        reason: REASON,
        message: format!(
            "gpuslice does not offer {uuid}, since {} offers it; {}, or label the node gpuslice.io/mode=off",
            owner.name(),
            owner.cure()
        ),
        component: super::COMPONENT,
        instance: node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{gpu, pod, uuid};
    use gpuslice_wire::units::Bytes;

    fn node(capacity: &Value, labels: &Value) -> Node {
        let object = json!({ "metadata": { "name": "n", "labels": labels }, "status": { "capacity": capacity } });
        serde_json::from_value(object).expect("a node")
    }

    fn listed(resource: &str, ids: &[String]) -> ContainerDevices {
        ContainerDevices { resource_name: resource.to_owned(), device_ids: ids.to_vec() }
    }

    /// The other owner of each of two GPUs.
    fn found(evidence: &Evidence<'_>) -> [Option<Owner>; 2] {
        let gpus = [gpu(0, Bytes(1 << 34)), gpu(1, Bytes(1 << 34))];
        let all = owners(evidence, &gpus);
        [0, 1].map(|number| all.get(&uuid(number)).copied())
    }

    #[test]
    fn a_plugin_owns_the_gpus_that_it_lists() {
        let none = json!({});
        let offers = |resource: &str| node(&json!({ resource: "2" }), &none);
        let ours = node(&json!({ "aliyun.com/gpu-mem": "32", "nvidia.com/gpu": "0" }), &none);
        let with = |node: &Node, devices: Vec<ContainerDevices>| {
            found(&Evidence { node: Some(node), devices, ..Evidence::default() })
        };
        let theirs = Some(Owner::DevicePlugin);
        assert_eq!(found(&Evidence::default()), [None, None]);
        assert_eq!(with(&ours, vec![]), [None, None], "it has left");
        for resource in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"] {
            assert_eq!(with(&offers(resource), vec![]), [theirs, theirs], "{resource}");
        }
        assert_eq!(with(&offers("nvidia.com/gpu.present"), vec![]), [None, None]);
        let second = [uuid(1).to_string(), format!("{}::7", uuid(1))];
        let one = |ids: &[String]| {
            vec![listed("nvidia.com/gpu", ids), listed("other.io/x", &[uuid(0).to_string()])]
        };
        let whole = offers("nvidia.com/gpu");
        assert_eq!(with(&whole, one(&second[..1])), [None, theirs]);
        assert_eq!(with(&whole, one(&second[1..])), [None, theirs]);
        assert_eq!(with(&whole, one(&["MIG-5".to_owned()])), [theirs, theirs], "parts of any GPU");
    }

    #[test]
    fn the_owner_is_named() {
        let whole = json!({ "nvidia.com/gpu": "2" });
        let operator = node(&whole, &json!({ "nvidia.com/gpu.deploy.device-plugin": "true" }));
        let evidence = Evidence { node: Some(&operator), ..Evidence::default() };
        assert_eq!(found(&evidence)[0], Some(Owner::Operator));
        let mut one = pod("p", &[], &[]);
        one.metadata.labels.insert(KAI.to_owned(), "g".to_owned());
        let kai = Evidence { pods: vec![&one], ..evidence };
        assert_eq!(found(&kai)[0], Some(Owner::Kai));
        let slice = json!({ "spec": { "devices": [
            { "name": "gpu-0", "attributes": { "uuid": { "string": uuid(0).to_string() } } }, { "name": "odd" },
        ] } });
        let driver = Evidence { slices: vec![slice], ..Evidence::default() };
        assert_eq!(found(&driver), [Some(Owner::Driver), None]);
        for owner in [Owner::DevicePlugin, Owner::Operator, Owner::Kai, Owner::Driver] {
            let event = warning("n", &uuid(0), owner);
            assert!(
                event.message.contains(owner.name())
                    && event.message.contains("gpuslice.io/mode=off")
            );
        }
    }
}
