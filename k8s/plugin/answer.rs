//! What a container gets from a decision: its CDI device, and variables that inform.
//!
//! The kubelet merges the answers of both resources, and of two values for one key the first wins. So both answers
//! are equal. The CDI device gives the cap; a pod that sets these variables itself changes no cap.

use super::decide::Decision;
use super::devices::{Inventory, Unit};
use super::identity::{ResourceNames, need};
use crate::api::objects::Pod;
use crate::kubelet::device_plugin::{CdiDevice, ContainerAllocateResponse};
use crate::names;
use std::collections::{BTreeMap, BTreeSet};

/// The annotation from which container engines without the CRI field for CDI devices take them.
const CDI_ANNOTATION: &str = "cdi.k8s.io/gpuslice";

/// The answer to the call for either resource. Without a CDI device the container is placed and not capped.
#[must_use]
pub fn answer(
    inventory: &Inventory,
    pod: &Pod,
    decision: &Decision,
    resources: &ResourceNames,
    device: Option<&str>,
) -> ContainerAllocateResponse {
    let cards = || decision.cards.iter().map(|&at| &inventory.cards[at]);
    let list = |texts: Vec<String>| texts.join(",");
    let indices = list(cards().map(|card| card.index.to_string()).collect());
    let uuids = list(cards().map(|card| card.uuid.to_string()).collect());
    let whole = cards().map(|card| card.units).min().unwrap_or(0);
    let visible = [("NVIDIA_VISIBLE_DEVICES", uuids.clone())];
    let share = [
        (names::V1_INDEX, indices),
        (names::V1_POD, need(pod, resources).memory.to_string()),
        (names::V1_CONTAINER, decision.units.to_string()),
        (names::V1_DEVICE, whole.to_string()),
        ("NVIDIA_VISIBLE_DEVICES", uuids),
    ];
    // gpushare's variables are of shares.
    let envs = if inventory.unit == Unit::WHOLE { &visible[..] } else { &share[..] };
    ContainerAllocateResponse {
        envs: envs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        annotations: device
            .map(|it| (CDI_ANNOTATION.to_owned(), it.to_owned()))
            .into_iter()
            .collect(),
        cdi_devices: device.map(|it| CdiDevice { name: it.to_owned() }).into_iter().collect(),
        ..ContainerAllocateResponse::default()
    }
}

/// Units and percent of one container, by its position among the main containers, with its GPUs' indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub position: usize,
    pub gpus: Vec<u32>,
    pub units: u64,
    pub cores: u32,
}

/// The annotations to write on a pod, so that inspect and schedulers see where its containers are.
///
/// What a scheduler chose is confirmed in the scheduler's own generation. Without one, both generations are
/// written, v1 only if a single GPU has the whole pod.
#[must_use]
pub fn annotations(
    inventory: &Inventory,
    pod: &Pod,
    given: &[Given],
    resources: &ResourceNames,
    now_ns: u128,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |key: &str, value: String| drop(all.insert(key.to_owned(), value));
    if inventory.unit == Unit::WHOLE {
        let gpus: BTreeSet<u32> = given.iter().flat_map(|it| it.gpus.iter().copied()).collect();
        let list = gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        if pod.annotation(names::GPU_GROUP).is_none() {
            set(names::OURS, "true".to_owned());
        }
        set(names::GPU_GROUP, list.clone());
        set(names::GPU_VISIBLE, list);
        return all;
    }
    // Once written, our own annotations are no scheduler's: the values below are made anew for each container.
    let ours = pod.annotation(names::OURS).is_some();
    let v2 = !ours && pod.annotation(names::V2_MEMORY).is_some();
    let v1 = !ours && pod.annotation(names::V1_INDEX).is_some();
    if v2 {
        set(names::V2_ASSIGNED, "true".to_owned());
    }
    if v1 {
        set(names::V1_ASSIGNED, "true".to_owned());
        set(names::V1_ASSUME_TIME, now_ns.to_string());
    }
    if v1 || v2 {
        return all;
    }
    set(names::OURS, "true".to_owned());
    set(names::V2_MEMORY, by_container(given, |it| it.units));
    if given.iter().any(|it| it.cores > 0) {
        set(names::V2_CORES, by_container(given, |it| u64::from(it.cores)));
    }
    set(names::V2_ASSIGNED, "true".to_owned());
    let mut gpus: Vec<u32> = given.iter().flat_map(|it| it.gpus.iter().copied()).collect();
    gpus.sort_unstable();
    gpus.dedup();
    if let [gpu] = gpus[..] {
        let card = inventory.cards.iter().find(|card| card.index == gpu);
        set(names::V1_INDEX, gpu.to_string());
        set(names::V1_POD, need(pod, resources).memory.to_string());
        set(names::V1_DEVICE, card.map_or(0, |card| card.units).to_string());
        set(names::V1_ASSIGNED, "true".to_owned());
        set(names::V1_ASSUME_TIME, now_ns.to_string());
    }
    all
}

/// `{"CONTAINER":{"GPU":amount}}`.
fn by_container(given: &[Given], amount: impl Fn(&Given) -> u64) -> String {
    let gpus = |it: &Given| it.gpus.iter().map(|gpu| (*gpu, amount(it))).collect();
    let all: BTreeMap<usize, BTreeMap<u32, u64>> =
        given.iter().map(|it| (it.position, gpus(it))).collect();
    serde_json::json!(all).to_string()
}
