//! What the scheduler is told: a slice with one device for each GPU.
//!
//! The scheduler's allocator takes the first device that fits. So the order of the list is the policy: the fullest
//! GPU first packs, the emptiest first spreads. A device's capacity is what pods may have in all; what slices outside
//! Kubernetes hold is subtracted, since the scheduler does not know them.

use super::{CORES, MEMORY, NAME, SHARES};
use crate::api::quantity::Quantity;
use crate::ledger::{Claimed, Rows};
use crate::place::{self, Gpu, Placement};
use gpuslice_wire::node::{GpuFacts, HealthState};
use gpuslice_wire::units::Bytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Memory of the smallest share, and the step between sizes.
const MEMORY_MIN: Bytes = Bytes(256 << 20);
const MEMORY_STEP: Bytes = Bytes(1 << 20);
/// Characters of a text attribute, at most: the API server refuses longer ones.
const TEXT_MAX: usize = 64;

/// The node, as its slice names it.
#[derive(Debug, Clone, Default)]
pub struct NodeName {
    pub name: String,
    /// The slice is deleted with this object.
    pub uid: String,
}

/// The name of a node's slice.
#[must_use]
pub fn name(node: &str) -> String {
    format!("{node}-{NAME}")
}

/// The node's slice. `roots` are the PCIe root complexes by PCI address, as far as they are known.
#[must_use]
pub fn slice(
    node: &NodeName,
    rows: &Rows,
    placement: Placement,
    roots: &BTreeMap<String, String>,
) -> Value {
    let rooms: Vec<Room> = rows.gpus.iter().map(|gpu| room(gpu, &rows.claims)).collect();
    let gpus: Vec<Gpu> = rooms.iter().map(Room::gpu).collect();
    let order = place::order(&gpus, placement);
    let devices: Vec<Value> = order.iter().filter_map(|&at| device(&rooms[at], roots)).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": name(&node.name),
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": true,
            }],
        },
        "spec": {
            "driver": NAME,
            "nodeName": node.name,
            "pool": { "name": node.name, "generation": 1, "resourceSliceCount": 1 },
            "devices": devices,
        },
    })
}

/// The name of a GPU's device.
#[must_use]
pub fn device_name(gpu: &GpuFacts) -> String {
    format!("gpu-{}", gpu.index.0)
}

/// A GPU with the parts that pods may have, and have.
struct Room<'a> {
    gpu: &'a GpuFacts,
    memory: Bytes,
    cores: u32,
    shares: u32,
    used: place::Usage,
}

fn room<'a>(gpu: &'a GpuFacts, claims: &[Claimed]) -> Room<'a> {
    let here = |it: &&Claimed| {
        let ours = super::uid_of_claim(it.claim.as_str()).is_some();
        // A claim that was released counts for the scheduler no more, and for the ledger until its containers end.
        ours && !it.released && it.gpus.contains(&gpu.number)
    };
    let mut used = place::Usage::default();
    for claim in claims.iter().filter(here) {
        used.memory = used.memory.saturating_add(claim.memory);
        used.cores += claim.share.map_or(0, |share| share.get());
        used.shares += 1;
    }
    let others = gpu.slices.saturating_sub(used.shares);
    Room {
        gpu,
        memory: gpu.left.saturating_add(used.memory),
        cores: (gpu.share_left + used.cores).min(place::CORES),
        shares: place::SHARES.saturating_sub(others),
        used,
    }
}

impl Room<'_> {
    fn gpu(&self) -> Gpu {
        let island = self.gpu.island.as_str();
        Gpu {
            island: (!island.is_empty()).then(|| island.to_owned()),
            memory: self.memory,
            used: self.used,
            unhealthy: false,
        }
    }
}

