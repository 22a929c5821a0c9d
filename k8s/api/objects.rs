//! Nodes and pods, as far as this crate reads them.

use super::quantity::Quantity;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A list of objects, with the version from which a watch continues.
#[derive(Debug, Clone, Deserialize)]
pub struct List<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    pub items: Vec<T>,
}

impl<T> List<T> {
    /// A list of these objects.
    #[must_use]
    pub fn of(items: Vec<T>) -> List<T> {
        List { metadata: ListMetadata::default(), items }
    }
}

/// Of a list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMetadata {
    pub resource_version: String,
    /// Where the next page begins; empty on the last page.
    #[serde(rename = "continue")]
    pub next: String,
}

/// Of an object.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub creation_timestamp: String,
    /// Empty until the object is being deleted.
    pub deletion_timestamp: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// Resource names and amounts.
pub type Amounts = BTreeMap<String, Quantity>;

/// The amount of a resource, rounded up; 0 if it is not there.
#[must_use]
pub fn amount(amounts: &Amounts, resource: &str) -> u64 {
    amounts.get(resource).map_or(0, |quantity| quantity.value())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Metadata,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Metadata,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    pub taints: Vec<Taint>,
}

/// Closes a node to pods that do not tolerate it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Toleration {
    pub key: String,
    pub operator: String,
    pub value: String,
    pub effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub capacity: Amounts,
    pub allocatable: Amounts,
    pub addresses: Vec<Address>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Address {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: String,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub scheduler_name: String,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
    pub resource_claims: Vec<PodClaim>,
}

/// A claim of the pod: its name there, and the template that it is made from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodClaim {
    pub name: String,
    pub resource_claim_template_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    /// `Always` for an init container that goes on beside the others.
    pub restart_policy: String,
    pub resources: Resources,
}

/// A claim of the pod that a container uses.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ClaimName {
    pub name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub limits: Amounts,
    pub claims: Vec<ClaimName>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: String,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<ContainerStatus>,
    /// The claims that were made for the pod, by their names there.
    pub resource_claim_statuses: Vec<ClaimName>,
}

/// What the kubelet reports of a container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    /// Its runtime and its id there, as `containerd://ID`.
    #[serde(rename = "containerID")]
    pub id: String,
    pub state: ContainerState,
}

/// One of several states has a value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub running: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Metadata,
    pub data: BTreeMap<String, String>,
}

impl Node {
    /// The node's address within the cluster.
    #[must_use]
    pub fn internal_address(&self) -> Option<&str> {
        let address = self.status.addresses.iter().find(|it| it.kind == "InternalIP");
        address.map(|it| it.address.as_str())
    }
}

impl Pod {
    /// Whether the pod has ended. Its GPUs are free then, although the object remains.
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The containers that run now: name, and the id in their runtime.
    pub fn running(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        let running = all.filter(|it| it.state.running.is_some());
        running.filter_map(|it| Some((it.name.as_str(), it.id.split_once("://")?.1)))
    }

    /// An annotation's text.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }

    /// A label's text.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key).map(String::as_str)
    }
}
