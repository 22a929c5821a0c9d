//! The table of all metrics: name, help, type, labels and source of each family. The exposition, the manual page and
//! the reference in the documentation read it.
//!
//! A name ends with its unit, a counter's with `_total`, and that of a family whose series are always 1 with `_info`.
//! All values are in base units: bytes, seconds, ratios from 0 to 1.

use super::node::{Labels, NodeView, OfGpu, OfSlice, owner_labels};
use crate::table::{memory_enforcement_name, time_enforcement_name};
use gpuslice_wire::node::HealthState;
use gpuslice_wire::waits::WaitCause;

/// Nanoseconds in a second.
const NS: f64 = 1e9;
/// Parts in a whole.
const PPM: f64 = 1e6;

/// How a family is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that grows, until the daemon or the slice begins anew.
    Counter,
    /// Always 1; its labels describe.
    Info,
}

/// What the series of a family are about, and where their values come from.
pub enum Source {
    /// The node.
    Node(fn(&NodeView) -> Option<f64>),
    /// Each GPU, with the labels `gpu` and `UUID`.
    Gpu(fn(OfGpu<'_>) -> Option<f64>),
    /// Each GPU, with its labels and those listed.
    GpuInfo(fn(OfGpu<'_>) -> Labels),
    /// Each slice, with its GPU's labels and its own.
    Slice(fn(OfSlice<'_>) -> Option<f64>),
    /// Each slice, with further labels for each value.
    Slices(fn(OfSlice<'_>) -> Vec<(Labels, f64)>),
    /// Series with labels of their own.
    Own(fn(&NodeView) -> Vec<(Labels, f64)>),
}

/// A family of series.
pub struct Family {
    /// Its name, without `gpuslice_`.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// How it is counted.
    pub kind: Kind,
    /// Labels beyond those of its source.
    pub labels: &'static [&'static str],
    /// Where its values come from.
    pub source: Source,
}

/// A row of the table.
const fn family(
    name: &'static str,
    kind: Kind,
    source: Source,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, help, kind, labels, source }
}

use Kind::{Counter, Gauge, Info};
use Source::{Gpu, GpuInfo, Node, Own, Slice, Slices};

/// All families.
#[rustfmt::skip]
pub const FAMILIES: &[Family] = &[
    family("build_info", Info, Own(|_| vec![(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)]), &["version"],
        "Version of the exporter."),
    family("daemon_uptime_seconds", Gauge, Node(|node| node.view.daemon.map(|it| node.view.now_ns.saturating_sub(it.started_ns) as f64 / NS)), &[],
        "Time since the daemon's start. Counters begin anew with it."),
    family("events_total", Counter, Own(|node| node.events.iter().map(|(kind, total)| (vec![("kind", kind.name().to_owned())], *total as f64)).collect()), &["kind"],
        "Events since the daemon's start, by kind; `gpuslice events` lists them."),

    family("gpu_info", Info, GpuInfo(|it| vec![("modelName", it.gpu.product.clone()), ("policy", it.gpu.policy.name().to_owned()),
            ("simulated", it.gpu.uuid.is_simulated().to_string())]), &["modelName", "policy", "simulated"],
        "The GPU's product, how its time is divided, and whether it is simulated."),
    family("gpu_memory_bytes", Gauge, Gpu(|it| Some(it.gpu.total.0 as f64)), &[], "Physical memory of the GPU."),
    family("gpu_memory_promised_bytes", Gauge, Gpu(|it| Some(it.gpu.promised.0 as f64)), &[], "Sum of the caps promised on the GPU."),
    family("gpu_memory_used_bytes", Gauge, Gpu(|it| Some(it.used() as f64)), &[], "Memory that slices hold: what their processes allocated, and what NVML shows beyond that. Memory of suspended slices is on the host."),
    family("gpu_busy_seconds_total", Counter, Gpu(|it| Some(*it.node.busy.get(&it.gpu.uuid)? as f64 / NS)), &[], "GPU time charged to slices, those that have ended included; without turns also time in which no kernel ran: see `gpu_utilisation_ratio`."),
    family("gpu_utilisation_ratio", Gauge, Gpu(|it| it.node.view.loads.get(&it.gpu.uuid).copied()), &[], "Part of the last second or less in which a kernel ran on the GPU, as NVML shows it, while slices of it exist."),
    family("gpu_slices", Gauge, Gpu(|it| Some(f64::from(it.gpu.slices))), &[], "Slices of the GPU."),
    family("gpu_healthy", Gauge, Gpu(|it| Some(f64::from(it.health()?.0.state == HealthState::Healthy))), &[], "1 if the GPU takes new slices; 0 after a critical error, in MIG or an exclusive compute mode, or with an MPS server."),
    family("gpu_xid", Gauge, Gpu(|it| Some(f64::from(it.health()?.0.xid))), &[], "Number of the Xid that made the GPU unhealthy, 0 for none."),
    family("gpu_errors_total", Counter, Gpu(|it| Some(it.health()?.1 as f64)), &[], "Critical errors (Xid), uncorrectable memory errors and losses of the GPU."),

    family("slice_info", Info, Slices(|it| vec![(slice_info(it), 1.0)]), &["lane", "class", "memory_enforcement", "time_enforcement", "simulated"],
        "The GPU's number in the container, the priority, how caps and turns are enforced, and whether the GPU is simulated."),
    family("slice_memory_cap_bytes", Gauge, Slice(|it| Some(it.row.cap.0 as f64)), &[], "Memory cap of the slice."),
    family("slice_memory_limit_bytes", Gauge, Slice(|it| Some(it.node.view.limit(it.row).limit.0 as f64)), &[], "Memory limit of the slice: how far it may grow into memory that others leave unused; the cap without one."),
    family("slice_memory_wanted_bytes", Gauge, Slice(|it| Some(it.node.view.limit(it.row).wanted.0 as f64)), &[], "Memory beyond its cap that the slice should give back, because another one lacks what it is promised."),
    family("slice_memory_reserved_bytes", Gauge, Slice(|it| Some(it.row.reserved.0 as f64)), &[], "Memory charged to the slice, unused credit included."),
    family("slice_memory_used_bytes", Gauge, Slice(|it| Some(it.row.used.0 as f64)), &[], "Memory held on the GPU, as reported by its processes; that of a suspended slice is on the host."),
    family("slice_memory_untracked_bytes", Gauge, Slice(|it| Some(it.row.untracked.0 as f64)), &[], "Memory that NVML shows beyond what its processes reserved."),
    family("slice_memory_peak_bytes", Gauge, Slice(|it| Some(it.row.peak.0 as f64)), &[], "Highest memory use seen."),
    family("slice_memory_suspended_bytes", Gauge, Slice(|it| Some(it.node.view.on_host(it.row).0 as f64)), &[], "Memory of the slice on the host while it is suspended, or on the way; the node's `suspended_memory` limits the sum."),
    family("slice_memory_refusals_total", Counter, Slice(|it| Some(it.row.denied as f64)), &[], "Allocations refused because of the cap."),
    family("slice_pinned_bytes", Gauge, Slice(|it| is_first(it).then_some(it.row.pinned.0 as f64)), &[], "Host memory pinned by the container, for all its GPUs together; reported once, on the first of them."),
    family("slice_pinned_cap_bytes", Gauge, Slice(|it| Some(it.row.pinned_cap.filter(|_| is_first(it))?.0 as f64)), &[], "Cap on pinned host memory, where there is one; reported likewise."),
    family("slice_weight", Gauge, Slice(|it| Some(f64::from(it.row.weight?))), &[], "Weight for the time that shares leave."),
    family("slice_share_ratio", Gauge, Slice(|it| Some(f64::from(it.row.share?) / 100.0)), &[], "Share of the GPU's time that is reserved for it, where there is one."),
    family("slice_share_limit_ratio", Gauge, Slice(|it| Some(f64::from(it.row.share_limit?) / 100.0)), &[], "Limit of its part of the GPU's time, where one is set."),
    family("slice_time_cap_ratio", Gauge, Slice(|it| Some(f64::from(it.row.cap_ppm) / PPM)), &[], "Upper limit of its part of the GPU's time, by its own limit and the policy."),
    family("slice_due_ratio", Gauge, Slice(|it| Some(it.node.view.due(it.row))), &[], "Part of the GPU's time that it is due among the slices with work now; if it has none, what it would be due."),
    family("slice_processes", Gauge, Slice(|it| Some(f64::from(it.row.clients))), &[], "Processes attached."),
    family("slice_runnable", Gauge, Slice(|it| Some(f64::from(it.row.runnable))), &[], "1 if it has work for the GPU now."),
    family("slice_gpu_seconds_total", Counter, Slice(|it| Some(it.row.gpu_ns as f64 / NS)), &[], "GPU time charged. Its rate is the part of the GPU that the slice had. Without turns, as when it is alone on the GPU, that is all the time in which its processes claim work, whether kernels run or not."),
    family("slice_wait_seconds_total", Counter, Slice(|it| Some(it.row.wait_ns as f64 / NS)), &[], "Time in which it had work and not the GPU, because of other slices or of its limit: the parts waiting, handover, limited and gang of `slice_wall_seconds_total`."),
    family("slice_runnable_seconds_total", Counter, Slice(|it| Some(it.row.runnable_ns as f64 / NS)), &[], "Time spent runnable, with or without a turn."),
    family("slice_wait_by_cause_seconds_total", Counter, Slices(by_cause), &["cause"], "Time spent waiting behind other slices, by cause."),
    family("slice_wall_seconds_total", Counter, Slices(wall), &["part"], "Wall time of the slice by where it went; the parts add up to it."),
    family("slice_waited_behind_seconds_total", Counter, Slices(behind), &["behind"], "Time spent waiting behind a slice: the three that cost it most."),
    family("slice_waited_behind_others_seconds_total", Counter, Slice(|it| Some(it.time()?.others_ns as f64 / NS)), &[], "Time spent waiting behind all other slices."),
    family("slice_longest_wait_seconds", Gauge, Slices(longest), &["behind", "cause"], "Longest single wait behind that slice, and the cause of its larger part."),
    family("slice_turns_total", Counter, Slice(|it| Some(it.row.turns as f64)), &[], "Turns granted."),
    family("slice_late_turns_total", Counter, Slice(|it| Some(it.row.late_turns as f64)), &[], "Turns after which it had not drained by the drain deadline."),
    family("slice_turns_closed_early_total", Counter, Slice(|it| Some(it.row.closed_early as f64)), &[], "Turns closed early for a higher class."),
    family("slice_stops_total", Counter, Slice(|it| Some(it.row.stops as f64)), &[], "Times its work was preempted on the GPU."),
    family("slice_stops_missed_total", Counter, Slice(|it| is_first(it).then_some(it.row.stops_missed as f64)), &[], "Attempted preemptions without an effect, on all GPUs of the container together; reported once, on the first of them."),
    family("slice_time_slice_seconds", Gauge, Slice(|it| Some(it.row.time_slice_us as f64 / 1e6)), &[], "Hardware time slice set for it; 0 for the driver's default."),
    family("slice_time_slice_changes_total", Counter, Slice(|it| Some(it.row.time_slice_changes as f64)), &[], "Times one of its processes had changed its hardware time slice."),
    family("slice_launches_total", Counter, Slice(|it| Some(it.row.launches as f64)), &[], "Launches while turns are taken, as counted by its processes."),

    family("claim_info", Info, Own(|node| claims(node, |claim, labels| (labels.into_iter().chain([("state", claim.state.name().to_owned())]).collect(), 1.0))),
        &["claim", "state", "namespace", "pod", "container", "pod_uid"], "A claim, whether it can be joined, and the container for which it was reserved."),
    family("claim_containers", Gauge, Own(|node| claims(node, |claim, labels| (labels, f64::from(claim.containers)))),
        &["claim", "namespace", "pod", "container", "pod_uid"], "Containers that live in the claim."),
];

/// Whether this is the container's first GPU: a number of the whole container is reported once, so that sums are right.
fn is_first(it: OfSlice<'_>) -> bool {
    it.row.lane.0 == 0
}

fn slice_info(it: OfSlice<'_>) -> Labels {
    let row = it.row;
    vec![
        ("lane", row.lane.0.to_string()),
        ("class", row.class.name().to_owned()),
        ("memory_enforcement", memory_enforcement_name(row.memory_enforcement).to_owned()),
        ("time_enforcement", time_enforcement_name(row.time_enforcement).to_owned()),
        ("simulated", row.gpu.is_simulated().to_string()),
    ]
}

fn by_cause(it: OfSlice<'_>) -> Vec<(Labels, f64)> {
    let causes = it.waits().into_iter().flat_map(|waits| WaitCause::ALL.into_iter().zip(waits));
    causes.map(|(cause, ns)| (vec![("cause", cause.name().to_owned())], *ns as f64 / NS)).collect()
}

fn wall(it: OfSlice<'_>) -> Vec<(Labels, f64)> {
    let parts = it.time().into_iter().flat_map(|time| time.parts);
    parts.map(|(part, ns)| (vec![("part", part.to_owned())], ns as f64 / NS)).collect()
}

fn behind(it: OfSlice<'_>) -> Vec<(Labels, f64)> {
    let waits = it.time().into_iter().flat_map(|time| time.waits());
    let series =
        waits.map(|(other, wait)| (vec![("behind", other.to_string())], wait.total_ns as f64 / NS));
    series.collect()
}

fn longest(it: OfSlice<'_>) -> Vec<(Labels, f64)> {
    let waits = it.time().into_iter().flat_map(|time| time.waits());
    let series = waits.map(|(other, wait)| {
        let cause = wait.cause.name().to_owned();
        (vec![("behind", other.to_string()), ("cause", cause)], wait.longest_ns as f64 / NS)
    });
    series.collect()
}

/// A series for each claim.
fn claims(
    node: &NodeView,
    of: impl Fn(&super::node::Claim, Labels) -> (Labels, f64),
) -> Vec<(Labels, f64)> {
    let series = node.claims.iter().map(|claim| {
        let mut labels: Labels = vec![("claim", claim.id.to_string())];
        if !claim.owner.is_empty() {
            labels.extend(owner_labels(&claim.owner));
        }
        of(claim, labels)
    });
    series.collect()
}
