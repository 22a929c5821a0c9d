//! Exclusive turns of one GPU, ordered by start-time fair queueing.
//!
//! # Problem
//! A kernel cannot be taken off a GPU, it lasts from 2 µs to seconds, and its length is unknown until it
//! has run. So a scheduler that hands out time in advance cannot keep to it. Over any interval, containers
//! must still get GPU time in proportion to their weights.
//!
//! # Idea
//! Charge afterwards. Every container has a *virtual time* that advances by `used / weight` when it uses
//! the GPU. The container furthest behind goes next:
//! ```text
//! enqueue:        S = max(V, F)         S start tag, F finish tag, V virtual time of the run queue
//! next:           the smallest S        V = its S
//! afterwards:     F = S + used / weight, used measured from the grant until the container has drained
//! ```
//! `used` excludes the overhead of a switch between containers, see [`overhead`]. A turn that ran over
//! needs no special treatment: its F is further ahead, so its container waits longer. The F of an idle
//! container falls behind V, so it starts at V: idling earns no credit.
//!
//! # Bound
//! Two containers i, j of one class are both runnable during an interval of any length. Then
//! `|W_i/w_i - W_j/w_j| <= l_i/w_i + l_j/w_j`, with W the GPU time used in it and l the longest turn including its
//! overrun (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996). The bound needs no prediction of a kernel's
//! length.
//!
//! # A turn
//! ```text
//!          pick                      time is up, not runnable, higher class runnable
//!   Idle ---------> Held (odd turn) ------------------------------------------------> Closing
//!    ^                 |  ^                                                      (even turn)
//!    |                 +--+ still first in its queue: continues with its next turn      |
//!    +------------------------- drained, or after `drain_max` without waiting ----------+
//! ```
//! * **Open**: the mode without turns. It holds while at most one container is runnable and no rule needs
//!   turns (no cap, no containers of several classes, no debt); the runnable container is charged. A second
//!   runnable container ends open mode at once; work launched before drains first, see [`untracked`]. Open
//!   mode returns after `open_after` without contention, see [`mode`]. Under the policy `native` the GPU is
//!   always open, once the last turn has drained.
//! * **Classes**: high goes before normal, and normal before best-effort. A turn is closed when a container
//!   of a higher class becomes runnable. The *starvation guard* gives a lower class a shortest turn, a
//!   *guard turn*, when the class has waited for so long that the classes above keep their part of the
//!   time: see [`starvation`].
//! * **Gangs**: a container with several GPUs takes turns on all of them at once, see [`gang`].
//! * **Overruns**: a container that has not drained after `drain_max` has overrun: others go on, it stays
//!   queued and is charged. It still gets turns, because of launch-dependency deadlocks: its kernel may
//!   wait for a launch that another of its processes holds back at the gate.
//! * **Preemption**: where the driver allows it, late work is stopped on the GPU: see [`preempt`]. Work
//!   that runs beside others' turns nevertheless is time-sliced by the hardware, see [`native`].
//! * **Shares** are reserved: containers with a share queue above those with a weight alone, see
//!   [`queues`]; what each is due beyond its share, and which limits bind, see [`dues`].
//! * **Policies** are caps and weights, see [`policy`]; caps limit which containers are eligible, see
//!   [`bucket`]. A change counts from the next turn on: every lead and every debt stays the same amount of
//!   GPU time.
//!
//! Where each container's wall time went, and behind which others it waited, is in [`time_account`]; no
//! decision depends on it.

pub(crate) mod bucket;
mod dues;
pub(crate) mod entity;
pub(crate) mod gang;
pub(crate) mod gpu;
mod mode;
mod native;
pub(crate) mod overhead;
mod pick;
pub(crate) mod policy;
pub(crate) mod preempt;
mod queues;
pub(crate) mod recording;
mod starvation;
#[cfg(test)]
mod tests;
pub(crate) mod time_account;
pub(crate) mod untracked;
pub(crate) mod waits;

use alloc::vec::Vec;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::units::{Duration, Instant};

use self::bucket::{Bucket, FillLimit};
use self::entity::{Entity, QueueWeight, Report, Virtual};
use self::overhead::SwitchCosts;
use self::policy::{AllSlices, Entitlement, Fraction};
use self::preempt::Preemption;
use self::queues::RunQueues;
use self::starvation::{GuardTurn, StarvationGuards};
use self::time_account::TimeAccount;
use crate::action::{Late, Mode, Stretch};
use crate::config::{ACCOUNT_EVERY, Charged, Config};
use crate::index::ContainerIndex;

