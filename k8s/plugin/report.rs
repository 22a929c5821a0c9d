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
use crate::names::{self, COUNT};
use anyhow::Result;
use gpuslice_wire::node::GpuFacts;
use serde_json::{Value, json};
use std::time::Duration;
use tracing::{info, warn};

/// After this time a kubelet has written its own status.
const SETTLED: Duration = Duration::from_secs(15);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(5);

/// Reports until the process ends.
pub async fn run(pair: &Pair) {
    let mut gpus = pair.ledger.gpus();
    let mut written = None;
    loop {
        gpus.mark_unchanged();
        let inventory = pair.inventory();
        let facts = gpus.borrow().clone();
        let done = async {
            report(pair, &inventory).await?;
            match pair.settings.offer {
                Offer::Whole => connect(pair, &facts).await,
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

async fn report(pair: &Pair, inventory: &Inventory) -> Result<()> {
    let (api, node) = (&pair.api, &pair.settings.node);
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
    exclude(pair, &excluded(inventory)).await
}

/// Writes how the GPUs are connected.
async fn connect(pair: &Pair, facts: &[GpuFacts]) -> Result<()> {
    let node = &pair.settings.node;
    let (name, data) = (topology::name(node), topology::data(facts));
    let same = |map: &ConfigMap| map.data == data;
    let labels = json!({ "ack.node.gpu.schedule": "topology", "nodename": node });
    write(pair, json!({ "name": name, "labels": labels }), &json!(data), same, true).await
}

/// Writes the ConfigMap. Without an excluded GPU there is none, unless an administrator made one.
async fn exclude(pair: &Pair, gpus: &str) -> Result<()> {
    let name = format!("unhealthy-gpu-{}", pair.settings.node);
    let same = |map: &ConfigMap| map.data.get("gpus").is_some_and(|it| it == gpus);
    let data = json!({ "gpus": gpus });
    write(pair, json!({ "name": name }), &data, same, !gpus.is_empty()).await
}

/// Changes a ConfigMap that is not the same, and makes one that is not there and `needed`.
async fn write(
    pair: &Pair,
    mut metadata: Value,
    data: &Value,
    same: impl Fn(&ConfigMap) -> bool,
    needed: bool,
) -> Result<()> {
    let (api, namespace) = (&pair.api, &pair.settings.config_maps);
    let all = names::config_maps(namespace);
    let path = format!("{all}/{}", metadata["name"].as_str().unwrap_or_default());
    match api.get::<ConfigMap>(&path).await {
        Ok(map) if same(&map) => Ok(()),
        Ok(_) => api.merge(&path, &json!({ "data": data })).await,
        Err(error) if status(&error).is_some_and(|it| it.as_u16() == 404) => {
            if !needed {
                return Ok(());
            }
            metadata["namespace"] = json!(namespace);
            let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
            api.create(&all, &map).await.map(drop)
        }
        Err(error) => Err(error),
    }
}
