//! Cgroup memory limits: a slice's cap is also the driver's own limit on the container's cgroup, where the
//! driver has such limits (r615 and later, cgroup v2, no MIG). A program that bypasses the shim then meets
//! the same cap, in contexts, modules and everything else the driver allocates.
//!
//! This module decides the limits; the NVML thread ([`crate::accounting`]) sets them. The order:
//!
//! * **Start**: after the record is on disk and before the hook is answered, hence before the container's
//!   first process runs. By then the leaf cgroup exists and belongs to this container alone.
//! * **Growth**: raise the limit, then the ledger's cap, so that no granted memory meets the old limit.
//! * **Shrinking**: lower the ledger's cap first. The limit is never set below the use, and follows it down.
//! * **Others' limits**: NVIDIA's container toolkit can set one for the same container, before the daemon or after it.
//!   The smaller of the two stays in force, and an event tells of it. A larger one is lowered to the slice's.
//! * **Silence**: a driver that has not told whether it has limits is asked again with each new slice and each sample.
//!   Until it tells, it is asked for limits as if it had them. A limit that NVML did not get to is asked for with each
//!   sample.
//! * **End**: set the guarantee to zero, clear the limit, delete the record, answer the hook. If the leaf
//!   were removed with its guarantee, the guarantee would stay in the groups above.

mod effects;

use crate::accounting::ask_nvml::why_no_limits;
use crate::accounting::attribute::SliceOwner;
use crate::accounting::questions::{LimitSupport, LimitedGroup, Sample, Step, Ticket};
use crate::cgroup::Dir;
use crate::config::CgroupLimitMode;
use crate::nvml::{NO_LIMIT, NvmlError};
use gpuslice_engine::{Record, Token};
use gpuslice_host::cgroup::{directory, mount};
use gpuslice_nvabi::types::nvmlReturn_t;
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::snapshot::MemoryEnforcement;
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::{Bytes, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

/// The limit of a slice on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LimitState {
    /// There is none; the text says why.
    Unavailable(String),
    /// NVML was asked to set it, and has not answered or could not be reached.
    Requested,
    /// The driver enforces this limit, bytes.
    InForce(u64),
    /// The same, and another program has set it, below the slice's.
    Theirs(u64),
}

impl LimitState {
    /// The limit in force.
    const fn hard(&self) -> Option<u64> {
        match self {
            LimitState::InForce(hard) | LimitState::Theirs(hard) => Some(*hard),
            LimitState::Unavailable(_) | LimitState::Requested => None,
        }
    }

    /// Which limits of other programs a step keeps.
    const fn keeps_all_but(&self) -> Option<u64> {
        match self {
            LimitState::InForce(ours) => Some(*ours),
            _ => Some(NO_LIMIT),
        }
    }
}

/// A slice, its cgroup and its limits.
#[derive(Debug)]
struct LimitedSlice {
    cgroup: CgroupPath,
    /// By lane: the GPU, the cap and the limit.
    lanes: Vec<(GpuUuid, Bytes, LimitState)>,
}

/// How to continue when NVML has set the limits or refused.
#[derive(Clone, Debug)]
pub enum After {
    /// Answer the hook, which waits for its slice.
    Admit(Token),
    /// Delete the slice's record, and answer the request to end it; whether the slice was known.
    Dismiss(Token, bool),
    /// Raise the cap in the ledger.
    Grow(Token, Lane, MemoryAsk),
    /// Nothing waits for it.
    Nothing,
}

/// Steps that the NVML thread was asked to perform.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    by: Instant,
    container: ContainerId,
    steps: Vec<Step>,
    after: After,
    /// Its slice ends. Another one of the same id may exist when NVML answers.
    ends: bool,
    /// The cgroup of a slice that ends.
    left: Option<CgroupPath>,
}

/// A change of limits that is done, or was given up.
#[derive(Debug)]
pub struct Finished {
    /// The container.
    pub container: ContainerId,
    /// How to continue.
    pub after: After,
    /// The first of NVML's errors.
    pub failed: Option<NvmlError>,
}