/// The state of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No turns.
    Open,
    /// Turns, and no container has one.
    Idle,
    /// `index` may launch until `end`. With `guard` it is a guard turn: a higher class does not end it.
    Held { index: ContainerIndex, end: Instant, guard: Option<GuardTurn> },
    /// `index` may not launch any more, and may have work in flight.
    Closing { index: ContainerIndex, closed: Instant, guard: Option<GuardTurn>, reported: bool },
}

/// A notice or an order of one GPU's turns to the rest of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The container's turn was closed: read its processes.
    Closed(ContainerIndex),
    /// The container drains late.
    Late(ContainerIndex, Late, Duration),
    /// Stop the container's work on the GPU.
    Stop(ContainerIndex),
    /// Let the container's work go on.
    Resume(ContainerIndex),
}

/// The turns of one GPU.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    config: Config,
    policy: Policy,
    pub(crate) entities: Vec<Entity>,
    pub(crate) phase: Phase,
    /// The run queues, per class.
    queues: [RunQueues; 3],
    /// Since when turns are not needed.
    lone: Option<Instant>,
    /// When lower classes may next interrupt higher ones.
    guards: StarvationGuards,
    /// Requests of waiting gangs for this GPU.
    demand: gang::Demand,
    /// The gang for which the GPU is reserved, and before which the present turn fits in.
    fits_before: Option<ContainerIndex>,
    /// The number of the last order to stop a container's work.
    orders: u32,
    /// Turns are recorded.
    is_recording: bool,
    /// Recorded stretches that are still to be told.
    recorded: Vec<(ContainerIndex, Stretch)>,
    /// GPU time charged to containers that have left.
    pub(crate) ended_time: Duration,
    /// Time of the last step.
    now: Instant,
    /// GPU time is charged up to this instant.
    pub(crate) booked: Charged,
}

impl Turns {
    pub(crate) fn new(config: Config, now: Instant, booked: Charged) -> Turns {
        Turns {
            config,
            policy: config.policy,
            entities: Vec::new(),
            phase: Phase::Open,
            queues: [RunQueues::new(now); 3],
            lone: None,
            guards: StarvationGuards::new(&config, now),
            demand: gang::Demand::default(),
            fits_before: None,
            orders: 0,
            is_recording: false,
            recorded: Vec::new(),
            ended_time: Duration(0),
            now,
            booked,
        }
    }

    pub(crate) fn enter(&mut self, index: ContainerIndex, lane: Lane, entitlement: Entitlement) {
        self.entities.push(Entity {
            index,
            lane,
            entitlement,
            weight: QueueWeight::new(1),
            reserved: false,
            surplus_weight: 1,
            due: None,
            class: entitlement.class,
            bucket: Bucket::new(Fraction::ALL, &self.config),
            reported: Report::default(),
            arrives: false,
            guest: false,
            start: Virtual::default(),
            finish: Virtual::default(),
            queued: self.now,
            goes_before: None,
            turn: 0,
            turn_end: Instant(0),
            shown: None,
            granted: Instant(0),
            switch_costs: SwitchCosts::default(),
            overrun: None,
            grace: false,
            untracked: None,
            gang: None,
            preemption: Preemption::None,
            order: 0,
            stop_tries: 0,
            stuck: 0,
            gpu_time: Duration(0),
            compensated: Duration(0),
            runnable_time: Duration(0),
            turns: 0,
            run: Duration(0),
            tail: Duration(0),
            late_turns: 0,
            closed_early: 0,
            stops: 0,
            time: TimeAccount::new(self.now),
            present: None,
            held_back: false,
        });
        self.apply();
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        if !self.policy.rules().turns && policy.rules().turns {
            // time without turns neither earns nor owes
            self.queues.iter_mut().for_each(RunQueues::reset_pools);
            for entity in &mut self.entities {
                let queues = &self.queues[entity.class as usize];
                entity.join(queues.time_of(entity.reserved));
            }
        }
        self.policy = policy;
        self.apply();
    }

