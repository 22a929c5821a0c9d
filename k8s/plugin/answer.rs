//! What a container gets from a decision: its CDI device, and variables that inform.
//!
//! The kubelet merges the answers of both resources, and of two values for one key the first wins. So both answers
//! are equal. The CDI device gives the cap; a pod that sets these variables itself changes no cap.

use super::decide::Decision;
use super::devices::{Inventory, Unit};
use super::identity::{Admitted, Position, containers, need};
use crate::api::objects::Pod;
use crate::kubelet::device_plugin::{CdiDevice, ContainerAllocateResponse};
use crate::names::{self, ResourceNames};
use gpuslice_wire::owner::ClaimId;
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

/// Units and percent of one claim, with its GPUs' indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub claim: ClaimId,
    /// The number under which it is written.
    pub position: usize,
    pub gpus: Vec<u32>,
    pub units: u64,
    pub cores: u32,
}

impl Given {
    /// What was decided for a container of a pod. Only main containers have numbers: the claim of a sidecar or of an
    /// init container counts under that of the first one with GPUs.
    #[must_use]
    pub fn of(
        inventory: &Inventory,
        pod: &Pod,
        decision: &Decision,
        names: &ResourceNames,
    ) -> Given {
        let number = |it: &Admitted<'_>| match it.position {
            Position::Main(at) => Some(at),
            Position::Init(_) | Position::Sidecar(_) => None,
        };
        let is_claimed = |it: &Admitted<'_>| it.claim() == decision.claim.as_str();
        let own = containers(pod).find(is_claimed).and_then(|it| number(&it));
        let mut with_gpus = containers(pod).filter(|it| it.wants(&names.memory) > 0);
        Given {
            claim: decision.claim,
            position: own.or_else(|| with_gpus.find_map(|it| number(&it))).unwrap_or(0),
            gpus: decision.cards.iter().map(|&at| inventory.cards[at].index).collect(),
            units: decision.units,
            cores: decision.cores,
        }
    }
}

/// The annotations to write on a pod, so that inspect and schedulers see where its containers are.
///
/// What a scheduler chose is confirmed in the scheduler's own generation. Without one, both generations are
/// written, v1 only when a single GPU has the whole pod.
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
    let whole = need(pod, resources).memory;
    let told = given.iter().map(|it| it.units.saturating_mul(it.gpus.len() as u64));
    if let [gpu] = gpus[..]
        && told.fold(0, u64::saturating_add) == whole
    {
        let card = inventory.cards.iter().find(|card| card.index == gpu);
        set(names::V1_INDEX, gpu.to_string());
        set(names::V1_POD, whole.to_string());
        set(names::V1_DEVICE, card.map_or(0, |card| card.units).to_string());
        set(names::V1_ASSIGNED, "true".to_owned());
        set(names::V1_ASSUME_TIME, now_ns.to_string());
    }
    all
}

/// `{"CONTAINER":{"GPU":amount}}`.
fn by_container(given: &[Given], amount: impl Fn(&Given) -> u64) -> String {
    let mut all: BTreeMap<usize, BTreeMap<u32, u64>> = BTreeMap::new();
    for it in given {
        for gpu in &it.gpus {
            *all.entry(it.position).or_default().entry(*gpu).or_default() += amount(it);
        }
    }
    serde_json::json!(all).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation;
    use crate::plugin::devices::Unit;
    use crate::testing::{container, gpu, pod};
    use gpuslice_wire::owner::Owner;
    use gpuslice_wire::units::Bytes;
    use serde_json::Value;

    /// A pod whose GPU memory is that of two sidecars, an init container and two main containers.
    fn all_kinds() -> Pod {
        let sidecar = |name: &str, memory| {
            let mut one = container(name, memory, 10);
            one["restartPolicy"] = Value::from("Always");
            one
        };
        let init = [sidecar("s", 6), container("i", 7, 0), sidecar("t", 1)];
        pod("p", &init, &[container("a", 0, 0), container("b", 4, 20), container("c", 2, 0)])
    }

    /// The annotations that are written for the pod when these of its claims are on these GPUs.
    fn written(pod: &Pod, claims: &[(&str, usize, u64)]) -> BTreeMap<String, String> {
        let gpus = [0, 1].map(|number| gpu(number, Bytes(16 << 30)));
        let inventory = Inventory::of(&gpus, Unit(Bytes(1 << 30)));
        let names = ResourceNames::default();
        let given = |&(claim, card, units): &(&str, usize, u64)| {
            let claim = ClaimId::new(&format!("uid-p-{claim}")).expect("an id");
            let (owner, cards) = (Owner::default(), vec![card]);
            let decision = Decision { claim, owner, cards, units, cores: 0 };
            Given::of(&inventory, pod, &decision, &names)
        };
        let given: Vec<Given> = claims.iter().map(given).collect();
        annotations(&inventory, pod, &given, &names, 7)
    }

    /// The scheduler extender and `kubectl inspect cgpu` read from the annotations what the pod's claims take.
    #[test]
    fn sidecars_and_init_containers_count_on_their_gpus() {
        let mut pod = all_kinds();
        let all = [("i0", 0, 6), ("i1", 1, 7), ("i2", 0, 1), ("c1", 0, 4), ("c2", 1, 2)];
        pod.metadata.annotations = written(&pod, &all);
        let text = pod.annotation(names::V2_MEMORY);
        assert_eq!(text, Some(r#"{"1":{"0":11,"1":7},"2":{"1":2}}"#));
        assert_eq!(allocation::of_pod(&pod), Ok([(0, 11), (1, 9)].into()));
        let sum = need(&pod, &ResourceNames::default()).memory;
        assert_eq!(sum, 20, "and no less");
        // No main container has any: its sidecar's stands at the first.
        let mut only = all_kinds();
        only.spec.containers.truncate(1);
        only.spec.init_containers.truncate(1);
        only.metadata.annotations = written(&only, &[("i0", 1, 6)]);
        assert_eq!(allocation::of_pod(&only), Ok([(1, 6)].into()));
        assert_eq!(only.annotation(names::V1_INDEX), Some("1"));
    }

    /// One index for the pod is written when it is known for all of its claims.
    #[test]
    fn the_pods_index_is_told_when_all_of_it_is_there() {
        let pod = all_kinds();
        let all = [("i0", 1, 6), ("i1", 1, 7), ("i2", 1, 1), ("c1", 1, 4), ("c2", 1, 2)];
        assert!(!written(&pod, &all[..4]).contains_key(names::V1_INDEX));
        let whole = written(&pod, &all);
        assert_eq!((whole[names::V1_INDEX].as_str(), whole[names::V1_POD].as_str()), ("1", "20"));
    }
}