/// The limits of all slices.
pub struct CgroupLimits {
    mode: CgroupLimitMode,
    /// Whether each limit is also a guarantee.
    soft: bool,
    mount: Option<PathBuf>,
    support: BTreeMap<GpuUuid, LimitSupport>,
    known: BTreeMap<ContainerId, LimitedSlice>,
    /// Limits of other programs that no event tells of yet.
    found: Vec<(ContainerId, GpuUuid, [Bytes; 2])>,
    pending: VecDeque<Pending>,
    /// Groups of `gpuslice run` that were not empty when their slice ended.
    leftover: Vec<CgroupPath>,
}

impl CgroupLimits {
    /// Starts without any slice.
    pub fn new(mode: CgroupLimitMode, soft: bool) -> CgroupLimits {
        CgroupLimits {
            mode,
            soft,
            mount: mount(),
            support: BTreeMap::new(),
            known: BTreeMap::new(),
            found: Vec::new(),
            pending: VecDeque::new(),
            leftover: Vec::new(),
        }
    }

    /// Whether a starting container can get a limit.
    pub fn wanted(&self) -> bool {
        let lacks = |it: &LimitSupport| matches!(it, LimitSupport::Lacks(_));
        self.mode != CgroupLimitMode::Off && !self.support.values().all(lacks)
    }

