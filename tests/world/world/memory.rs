//! Memory in the world: processes allocate, are short, are recalled; the driver is measured; an
//! administrator changes caps.

use gpuslice_engine::{Event, FIGURE_AGE, HOLD, LaneView};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::units::{Bytes, GIB, Instant};
use std::collections::BTreeMap;

use super::{Happening, Letter, MS, US, World};
use crate::purse::Want;

/// What the driver has of a device for itself.
const OWN: u64 = GIB / 4;

impl World {
    /// A process allocates or frees.
    pub(super) fn memory(&mut self, who: usize) {
        if !self.acts(who, Happening::Memory(who)) {
            if self.processes[who].alive && self.processes[who].client.is_none() {
                self.after(50 * MS, Happening::Memory(who));
            }
            return;
        }
        let at = self.rng.below(self.processes[who].purses.len() as u64) as usize;
        let lane = self.processes[who].lane_of(at);
        if self.mood.trouble && self.rng.per_mille(3) {
            let granted = self.processes[who].purses[at].granted;
            self.processes[who].broke = true;
            self.post(who, Letter::Release(who, lane, granted + (1 << 50), None));
        } else {
            let wants = match self.is_frozen(&self.processes[who].container) {
                true => self.processes[who].purses[at].ask(&mut self.rng),
                false => {
                    let size = self.appetite();
                    self.processes[who].purses[at].spend(size, &mut self.rng)
                }
            };
            match wants {
                Want::Nothing => {}
                Want::Reserve { need, wish } => {
                    self.post(who, Letter::Reserve(who, lane, need, wish));
                }
                Want::Release(bytes) => self.post(who, Letter::Release(who, lane, bytes, None)),
            }
        }
        let often = if self.mood.limits { 400 } else { 700 };
        let gap = if self.rng.per_mille(often) { 50 * US } else { 500 * MS };
        let delay = self.rng.below(gap);
        self.after(delay, Happening::Memory(who));
    }

    /// A container's page shows another recall: its processes will answer, mostly soon.
    pub(super) fn recalled(&mut self, container: ContainerId, lane: Lane, view: &LaneView) {
        if self.mood.fate && self.rng.per_mille(30) {
            self.change_cap(container, lane);
        }
        for who in 0..self.processes.len() {
            let process = &self.processes[who];
            if !process.alive || process.container != container || process.client.is_none() {
                continue;
            }
            let delay = match self.rng.below(100) {
                0..3 if self.mood.trouble => continue,
                3..6 if self.mood.trouble => self.rng.range(50 * MS, 300 * MS),
                _ => self.rng.below(2 * MS),
            };
            self.after(delay, Happening::Yield(who, lane, view.recall));
        }
    }

    /// A process answers a recall.
    pub(super) fn give(&mut self, who: usize, lane: Lane, number: u32) {
        if !self.acts(who, Happening::Yield(who, lane, number)) {
            return;
        }
        let at = self.processes[who].account_of(lane);
        let purse = &mut self.processes[who].purses[at];
        if purse.asks.is_some() {
            return; // its connection is busy: the request is its answer
        }
        let unused = purse.unused();
        let (bytes, number) = match self.rng.below(100) {
            0 if self.mood.trouble => (unused / 2, number),
            1 if self.mood.trouble => (unused, self.rng.draw() as u32),
            2 if self.mood.trouble => {
                self.post(who, Letter::Release(who, lane, 0, Some(number)));
                (unused, number)
            }
            3 if self.mood.trouble && self.rng.per_mille(100) => {
                self.processes[who].broke = true;
                let granted = self.processes[who].purses[at].granted;
                let bytes = granted + self.rng.range(1, 1 << 50);
                return self.post(who, Letter::Release(who, lane, bytes, Some(number)));
            }
            _ => (unused, number),
        };
        self.processes[who].purses[at].granted -= bytes;
        self.post(who, Letter::Release(who, lane, bytes, Some(number)));
    }

    /// Measures the driver: one process, or a container's unattached processes, or all of its processes.
    pub(super) fn look_at_driver(&mut self) {
        let living: Vec<usize> =
            (0..self.processes.len()).filter(|&who| self.processes[who].client.is_some()).collect();
        if living.is_empty() {
            return;
        }
        let who = self.rng.pick(&living);
        for at in 0..self.processes[who].work.len() {
            self.deliver(Letter::Read(who, at));
            self.deliver(Letter::Measured(who, Lane(at as u8)));
        }
        let (gpu, _) = self.rng.pick(&self.gpus);
        self.deliver(Letter::Device(gpu));
        let container = self.processes[who].container;
        let lanes = self.processes[who].work.len() as u64;
        let lane = Lane(self.rng.below(lanes) as u8);
        let used = match self.rng.below(4) {
            0 => self.rng.magnitude(1, GIB),
            _ => 0,
        };
        self.deliver(Letter::Looking(container, lane));
        self.deliver(Letter::Unattributed(container, lane, used));
        // NVML answers at once, or late, or never.
        let answer = Happening::Letter(self.daemon.life, Letter::Looked(container, lane));
        match self.rng.below(4) {
            0 => {}
            1 => {
                let delay = self.rng.below(3 * HOLD.0 / 2);
                self.after(delay, answer);
            }
            _ => self.after(0, answer),
        }
    }