/// `None`: the GPU has no room for the smallest share, and the API server takes no such device.
fn device(room: &Room<'_>, roots: &BTreeMap<String, String>) -> Option<Value> {
    let memory = Bytes(room.memory.0 / MEMORY_STEP.0 * MEMORY_STEP.0);
    if memory < MEMORY_MIN || room.shares == 0 {
        return None;
    }
    let mut device = json!({
        "name": device_name(room.gpu),
        "allowMultipleAllocations": true,
        "attributes": attributes(room.gpu, roots),
        "capacity": {
            MEMORY: {
                "value": text(memory.0),
                "requestPolicy": {
                    "default": text(memory.0),
                    "validRange": { "min": text(MEMORY_MIN.0), "step": text(MEMORY_STEP.0) },
                },
            },
            CORES: {
                "value": text(u64::from(room.cores)),
                "requestPolicy": { "default": "0", "validRange": { "min": "0", "step": "1" } },
            },
            SHARES: {
                "value": text(u64::from(room.shares)),
                "requestPolicy": { "default": "1", "validValues": ["1"] },
            },
        },
    });
    if let Some(taint) = taint(room.gpu) {
        device["taints"] = json!([taint]);
    }
    Some(device)
}

fn text(value: u64) -> String {
    Quantity::of(value).to_string()
}

/// Pods that tolerate no taint leave the GPU, and no new ones come. Slices from before MPS go on, so their pods stay.
fn taint(gpu: &GpuFacts) -> Option<Value> {
    let value = match gpu.health.state {
        HealthState::Healthy => return None,
        HealthState::Xid => format!("xid-{}", gpu.health.xid),
        state => state.name().to_owned(),
    };
    let effect = match gpu.health.state {
        HealthState::Mps | HealthState::Exclusive => "NoSchedule",
        _ => "NoExecute",
    };
    Some(json!({ "key": "gpuslice.io/unhealthy", "value": value, "effect": effect }))
}

fn attributes(gpu: &GpuFacts, roots: &BTreeMap<String, String>) -> Value {
    let mut all = Map::new();
    let mut string = |key: &str, text: &str| {
        if !text.is_empty() && text.len() <= TEXT_MAX {
            all.insert(key.to_owned(), json!({ "string": text }));
        }
    };
    string("uuid", &gpu.uuid.to_string());
    string("productName", gpu.product.as_str());
    string("nvlink", gpu.island.as_str());
    string("driverVersion", gpu.driver.as_str());
    if let Some(root) = roots.get(gpu.pci.as_str()) {
        string("resource.kubernetes.io/pcieRoot", root);
    }
    all.insert("index".to_owned(), json!({ "int": gpu.index.0 }));
    if let Some(numa) = gpu.numa.0 {
        all.insert("numa".to_owned(), json!({ "int": numa }));
    }
    let [major, minor] = gpu.capability;
    if major > 0 {
        let version = format!("{major}.{minor}.0");
        all.insert("cudaComputeCapability".to_owned(), json!({ "version": version }));
    }
    Value::Object(all)
}

/// The API server keeps a slice without the fields of consumable capacity: each claim would take a whole GPU, and
/// no limit would be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the API server drops consumable capacity, so no GPU is published: switch the feature gate DRAConsumableCapacity \
     on in the API server, scheduler, controller manager and kubelet, or use the device plugin (gpuslice.io/mode)"
)]
pub struct GateOff;

/// Checks what the server kept of a slice.
///
/// # Errors
/// [`GateOff`].
pub fn check_gate(kept: &Value) -> Result<(), GateOff> {
    let devices = kept["spec"]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let whole = |device: &Value| {
        device["allowMultipleAllocations"] == true
            && device["capacity"][MEMORY]["requestPolicy"].is_object()
    };
    match devices.iter().all(whole) {
        true => Ok(()),
        false => Err(GateOff),
    }
}

/// Whether the server's object says all that the wanted one says, whatever fields the server adds. A taint is none of
/// these: one that is not wanted is a difference.
#[must_use]
pub fn covers(wanted: &Value, kept: &Value) -> bool {
    match (wanted, kept) {
        (Value::Object(wanted), Value::Object(kept)) => {
            let same = |(key, value): (&String, &Value)| {
                key == "generation" || kept.get(key).is_some_and(|it| covers(value, it))
            };
            kept.contains_key("taints") == wanted.contains_key("taints") && wanted.iter().all(same)
        }
        (Value::Array(wanted), Value::Array(kept)) => {
            wanted.len() == kept.len() && wanted.iter().zip(kept).all(|(a, b)| covers(a, b))
        }
        (Value::String(a), Value::String(b)) => {
            let amount = |text: &str| text.parse::<Quantity>().ok();
            a == b || amount(a).is_some_and(|it| Some(it) == amount(b))
        }
        (wanted, kept) => wanted == kept,
    }
}

#[cfg(test)]
mod tests;
