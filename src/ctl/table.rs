//! A node's slices as a table or JSON. Pure: two snapshots in, lines or JSON out.
//!
//! A snapshot holds counters; a share is the growth of a slice's GPU time between two snapshots, divided
//! by the time between them. A slice's *due* share is what the engine aims at if all slices with work now
//! keep having work: see [`due`].

mod due;
mod json;

pub use json::{json, pod as owner_json};

use crate::wall_time::WallTime;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::node::Health;
use gpuslice_wire::owner::Owner;
use gpuslice_wire::policy::{Class, ClassCaps, Policy};
use gpuslice_wire::snapshot::{MemoryEnforcement, Snapshot, SuspensionState, TimeEnforcement};
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, Percent, Weight};
use std::collections::{BTreeMap, BTreeSet};

/// A value of a frame as lists show it.
pub trait Shown {
    /// Its type in lists.
    type As;

    /// Converts it.
    fn shown(self) -> Self::As;
}

macro_rules! shown {
    ($($type:ty $(= $as:ty => $to:expr)?),* $(,)?) => {$(
        shown!(@ $type $(= $as => $to)?);
    )*};
    (@ $type:ty) => {
        shown!(@ $type = $type => |it| it);
    };
    (@ $type:ty = $as:ty => $to:expr) => {
        impl Shown for $type {
            type As = $as;

            fn shown(self) -> $as {
                let to: fn($type) -> $as = $to;
                to(self)
            }
        }
    };
}

shown! {
    u32, u64, Bytes, Option<Bytes>, GpuUuid, Lane, Class, MemoryEnforcement, TimeEnforcement,
    ContainerId = String => |id| id.to_string(),
    Name = String => |name| name.to_string(),
    Option<Weight> = Option<u32> => |weight| weight.map(Weight::get),
    Option<Percent> = Option<u32> => |percent| percent.map(Percent::get),
}

/// The row of a slice, with the fields of its frame.
macro_rules! row {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// One slice of one GPU. Its name is its id where it has none, once the view is complete.
        #[derive(Clone, Debug)]
        #[allow(dead_code)] // no list shows whether turns are taken
        pub struct Row { $($(#[$doc])* pub $name: <$type as Shown>::As,)* }

        impl Row {
            /// Reads a row; `None` for a row of another kind.
            fn of(row: Snapshot) -> Option<Row> {
                match row {
                    Snapshot::Slice { $($name,)* } => Some(Row { $($name: $name.shown(),)* }),
                    _ => None,
                }
            }
        }
    };
}
gpuslice_wire::slice_fields!(row);

/// A memory limit above the cap.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit {
    /// The limit.
    pub limit: Bytes,
    /// What the slice should give back of the memory beyond its cap.
    pub wanted: Bytes,
}

/// The daemon itself.
#[derive(Clone, Copy, Debug)]
pub struct DaemonState {
    /// CLOCK_MONOTONIC of its start, ns.
    pub started_ns: u64,
    /// CLOCK_MONOTONIC of the end of its last absence, ns; 0 for none.
    pub absent_until_ns: u64,
    /// Length of that absence, ns.
    pub absent_ns: u64,
    /// What higher classes keep while lower ones wait.
    pub class_caps: ClassCaps,
}

/// One GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Identity.
    pub uuid: GpuUuid,
    /// NVML index.
    pub index: u32,
    /// Physical memory.
    pub total: Bytes,
    /// Sum of the caps promised on it.
    pub promised: Bytes,
    /// Containers with a slice of it.
    pub slices: u32,
    /// Scheduling policy.
    pub policy: Policy,
    /// Its product's name; empty if it is unknown.
    pub product: String,
}

/// All of a GPU's time, parts per million.
pub const WHOLE_PPM: u32 = 1_000_000;

/// A request that waits for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryWait {
    /// What it asks for.
    pub need: Bytes,
    /// Since when it waits, CLOCK_MONOTONIC ns.
    pub since_ns: u64,
}

