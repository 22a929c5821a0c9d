//! Random events: admissions, crashes, clock jumps.

use std::cmp::Reverse;

use gpuslice_engine::{Event, FREED_WITHIN, Record, SliceRequest, Token};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane, NvmlIndex};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::text::{CgroupPath, Name};
use gpuslice_wire::units::{Bytes, GIB, Instant, Percent, Weight};

use super::{Happening, Letter, MS, Mood, World, container};

/// How often a container is of each class.
pub(super) const CLASSES: [Class; 8] = [
    Class::High,
    Class::Normal,
    Class::Normal,
    Class::Normal,
    Class::Normal,
    Class::Normal,
    Class::Normal,
    Class::BestEffort,
];

impl World {
    pub(super) fn ask(&mut self, n: u64) -> SliceRequest {
        let list = |entries: &[u32]| {
            let mut list = [None; 16];
            for (slot, n) in list.iter_mut().zip(entries) {
                *slot = Some(GpuRef::Index(NvmlIndex(*n)));
            }
            GpuSelector::List(list)
        };
        let gpus = match self.rng.below(8) {
            0 => GpuSelector::All,
            1 => list(&[0]),
            2 => list(&[1, 0]),
            3 => list(&[7]),
            _ => GpuSelector::Any,
        };
        let memory = match self.rng.below(10) {
            0 => MemoryAsk::Ratio { part: self.rng.below(4) as u32, whole: 16 },
            1 => MemoryAsk::Exactly(Bytes(self.rng.below(64) * GIB)),
            _ => MemoryAsk::Exactly(Bytes(self.rng.range(1, 3 * GIB))),
        };
        // large promises on a GPU are what loans are in the way of
        let large = self.mood.limits && self.rng.per_mille(400);
        let large = large.then(|| self.rng.range(2, 6) * GIB);
        let memory = large.map_or(memory, |cap| MemoryAsk::Exactly(Bytes(cap)));
        let weight = Weight::new(self.rng.magnitude(1, 1000) as u32).ok();
        let weight = weight.filter(|_| !self.rng.per_mille(300));
        let share = self.rng.per_mille(150).then(|| self.rng.range(1, 60) as u32);
        let share = share.filter(|_| !self.mood.few);
        let limit = match share {
            Some(share) => match self.rng.below(4) {
                0 => Some(share),
                1 => Some(self.rng.range(u64::from(share), 100) as u32),
                _ => None,
            },
            None => self.rng.per_mille(60).then(|| self.rng.range(1, 100) as u32),
        };
        let limit = limit.filter(|_| !self.mood.few);
        let class = self.rng.pick(&CLASSES);
        let pinned = self.rng.per_mille(500);
        let twin = self.rng.per_mille(30);
        let apart = self.rng.per_mille(200);
        let memory_limit = self.some_limit();
        SliceRequest {
            container: container(if twin { n.saturating_sub(1) } else { n }),
            name: Name::EMPTY,
            gpus,
            whole: None,
            memory,
            memory_limit,
            weight,
            share: share.and_then(|share| Percent::new(share).ok()),
            share_limit: limit.and_then(|limit| Percent::new(limit).ok()),
            class: if self.mood.few { Class::Normal } else { class },
            gang: Gangs::ALL[usize::from(apart)],
            pinned: pinned.then(|| Bytes(self.rng.range(0, 4 * GIB))),
            bounds: None,
            cgroup: CgroupPath::EMPTY,
        }
    }

    /// Admits a container of known properties.
    ///
    /// # Panics
    /// If the engine refuses it.
    pub fn admit(&mut self, ask: SliceRequest) {
        self.step(Event::Admit { token: Token(0), ask: ask.into() });
        self.perform();
        assert!(self.records.contains_key(&ask.container), "{ask:?} was refused");
    }

    /// Gives the engine this event now.
    pub fn tell(&mut self, event: Event) {
        self.step(event);
        self.perform();
    }

