//! What a scheduler wrote on a pod: its GPUs, by index, and the amounts on each.
//!
//! gpushare's extender names one GPU (v1). ACK's scheduler names GPUs for each container (v2). A pod may carry both;
//! v2 says more and counts. Any user of the namespace may write these annotations, so they are proposals: the index
//! is checked against the node, the amounts are bounded by the pod's limits, and the daemon's ledger decides.

use crate::api::objects::Pod;
use crate::names::{GPU_GROUP, ResourceNames, V1_INDEX, V2_CORES, V2_MEMORY};
use crate::plugin::identity;
use std::collections::{BTreeMap, BTreeSet};

/// Amounts by the index of the GPU.
pub type ByGpu = BTreeMap<u32, u64>;

/// Bytes of a v2 annotation that are read, at most.
const TEXT_MAX: usize = 16 << 10;

/// An annotation that is there and is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pod's annotation {key} is {found:?}, and {wanted}")]
pub struct BadAnnotation {
    key: &'static str,
    found: String,
    wanted: &'static str,
}

impl BadAnnotation {
    fn new(key: &'static str, text: &str, wanted: &'static str) -> BadAnnotation {
        BadAnnotation { key, found: text.chars().take(60).collect(), wanted }
    }
}

/// The memory of the whole pod on each GPU: as much as its claims take, where the annotations say. Empty: no scheduler
/// chose a GPU, or the pod asks for no memory.
///
/// v2 numbers the main containers only. The rest of the pod stands where the first of these is, as for [`of_init`]. So
/// a pod takes no more than its claims do, and no less.
///
/// # Errors
/// An annotation is malformed.
pub fn of_pod(pod: &Pod) -> Result<ByGpu, BadAnnotation> {
    let left = identity::need(pod, ResourceNames::usual()).memory;
    let mut placed = Placed { by_gpu: ByGpu::new(), left };
    let by_container = pod.annotation(V2_MEMORY).map(|text| v2(V2_MEMORY, text)).transpose()?;
    let by_container = by_container.unwrap_or_default();
    for (&gpu, &amount) in by_container.values().flatten() {
        placed.put(gpu, amount);
    }
    if let Some(first) = by_container.values().find(|it| !it.is_empty()) {
        for (&gpu, gpus) in first.keys().zip((1..=first.len() as u64).rev()) {
            placed.put(gpu, placed.left.div_ceil(gpus));
        }
    } else if let Some(gpu) = v1(pod)? {
        placed.put(gpu, placed.left);
    }
    Ok(placed.by_gpu)
}

/// A pod's memory on GPUs, and what of it is on none yet.
struct Placed {
    by_gpu: ByGpu,
    left: u64,
}

impl Placed {
    /// Puts so much on a GPU, or what is left.
    fn put(&mut self, gpu: u32, amount: u64) {
        let amount = amount.min(self.left);
        if amount > 0 {
            *self.by_gpu.entry(gpu).or_default() += amount;
            self.left -= amount;
        }
    }
}