/// A snapshot, split into GPUs and slices.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// CLOCK_MONOTONIC ns.
    pub now_ns: u64,
    /// GPUs.
    pub gpus: Vec<Gpu>,
    /// Slices.
    pub rows: Vec<Row>,
    /// Where their wall time went.
    pub times: Vec<WallTime>,
    /// Their containers as Kubernetes names them, by container id.
    pub owners: BTreeMap<String, Owner>,
    /// How far the suspension of containers is, by id; those that are not suspended are not in it.
    pub suspensions: BTreeMap<String, SuspensionState>,
    /// Ids of suspended containers that the daemon resumes by itself when there is room.
    pub reclaimed: BTreeSet<String>,
    /// Ids of the containers that are frozen because they are over their caps.
    pub frozen: BTreeSet<String>,
    /// The health of GPUs that are not healthy.
    pub unhealthy: BTreeMap<GpuUuid, Health>,
    /// What NVML shows of the use of GPUs, 0..=1; those of which it told nothing lately are not in it.
    pub loads: BTreeMap<GpuUuid, f64>,
    /// Memory limits above caps, and what is wanted back of that, by container and GPU.
    pub limits: BTreeMap<(String, GpuUuid), MemoryLimit>,
    /// What slices ask for within their caps and wait for, by container and GPU: others have borrowed it.
    pub waits: BTreeMap<(String, GpuUuid), MemoryWait>,
    /// The daemon.
    pub daemon: Option<DaemonState>,
}

impl Gpu {
    /// `simulated` and the profile, after `before`; empty for a real GPU.
    pub fn mark(&self, before: &str) -> String {
        self.uuid
            .profile()
            .map_or(String::new(), |profile| format!("{before}simulated ({profile})"))
    }
}

impl Row {
    /// Whether it is the same slice.
    pub fn is_of(&self, other: &Row) -> bool {
        self.container == other.container && self.gpu == other.gpu
    }

    /// Describes the last refusal, if any.
    pub fn refusal(&self) -> Option<String> {
        let (need, left) = (self.denied_need, self.denied_left);
        (need > Bytes::ZERO).then(|| format!("{need} with {left} left"))
    }
}

/// Name of a memory enforcement level, in tables and JSON.
pub const fn memory_enforcement_name(level: MemoryEnforcement) -> &'static str {
    match level {
        MemoryEnforcement::Shim => "shim",
        MemoryEnforcement::Accounted => "accounted",
        MemoryEnforcement::Driver => "driver",
    }
}

/// Name of a time enforcement level, in tables and JSON.
pub const fn time_enforcement_name(level: TimeEnforcement) -> &'static str {
    match level {
        TimeEnforcement::Shim => "shim",
        TimeEnforcement::Timeslice => "timeslice",
        TimeEnforcement::Preempt => "preempt",
    }
}

impl View {
    /// Sorts a snapshot's frames into lists.
    pub fn of((now_ns, frames): (u64, Vec<Snapshot>)) -> View {
        let mut view = View { now_ns, ..View::default() };
        for frame in frames {
            match frame {
                Snapshot::Gpu { uuid, index, total, promised, slices, policy, product } => {
                    let (index, product) = (index.0, product.to_string());
                    let gpu = Gpu { uuid, index, total, promised, slices, policy, product };
                    view.gpus.push(gpu);
                }
                Snapshot::Daemon { started_ns, absent_until_ns, absent_ns, class_caps } => {
                    view.daemon =
                        Some(DaemonState { started_ns, absent_until_ns, absent_ns, class_caps });
                }
                slice @ Snapshot::Slice { .. } => {
                    let row = Row::of(slice);
                    view.rows.extend(row.map(|row| Row { name: called(&row), ..row }));
                }
                time @ Snapshot::SliceTime { .. } => view.times.extend(WallTime::of(&time)),
                Snapshot::SliceOwner { container, owner } => {
                    view.owners.insert(container.to_string(), owner);
                }
                Snapshot::GpuLoad { uuid, percent, .. } => {
                    view.loads.insert(uuid, f64::from(percent) / 100.0);
                }
                Snapshot::GpuHealth { uuid, health, .. } => {
                    view.unhealthy.insert(uuid, health);
                }
                Snapshot::Suspension { container, state, .. } => {
                    view.suspensions.insert(container.to_string(), state);
                }
                Snapshot::Reclaimed { container } => {
                    view.reclaimed.insert(container.to_string());
                }
                Snapshot::Frozen { container } => {
                    view.frozen.insert(container.to_string());
                }
                Snapshot::MemoryWait { container, gpu, need, since_ns, .. } => {
                    let wait = MemoryWait { need, since_ns };
                    view.waits.insert((container.to_string(), gpu), wait);
                }
                Snapshot::MemoryLimit { container, gpu, limit, wanted, .. } => {
                    let limit = MemoryLimit { limit, wanted };
                    view.limits.insert((container.to_string(), gpu), limit);
                }
                _ => {}
            }
        }
        view
    }

