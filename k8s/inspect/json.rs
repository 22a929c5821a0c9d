//! The same facts as JSON, in the form of the scheduler extender's `inspect`, with fields added.

use super::nodes::{Cluster, Shared};
use serde_json::{Value, json};

/// The cluster as one object.
#[must_use]
pub fn of(cluster: &Cluster) -> Value {
    let nodes: Vec<Value> = cluster.nodes.iter().map(node).collect();
    json!({ "unit": cluster.unit(), "nodes": nodes })
}

fn node(node: &Shared) -> Value {
    let unknown = node.has_pending().then_some(None);
    let devices: Vec<Value> =
        (0..node.gpus).map(Some).chain(unknown).map(|gpu| device(node, gpu)).collect();
    json!({
        "name": node.name,
        "address": node.address,
        "totalGPU": node.memory,
        "usedGPU": node.used(),
        "totalCores": node.cores,
        "usedCores": node.used_cores(),
        "devs": devices,
    })
}

/// A GPU; the one with the id -1 stands for those that no annotation tells.
fn device(node: &Shared, gpu: Option<u64>) -> Value {
    let pods: Vec<Value> = node
        .tenants
        .iter()
        .filter_map(|tenant| {
            let used = tenant.memory.get(&gpu)?;
            Some(json!({
                "name": tenant.name,
                "namespace": tenant.namespace,
                "usedGPU": used,
                "usedCores": tenant.cores,
            }))
        })
        .collect();
    let told = gpu.and_then(|gpu| node.usage.get(&u32::try_from(gpu).ok()?));
    let health = gpu.and_then(|gpu| node.health.get(&gpu));
    json!({
        "health": health.map(|it| it.state.name()),
        "usedMiB": told.map(|it| it.used_mib),
        "claims": told.map(|it| it.claims),
        "id": gpu.map_or(json!(-1), |gpu| json!(gpu)),
        "totalGPU": if gpu.is_some() { node.memory_of_gpu() } else { 0 },
        "usedGPU": node.used_on(gpu),
        "pods": pods,
    })
}