    /// Replaces the entitlement of `index`.
    pub(crate) fn retune(&mut self, index: ContainerIndex, entitlement: Entitlement) {
        self.leave_pool(index);
        let queues = self.queues;
        let queue = |it: &Entity| (it.class, it.reserved);
        let was = self.find(index).map(queue);
        if let Some(entity) = self.find_mut(index) {
            if entity.class != entitlement.class {
                entity.class = entitlement.class;
                entity.join(queues[entitlement.class as usize].time_of(entity.reserved));
            }
            entity.entitlement = entitlement;
        }
        self.apply();
        let open = self.phase == Phase::Open;
        if let Some(entity) = self.find_mut(index) {
            entity.bucket.overflow();
            if was != Some(queue(entity)) {
                entity.guest |= !open;
                entity.goes_before = None;
            }
        }
    }

    /// Sets every container's weight and cap from the policy and the entitlements.
    fn apply(&mut self) {
        let all = self.entities.iter().map(|entity| &entity.entitlement);
        let all_slices = AllSlices::of(all, self.config.slots);
        let (policy, queues, config) = (self.policy, self.queues, self.config);
        for entity in &mut self.entities {
            let cap = policy::cap(policy, &entity.entitlement, &all_slices);
            let share = policy::reserved(policy, &entity.entitlement);
            entity.bucket.set(cap, share, &config);
            if !(entity.reserved && entity.reported.runnable) {
                entity.bucket.overflow();
            }
            entity.surplus_weight = policy::weight(policy, &entity.entitlement);
            let reserved = share.is_some();
            // In the upper queue the weight is the due, which `weigh` sets.
            let weight =
                if reserved { entity.weight } else { QueueWeight::new(entity.surplus_weight) };
            let queues = &queues[entity.class as usize];
            entity.reweigh(queues.time_of(entity.reserved), queues.time_of(reserved), weight);
            entity.reserved = reserved;
        }
        self.weigh();
    }

    pub(crate) fn leave(&mut self, index: ContainerIndex) {
        self.leave_pool(index);
        let left = self.find(index).map_or(0, |entity| entity.gpu_time.0);
        self.ended_time = Duration(self.ended_time.0.saturating_add(left));
        self.entities.retain(|entity| entity.index != index);
        self.entities.iter_mut().for_each(|entity| entity.time.waits.forget(index));
        self.apply();
        if self.on_gpu() != Some(index) {
            return;
        }
        if let Phase::Held { guard: Some(began), .. } | Phase::Closing { guard: Some(began), .. } =
            self.phase
        {
            self.guards.over(began, self.now);
        }
        self.phase = Phase::Idle;
    }

    pub(crate) fn find(&self, index: ContainerIndex) -> Option<&Entity> {
        self.entities.iter().find(|entity| entity.index == index)
    }

    fn find_mut(&mut self, index: ContainerIndex) -> Option<&mut Entity> {
        self.entities.iter_mut().find(|entity| entity.index == index)
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.phase == Phase::Open { Mode::Open } else { Mode::Turns }
    }

    /// The container that has the turn, or had it last and may have work in flight.
    fn on_gpu(&self) -> Option<ContainerIndex> {
        match self.phase {
            Phase::Open | Phase::Idle => None,
            Phase::Held { index, .. } | Phase::Closing { index, .. } => Some(index),
        }
    }

    /// Whether time is charged to this container.
    pub(crate) fn charged(&self, entity: &Entity) -> bool {
        let open = self.phase == Phase::Open && entity.reported.runnable;
        let late = entity.overrun.is_some() || entity.untracked.is_some();
        open || late || self.on_gpu() == Some(entity.index)
    }

    /// Charges the time up to `now`, as far as `charged` has advanced.
    pub(crate) fn advance(&mut self, now: Instant, charged: Charged) {
        self.account_time(now, charged);
        let elapsed = charged.since(self.booked);
        let from = self.now;
        (self.now, self.booked) = (self.now.max(now), charged);
        let open = self.phase == Phase::Open;
        let idle = self.phase == Phase::Idle;
        let promised = self.entities.iter().any(|e| e.reserved && e.reported.runnable);
        let busy = Class::ALL.map(|class| promised && self.busy(class));
        for at in 0..self.entities.len() {
            let entity = &self.entities[at];
            let bill = self.charged(entity).then(|| self.bill(entity, elapsed));
            let (kind, gpu_time) = (bill.map(|_| self.kind(entity)), entity.gpu_time);
            let entity = &mut self.entities[at];
            entity.arrives = false;
            let limit = match (entity.reserved, entity.reported.runnable) {
                (true, _) if bill.is_some() => FillLimit::Owed,
                (true, true) if busy[entity.class as usize] => FillLimit::Owed,
                (true, true) => FillLimit::Level,
                _ => FillLimit::Depth,
            };
            let runs = open && entity.reported.runnable;
            if entity.reported.runnable {
                entity.runnable_time = Duration(entity.runnable_time.0.saturating_add(elapsed.0));
            }
            let queues = &mut self.queues[entity.class as usize];
            if let Some(bill) = bill {
                entity.charge(bill);
                queues.charge(entity, bill);
            }
            entity.guest &= bill.is_some();
            if runs {
                // a container that runs alone owes nothing: its start follows its finish
                entity.start = entity.finish;
                queues.follow(entity);
            }
            entity.bucket.fill(elapsed, limit);
            if idle {
                entity.bucket.make_up(elapsed);
            }
            if self.is_recording {
                let charged = Duration(self.entities[at].gpu_time.0 - gpu_time.0);
                self.note_charge(at, from, kind.map(|kind| (kind, charged)));
            }
        }
    }

