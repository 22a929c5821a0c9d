//! What schedulers read beside the devices: the number of GPUs in the node's status, and the ones that are not
//! healthy.
//!
//! gpushare's scheduler divides the node's memory by the number of GPUs, and excludes the GPUs that a ConfigMap
//! names. A kubelet that starts sets resources that it does not know to zero. So the number is written after each
//! registration, and once more when the kubelet has had time for its own status.

use super::devices::{Inventory, Offer};
use super::state::Pair;
use super::topology;
use crate::api::client::{Client, status};
use crate::api::objects::{ConfigMap, Node, amount};
use crate::names::COUNT;
use anyhow::Result;
use gpuslice_wire::node::GpuFacts;
use serde_json::{Value, json};
use std::time::Duration;
use tracing::{info, warn};

/// After this time a kubelet has written its own status.
const SETTLED: Duration = Duration::from_secs(15);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(5);
/// Where schedulers look for GPUs that are excluded.
const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

/// Reports until the process ends.
pub async fn run(pair: &Pair) {
    let mut gpus = pair.ledger.gpus();
    let mut written = None;
    loop {
        gpus.mark_unchanged();
        let inventory = pair.inventory();
        let facts = gpus.borrow().clone();
        let done = async {
            report(&pair.api, &pair.settings.node, &inventory).await?;
            match pair.settings.offer {
                Offer::Whole => connect(&pair.api, &pair.settings.node, &facts).await,
                _ => Ok(()),
            }
        };
        let done = done.await;
        if let Err(error) = done {
            warn!("schedulers are not told of the node's GPUs: {error:#}");
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let now = excluded(&inventory);
        let fresh = written.as_ref() != Some(&now);
        written = Some(now);
        let wait = if fresh { SETTLED } else { Duration::MAX };
        let health = async {
            while gpus.changed().await.is_ok()
                && written.as_ref() == Some(&excluded(&pair.inventory()))
            {}
        };
        tokio::select! {
            () = health => {}
            () = pair.registered.notified() => written = None,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Takes the number of GPUs back from a node whose GPUs are not offered by device plugins any more. The kubelet does so
/// with what the plugins themselves offered.
pub async fn withdraw(api: &Client, node: &Node) {
    if amount(&node.status.capacity, COUNT) == 0 {
        return;
    }
    let none = json!({ COUNT: "0" });
    let fields = json!({ "status": { "capacity": none, "allocatable": none } });
    let path = format!("/api/v1/nodes/{}/status", node.metadata.name);
    if let Err(error) = api.merge(&path, &fields).await {
        warn!("the node's status still has a number of GPUs: {error:#}");
    }
}

/// The indices of the GPUs that are not healthy: `0,3`.
fn excluded(inventory: &Inventory) -> String {
    let sick = inventory.cards.iter().filter(|card| !card.healthy);
    sick.map(|card| card.index.to_string()).collect::<Vec<_>>().join(",")
}

async fn report(api: &Client, node: &str, inventory: &Inventory) -> Result<()> {
    let count = inventory.cards.len();
    let path = format!("/api/v1/nodes/{node}");
    let told: Node = api.get(&path).await?;
    let of = |all| amount(all, COUNT) == count as u64;
    if !of(&told.status.capacity) || !of(&told.status.allocatable) {
        let number = json!({ COUNT: count.to_string() });
        let fields = json!({ "status": { "capacity": number, "allocatable": number } });
        api.merge(&format!("{path}/status"), &fields).await?;
        info!(count, "wrote the number of GPUs into the node's status");
    }
    exclude(api, node, &excluded(inventory)).await
}

/// Writes how the GPUs are connected.
async fn connect(api: &Client, node: &str, facts: &[GpuFacts]) -> Result<()> {
    let name = topology::name(node);
    let path = format!("{MAPS}/{name}");
    let data = topology::data(facts);
    match api.get::<ConfigMap>(&path).await {
        Ok(map) if map.data == data => Ok(()),
        Ok(_) => api.merge(&path, &json!({ "data": data })).await,
        Err(error) if status(&error).is_some_and(|it| it.as_u16() == 404) => {
            let labels = json!({ "ack.node.gpu.schedule": "topology", "nodename": node });
            let metadata = json!({ "name": name, "namespace": "kube-system", "labels": labels });
            let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
            api.create(MAPS, &map).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Writes the ConfigMap. Without an excluded GPU there is none, unless an administrator made one.
async fn exclude(api: &Client, node: &str, gpus: &str) -> Result<()> {
    let name = format!("unhealthy-gpu-{node}");
    let path = format!("{MAPS}/{name}");
    let data = json!({ "gpus": gpus });
    match api.get::<ConfigMap>(&path).await {
        Ok(map) if map.data.get("gpus").is_some_and(|it| it == gpus) => Ok(()),
        Ok(_) => api.merge(&path, &json!({ "data": data })).await,
        Err(error) if status(&error).is_some_and(|it| it.as_u16() == 404) => {
            if gpus.is_empty() {
                return Ok(());
            }
            let metadata = json!({ "name": name, "namespace": "kube-system" });
            let map: Value = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
            api.create(MAPS, &map).await.map(drop)
        }
        Err(error) => Err(error),
    }
}
