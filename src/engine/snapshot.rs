//! The observer's view: the ledgers as rows, brought up to the instant of the query.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::{Class, ClassCaps, Policy};
use gpuslice_wire::snapshot::{MemoryEnforcement, Snapshot, TimeEnforcement};
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, Duration, Instant, Percent, Weight};
use gpuslice_wire::waits::{WaitBehind, WaitCause};

use crate::action::Mode;
use crate::engine::Engine;
use crate::index::ContainerIndex;
use crate::lifecycle::{ClientLane, Container, Slice};
use crate::sched::Turns;
use crate::sched::entity::Entity;

/// A slice with more on its GPU than its cap, by memory that it took without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The container.
    pub container: ContainerId,
    /// The GPU.
    pub gpu: GpuUuid,
    /// All that is charged to it there.
    pub held: Bytes,
    /// The most that it may be granted: its memory cap, or its memory limit above that.
    pub cap: Bytes,
}

/// What a container may have of a GPU's memory, has, and should give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShare {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its memory cap.
    pub cap: Bytes,
    /// Its memory limit; the cap without one.
    pub limit: Bytes,
    /// Held, by its processes' claims within their grants, and untracked memory.
    pub used: Bytes,
    /// What it could be granted now.
    pub free: Bytes,
    /// What it should give back of the memory beyond its cap.
    pub wanted: Bytes,
}

/// One slice's running sums, for a memory of the last minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The container.
    pub container: ContainerId,
    /// Its name for display.
    pub name: Name,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The GPU's policy.
    pub policy: Policy,
    /// What higher classes keep while lower ones wait.
    pub class_caps: ClassCaps,
    /// Its class.
    pub class: Class,
    /// Its share, if it has one.
    pub share: Option<Percent>,
    /// Its weight, none beside a share alone.
    pub weight: Option<Weight>,
    /// The most of the GPU's time that it may have, parts per million.
    pub cap_ppm: u32,
    /// Its memory cap.
    pub cap: Bytes,
    /// Memory held, by its processes' claims within their grants, and untracked memory.
    pub memory: Bytes,
    /// The begin of all sums: its admission, or the daemon's start.
    pub since: Instant,
    /// Whether containers take turns on the GPU; without turns all time with work is charged.
    pub gated: bool,
    /// GPU time charged.
    pub gpu_time: Duration,
    /// Time with work for the GPU.
    pub runnable: Duration,
    /// Wall time with the GPU.
    pub running: Duration,
    /// Wall time of hand-overs.
    pub handover: Duration,
    /// Wall time in which its limit held it back.
    pub limited: Duration,
    /// Wall time in which it waited for its gang.
    pub gang: Duration,
    /// Wall time without work.
    pub idle: Duration,
    /// Suspended.
    pub suspended: Duration,
    /// Wall time of which nothing is known.
    pub absent: Duration,
    /// Wall time behind others by cause, in the order of [`WaitCause::ALL`], ns.
    pub waits: [u64; WaitCause::ALL.len()],
}

/// What a process has of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFigures {
    /// The process.
    pub client: ClientId,
    /// Whether it is connected.
    pub is_connected: bool,
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its number within the container.
    pub lane: Lane,
    /// Granted to it.
    pub granted: Bytes,
    /// Held by its claim, at most what it was granted.
    pub held: Bytes,
    /// What NVML shows for it beyond its grants.
    pub untracked: Bytes,
    /// Launches, by its claim.
    pub launches: u64,
}

impl Engine {
    /// What each process of a container has of each of its GPUs; `None` if the container has no slice.
    #[must_use]
    pub fn processes(&self, container: ContainerId) -> Option<Vec<ProcessFigures>> {
        let slice = self.containers.get(self.containers.find(container)?)?;
        let lanes = |client: ClientId| {
            let it = self.clients.get(client);
            let lanes = (0..).map(Lane).zip(&slice.slices.gpus);
            lanes.filter_map(move |(lane, slice)| {
                let (it, gpu) = (it?, self.gpus[slice.gpu?].uuid);
                let its = it.lanes.get(lane)?;
                Some(ProcessFigures {
                    client,
                    is_connected: it.connected,
                    gpu,
                    lane,
                    granted: its.granted,
                    held: its.held(),
                    untracked: its.untracked(),
                    launches: its.claims.launches,
                })
            })
        };
        Some(slice.clients.iter().copied().flat_map(lanes).collect())
    }