    pub(super) fn fate(&mut self) {
        let living: Vec<usize> =
            (0..self.processes.len()).filter(|&who| self.processes[who].alive).collect();
        let known: Vec<ContainerId> = self.records.keys().copied().collect();
        let Mood { trouble, few, .. } = self.mood;
        let (most, living_max) = if few { (3, 4) } else { (8, 20) };
        match self.rng.below(100) {
            0..25 if known.len() < most => {
                self.named += 1;
                self.deliver(Letter::Admin(self.named));
            }
            25..50 if living.len() < living_max && !known.is_empty() => {
                let container = self.rng.pick(&known);
                self.spawn(container);
            }
            50..55 if !known.is_empty() => {
                let container = self.rng.pick(&known);
                self.deliver(Letter::Dismiss(container));
            }
            55..65 if trouble && !living.is_empty() => {
                let who = self.rng.pick(&living);
                self.crash(who);
            }
            65..74 if trouble && !living.is_empty() => {
                let who = self.rng.pick(&living);
                self.processes[who].stalled = self.now + self.rng.magnitude(MS, 3_000 * MS);
            }
            77..87 => self.look_at_driver(),
            87..92 if !known.is_empty() => {
                let container = self.rng.pick(&known);
                self.change_some_cap(container);
            }
            92..96 if !few => self.change_policy(),
            96..100 if !few && !known.is_empty() => {
                let container = self.rng.pick(&known);
                self.retune(container);
            }
            74 if trouble && !living.is_empty() => {
                let who = self.rng.pick(&living);
                self.lose(who);
            }
            75 if trouble && self.daemon.up => self.stop_daemon(),
            76 if trouble => self.now += self.rng.magnitude(MS, 20_000 * MS),
            _ => {}
        }
        if self.mood.limits {
            self.administer_limits();
            self.act_outside();
        }
        if self.rng.per_mille(300) {
            let known: Vec<ClientId> = self.clients.keys().copied().collect();
            known.into_iter().for_each(|client| self.write_down(client));
        }
        let gap = self.rng.magnitude(MS, 100 * MS);
        self.after(gap, Happening::Fate);
    }

    /// The daemon dies; messages to and from it are lost. Processes connect again by themselves.
    pub(super) fn stop_daemon(&mut self) {
        self.daemon.up = false;
        self.daemon.life += 1;
        self.clients.clear();
        self.cut_moves();
        let pause = self.rng.magnitude(MS, 2_000 * MS);
        for who in 0..self.processes.len() {
            (self.processes[who].client, self.processes[who].account) = (None, None);
            for purse in &mut self.processes[who].purses {
                purse.asks = None;
            }
            for work in &mut self.processes[who].work {
                (work.entering, work.followed) = (false, false);
            }
            if self.processes[who].asked > 0 {
                let delay = pause + self.rng.range(10 * MS, 500 * MS);
                self.after(delay, Happening::Connect(who));
            }
        }
        self.after(pause, Happening::Restart);
    }

    /// NVML shows nothing of any process.
    fn no_strangers(&mut self) {
        let records: Vec<Record> = self.records.values().cloned().collect();
        for record in records {
            for (lane, _) in (0u8..).zip(&record.lanes) {
                // what an earlier daemon had charged of processes that are gone, too
                let (container, lane) = (record.container, Lane(lane));
                self.step(Event::Looked { container, lane });
                self.step(Event::Unattributed { container, lane, used: Bytes::ZERO });
            }
        }
        self.perform();
    }

    /// Ends all processes and containers; then nothing may be left.
    pub fn end(&mut self) {
        self.mood.fate = false;
        self.queue.retain(|Reverse((_, _, what))| !matches!(what, Happening::Fate));
        if !self.daemon.up {
            self.run_until(self.now + 3_000 * MS);
        }
        for who in 0..self.processes.len() {
            self.crash(who);
        }
        self.run_until(self.now + FREED_WITHIN.0 + 1_000 * MS);
        self.no_strangers();
        self.checkers.no_process_left(&self.daemon.engine.snapshot(Instant(self.now)));
        for container in self.records.keys().copied().collect::<Vec<_>>() {
            self.deliver(Letter::Dismiss(container));
        }
        self.run_until(self.now + 5_000 * MS);
        self.checkers.nothing_left(&self.daemon.engine.snapshot(Instant(self.now)));
    }
}
