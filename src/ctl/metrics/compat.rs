//! Series under the names of Alibaba Cloud's GPU exporters (ACK), for dashboards that were made for cGPU.
//!
//! The first exporter's names and labels (`nvidia_gpu_*`), and those of the second that are publicly documented
//! (`DCGM_CUSTOM_PROCESS_*`, of which autoscaling examples use the first). Both have series of pods and containers;
//! here a series is of a slice, so processes of one container are one series. Utilisation is the part of the GPU's
//! time that the slice got since an earlier list, in percent.

use super::exposition::{Scrape, encode};
use super::families::Kind::Gauge;
use super::node::{Labels, NodeView, OfSlice};
use crate::table::View;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::Arc;

/// Bytes in a MiB.
const MIB: f64 = 1_048_576.0;

/// What the series are measured against.
#[derive(Clone, Debug)]
pub struct Base {
    /// An earlier view of the node, if there is one.
    pub earlier: Option<View>,
    /// The node's name.
    pub host: String,
}

/// A family: name, help, its labels and its value for a slice.
type Family = (
    &'static str,
    &'static str,
    fn(OfSlice<'_>, &str) -> Labels,
    fn(OfSlice<'_>, Option<&View>) -> Option<f64>,
);

/// All families of slices.
pub const FAMILIES: [Family; 5] = [
    (
        "nvidia_gpu_duty_cycle",
        "Part of the GPU's time that the slice got since the last scrape, percent.",
        first,
        |it, earlier| Some(100.0 * it.node.view.got(it.row, earlier?)?),
    ),
    ("nvidia_gpu_memory_used_bytes", "Memory held by the slice.", first, |it, _| {
        Some(it.row.used.0.saturating_add(it.row.untracked.0) as f64)
    }),
    (
        "nvidia_gpu_memory_total_bytes",
        "Memory cap of the slice, which its processes see as the GPU's memory.",
        first,
        |it, _| Some(it.row.cap.0 as f64),
    ),
    (
        "DCGM_CUSTOM_PROCESS_SM_UTIL",
        "Part of the GPU's time that the slice got since the last scrape, percent.",
        second,
        |it, earlier| Some(100.0 * it.node.view.got(it.row, earlier?)?),
    ),
    ("DCGM_CUSTOM_PROCESS_MEM_USED", "Memory held by the slice, MiB.", second, |it, _| {
        Some(it.row.used.0.saturating_add(it.row.untracked.0) as f64 / MIB)
    }),
];

/// Labels of the first exporter.
fn first(it: OfSlice<'_>, host: &str) -> Labels {
    let owner = it.owner().copied().unwrap_or_default();
    vec![
        ("allocate_mode", "share".to_owned()),
        ("container_name", owner.container.to_string()),
        ("minor_number", it.node.view.index(it.row.gpu).to_string()),
        ("name", it.row.name.clone()),
        ("namespace_name", owner.namespace.to_string()),
        ("node_name", host.to_owned()),
        ("pod_name", owner.pod.to_string()),
        ("slice", it.row.container.to_string()), // names may be equal
        ("uuid", it.row.gpu.to_string()),
    ]
}

/// Labels of the second.
fn second(it: OfSlice<'_>, host: &str) -> Labels {
    let mut labels = it.labels();
    labels.push(("Hostname", host.to_owned()));
    labels.push(("NodeName", host.to_owned()));
    labels
}

/// The series of a scrape under these names.
#[derive(Debug)]
pub struct Names(pub Arc<Scrape>);

impl Collector for Names {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (Some(node), Some(base)) = (&self.0.node, &self.0.compat) else {
            return Ok(());
        };
        let devices = ("nvidia_gpu_num_devices", "GPUs of the node.", Gauge);
        let labels = vec![("node_name", base.host.clone())];
        encode(&mut encoder, devices, vec![(labels, node.view.gpus.len() as f64)])?;
        for (name, help, labels, value) in FAMILIES {
            encode(&mut encoder, (name, help, Gauge), series(node, base, labels, value))?;
        }
        Ok(())
    }
}

fn series(
    node: &NodeView,
    base: &Base,
    labels: fn(OfSlice<'_>, &str) -> Labels,
    value: fn(OfSlice<'_>, Option<&View>) -> Option<f64>,
) -> Vec<(Labels, f64)> {
    let slices = node.slices().filter_map(|slice| {
        let value = value(slice, base.earlier.as_ref())?;
        Some((labels(slice, &base.host), value))
    });
    slices.collect()
}
