//! Walls: a slice's cap as the driver's own limit on the container's cgroup, where it has such limits
//! (r615 and later, cgroup v2, no MIG). Then a program that walks around the shim meets the same
//! cap, in contexts, modules and everything else the driver allocates.
//!
//! What is set here is decided here, and set by NVML's thread ([`crate::truth::thread`]). The order:
//!
//! * **Start**: after the record is on disk, before the hook is answered, so before the container's
//!   first process. The leaf cgroup exists by then and is the container's alone.
//! * **Growth**: the wall first, then the books, so that nothing granted meets the old wall.
//! * **Shrinking**: the books first; the wall never goes below what is used, and follows it down.
//! * **End**: the guarantee to zero first, then all of it cleared, then the record is deleted and
//!   the hook answered. A leaf removed with its guarantee would leave it with the groups above.

mod effects;

use crate::cgroup::{self, Dir};
use crate::nvml::{NO_LIMIT, NvmlError};
use crate::truth::judge::Owner;
use crate::truth::thread::{Step, Ticket, why_no_limits};
use gpuslice_engine::{Record, Token};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::snapshot::MemoryEnforcement;
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::{Bytes, Instant};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

/// What the configuration says about walls.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WallMode {
    /// Never.
    Off,
    /// Where they can be; where not, a line in the log.
    #[default]
    Auto,
    /// No slice without.
    Require,
}

/// The wall of a slice on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wall {
    /// There is none, and why.
    None(String),
    /// The driver was asked for it.
    Asked,
    /// The driver holds this limit.
    Stands(u64),
}

/// A slice as it matters here.
#[derive(Debug)]
struct Known {
    cgroup: CgroupPath,
    lanes: Vec<(GpuUuid, Bytes, Wall)>,
}

/// What is to be done when a wall was set, or could not be.
#[derive(Clone, Debug)]
enum After {
    /// The hook waits for its slice.
    Admit(Token),
    /// Somebody waits for the end of a slice.
    Dismiss(Token, bool),
    /// The books may grow now.
    Grow(Token, Lane, MemoryAsk),
    /// Nobody waits.
    Nothing,
}

/// Something NVML's thread was asked to set.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    by: Instant,
    container: ContainerId,
    steps: Vec<Step>,
    after: After,
}

/// All of them.
pub struct Walls {
    mode: WallMode,
    soft: bool,
    mount: Option<PathBuf>,
    support: BTreeMap<GpuUuid, Result<(), String>>,
    known: BTreeMap<ContainerId, Known>,
    pending: VecDeque<Pending>,
    /// Groups of `gpuslice run` in which something still ran when their slice ended.
    leftover: Vec<CgroupPath>,
}

impl Walls {
    /// None yet.
    pub fn new(mode: WallMode, soft: bool) -> Walls {
        Walls {
            mode,
            soft,
            mount: cgroup::mount(),
            support: BTreeMap::new(),
            known: BTreeMap::new(),
            pending: VecDeque::new(),
            leftover: Vec::new(),
        }
    }

    /// On which GPUs the driver has limits, and why not on the others.
    pub fn supported(&mut self, support: BTreeMap<GpuUuid, Result<(), String>>) {
        if self.mode != WallMode::Off {
            for (gpu, why) in support
                .iter()
                .filter_map(|(gpu, s)| Some((gpu, s.as_ref().err()?)))
            {
                tracing::info!(%gpu, why, "caps are not the driver's own limits");
            }
        }
        self.support = support;
    }

    /// Whether a container that starts may get one.
    pub fn wanted(&self) -> bool {
        self.mode != WallMode::Off && self.support.values().any(Result::is_ok)
    }

    /// GPUs with a slice on them.
    pub fn gpus(&self) -> Vec<GpuUuid> {
        let lanes = self.known.values().flat_map(|known| &known.lanes);
        let all: BTreeSet<GpuUuid> = lanes.map(|lane| lane.0).collect();
        all.into_iter().collect()
    }

    /// The GPU behind a container's lane.
    pub fn gpu_of(&self, container: &ContainerId, lane: Lane) -> Option<GpuUuid> {
        let lanes = &self.known.get(container)?.lanes;
        lanes.get(usize::from(lane.0)).map(|lane| lane.0)
    }

    /// The cgroups of all slices.
    pub fn cgroups(&self) -> impl Iterator<Item = &[u8]> {
        self.known.values().map(|known| known.cgroup.as_bytes())
    }