    /// A container's memory, by GPU; nothing if it has no slice.
    #[must_use]
    pub fn memory_of(&self, container: ContainerId) -> Vec<MemoryShare> {
        let of = |index: ContainerIndex, lane: Lane, slice: &Slice| {
            let left = slice.account.left().saturating_sub(slice.withheld);
            // a suspended container needs room on the GPU when it is resumed
            let most = if self.is_away(index) { slice.account.promised() } else { left };
            // where caps add up to more than the GPU has, none is a promise
            let there = match self.config.oversubscribe {
                true => self.free_on(slice.gpu?),
                false => most,
            };
            Some(MemoryShare {
                gpu: self.gpus[slice.gpu?].uuid,
                cap: slice.account.cap(),
                limit: slice.account.limit(),
                used: self.used(index, lane).saturating_add(slice.untracked()),
                free: left.min(most).min(there),
                wanted: slice.wanted,
            })
        };
        let index = self.containers.find(container);
        let found = index.and_then(|index| Some((index, self.containers.get(index)?)));
        let slices = found.into_iter().flat_map(|(index, it)| {
            let lanes = (0..).map(Lane).zip(&it.slices.gpus);
            lanes.filter_map(move |(lane, slice)| of(index, lane, slice))
        });
        slices.collect()
    }

    /// What higher classes keep of a GPU while lower ones wait.
    #[must_use]
    pub fn class_caps(&self) -> ClassCaps {
        self.config.class_caps
    }

    /// The slices that are over their limits by memory beyond all grants. One whose limit was lowered keeps what it
    /// held, and is not among them until it takes more.
    #[must_use]
    pub fn over_caps(&self) -> Vec<Excess> {
        let of = |container: &Container, slice: &Slice| {
            let (held, cap) = (slice.account.reserved(), slice.account.limit());
            let gpu = self.gpus[slice.gpu?].uuid;
            let is_over = held > slice.account.rightful() && slice.untracked() > Bytes::ZERO;
            is_over.then_some(Excess { container: container.record.container, gpu, held, cap })
        };
        let all = self.containers.iter();
        all.flat_map(|(_, it)| it.slices.iter().filter_map(move |(_, slice)| of(it, slice)))
            .collect()
    }

    /// The running sums of all slices at `now`. Changes nothing.
    #[must_use]
    pub fn figures(&self, now: Instant) -> Vec<Figures> {
        let of = |index, container: &Container, (lane, slice): (Lane, &Slice)| {
            let gpu = &self.gpus[slice.gpu?];
            let turns = &gpu.turns;
            let entity = turns.find(index)?;
            let charged_at = self.charged_at(now);
            let elapsed = charged_at.since(turns.booked);
            let account = turns.time_account(entity, now, charged_at);
            let runs = if entity.reported.runnable { elapsed.0 } else { 0 };
            Some(Figures {
                container: container.record.container,
                name: container.record.name,
                gpu: gpu.uuid,
                policy: turns.policy(),
                class_caps: self.config.class_caps,
                class: container.record.class,
                share: container.record.share,
                weight: container.record.shown_weight(),
                cap_ppm: entity.bucket.cap().ppm(),
                cap: slice.account.cap(),
                memory: match self.is_away(index) {
                    true => Bytes::ZERO, // it is on the host
                    false => self.used(index, lane).saturating_add(slice.untracked()),
                },
                since: account.since,
                gated: turns.mode() == Mode::Turns,
                gpu_time: Duration(self.gpu_ns(turns, entity, now)),
                runnable: Duration(entity.runnable_time.0 + runs),
                running: account.running,
                handover: account.handover,
                limited: account.limited,
                gang: account.gang,
                idle: account.idle,
                suspended: account.suspended,
                absent: account.absent,
                waits: account.waits.table().by_cause(),
            })
        };
        let slices = self.containers.iter().flat_map(|(index, container)| {
            let lanes = (0..).map(Lane).zip(&container.slices.gpus);
            lanes.filter_map(move |lane| of(index, container, lane))
        });
        slices.collect()
    }