    /// Why no claim can be reserved. The driver limits one control group, and a claim's containers have one each: a
    /// limit on each of them would permit their sum, so the driver cannot enforce the claim's cap.
    pub fn why_no_claims(&self) -> Option<&'static str> {
        (self.mode == CgroupLimitMode::Require).then_some(
            "cgroup_limits is \"require\", and the driver's limits are per control group, while several containers may \
             share a claim; set cgroup_limits = \"auto\" in gpusliced's configuration",
        )
    }

    /// GPUs with a slice on them.
    pub fn gpus(&self) -> Vec<GpuUuid> {
        let lanes = self.known.values().flat_map(|known| &known.lanes);
        let all: BTreeSet<GpuUuid> = lanes.map(|lane| lane.0).collect();
        all.into_iter().collect()
    }

    /// The cgroups of all slices.
    fn cgroups(&self) -> impl Iterator<Item = &[u8]> {
        self.known.values().map(|known| known.cgroup.as_bytes())
    }

    /// The container's own cgroup, if it has one.
    pub fn own_cgroup(&self, container: &ContainerId) -> Option<CgroupPath> {
        self.known.get(container).map(|known| known.cgroup).filter(|it| !it.is_empty())
    }

    fn dir(&self, cgroup: &CgroupPath) -> Option<Dir> {
        let mount = self.mount.as_ref()?;
        (!cgroup.is_empty()).then(|| Dir(directory(mount, cgroup.as_bytes())))
    }

    /// GPU and cgroup directory of every limit in force.
    pub fn in_force(&self) -> Vec<(GpuUuid, Dir)> {
        let owners = self.owners().into_iter();
        owners.filter_map(|owner| Some((owner.gpu, owner.limited_dir?))).collect()
    }

    /// Every slice of a GPU, with its container's cgroup.
    pub fn owners(&self) -> Vec<SliceOwner> {
        let mut owners = Vec::new();
        for (container, known) in &self.known {
            for (at, (gpu, _, limit)) in known.lanes.iter().enumerate() {
                owners.push(SliceOwner {
                    container: *container,
                    lane: Lane(at as u8),
                    gpu: *gpu,
                    cgroups: Some(known.cgroup).filter(|it| !it.is_empty()).into_iter().collect(),
                    limited_dir: limit.hard().and_then(|_| self.dir(&known.cgroup)),
                });
            }
        }
        owners
    }

    /// What enforces the cap of a slice on one GPU. `measured`: NVML reports the use of its processes.
    fn memory_enforcement(
        &self,
        container: &ContainerId,
        lane: Lane,
        measured: bool,
    ) -> MemoryEnforcement {
        let lanes = self.known.get(container).map(|known| &known.lanes);
        match lanes.and_then(|lanes| lanes.get(usize::from(lane.0))) {
            Some((_, _, limit)) if limit.hard().is_some() => MemoryEnforcement::Driver,
            _ if measured => MemoryEnforcement::Accounted,
            _ => MemoryEnforcement::Shim,
        }
    }

    /// The earliest time at which a waiting request is answered without NVML.
    pub fn deadline(&self) -> Option<Instant> {
        let waited = self.pending.iter().filter(|one| !matches!(one.after, After::Nothing));
        waited.map(|one| one.by).min()
    }

    /// Why a slice with this cgroup cannot have a limit on a GPU; `None` if it can.
    fn why_unavailable(&self, gpu: GpuUuid, cgroup: &CgroupPath) -> Option<String> {
        match self.support.get(&gpu) {
            _ if self.mode == CgroupLimitMode::Off => {
                Some("cgroup_limits = \"off\" in the configuration".into())
            }
            Some(LimitSupport::Lacks(why)) => Some(why.clone()),
            None => Some("the GPU was not there when gpusliced started".into()),
            Some(_) if cgroup.is_empty() => Some("it has no cgroup of its own".into()),
            Some(_) => None,
        }
    }

    /// Adds a slice; returns the steps that set its limits.
    fn add_slice(&mut self, record: &Record, above_used: bool) -> Vec<Step> {
        let cgroup = record.cgroup;
        let mut steps = Vec::new();
        let mut lanes = Vec::new();
        for lane in &record.lanes {
            let no_mount = || "no cgroup v2 hierarchy is mounted at /sys/fs/cgroup".to_owned();
            let hindrance = self.why_unavailable(lane.gpu, &cgroup).map_or(Ok(()), Err);
            let dir = hindrance.and_then(|()| self.dir(&cgroup).ok_or_else(no_mount));
            let limit = match dir {
                Err(why) => LimitState::Unavailable(why),
                Ok(dir) => {
                    let none = Some(NO_LIMIT);
                    steps.push(self.step(lane.gpu, dir, lane.limit.0, above_used, none));
                    LimitState::Requested
                }
            };
            lanes.push((lane.gpu, lane.limit, limit));
        }
        self.known.insert(record.container, LimitedSlice { cgroup, lanes });
        steps
    }

    fn step(
        &self,
        gpu: GpuUuid,
        dir: Dir,
        cap: u64,
        above_used: bool,
        keeps_all_but: Option<u64>,
    ) -> Step {
        let soft = if self.soft { cap } else { 0 };
        Step { gpu: gpu.0, dir, soft, hard: cap, above_used, keeps_all_but }
    }

    /// Stores NVML's answer for one limit of `asked` bytes.
    fn set(
        &mut self,
        container: &ContainerId,
        (gpu, asked): (GpuUuid, u64),
        done: Result<u64, NvmlError>,
    ) {
        let Some((_, _, limit)) = self.lane(container, gpu) else { return };
        match done {
            Ok(hard) if hard < asked => self.found(container, gpu, hard),
            Ok(hard) => *limit = LimitState::InForce(hard),
            // Another limit was refused: the one before is still in force.
            Err(_) if limit.hard().is_some() => {}
            Err(why) if was_not_reached(&why) => {}
            Err(why) => *limit = LimitState::Unavailable(why_no_limits(why)),
        }
    }

    fn lane(
        &mut self,
        container: &ContainerId,
        gpu: GpuUuid,
    ) -> Option<&mut (GpuUuid, Bytes, LimitState)> {
        self.known.get_mut(container)?.lanes.iter_mut().find(|lane| lane.0 == gpu)
    }

    /// Another program's limit is in force, below the slice's.
    fn found(&mut self, container: &ContainerId, gpu: GpuUuid, hard: u64) {
        let Some((_, cap, limit)) = self.lane(container, gpu) else { return };
        let (limit, cap) = (std::mem::replace(limit, LimitState::Theirs(hard)), *cap);
        if limit != LimitState::Theirs(hard) {
            let theirs = Bytes(hard);
            tracing::warn!(%container, %gpu, %cap, %theirs, "another program has set a smaller limit of the driver's on the container's cgroup, which stays");
            self.found.push((*container, gpu, [cap, theirs]));
        }
    }

    /// The limits of other programs that were found since the last call: whose, on which GPU, and the limits of the
    /// slice and of the driver.
    pub fn take_found(&mut self) -> Vec<(ContainerId, GpuUuid, [Bytes; 2])> {
        std::mem::take(&mut self.found)
    }

    /// Takes in the limits that the driver has in a sample: another program may have changed one that was set.
    pub fn note_sample(&mut self, sample: &Sample) {
        if sample.limited.is_empty() {
            return;
        }
        let gpu = GpuUuid(sample.gpu);
        for owner in self.owners().into_iter().filter(|owner| owner.gpu == gpu) {
            let is_its = |group: &&LimitedGroup| owner.limited_dir.as_ref() == Some(&group.dir);
            let Some(group) = sample.limited.iter().find(is_its) else { continue };
            let container = owner.container;
            let changes = self.pending.iter().any(|one| one.container == container);
            let Some((_, cap, limit)) = self.lane(&container, gpu).filter(|_| !changes) else {
                continue;
            };
            match group.hard {
                hard if limit.hard() == Some(hard) => {}
                hard if hard < cap.0 => self.found(&container, gpu, hard),
                hard => *limit = LimitState::InForce(hard),
            }
        }
    }

    /// The first reason why a slice lacks one of its limits.
    fn missing(&self, container: &ContainerId) -> Option<String> {
        self.known.get(container)?.lanes.iter().find_map(|(gpu, _, limit)| match limit {
            LimitState::Unavailable(why) => Some(format!("{gpu}: {why}")),
            LimitState::Requested => Some(format!("{gpu}: NVML has not answered yet")),
            LimitState::InForce(_) | LimitState::Theirs(_) => None,
        })
    }

    /// The steps that bring limits back to their caps.
    fn lagging_steps(&self, container: &ContainerId) -> Vec<Step> {
        let Some(known) = self.known.get(container) else {
            return Vec::new();
        };
        let Some(dir) = self.dir(&known.cgroup) else {
            return Vec::new();
        };
        let off = |(_, cap, limit): &&(GpuUuid, Bytes, LimitState)| {
            matches!(limit, LimitState::InForce(hard) if *hard != cap.0)
                || *limit == LimitState::Requested
                || matches!(limit, LimitState::Theirs(hard) if *hard > cap.0)
        };
        let lanes = known.lanes.iter().filter(off);
        let step = |(gpu, cap, limit): &(GpuUuid, Bytes, LimitState)| {
            self.step(*gpu, dir.clone(), cap.0, true, limit.keeps_all_but())
        };
        lanes.map(step).collect()
    }

    /// The step to take before the ledger's cap of this lane is raised to `memory`.
    fn raise_step(&self, container: &ContainerId, lane: Lane, memory: MemoryAsk) -> Option<Step> {
        let known = self.known.get(container)?;
        let (gpu, cap, limit) = known.lanes.get(usize::from(lane.0))?;
        let MemoryAsk::Exactly(asked) = memory else {
            return None; // the engine computes a ratio's bytes; the limit is updated afterwards
        };
        let grows = matches!(limit, LimitState::InForce(hard) if asked.0 > *hard) && asked > *cap;
        let dir = self.dir(&known.cgroup)?;
        grows.then_some(self.step(*gpu, dir, asked.0, false, limit.keeps_all_but()))
    }
}

/// Whether NVML was not reached, so that it may set the limit later.
fn was_not_reached(why: &NvmlError) -> bool {
    matches!(why.answer, nvmlReturn_t::ERROR_UNINITIALIZED | nvmlReturn_t::ERROR_TIMEOUT)
}

/// The steps that clear one limit: the guarantee first.
fn clear_steps_for(gpu: GpuUuid, dir: &Dir, cap: u64) -> [Step; 2] {
    let clear = Step {
        gpu: gpu.0,
        dir: dir.clone(),
        soft: 0,
        hard: NO_LIMIT,
        above_used: false,
        keeps_all_but: None,
    };
    let first = Step { hard: cap, above_used: true, ..clear.clone() };
    [first, clear]
}

#[cfg(test)]
mod tests;