    fn dir(&self, cgroup: &CgroupPath) -> Option<Dir> {
        let mount = self.mount.as_ref()?;
        (!cgroup.is_empty()).then(|| Dir(cgroup::directory(mount, cgroup.as_bytes())))
    }

    /// Directories and GPUs of the walls that stand.
    pub fn standing(&self) -> Vec<(GpuUuid, Dir)> {
        let owners = self.owners().into_iter();
        owners
            .filter_map(|owner| Some((owner.gpu, owner.walled?)))
            .collect()
    }

    /// Who has which GPU, and which cgroup.
    pub fn owners(&self) -> Vec<Owner> {
        let mut owners = Vec::new();
        for (container, known) in &self.known {
            for (at, (gpu, _, wall)) in known.lanes.iter().enumerate() {
                let stands = matches!(wall, Wall::Stands(_));
                owners.push(Owner {
                    container: *container,
                    lane: Lane(at as u8),
                    gpu: *gpu,
                    cgroup: known.cgroup,
                    walled: self.dir(&known.cgroup).filter(|_| stands),
                });
            }
        }
        owners
    }

    /// Who holds the cap of a slice of one GPU. `measured`: NVML tells what its processes have.
    fn memory_enforcement(
        &self,
        container: &ContainerId,
        lane: Lane,
        measured: bool,
    ) -> MemoryEnforcement {
        let lanes = self.known.get(container).map(|known| &known.lanes);
        match lanes.and_then(|lanes| lanes.get(usize::from(lane.0))) {
            Some((_, _, Wall::Stands(_))) => MemoryEnforcement::Driver,
            _ if measured => MemoryEnforcement::Accounted,
            _ => MemoryEnforcement::Shim,
        }
    }

    /// Whether an ended slice of this container still has walls to be cleared.
    pub fn ends(&self, container: &ContainerId) -> bool {
        let ends =
            |one: &Pending| one.container == *container && matches!(one.after, After::Dismiss(..));
        self.pending.iter().any(ends)
    }

    /// When somebody has waited long enough.
    pub fn deadline(&self) -> Option<Instant> {
        let waited = self
            .pending
            .iter()
            .filter(|one| !matches!(one.after, After::Nothing));
        waited.map(|one| one.by).min()
    }

    /// Why a GPU of a slice with this cgroup can have no wall.
    fn hindrance(&self, gpu: GpuUuid, cgroup: &CgroupPath) -> Option<String> {
        match self.support.get(&gpu) {
            _ if self.mode == WallMode::Off => Some("wall = \"off\" in the configuration".into()),
            Some(Err(why)) => Some(why.clone()),
            None => Some("the GPU was not there when gpusliced started".into()),
            Some(Ok(())) if cgroup.is_empty() => Some("it has no cgroup of its own".into()),
            Some(Ok(())) => None,
        }
    }

    /// A slice, and what is to be set for it.
    fn learn(&mut self, record: &Record, above_used: bool) -> Vec<Step> {
        let cgroup = record.cgroup;
        let mut steps = Vec::new();
        let mut lanes = Vec::new();
        for lane in &record.lanes {
            let no_mount = || "no cgroup v2 hierarchy is mounted at /sys/fs/cgroup".to_owned();
            let hindrance = self.hindrance(lane.gpu, &cgroup).map_or(Ok(()), Err);
            let dir = hindrance.and_then(|()| self.dir(&cgroup).ok_or_else(no_mount));
            let wall = match dir {
                Err(why) => Wall::None(why),
                Ok(dir) => {
                    steps.push(self.step(lane.gpu, dir, lane.cap.0, above_used));
                    Wall::Asked
                }
            };
            lanes.push((lane.gpu, lane.cap, wall));
        }
        self.known.insert(record.container, Known { cgroup, lanes });
        steps
    }

    fn step(&self, gpu: GpuUuid, dir: Dir, cap: u64, above_used: bool) -> Step {
        Step {
            gpu: gpu.0,
            dir,
            soft: if self.soft { cap } else { 0 },
            hard: cap,
            above_used,
        }
    }

    /// What clears the walls of a slice that has, or may have, some.
    fn clearing(&self, record: &Record) -> Vec<Step> {
        let Some(dir) = self.dir(&record.cgroup) else {
            return Vec::new();
        };
        let able = |gpu| matches!(self.support.get(gpu), Some(Ok(())));
        let lanes = record.lanes.iter().filter(|lane| able(&lane.gpu));
        lanes
            .flat_map(|lane| cleared(lane.gpu, &dir, lane.cap.0))
            .collect()
    }