    /// A GPU of the node.
    pub fn gpu(&self, uuid: GpuUuid) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// Memory that slices hold on a GPU: what their processes allocated, and what NVML shows beyond that. The memory of
    /// suspended containers is on the host.
    pub fn held_on(&self, gpu: GpuUuid) -> Bytes {
        let rows = self.rows.iter().filter(|row| row.gpu == gpu);
        let held = rows.flat_map(|row| [row.used, row.untracked]);
        held.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Memory of a slice that is on the host: of a suspended container, or of one on the way, for which the daemon
    /// keeps room there. What a suspension left on the GPU is `untracked` then.
    pub fn on_host(&self, row: &Row) -> Bytes {
        match self.suspensions.get(&row.container) {
            Some(SuspensionState::Suspended) => row.reserved.saturating_sub(row.untracked),
            Some(_) => row.reserved,
            None => Bytes::ZERO,
        }
    }

    /// What a slice holds on its GPU beyond its cap, of memory that others leave unused. It adds up with the memory
    /// that is shown beside it, so unused credit is not in it.
    pub fn borrowed(&self, row: &Row) -> Bytes {
        match self.limits.contains_key(&(row.container.clone(), row.gpu)) {
            true => row.used.saturating_add(row.untracked).saturating_sub(row.cap),
            false => Bytes::ZERO,
        }
    }

    /// A request of the slice that waits for memory that others have borrowed.
    pub fn waits_for_memory(&self, row: &Row) -> Option<MemoryWait> {
        self.waits.get(&(row.container.clone(), row.gpu)).copied()
    }

    /// The slice that has borrowed most of the memory that this one lacks for so many bytes more within its cap.
    pub fn borrower_of(&self, row: &Row, need: Bytes) -> Option<&Row> {
        if row.reserved.saturating_add(need) > row.cap {
            return None;
        }
        let others = self.rows.iter().filter(|it| it.gpu == row.gpu && !it.is_of(row));
        let borrowers = others.filter(|it| self.borrowed(it) > Bytes::ZERO);
        borrowers.max_by_key(|it| self.borrowed(it))
    }

    /// The policy of a GPU.
    pub fn policy(&self, gpu: GpuUuid) -> Policy {
        self.gpu(gpu).map_or(Policy::default(), |gpu| gpu.policy)
    }

    /// The same slice's row in this view.
    pub fn row(&self, row: &Row) -> Option<&Row> {
        self.rows.iter().find(|it| it.is_of(row))
    }

    /// Where the slice's wall time went.
    pub fn time(&self, row: &Row) -> Option<&WallTime> {
        let same = |it: &&WallTime| it.container.as_str() == row.container && it.gpu == row.gpu;
        self.times.iter().find(same)
    }

    /// The slice's memory limit; its cap without one.
    pub fn limit(&self, row: &Row) -> MemoryLimit {
        let limit = self.limits.get(&(row.container.clone(), row.gpu));
        limit.copied().unwrap_or(MemoryLimit { limit: row.cap, wanted: Bytes::ZERO })
    }

    /// Whether a slice holds more than its memory limit: that was lowered, or untracked memory exceeds it.
    pub fn is_over(&self, row: &Row) -> bool {
        let limit = self.limit(row).limit;
        u128::from(row.used.0) + u128::from(row.untracked.0) > u128::from(limit.0)
    }

    /// A container's display name; its id if it has no slice any more.
    pub fn name(&self, container: &str) -> String {
        let row = self.rows.iter().find(|row| row.container == container);
        row.map_or(container, |row| &row.name).to_owned()
    }

    /// What to call a container on a command line: its name if that needs no quotes and no other container can be
    /// meant, else its id.
    pub fn handle(&self, container: &str) -> String {
        let name = self.name(container);
        let others = self.rows.iter().filter(|row| row.container != container);
        let taken = |row: &Row| row.name == name || row.container.starts_with(&name);
        match ContainerId::new(&name).is_err() || others.into_iter().any(taken) {
            true => container.to_owned(),
            false => name,
        }
    }

    /// NVML index of a GPU.
    pub fn index(&self, gpu: GpuUuid) -> u32 {
        self.gpu(gpu).map_or(u32::MAX, |found| found.index)
    }

    /// The profiles of its simulated GPUs, each once: `simulated (kind)`; empty without such GPUs.
    pub fn simulated(&self) -> String {
        let profiles: BTreeSet<&str> =
            self.gpus.iter().filter_map(|gpu| gpu.uuid.profile()).collect();
        match profiles.is_empty() {
            true => String::new(),
            false => format!("simulated ({})", Vec::from_iter(profiles).join(", ")),
        }
    }

    /// A GPU's display name.
    pub fn called(&self, gpu: GpuUuid) -> String {
        let mark = if gpu.is_simulated() { " (simulated)" } else { "" };
        format!("gpu {}{mark}", self.index(gpu))
    }

    /// The part of its GPU that was charged to a slice since `before`.
    pub fn charged(&self, row: &Row, before: &View) -> f64 {
        self.grown(row, before, |row| row.gpu_ns)
    }

    /// Whether slices launched on a GPU without turns since `before`: then a slice is charged for all the time in which
    /// its processes claim work, whether a kernel of theirs runs or not.
    pub fn is_open(&self, gpu: GpuUuid, before: &View) -> bool {
        let mut rows = before.rows.iter().chain(&self.rows).filter(|row| row.gpu == gpu);
        rows.any(|row| row.gated == 0)
    }

    /// The part of its GPU that a slice got since `before`, 0..=1. With turns that is what was charged. Without turns
    /// all slices of the GPU together got no more than what NVML shows of its use; `None` if it shows nothing.
    pub fn got(&self, row: &Row, before: &View) -> Option<f64> {
        let charged = self.charged(row, before);
        if charged <= 0.0 || !self.is_open(row.gpu, before) {
            return Some(charged);
        }
        let rows = self.rows.iter().filter(|it| it.gpu == row.gpu);
        let all: f64 = rows.map(|it| self.charged(it, before)).sum();
        self.loads.get(&row.gpu).map(|load| charged * (load / all).min(1.0))
    }

    /// The part of the time since `before` in which a slice had work and not the GPU: see `Growth::waited`.
    pub fn waited(&self, row: &Row, before: &View) -> f64 {
        self.grown(row, before, |row| row.wait_ns)
    }

    fn grown(&self, row: &Row, before: &View, of: fn(&Row) -> u64) -> f64 {
        let old = before.row(row).map_or(0, of);
        let span = self.now_ns.saturating_sub(before.now_ns).max(1);
        of(row).saturating_sub(old) as f64 / span as f64
    }
}

/// A slice's display name: its id without one.
fn called(row: &Row) -> String {
    if row.name.is_empty() { &row.container } else { &row.name }.clone()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A slice that has been refused three times.
    pub fn slice(name: &str, weight: u32, share: Option<u32>, runnable: bool, gpu_ns: u64) -> Row {
        Row {
            container: name.into(),
            name: name.into(),
            gpu: GpuUuid([1; 16]),
            lane: Lane(0),
            cap: Bytes(1 << 30),
            reserved: Bytes(0),
            untracked: Bytes(0),
            denied_need: Bytes(3 << 20),
            denied_left: Bytes(1 << 20),
            denied_credit: Bytes(0),
            denied_at_ns: 0,
            memory_enforcement: MemoryEnforcement::Accounted,
            pinned: Bytes(0),
            pinned_cap: None,
            used: Bytes(0),
            peak: Bytes(0),
            denied: 3,
            weight: Some(weight).filter(|_| share.is_none()),
            share,
            share_limit: share,
            class: Class::Normal,
            cap_ppm: share.map_or(WHOLE_PPM, |percent| percent * 10_000),
            clients: 1,
            runnable: u32::from(runnable),
            holds: 0,
            gated: 1,
            gpu_ns,
            wait_ns: 0,
            runnable_ns: 0,
            turns: 0,
            late_turns: 0,
            closed_early: 0,
            time_enforcement: TimeEnforcement::Shim,
            stops: 0,
            stops_missed: 0,
            time_slice_us: 0,
            time_slice_changes: 0,
            launches: 0,
            gang: 0,
        }
    }

    /// A GPU of 1 GiB, the `uuid`th.
    pub fn gpu(uuid: u8, index: u32) -> Gpu {
        Gpu {
            uuid: GpuUuid([uuid; 16]),
            index,
            total: Bytes(1 << 30),
            promised: Bytes(0),
            slices: 1,
            policy: Policy::Soft,
            product: "NVIDIA H200".into(),
        }
    }

    #[test]
    fn got_is_growth_over_time() {
        let before =
            View { now_ns: 1_000, rows: vec![slice("a", 1, None, true, 500)], ..View::default() };
        let now =
            View { now_ns: 2_000, rows: vec![slice("a", 1, None, true, 750)], ..View::default() };
        let got = now.got(&now.rows[0], &before).expect("turns are measured");
        assert!((got - 0.25).abs() < 1e-9);
        assert_eq!(json(&now)["slices"][0]["denied"], 3);
    }

    /// A slice that is alone takes no turns, and is charged for all the time in which it claims work.
    #[test]
    fn without_turns_a_slice_got_what_nvml_shows() {
        let at = |now_ns, load: Option<f64>| {
            let open = |name, ns| Row { gated: 0, ..slice(name, 1, None, true, ns) };
            let rows = vec![open("a", now_ns * 3 / 4), open("b", now_ns / 4), open("c", 0)];
            let loads = load.into_iter().map(|load| (GpuUuid([1; 16]), load)).collect();
            View { now_ns, rows, loads, ..View::default() }
        };
        let got = |load| {
            let (before, now) = (at(1_000, None), at(2_000, load));
            let got = now.rows.iter().map(|row| now.got(row, &before));
            got.map(|got| got.map(|part| (1e3 * part).round())).collect::<Vec<_>>()
        };
        assert_eq!(got(Some(0.04)), [Some(30.0), Some(10.0), Some(0.0)]);
        assert_eq!(got(Some(1.0)), [Some(750.0), Some(250.0), Some(0.0)]);
        assert_eq!(got(None), [None, None, Some(0.0)], "not known, and never all of it");
        let frame = Snapshot::GpuLoad { uuid: GpuUuid([1; 16]), at_ns: 5, percent: 4 };
        assert_eq!(View::of((9, vec![frame])).loads, [(GpuUuid([1; 16]), 0.04)].into());
    }

    #[test]
    fn a_slice_above_its_cap_and_its_last_refusal_are_in_the_json() {
        let mut row = slice("a", 1, None, true, 0);
        (row.used, row.untracked) = (row.cap, Bytes(1));
        let view = View { rows: vec![slice("b", 1, None, true, 0), row], ..View::default() };
        let told = json(&view);
        assert_eq!(told["slices"][1]["memory_over"], true);
        assert_eq!(told["slices"][0]["memory_enforcement"], "accounted");
        assert_eq!(told["slices"][0]["class"], "normal");
        assert_eq!(told["slices"][0]["denied_need"], 3 << 20);
    }
}