    /// The daemon measures all processes of a container; returns the last event of it.
    pub(super) fn look_at(&mut self, container: ContainerId, lane: Lane) -> Event {
        for who in 0..self.processes.len() {
            let process = &self.processes[who];
            let of_it = |_: &ClientId| process.container == container;
            let Some(client) = process.client.filter(of_it) else {
                continue;
            };
            if !self.clients.contains_key(&client) {
                continue; // of a former container of this name, perhaps with fewer GPUs
            }
            let mut used = Bytes(self.driver_shows(who, lane));
            if self.mood.trouble && self.rng.per_mille(200) {
                used = Bytes(used.0.saturating_add(self.rng.magnitude(1, GIB)));
            }
            self.step(Event::Measured { client, lane, used, requested: false });
        }
        Event::Looked { container, lane }
    }

    /// The driver's figure for a process.
    pub(super) fn driver_shows(&mut self, who: usize, lane: Lane) -> u64 {
        if self.mood.trouble && self.rng.per_mille(5) {
            return self.rng.draw();
        }
        let process = &self.processes[who];
        let at = usize::from(lane.0);
        if at >= process.work.len() {
            return 0; // it is older than its container's present slice, and knows fewer GPUs
        }
        if process.on_host {
            return 0;
        }
        let purse = &process.purses[at];
        purse.used - purse.unseen + purse.beyond
    }

    /// The main check: by the device's own account, the memory that processes of a container requested never exceeds
    /// its cap, whether they have a connection or not, with that of ended ones until the driver has freed it.
    pub(super) fn check_device(&self) {
        // An id is long: a copy costs more than the sum.
        let mut holds: BTreeMap<(&ContainerId, Lane), u128> = BTreeMap::new();
        for process in self.processes.iter().filter(|it| it.alive) {
            for (at, purse) in process.purses.iter().enumerate() {
                let key = (&process.container, process.lane_of(at));
                *holds.entry(key).or_default() += u128::from(purse.used);
            }
        }
        for it in self.unfreed.iter().filter(|it| self.now < it.until) {
            if let Some((container, lane)) = &it.key {
                *holds.entry((container, *lane)).or_default() += u128::from(it.bytes);
            }
        }
        self.check_whole_device(&holds);
        for ((container, lane), held) in holds {
            if let Some(cap) = self.checkers.strict_limit(&(*container, lane))
                && held > u128::from(cap)
            {
                let what = format!("the device holds {held} for {container} {lane:?} of {cap}");
                self.checkers.object(&what);
            }
        }
    }

    /// The administrator changes a cap of a container.
    pub(super) fn change_some_cap(&mut self, container: ContainerId) {
        let lanes = self.records.get(&container).map_or(1, |it| it.lanes.len());
        let lane = match self.rng.below(lanes as u64 + 2) {
            at if at < lanes as u64 => Lane(at as u8),
            at if at == lanes as u64 => Lane::HOST,
            _ => Lane(self.rng.below(20) as u8),
        };
        self.change_cap(container, lane);
    }

    /// The administrator changes a cap, mostly to about what is in use.
    fn change_cap(&mut self, container: ContainerId, lane: Lane) {
        let shown = self.pages.get(&(container, usize::from(lane.0)));
        let about = shown.map_or(GIB, |view| view.reserved.0);
        let memory = match self.rng.below(10) {
            0 => MemoryAsk::Ratio {
                part: self.rng.below(4) as u32,
                whole: self.rng.below(16) as u32,
            },
            1 => MemoryAsk::Exactly(Bytes(self.rng.draw() >> self.rng.below(64))),
            _ => MemoryAsk::Exactly(Bytes(self.rng.range(about / 2, about + 2 * GIB))),
        };
        self.deliver(Letter::Resize(container, lane, WantedMemory(memory)));
    }
}

/// Memory of an ended process that the driver has not freed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfreed {
    /// The account whose process ended; `None` if the container has ended, too.
    key: Option<(ContainerId, Lane)>,
    /// That container had more by an exception, such as a cap that was lowered: no other one may rely on it.
    excepted: bool,
    gpu: GpuUuid,
    bytes: u64,
    since: u64,
    until: u64,
}

impl World {
    /// A process has ended: the driver frees its memory within some seconds.
    pub(super) fn free_later(&mut self, who: usize) {
        let container = self.processes[who].container;
        // what is on the host is free with its process
        let sees = self.config.sees_devices && !self.processes[who].on_host;
        let Some(record) = self.records.get(&container).filter(|_| sees) else {
            return;
        };
        let lanes = (0u8..).zip(&record.lanes).zip(&self.processes[who].purses);
        for ((lane, promised), purse) in lanes {
            let (key, gpu) = (Some((container, Lane(lane))), promised.gpu);
            let until = self.now + self.rng.below(3_000 * MS);
            let (excepted, bytes, since) = (false, purse.used, self.now);
            self.unfreed.push(Unfreed { key, excepted, gpu, bytes, since, until });
            if bytes > 0 {
                self.checkers.meets("memory of an ended process");
            }
        }
    }