    /// What a limit came to be, or why it did not.
    fn set(&mut self, container: &ContainerId, gpu: GpuUuid, done: Result<u64, NvmlError>) {
        let lanes = self.known.get_mut(container).map(|known| &mut known.lanes);
        let lane = lanes.and_then(|lanes| lanes.iter_mut().find(|lane| lane.0 == gpu));
        let Some((_, _, wall)) = lane else { return };
        *wall = match (done, &*wall) {
            (Ok(hard), _) => Wall::Stands(hard),
            // Another limit was refused: the one before is still in force.
            (Err(_), Wall::Stands(hard)) => Wall::Stands(*hard),
            (Err(why), _) => Wall::None(why_no_limits(why)),
        };
    }

    /// The first reason for which a slice has not all its walls.
    fn missing(&self, container: &ContainerId) -> Option<String> {
        self.known
            .get(container)?
            .lanes
            .iter()
            .find_map(|(gpu, _, wall)| match wall {
                Wall::None(why) => Some(format!("{gpu}: {why}")),
                Wall::Asked => Some(format!("{gpu}: NVML has not answered yet")),
                Wall::Stands(_) => None,
            })
    }

    /// What brings walls to their caps again.
    fn following(&self, container: &ContainerId) -> Vec<Step> {
        let Some(known) = self.known.get(container) else {
            return Vec::new();
        };
        let Some(dir) = self.dir(&known.cgroup) else {
            return Vec::new();
        };
        let off = |(_, cap, wall): &&(GpuUuid, Bytes, Wall)| matches!(wall, Wall::Stands(hard) if *hard != cap.0);
        let lanes = known.lanes.iter().filter(off);
        lanes
            .map(|(gpu, cap, _)| self.step(*gpu, dir.clone(), cap.0, true))
            .collect()
    }

    /// What must be set before the books of this lane may grow to `memory`.
    fn growing(&self, container: &ContainerId, lane: Lane, memory: MemoryAsk) -> Option<Step> {
        let known = self.known.get(container)?;
        let (gpu, cap, wall) = known.lanes.get(usize::from(lane.0))?;
        let MemoryAsk::Exactly(asked) = memory else {
            return None; // what a ratio comes to is the engine's to say; its wall follows
        };
        let grows = matches!(wall, Wall::Stands(hard) if asked.0 > *hard) && asked > *cap;
        grows.then_some(self.step(*gpu, self.dir(&known.cgroup)?, asked.0, false))
    }
}

