//! What one answer of the daemon shows of the node, as metrics read it: GPUs, slices, claims, and their labels.
//!
//! Labels join with other exporters' series: `gpu` (the index), `UUID`, and `modelName` of `gpu_info` are
//! dcgm-exporter's;
//! `namespace`, `pod` and `container` are the kubelet's. `slice` is the container's id as its runtime names it, or
//! `claim.` and a claim's id; it is always there, the kubelet's three only in Kubernetes.

use crate::table::{Gpu, Row, View};
use crate::wall_time::WallTime;
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::Health;
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::snapshot::{ClaimState, Snapshot};
use gpuslice_wire::waits::WaitCause;
use std::collections::BTreeMap;

/// Labels of a series: name and value.
pub type Labels = Vec<(&'static str, String)>;

/// Times by cause, in the order of [`WaitCause::ALL`], ns.
pub type ByCause = [u64; WaitCause::ALL.len()];

/// A claim.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Its id.
    pub id: ClaimId,
    /// What holds of it.
    pub state: ClaimState,
    /// Containers that live in it.
    pub containers: u32,
    /// The container for which it was reserved.
    pub owner: Owner,
}

/// A node, as an answer of its daemon shows it.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// GPUs and slices.
    pub view: View,
    /// GPU time charged on each GPU, ns.
    pub busy: BTreeMap<GpuUuid, u64>,
    /// Each GPU's health, and its errors so far.
    pub health: BTreeMap<GpuUuid, (Health, u64)>,
    /// Each slice's waits, by container id and GPU.
    pub waits: BTreeMap<(String, GpuUuid), ByCause>,
    /// Events so far.
    pub events: Vec<(EventKind, u64)>,
    /// Claims.
    pub claims: Vec<Claim>,
}

impl NodeView {
    /// Sorts the rows of an answer, and its CLOCK_MONOTONIC time, ns.
    pub fn of((now_ns, rows): (u64, Vec<Snapshot>)) -> NodeView {
        let mut node = NodeView::default();
        for row in &rows {
            match *row {
                Snapshot::GpuUse { uuid, busy_ns } => {
                    node.busy.insert(uuid, busy_ns);
                }
                Snapshot::GpuHealth { uuid, health, errors } => {
                    node.health.insert(uuid, (health, errors));
                }
                Snapshot::SliceWaits { container, gpu, by_cause_ns } => {
                    node.waits.insert((container.to_string(), gpu), by_cause_ns);
                }
                Snapshot::EventCount { kind, total } => node.events.push((kind, total)),
                Snapshot::Claim { claim, state, containers, owner } => {
                    node.claims.push(Claim { id: claim, state, containers, owner });
                }
                _ => {}
            }
        }
        node.view = View::of((now_ns, rows));
        node
    }

    /// The GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = OfGpu<'_>> {
        self.view.gpus.iter().map(move |gpu| OfGpu { node: self, gpu })
    }

    /// The slices.
    pub fn slices(&self) -> impl Iterator<Item = OfSlice<'_>> {
        self.view.rows.iter().map(move |row| OfSlice { node: self, row })
    }
}

/// A GPU of a node.
#[derive(Clone, Copy, Debug)]
pub struct OfGpu<'a> {
    /// The node.
    pub node: &'a NodeView,
    /// Its row.
    pub gpu: &'a Gpu,
}

impl OfGpu<'_> {
    /// Memory that its slices hold on it, bytes.
    pub fn used(self) -> u64 {
        self.node.view.held_on(self.gpu.uuid).0
    }

    /// Its health and errors, if the daemon tells them.
    pub fn health(self) -> Option<(Health, u64)> {
        self.node.health.get(&self.gpu.uuid).copied()
    }

    /// The labels of its series.
    pub fn labels(self) -> Labels {
        gpu_labels(self.gpu)
    }
}

/// A slice of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct OfSlice<'a> {
    /// The node.
    pub node: &'a NodeView,
    /// Its row.
    pub row: &'a Row,
}

impl<'a> OfSlice<'a> {
    /// Where its wall time went.
    pub fn time(self) -> Option<&'a WallTime> {
        self.node.view.time(self.row)
    }

    /// How long it waited behind others, by cause.
    pub fn waits(self) -> Option<&'a ByCause> {
        self.node.waits.get(&(self.row.container.clone(), self.row.gpu))
    }

    /// Its container as Kubernetes names it.
    pub fn owner(self) -> Option<&'a Owner> {
        self.node.view.owners.get(&self.row.container)
    }

    /// The labels of its series.
    pub fn labels(self) -> Labels {
        let row = self.row;
        let mut labels = match self.node.view.gpu(row.gpu) {
            Some(gpu) => gpu_labels(gpu),
            None => vec![("UUID", row.gpu.to_string())],
        };
        labels.push(("slice", row.container.clone()));
        labels.push(("name", row.name.clone()));
        if let Some(owner) = self.owner() {
            labels.extend(owner_labels(owner));
        }
        labels
    }
}

fn gpu_labels(gpu: &Gpu) -> Labels {
    let (index, uuid) = (gpu.index.to_string(), gpu.uuid.to_string());
    vec![("gpu", index), ("UUID", uuid)]
}

/// The labels by which the kubelet names a container.
pub fn owner_labels(owner: &Owner) -> [(&'static str, String); 4] {
    [
        ("namespace", owner.namespace.to_string()),
        ("pod", owner.pod.to_string()),
        ("container", owner.container.to_string()),
        ("pod_uid", owner.uid.to_string()),
    ]
}