/// The GPUs of one container, by its position among the pod's containers; the amount is 0 where v1 does not tell it.
///
/// # Errors
/// An annotation is malformed.
pub fn of_container(pod: &Pod, container: usize) -> Result<ByGpu, BadAnnotation> {
    for key in [V2_MEMORY, V2_CORES] {
        if let Some(text) = pod.annotation(key) {
            let position = u32::try_from(container).unwrap_or(u32::MAX);
            let found = v2(key, text)?.remove(&position).unwrap_or_default();
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }
    Ok(v1(pod)?.map(|gpu| (gpu, 0)).into_iter().collect())
}

/// The GPUs of init containers and sidecars: those of the first container that has any.
///
/// # Errors
/// An annotation is malformed.
pub fn of_init(pod: &Pod) -> Result<BTreeSet<u32>, BadAnnotation> {
    for key in [V2_MEMORY, V2_CORES] {
        if let Some(text) = pod.annotation(key) {
            let mut all = v2(key, text)?.into_values();
            if let Some(first) = all.find(|it| !it.is_empty()) {
                return Ok(first.into_keys().collect());
            }
        }
    }
    Ok(v1(pod)?.into_iter().collect())
}

/// The whole GPUs that a scheduler chose for the pod. Empty: none did.
///
/// # Errors
/// The annotation is malformed.
pub fn group(pod: &Pod) -> Result<Vec<u32>, BadAnnotation> {
    let Some(text) = pod.annotation(GPU_GROUP).filter(|text| !text.is_empty()) else {
        return Ok(Vec::new());
    };
    let bad = || BadAnnotation::new(GPU_GROUP, text, "it must be indices of GPUs: 0,3");
    if text.len() > TEXT_MAX {
        return Err(bad());
    }
    let all: Result<BTreeSet<u32>, _> = text.split(',').map(|one| one.trim().parse()).collect();
    Ok(all.map_err(|_| bad())?.into_iter().collect())
}

/// The index of gpushare v1. `-1` is its own word for none.
fn v1(pod: &Pod) -> Result<Option<u32>, BadAnnotation> {
    match pod.annotation(V1_INDEX) {
        None | Some("-1") => Ok(None),
        Some(text) => {
            let wanted = "it must be the index of a GPU";
            text.parse().map(Some).map_err(|_| BadAnnotation::new(V1_INDEX, text, wanted))
        }
    }
}

fn v2(key: &'static str, text: &str) -> Result<BTreeMap<u32, ByGpu>, BadAnnotation> {
    let wanted = "it must be JSON of the form {\"CONTAINER\":{\"GPU\":AMOUNT}} with indices";
    let bad = || BadAnnotation::new(key, text, wanted);
    if text.len() > TEXT_MAX {
        return Err(bad());
    }
    serde_json::from_str(text).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::OURS;
    use serde_json::json;

    /// A pod of two containers with a memory of 3 each.
    fn pod(annotations: &serde_json::Value) -> Pod {
        with_memory(annotations, 3)
    }

    fn with_memory(annotations: &serde_json::Value, memory: u64) -> Pod {
        let limits = json!({ "limits": { "aliyun.com/gpu-mem": memory.to_string() } });
        serde_json::from_value(json!({
            "metadata": { "annotations": annotations },
            "spec": { "containers": [{ "resources": limits }, { "resources": limits }] },
        }))
        .expect("a pod")
    }

    fn by_gpu(pairs: &[(u32, u64)]) -> Result<ByGpu, BadAnnotation> {
        Ok(pairs.iter().copied().collect())
    }

    #[test]
    fn both_generations_are_read() {
        assert_eq!(of_pod(&pod(&json!({}))), by_gpu(&[]));
        let first = pod(&json!({ "ALIYUN_COM_GPU_MEM_IDX": "2" }));
        assert_eq!(of_pod(&first), by_gpu(&[(2, 6)]));
        assert_eq!(of_container(&first, 1), by_gpu(&[(2, 0)]));
        let both = r#"{"0":{"1":1,"3":2},"1":{"3":3}}"#;
        let both = pod(
            &json!({ "scheduler.framework.gpushare.allocation": both, "ALIYUN_COM_GPU_MEM_IDX": "2" }),
        );
        assert_eq!(of_pod(&both), by_gpu(&[(1, 1), (3, 5)]));
        assert_eq!(of_container(&both, 1), by_gpu(&[(3, 3)]));
        assert_eq!(of_pod(&pod(&json!({ "ALIYUN_COM_GPU_MEM_IDX": "-1" }))), by_gpu(&[]));
    }

    /// A user writes annotations freely; the limits are what Kubernetes has counted to the namespace's quota.
    #[test]
    fn a_pod_takes_what_its_limits_say_whatever_its_annotations_do() {
        let v2 = |text: &str, memory: u64| {
            let all = json!({ "scheduler.framework.gpushare.allocation": text, OURS: "true" });
            of_pod(&with_memory(&all, memory))
        };
        assert_eq!(v2(r#"{"0":{"0":1000000,"1":1000000}}"#, 3), by_gpu(&[(0, 6)]), "no more");
        assert_eq!(v2(r#"{"0":{"0":18446744073709551615},"1":{"0":7}}"#, 3), by_gpu(&[(0, 6)]));
        assert_eq!(v2(r#"{"0":{"1":0}}"#, 3), by_gpu(&[(1, 6)]), "and no less");
        assert_eq!(v2(r#"{"0":{"1":2,"2":1}}"#, 3), by_gpu(&[(1, 4), (2, 2)]));
        let everywhere: BTreeMap<u32, u64> = (0..64).map(|gpu| (gpu, 0)).collect();
        let everywhere = json!({ "0": everywhere }).to_string();
        let ones: Vec<_> = (0..2).map(|gpu| (gpu, 1)).collect();
        assert_eq!(v2(&everywhere, 1), by_gpu(&ones), "a place on each GPU costs memory there");
        for nothing in [everywhere.as_str(), r#"{"0":{"0":1000000}}"#] {
            assert_eq!(v2(nothing, 0), by_gpu(&[]), "a pod without limits has no place");
        }
        let index = json!({ "ALIYUN_COM_GPU_MEM_IDX": "0" });
        assert_eq!(of_pod(&with_memory(&index, 0)), by_gpu(&[]));
    }

    #[test]
    fn malformed_annotations_are_named() {
        for text in ["x", "-2", "1.5", "", "99999999999"] {
            let error = of_pod(&pod(&json!({ "ALIYUN_COM_GPU_MEM_IDX": text }))).unwrap_err();
            assert!(error.to_string().contains("ALIYUN_COM_GPU_MEM_IDX"), "{error}");
        }
        for text in ["", "[]", "{\"0\":3}", "{\"a\":{\"0\":1}}", "{\"0\":{\"0\":-1}}"] {
            let pod = pod(&json!({ "scheduler.framework.gpushare.allocation": text }));
            assert!(of_pod(&pod).is_err(), "{text}");
            assert!(of_container(&pod, 0).is_err(), "{text}");
        }
        let long = format!("{}{{}}", " ".repeat(TEXT_MAX));
        let error = of_pod(&pod(&json!({ "scheduler.framework.gpushare.allocation": long })));
        assert!(error.unwrap_err().to_string().len() < 300, "the error does not repeat it all");
    }
}