    /// Whether a container of `class` has the GPU, so that others of the class wait for it.
    fn busy(&self, class: Class) -> bool {
        let mut all = self.entities.iter().filter(|it| it.class == class);
        all.any(|it| {
            let beside = it.overrun.is_some() && self.on_gpu() != Some(it.index);
            self.charged(it) && !beside
        })
    }

    /// Takes in the combined report of a container's processes.
    pub(crate) fn report(&mut self, index: ContainerIndex, mut reported: Report) {
        let waited = Class::ALL.map(|class| self.waits(class));
        let now = self.now;
        let Some(entity) = self.find_mut(index) else {
            return;
        };
        entity.preemption = entity.preemption.with(reported.attached);
        reported.runnable |= entity.preemption.waits();
        let before = core::mem::replace(&mut entity.reported, reported);
        entity.arrives = reported.attached && !before.attached;
        if reported.runnable && !before.runnable {
            self.becomes_runnable(index);
        }
        if reported.runnable != before.runnable {
            self.weigh();
        }
        for (class, waited) in Class::ALL.into_iter().zip(waited) {
            if !waited && self.waits(class) {
                self.guards.later(class, now);
            }
        }
    }

    fn waits(&self, class: Class) -> bool {
        self.entities.iter().any(|entity| entity.class == class && entity.reported.runnable)
    }

    /// Makes all transitions that are due, on a GPU that belongs to no gang.
    pub(crate) fn decide(&mut self, notes: &mut Vec<Note>) {
        self.demand = gang::Demand::default();
        self.look(notes);
        // Closing -> Idle -> Held is the longest path, and one step can take it twice
        for _ in 0..8 {
            let before = self.phase;
            self.settle(notes);
            self.grant();
            if self.phase == before {
                break;
            }
        }
        self.stop_and_resume(notes);
    }

    /// Notes which containers have drained, and whether turns are needed.
    fn look(&mut self, notes: &mut Vec<Note>) {
        self.late_ones(notes);
        self.drain_untracked(notes);
        self.choose_mode(notes);
    }

    /// Ends the turn of a container that is in no gang.
    fn settle(&mut self, notes: &mut Vec<Note>) {
        let on = self.on_gpu().and_then(|index| self.find(index));
        if on.is_some_and(|entity| entity.gang.is_some()) {
            return;
        }
        match self.phase {
            Phase::Open | Phase::Idle => {}
            Phase::Held { index, guard, .. } => self.continue_or_close(index, guard, notes),
            Phase::Closing { .. } => self.drain(notes),
        }
    }

    /// Ends the overruns of containers that have drained.
    fn late_ones(&mut self, notes: &mut Vec<Note>) {
        let now = self.now;
        for at in 0..self.entities.len() {
            let entity = &mut self.entities[at];
            entity.grace = entity.grace_at().is_some_and(|at| now >= at) && !entity.is_off();
            let Some(closed) = entity.overrun else {
                continue;
            };
            if entity.is_off() {
                entity.overrun = None;
                let index = entity.index;
                self.requeue(index);
                notes.push(Note::Late(index, Late::Drained, now.since(closed)));
            }
        }
    }

