//! The node's ConfigMap for schedulers that choose whole GPUs by their links, in the form that gputopo's has.
//!
//! It has the health of each GPU, the kind of each pair's connection, and its bandwidth. gputopo measures bandwidth;
//! here it is the number of links times what one link of that generation has, and what PCIe has on average without
//! links. It is good for comparing pairs of one node, and is no measurement.

use crate::place::links::Scores;
use gpuslice_wire::node::{GpuFacts, HealthState};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Bandwidth of a GPU's own memory in the matrix, GB/s: gputopo has such a figure on the diagonal.
const OWN: f32 = 740.0;
/// Bandwidth of one NVLink in one direction, GB/s, from the second generation on.
const LINK: f32 = 24.0;

/// The name of a node's ConfigMap.
#[must_use]
pub fn name(node: &str) -> String {
    format!("gpu-topology-{node}")
}

/// What the ConfigMap has. GPUs are in the order of their index.
#[must_use]
pub fn data(gpus: &[GpuFacts]) -> BTreeMap<String, String> {
    let mut gpus: Vec<&GpuFacts> = gpus.iter().collect();
    gpus.sort_by_key(|gpu| gpu.index.0);
    let health = |gpu: &&GpuFacts| {
        let well = gpu.health.state == HealthState::Healthy;
        (gpu.index.0.to_string(), if well { "Healthy" } else { "Unhealthy" })
    };
    let devices: BTreeMap<String, &str> = gpus.iter().map(health).collect();
    let kinds: Vec<Vec<String>> =
        gpus.iter().map(|a| gpus.iter().map(|b| Scores::kind(a, b)).collect()).collect();
    let widths: Vec<Vec<f32>> =
        kinds.iter().map(|row| row.iter().map(|kind| width(kind)).collect()).collect();
    let text = |value: Value| value.to_string();
    [
        ("devices".to_owned(), text(json!(devices))),
        ("linkType".to_owned(), text(json!(kinds))),
        ("bandwidth".to_owned(), text(json!(widths))),
    ]
    .into()
}

fn width(kind: &str) -> f32 {
    match kind.strip_prefix("NV").map(str::parse::<u8>) {
        Some(Ok(links)) => f32::from(links) * LINK,
        _ => match kind {
            "N-A" => OWN,
            "PIX" | "PXB" => 12.0,
            "PHB" | "NODE" => 10.0,
            _ => 8.0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;
    use gpuslice_wire::units::Bytes;

    #[test]
    fn the_maps_texts_are_gputopos() {
        let mut gpus: Vec<GpuFacts> =
            (0..3).rev().map(|number| gpu(number, Bytes(1 << 30))).collect();
        for gpu in &mut gpus {
            (gpu.links[0], gpu.links[1]) =
                (u8::from(gpu.number == 1) * 2, u8::from(gpu.number == 0) * 2);
            gpu.near = [40; 16];
        }
        gpus[0].health.state = HealthState::Lost;
        let data = data(&gpus);
        assert_eq!(data["devices"], r#"{"0":"Healthy","1":"Healthy","2":"Unhealthy"}"#);
        assert_eq!(
            data["linkType"],
            r#"[["N-A","NV2","NODE"],["NV2","N-A","NODE"],["NODE","NODE","N-A"]]"#
        );
        assert_eq!(data["bandwidth"], "[[740.0,48.0,10.0],[48.0,740.0,10.0],[10.0,10.0,740.0]]");
        assert_eq!(name("n1"), "gpu-topology-n1");
    }
}