    /// How long the hardware should let a container run on a GPU while others have work there too, µs;
    /// `None` leaves it to the driver.
    #[must_use]
    pub fn time_slice(&self, id: ContainerId, lane: Lane) -> Option<u64> {
        let index = self.containers.find(id)?;
        let gpu = self.containers.get(index)?.slices.get(lane)?.gpu?;
        self.gpus[gpu].turns.native_slice(index)
    }

    /// The view at `now`: every GPU, every slice and where its time went, and the end. Changes nothing; the
    /// time since the last step is charged as if that step were now.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> Vec<Snapshot> {
        let gpus =
            self.gpus.iter().enumerate().zip(self.capacities()).map(|((at, gpu), capacity)| {
                let slices = self.containers.iter().flat_map(|(_, c)| &c.slices.gpus);
                Snapshot::Gpu {
                    uuid: gpu.uuid,
                    index: gpu.index,
                    total: gpu.total,
                    promised: capacity.promised,
                    slices: slices.filter(|slice| slice.gpu == Some(at)).count() as u32,
                    policy: gpu.turns.policy(),
                    product: Name::EMPTY,
                }
            });
        let slices = self.containers.iter().flat_map(|(index, container)| {
            let lanes = container.slices.gpus.iter().enumerate();
            lanes.filter_map(move |(lane, slice)| {
                let lane = Lane(lane as u8);
                let row = self.slice_row(now, index, container, (lane, slice))?;
                let time = self.time_row(now, index, container.record.container, (lane, slice))?;
                Some([row, time])
            })
        });
        let slices = slices.flatten();
        let suspended = self.suspensions();
        gpus.chain(slices)
            .chain(suspended)
            .chain(self.limits())
            .chain(self.memory_waits())
            .chain([Snapshot::End { now_ns: now.0 }])
            .collect()
    }

    /// Further rows of the view at `now`, for metrics: each GPU's use, and each slice's waits by cause.
    #[must_use]
    pub fn usage(&self, now: Instant) -> Vec<Snapshot> {
        let charged_at = self.charged_at(now);
        let mut rows = Vec::new();
        for gpu in &self.gpus {
            let turns = &gpu.turns;
            let busy = turns.entities.iter().map(|entity| self.gpu_ns(&gpu.turns, entity, now));
            let busy_ns = busy.fold(turns.ended_time.0, u64::saturating_add);
            rows.push(Snapshot::GpuUse { uuid: gpu.uuid, busy_ns });
            rows.extend(turns.entities.iter().filter_map(|entity| {
                let container = self.containers.get(entity.index)?.record.container;
                let by_cause_ns =
                    turns.time_account(entity, now, charged_at).waits.table().by_cause();
                Some(Snapshot::SliceWaits { container, gpu: gpu.uuid, by_cause_ns })
            }));
        }
        rows
    }

    /// GPU time charged to `entity` up to `now`, ns.
    fn gpu_ns(&self, turns: &Turns, entity: &Entity, now: Instant) -> u64 {
        let elapsed = self.charged_at(now).since(turns.booked);
        let unbooked = match turns.charged(entity) {
            true => entity.billed(turns.bill(entity, elapsed)).0,
            false => 0,
        };
        entity.gpu_time.0 + unbooked
    }

    /// Where the slice's wall time went.
    fn time_row(
        &self,
        now: Instant,
        index: ContainerIndex,
        container: ContainerId,
        (lane, slice): (Lane, &Slice),
    ) -> Option<Snapshot> {
        let gpu = &self.gpus[slice.gpu?];
        let turns = &gpu.turns;
        let account = turns.time_account(turns.find(index)?, now, self.charged_at(now));
        let (largest, others) = account.waits.table().largest();
        let behind = largest.map(|wait| {
            let shown = wait.and_then(|wait| {
                let container = self.containers.get(wait.behind)?.record.container;
                Some(WaitBehind {
                    container: Some(container),
                    total_ns: wait.total().0,
                    longest_ns: wait.longest.0,
                    cause: wait.cause,
                    by_cause_ns: wait.by_cause,
                })
            });
            shown.unwrap_or_default()
        });
        Some(Snapshot::SliceTime {
            container,
            gpu: gpu.uuid,
            lane,
            since_ns: account.since.0,
            running_ns: account.running.0,
            waiting_ns: account.waiting().0,
            handover_ns: account.handover.0,
            limited_ns: account.limited.0,
            gang_ns: account.gang.0,
            idle_ns: account.idle.0,
            suspended_ns: account.suspended.0,
            absent_ns: account.absent.0,
            behind,
            others_ns: others.0,
        })
    }

    fn slice_row(
        &self,
        now: Instant,
        index: ContainerIndex,
        container: &Container,
        (lane, slice): (Lane, &Slice),
    ) -> Option<Snapshot> {
        let gpu = &self.gpus[slice.gpu?];
        let entity = gpu.turns.find(index)?;
        let elapsed = self.charged_at(now).since(gpu.turns.booked).0;
        let charged = gpu.turns.charged(entity);
        let sum = |f: fn(&ClientLane) -> u64, past: u64| {
            self.lanes_of(index, lane).fold(past, |sum, lane| sum.saturating_add(f(lane)))
        };
        let account = gpu.turns.time_account(entity, now, self.charged_at(now));
        // Its ledger is of memory on the host then.
        let [used, untracked] = match self.is_away(index) {
            true => [Bytes::ZERO, slice.left_behind.charged()],
            false => [self.used(index, lane), slice.untracked()],
        };
        Some(Snapshot::Slice {
            container: container.record.container,
            name: container.record.name,
            gpu: gpu.uuid,
            lane,
            cap: slice.account.cap(),
            reserved: slice.account.reserved(),
            used,
            peak: slice.peak,
            denied: sum(ClientLane::denied, slice.past_denied),
            denied_need: slice.last_denied.need,
            denied_left: slice.last_denied.left,
            denied_credit: slice.last_denied.others,
            denied_at_ns: slice.last_denied.at.0,
            untracked,
            pinned: self.used(index, Lane::HOST),
            pinned_cap: container.record.pinned,
            memory_enforcement: MemoryEnforcement::Shim,
            weight: container.record.shown_weight(),
            share: container.record.share,
            share_limit: container.record.share_limit,
            class: container.record.class,
            cap_ppm: entity.bucket.cap().ppm(),
            clients: self.clients_of(index).filter(|it| it.connected).count() as u32,
            runnable: u32::from(entity.reported.runnable),
            holds: u32::from(charged && entity.reported.runnable),
            gated: u32::from(gpu.turns.mode() == Mode::Turns),
            gang: u32::from(entity.gang.is_some()),
            gpu_ns: self.gpu_ns(&gpu.turns, entity, now),
            wait_ns: account.waited().0,
            runnable_ns: entity.runnable_time.0
                + if entity.reported.runnable { elapsed } else { 0 },
            turns: entity.turns,
            late_turns: entity.late_turns,
            closed_early: entity.closed_early,
            time_enforcement: TimeEnforcement::Shim,
            stops: entity.stops,
            stops_missed: 0,
            time_slice_us: 0,
            time_slice_changes: 0,
            launches: sum(|lane| lane.claims.launches, slice.past_launches),
        })
    }
}