    fn drain(&mut self, notes: &mut Vec<Note>) {
        let Phase::Closing { index, closed, guard, reported } = self.phase else {
            return;
        };
        let (now, config) = (self.now, self.config);
        let mut all = self.entities.iter_mut();
        let Some(entity) = all.find(|entity| entity.index == index) else {
            self.phase = Phase::Idle;
            return;
        };
        let waited = now.since(closed);
        if entity.is_off() {
            entity.drained_in(waited, config.drain_max);
            let counts = entity.reported.runnable && entity.gang.is_none();
            if let Some(work_span) = entity.reported.work_span.filter(|_| counts) {
                let turn = overhead::Turn { granted: entity.granted, closed, drained: now };
                entity.switch_costs.saw(turn, work_span, Duration(config.turn_min.0 / 2));
            }
            if counts {
                self.compensate(index);
            }
            self.requeue(index);
            self.free(index, guard);
        } else if entity.overrun.is_some() {
            // an overrun container is not waited for again
            self.requeue(index);
            self.free(index, guard);
        } else if waited >= config.drain_max {
            // Its queue position stays where it was before the turn: work it left running may need the next
            // turn to end, and is paid for after that.
            entity.drained_in(waited, config.drain_max);
            self.overran(index, Some(closed));
            self.free(index, guard);
            notes.push(Note::Late(index, Late::Overrun, waited));
        } else if waited >= config.drain && !reported {
            entity.late_turns += 1;
            self.phase = Phase::Closing { index, closed, guard, reported: true };
            notes.push(Note::Late(index, Late::Waiting, waited));
        }
    }

    /// Does not charge `index` for the overhead of a switch. No container used that time: caps are
    /// fractions of the rest, until idle time makes up for it.
    fn compensate(&mut self, index: ContainerIndex) {
        let rivals = self.entities.iter().filter(|e| e.competes());
        let compensation = overhead::compensation(rivals.map(|e| &e.switch_costs));
        let Some(entity) = self.find_mut(index) else {
            return;
        };
        let part = compensation.min(Duration(entity.run.0 / 2));
        let at = entity.class as usize;
        entity.compensate(part);
        if let Some(entity) = self.entities.iter().find(|it| it.index == index) {
            self.queues[at].compensate(entity, part);
        }
        let all = self.entities.iter_mut();
        all.for_each(|entity| entity.bucket.withhold(part));
    }

    /// The GPU is free; `index` had it last.
    fn free(&mut self, index: ContainerIndex, guard: Option<GuardTurn>) {
        self.phase = Phase::Idle;
        match (guard, self.find(index)) {
            (Some(began), _) => self.guards.over(began, self.now),
            (None, Some(entity)) => self.guards.later(entity.class, self.now),
            (None, None) => {}
        }
    }

    fn close(&mut self, index: ContainerIndex, guard: Option<GuardTurn>, notes: &mut Vec<Note>) {
        let now = self.now;
        if let Some(entity) = self.find_mut(index) {
            entity.turn = entity.turn.wrapping_add(1);
            entity.turn_end = now;
            entity.shut();
        }
        self.phase = Phase::Closing { index, closed: now, guard, reported: false };
        notes.push(Note::Closed(index));
    }

    /// The next instant at which a step is due although no event arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let config = &self.config;
        let own = match self.phase {
            Phase::Open | Phase::Idle => None,
            Phase::Held { index, end, guard } => {
                let holder = self.find(index);
                Some(holder.map_or(end, |holder| self.held_until(holder, end, guard)))
            }
            Phase::Closing { index, closed, reported, .. } => {
                let stop = self.stop_at(index, closed);
                self.drained_until(index, reported).into_iter().chain(stop).min()
            }
        };
        let gated = self.phase != Phase::Open;
        // while a turn is being closed, open mode cannot begin
        let closing = matches!(self.phase, Phase::Closing { .. });
        let open =
            self.lone.filter(|_| gated && !closing).map(|since| since.plus(config.open_after));
        let account = self.entities.iter().any(|entity| self.charged(entity));
        let account = account.then(|| self.now.plus(ACCOUNT_EVERY));
        let funds = self.entities.iter().filter_map(|entity| {
            let dry = !entity.bucket.funded();
            let waits = entity.reported.runnable && gated;
            // also before it pays: a bucket fills with charged time, which a long gap between steps shortens
            let paid = || self.now.plus(entity.bucket.pause().min(ACCOUNT_EVERY));
            (dry && waits).then(|| entity.grace_at().unwrap_or_else(paid))
        });
        let due = [own, open, account, self.untracked_until(), self.demand.look]
            .into_iter()
            .flatten()
            .chain(funds)
            .min()?;
        // never the present instant: the step at that instant has already seen it
        Some(due.max(Instant(self.now.0.saturating_add(1))))
    }
}