/// Clears one wall: what it guarantees first.
fn cleared(gpu: GpuUuid, dir: &Dir, cap: u64) -> [Step; 2] {
    let clear = Step {
        gpu: gpu.0,
        dir: dir.clone(),
        soft: 0,
        hard: NO_LIMIT,
        above_used: false,
    };
    let first = Step {
        hard: cap,
        above_used: true,
        ..clear.clone()
    };
    [first, clear]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_engine::LaneRecord;
    use gpuslice_nvabi::types::nvmlReturn_t;
    use gpuslice_wire::policy::{Class, Gangs};
    use gpuslice_wire::text::Name;
    use gpuslice_wire::units::{GIB, Weight};

    const A: GpuUuid = GpuUuid([1; 16]);
    const B: GpuUuid = GpuUuid([2; 16]);

    fn record(cgroup: &str, cap: u64) -> Record {
        let lane = |gpu| LaneRecord {
            gpu,
            cap: Bytes(cap),
            whole: false,
        };
        Record {
            container: ContainerId::new("web").expect("an id"),
            name: Name::new("web").expect("a name"),
            weight: Weight::ONE,
            share: None,
            class: Class::Normal,
            gang: Gangs::Auto,
            lanes: vec![lane(A), lane(B)],
            pinned: None,
            cgroup: CgroupPath::new(cgroup.as_bytes()).unwrap_or(CgroupPath::EMPTY),
        }
    }

    /// A driver that has limits on the first GPU alone.
    fn walls(mode: WallMode, soft: bool) -> Walls {
        let mut walls = Walls::new(mode, soft);
        walls.mount = Some("/cg".into());
        walls.supported([(A, Ok(())), (B, Err("too old".into()))].into());
        walls
    }

    fn step(soft: u64, hard: u64, above_used: bool) -> Step {
        Step {
            gpu: A.0,
            dir: Dir("/cg/pods/web".into()),
            soft,
            hard,
            above_used,
        }
    }

    fn error(answer: nvmlReturn_t) -> NvmlError {
        NvmlError {
            call: "nvmlDeviceSetMemoryLimits_v1".to_owned(),
            answer,
        }
    }

    #[test]
    fn the_wall_is_the_cap_where_the_driver_can_hold_it() {
        let mut walls = walls(WallMode::Auto, false);
        let it = record("/pods/web", GIB);
        assert_eq!(walls.learn(&it, false), [step(0, GIB, false)]);
        assert_eq!(walls.gpus(), [A, B]);
        let level = |walls: &Walls, lane, measured| {
            walls.memory_enforcement(&it.container, Lane(lane), measured)
        };
        assert_eq!(
            level(&walls, 0, true),
            MemoryEnforcement::Accounted,
            "only asked for yet"
        );
        walls.set(&it.container, A, Ok(GIB));
        assert_eq!(level(&walls, 0, false), MemoryEnforcement::Driver);
        assert_eq!(level(&walls, 1, true), MemoryEnforcement::Accounted);
        assert_eq!(level(&walls, 1, false), MemoryEnforcement::Shim);
        assert_eq!(walls.missing(&it.container), Some(format!("{B}: too old")));
        assert_eq!(walls.standing(), [(A, Dir("/cg/pods/web".into()))]);
    }

    #[test]
    fn what_keeps_a_slice_from_having_one_is_said() {
        let missing = |mut walls: Walls, cgroup: &str| {
            let steps = walls.learn(&record(cgroup, GIB), false);
            assert!(steps.is_empty(), "{steps:?}");
            walls
                .missing(&record(cgroup, GIB).container)
                .expect("a reason")
        };
        let off = missing(walls(WallMode::Off, false), "/pods/web");
        assert!(
            off.ends_with("wall = \"off\" in the configuration"),
            "{off}"
        );
        let nowhere = missing(walls(WallMode::Auto, false), "");
        assert!(
            nowhere.ends_with("it has no cgroup of its own"),
            "{nowhere}"
        );
        let mut refused = walls(WallMode::Auto, false);
        let it = record("/pods/web", GIB);
        refused.learn(&it, false);
        refused.set(
            &it.container,
            A,
            Err(error(nvmlReturn_t::ERROR_NO_PERMISSION)),
        );
        let why = refused.missing(&it.container).expect("a reason");
        assert!(why.contains("only root may set"), "{why}");
        assert!(refused.standing().is_empty());
    }

    #[test]
    fn a_guarantee_goes_first_and_then_all() {
        let mut walls = walls(WallMode::Auto, true);
        let it = record("/pods/web", GIB);
        assert_eq!(walls.learn(&it, true), [step(GIB, GIB, true)]);
        let end = [step(0, GIB, true), step(0, NO_LIMIT, false)];
        assert_eq!(walls.clearing(&it), end);
        assert!(walls.clearing(&record("", GIB)).is_empty());
    }

    #[test]
    fn growth_raises_the_wall_before_the_books_and_shrinking_after() {
        let mut walls = walls(WallMode::Auto, false);
        let it = record("/pods/web", GIB);
        walls.learn(&it, false);
        let grow = |walls: &Walls, to| {
            walls.growing(&it.container, Lane(0), MemoryAsk::Exactly(Bytes(to)))
        };
        assert_eq!(grow(&walls, 2 * GIB), None, "it does not stand");
        walls.set(&it.container, A, Ok(GIB));
        assert_eq!(grow(&walls, 2 * GIB), Some(step(0, 2 * GIB, false)));
        assert_eq!(grow(&walls, GIB / 2), None);
        let other = walls.growing(&it.container, Lane(1), MemoryAsk::Exactly(Bytes(2 * GIB)));
        assert_eq!(other, None);
        let ratio = MemoryAsk::Ratio { part: 1, whole: 1 };
        assert_eq!(walls.growing(&it.container, Lane(0), ratio), None);
        assert!(walls.following(&it.container).is_empty());
        // The wall was raised, the books refused: it goes back.
        walls.set(&it.container, A, Ok(2 * GIB));
        assert_eq!(walls.following(&it.container), [step(0, GIB, true)]);
        // It could not go below what is used yet.
        walls.set(&it.container, A, Ok(GIB + 5));
        assert_eq!(walls.following(&it.container), [step(0, GIB, true)]);
        // A limit that was refused leaves the one before in force.
        walls.set(
            &it.container,
            A,
            Err(error(nvmlReturn_t::ERROR_INVALID_ARGUMENT)),
        );
        assert_eq!(
            walls.memory_enforcement(&it.container, Lane(0), true),
            MemoryEnforcement::Driver
        );
    }
}