    /// A container is about to be dismissed: its processes have ended.
    pub(super) fn leave_memory(&mut self, container: ContainerId) {
        for who in 0..self.processes.len() {
            if self.processes[who].alive && self.processes[who].container == container {
                self.processes[who].alive = false;
                self.free_later(who);
            }
        }
        for it in &mut self.unfreed {
            if let Some(key) = it.key.take_if(|(id, _)| *id == container) {
                it.excepted = self.checkers.strict_limit(&key).is_none();
                if it.bytes > 0 && !it.excepted {
                    self.checkers.meets("memory of an ended container");
                }
            }
        }
    }

    /// NVML shows what is in use on a device beside processes that live: the driver's own, and unfreed memory. It may
    /// be late, and show what was; and one of two looks may explain too much, since figures are not of one instant.
    pub(super) fn device_shows(&mut self, gpu: GpuUuid) -> Event {
        let now = self.now;
        self.unfreed.retain(|it| now < it.until + FIGURE_AGE.0);
        let shown = now.saturating_sub(self.rng.below(FIGURE_AGE.0));
        let unfreed = self.unfreed.iter().filter(|it| it.gpu == gpu);
        let unfreed = unfreed.filter(|it| it.since <= shown && shown < it.until);
        let mut beside = OWN + unfreed.map(|it| it.bytes).sum::<u64>();
        if !self.unlucky.remove(&gpu) && self.rng.per_mille(200) {
            beside = self.rng.below(beside);
            self.unlucky.insert(gpu);
        }
        let beside = Bytes(beside);
        Event::DeviceLooked { gpu, asked: Instant(now), least: beside, most: beside }
    }

    /// On a device all of whose promises fit, what is promised is there: living processes and those whose memory is
    /// not freed never have more than it has, nor could have more beside what ended containers left. What an account
    /// has above its cap by an exception is no part of this.
    fn check_whole_device(&self, holds: &BTreeMap<(&ContainerId, Lane), u128>) {
        let mut on_host: BTreeMap<(&ContainerId, Lane), u128> = BTreeMap::new();
        for process in self.processes.iter().filter(|it| it.alive && it.on_host) {
            for (at, purse) in process.purses.iter().enumerate() {
                let key = (&process.container, process.lane_of(at));
                *on_host.entry(key).or_default() += u128::from(purse.used);
            }
        }
        let here = |(id, lane): &(&ContainerId, Lane), cap: u128| {
            let all = holds.get(&(*id, *lane)).copied().unwrap_or(0);
            let here = all - on_host.get(&(*id, *lane)).copied().unwrap_or(0);
            let excepted = self.checkers.strict_limit(&(**id, *lane)).is_none();
            if excepted { here.min(cap) } else { here }
        };
        for &(gpu, total) in &self.gpus {
            let on = self.records.values().filter_map(|record| {
                let lane = record.lanes.iter().position(|lane| lane.gpu == gpu)?;
                let key = (&record.container, Lane(lane as u8));
                Some((key, self.checkers.promise(&(*key.0, key.1)).map(u128::from)))
            });
            let on: Vec<_> = on.collect();
            let promised: Option<u128> = on.iter().map(|(_, cap)| *cap).sum();
            if promised.is_none_or(|promised| promised > u128::from(total.0)) {
                continue;
            }
            // nothing is kept for any container where more may be promised than there is
            let left = self.unfreed.iter().filter(|_| !self.config.oversubscribe);
            let left = left.filter(|it| it.gpu == gpu && it.key.is_none() && self.now < it.until);
            let left: u128 = left.filter(|it| !it.excepted).map(|it| u128::from(it.bytes)).sum();
            let held = left + on.iter().map(|(key, cap)| here(key, cap.unwrap_or(0))).sum::<u128>();
            // What is charged for ended processes is closed to living ones; a cap may be lowered below that.
            let open = |((id, lane), cap): &((&ContainerId, Lane), Option<u128>)| {
                let closed = self.checkers.charged_for_ended(&(**id, *lane));
                cap.unwrap_or(0).cast_signed() - closed.cast_signed()
            };
            let open = on.iter().map(open).sum::<i128>() + left.cast_signed();
            // Memory that an ended container had borrowed is promised to others: their claims wait until it is free.
            let judged = left > 0 && !self.mood.limits;
            if held > u128::from(total.0) || judged && open > i128::from(total.0) {
                let what = format!("{gpu} holds {held}, and may hold {open}, of {total:?}");
                self.checkers.object(&what);
            }
        }
    }
}

/// A requested cap, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedMemory(pub(super) MemoryAsk);

impl WantedMemory {
    fn key(self) -> (u64, u32, u32) {
        match self.0 {
            MemoryAsk::Exactly(bytes) => (bytes.0, 0, 0),
            MemoryAsk::Ratio { part, whole } => (0, part, whole),
        }
    }
}

impl PartialOrd for WantedMemory {
    fn partial_cmp(&self, other: &WantedMemory) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WantedMemory {
    fn cmp(&self, other: &WantedMemory) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
