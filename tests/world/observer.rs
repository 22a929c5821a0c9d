//! The engine's behaviour as seen from outside: events and actions.
//!
//! The observer derives its own state from events and actions alone, in particular which container is *on*
//! a GPU and must be charged. That is a runnable container in open mode, the holder of a turn, and the last
//! holder until every process, read after the close, has nothing in flight.

mod compensated;
mod parts;
mod preemption;

use std::collections::BTreeMap;

use gpuslice_engine::{Action, Claims, Config, Event, LaneView, Late, Mode, Record};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::{Gangs, Policy};
use gpuslice_wire::snapshot::SuspensionState;

use compensated::Idle;
pub use preemption::Preemption;

/// One process's reports on one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reported {
    /// Its claims, as last read.
    pub claims: Claims,
    /// Read since the container's turn was closed.
    pub fresh: bool,
    /// It has been runnable before.
    pub was_runnable: bool,
    /// It was attached when its container's work was last ordered to stop.
    pub reached: bool,
}

/// A container on a GPU.
#[derive(Clone, Debug)]
pub struct LaneState {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The promise.
    pub record: Record,
    /// The content of its page.
    pub view: Option<LaneView>,
    /// Its processes.
    pub processes: BTreeMap<ClientId, Reported>,
    /// Since when its turn is closed, while it has not drained.
    pub closing: Option<u64>,
    /// It was closing, or had overrun, before this step.
    shut_before: bool,
    /// When its page was last closed: later than `closing`, if the closed turn was an extension of a gang's
    /// turn.
    pub shut: u64,
    /// Untracked work of it may be in flight.
    pub untracked: bool,
    /// The same, when its present turn began.
    pub was_untracked: bool,
    /// Its present turn began before it had a cap; or others run beside work that began so, or in open
    /// mode.
    pub freely: bool,
    /// Since when that is so, if its turn was extended after that.
    pub again: Option<u64>,
    /// Its present turn was granted in another queue: its class or share changed since.
    pub guest: bool,
    /// Whether its work is stopped on the GPU.
    pub preemption: Preemption,
    /// The number of the last order to stop it.
    pub order: u32,
    /// Others may run beside it.
    pub overrun: bool,
    /// When its turn was granted.
    pub granted: u64,
    /// GPU time charged to it, ns.
    pub used: u64,
    /// The part to subtract from its next charges, as compensation.
    off: u64,
    /// GPU time charged since the step before.
    pub billed: u64,
    /// The part of it, from an earlier turn, that the queue does not count: for this step, and for the next
    /// one.
    pub compensated: u64,
    compensating: u64,
    /// GPU time since it was last granted a turn, or an extension of one.
    run: u64,
    idle: Idle,
    /// How often `used` was divided among several containers, and rounded.
    pub rounded: u64,
    /// The part of `used` in the present turn, or since its last extension.
    pub stretch: u64,
    /// The `stretch` before that.
    pub last: u64,
    /// The longest `stretch` so far.
    pub longest: u64,
    /// How long it took to drain after a turn, lately: the longest, halved each time, ns.
    pub tail: u64,
    /// Turns in a row after which it drained because its work was stopped.
    pub stopped_turns: u32,
    /// Since when it is runnable without being on the GPU.
    pub waits: Option<u64>,
    /// Its cap on the GPU's time, as a fraction.
    pub cap: (u64, u64),
    /// Its weight in the queue.
    pub weight: u64,
    /// Its guaranteed share, in percent; 0 if it has none.
    pub share: u64,
    /// Its weight for the time that shares leave; 0 for none.
    pub surplus: u64,
    /// The policy is `native`: no turns on this GPU.
    pub native: bool,
    /// How often weight or class changed.
    pub tuned: u64,
    /// It takes its turns together with the container's other GPUs,
    pub gang: bool,
    /// of which one is runnable.
    pub drawn: bool,
    /// Its container is suspended, or on the way to or from it.
    pub suspended: Option<SuspensionState>,
    /// Its memory was on the host when this step began: nothing of it runs.
    was_away: bool,
}

impl LaneState {
    /// It is capped.
    #[must_use]
    pub fn capped(&self) -> bool {
        self.cap.0 < self.cap.1
    }
    /// A process of it has work, on this GPU or another one of its gang.
    #[must_use]
    pub fn runnable(&self) -> bool {
        let stopped = matches!(self.preemption, Preemption::Stopped | Preemption::Resuming);
        stopped || self.drawn || self.asks()
    }
    /// The same on this GPU alone.
    fn asks(&self) -> bool {
        self.suspended.is_none() && self.processes.values().any(|reported| reported.claims.runnable)
    }
    /// It holds a turn.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.view.is_some_and(|view| view.mode == Mode::Turns && view.turn % 2 == 1)
    }
    /// It waits for a turn and could have one: work it left running is not waited for.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.runnable() && (self.closing.is_none() || self.overrun)
    }
    /// It is in open mode.
    #[must_use]
    pub fn open(&self) -> bool {
        self.view.is_some_and(|view| view.mode == Mode::Open)
    }
    /// Time is charged to it.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.holds() || self.closing.is_some() || self.overrun || (self.open() && self.runnable())
    }
    /// Its time is divided among all containers that run without turns.
    fn shares(&self) -> bool {
        self.untracked || (self.open() && self.runnable())
    }
    /// The present stretch was of untracked work. The container was not chosen from a queue for this: the
    /// debt of its last stretch stays.
    fn adds_to_last(&mut self) {
        self.stretch += self.last;
        self.longest = self.longest.max(self.stretch);
    }
    /// The present stretch ends.
    fn rest(&mut self) {
        if self.stretch > 0 {
            (self.last, self.stretch) = (self.stretch, 0);
        }
    }
    /// Idle time of its turn until now, by the claims of its processes that took part: before the first
    /// launch, and after the last one drained.
    fn idled(&self, closed: u64, now: u64) -> Option<u64> {
        let turn = self.view?.turn;
        let reported = self.processes.values().map(|reported| reported.claims);
        let there: Vec<Claims> = reported.filter(|it| it.active.wrapping_add(1) == turn).collect();
        let began = there.iter().map(|it| it.began.0).min()?;
        let calm = there.iter().map(|it| it.calm.0).max()?;
        let before = (self.granted..=closed).contains(&began);
        let before = if before { began - self.granted } else { 0 };
        let after = if (self.granted..=now).contains(&calm) { now - calm } else { 0 };
        Some(before + after)
    }
    /// Nothing of its last turn is in flight, by its processes' claims.
    #[must_use]
    pub fn drained(&self) -> bool {
        let turn = self.view.map_or(0, |view| view.turn);
        let calm = |reported: &Reported| {
            // Work behind closed gates ran in the turn that is over, whether its process knows or not.
            let answered =
                !reported.claims.parked || reported.claims.active.wrapping_add(1) == turn;
            reported.fresh && reported.claims.drained == reported.claims.active && answered
        };
        if self.suspended == Some(SuspensionState::Suspended) {
            return true; // the driver lets none of its processes do anything
        }
        let stopped =
            |reported: &Reported| self.preemption == Preemption::Stopped && reported.reached;
        self.processes.values().all(|reported| stopped(reported) || calm(reported))
    }
}

/// A container and one of its lanes.
pub type LaneKey = (ContainerId, Lane);

/// Everything observed since the engine began.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    /// Every slice of every GPU.
    pub lanes: BTreeMap<LaneKey, LaneState>,
    /// The policies of GPUs where one was set.
    pub policies: BTreeMap<GpuUuid, Policy>,
    /// The suspended containers, as `ps` shows them.
    pub suspended: BTreeMap<ContainerId, SuspensionState>,
    /// The engine's settings.
    pub config: Config,
    /// The time of the last step.
    pub now: u64,
    /// Charged time before the present step, ns.
    pub elapsed: u64,
    /// The last gap was so long that it does not count.
    pub gap: bool,
}

const GAP_MAX: u64 = gpuslice_wire::limits::HEARTBEAT_STALE_NS;

impl Observer {
    /// An observer that has seen nothing, from `now` on.
    #[must_use]
    pub fn new(config: Config, now: u64) -> Observer {
        Observer { config, now, ..Observer::default() }
    }

    /// Advances the clock to `now`, in the state that the last step left.
    pub fn advance(&mut self, now: u64) {
        let gap = now.saturating_sub(self.now);
        (self.now, self.elapsed, self.gap) = (self.now.max(now), gap.min(GAP_MAX), gap > GAP_MAX);
        let now = self.now;
        let mut free: BTreeMap<GpuUuid, u64> = BTreeMap::new();
        for state in self.lanes.values().filter(|state| state.shares()) {
            *free.entry(state.gpu).or_default() += 1;
        }
        for state in self.lanes.values_mut() {
            let pays = state.pays();
            state.was_away = state.suspended == Some(SuspensionState::Suspended);
            state.shut_before = state.closing.is_some() || state.overrun;
            state.billed = 0;
            state.compensated = std::mem::take(&mut state.compensating);
            if pays {
                // the time of several containers without turns is divided evenly
                let among = free.get(&state.gpu).filter(|_| state.shares());
                let among = among.copied().unwrap_or(1).max(1);
                state.billed = self.elapsed / among;
                let off = state.off.min(state.billed);
                state.off -= off;
                state.used += state.billed - off;
                state.rounded += u64::from(among > 1);
                state.stretch += self.elapsed;
                state.run += self.elapsed;
                state.longest = state.longest.max(state.stretch);
                if state.open() && state.closing.is_none() {
                    // a container that runs alone owes nothing
                    (state.stretch, state.last) = (0, 0);
                }
            } else {
                state.rest();
                state.guest = false;
            }
            let waits = state.runnable() && !pays;
            state.waits = waits.then(|| state.waits.unwrap_or(now));
        }
    }

    /// Takes in which containers are suspended after this step, before its actions.
    pub fn suspend(&mut self, suspended: BTreeMap<ContainerId, SuspensionState>) {
        self.suspended = suspended;
        for ((id, _), state) in &mut self.lanes {
            state.suspended = self.suspended.get(id).copied();
            if state.suspended == Some(SuspensionState::Suspended) {
                state.preemption = Preemption::None; // nothing of it runs
            }
        }
        self.regroup();
        self.settle();
    }

    /// Takes in `event`.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Left { client } | Event::Gone { client } => self.part(*client),
            Event::Claims { client, lane, claims } => {
                for ((_, at), state) in &mut self.lanes {
                    if let Some(reported) = state.processes.get_mut(client).filter(|_| at == lane) {
                        *reported = Reported {
                            claims: *claims,
                            fresh: true,
                            was_runnable: reported.was_runnable || claims.runnable,
                            ..*reported
                        };
                    }
                }
            }
            // an answer to another order than the last one says nothing: the processes it reached have gone
            Event::Stopped { container, lane, order, ok } => {
                let waits = |state: &LaneState| {
                    state.preemption == Preemption::Stopping && state.order == *order
                };
                if self.lanes.get(&(*container, *lane)).is_some_and(waits) {
                    let preemption = if *ok { Preemption::Stopped } else { Preemption::None };
                    self.set_preemption(*container, *lane, preemption);
                }
            }
            Event::Resumed { container, lane } => {
                let goes_on = |state: &LaneState| state.preemption == Preemption::Resuming;
                if self.lanes.get(&(*container, *lane)).is_some_and(goes_on) {
                    self.set_preemption(*container, *lane, Preemption::None);
                }
            }
            _ => {}
        }
        self.regroup();
        self.settle();
    }

    /// Determines which GPUs of a container take turns together: those on which its processes have been
    /// runnable, if there are several.
    fn regroup(&mut self) {
        let mut gangs: BTreeMap<ContainerId, (u32, bool)> = BTreeMap::new();
        for ((id, _), state) in &self.lanes {
            let may = state.record.gang == Gangs::Auto;
            if may && state.processes.values().any(|reported| reported.was_runnable) {
                let gang = gangs.entry(*id).or_default();
                *gang = (gang.0 + 1, gang.1 || state.asks());
            }
        }
        for ((id, _), state) in &mut self.lanes {
            let gang = gangs.get(id).filter(|gang| gang.0 > 1);
            let part =
                gang.filter(|_| state.processes.values().any(|reported| reported.was_runnable));
            state.gang = part.is_some();
            state.drawn = part.is_some_and(|gang| gang.1);
        }
    }

    fn set_preemption(&mut self, container: ContainerId, lane: Lane, preemption: Preemption) {
        if let Some(state) = self.lanes.get_mut(&(container, lane)) {
            let away = state.suspended == Some(SuspensionState::Suspended);
            let none = away || state.processes.is_empty();
            state.preemption = if none { Preemption::None } else { preemption };
            let reached =
                |reported: &mut Reported| reported.reached |= preemption == Preemption::Stopping;
            state.processes.values_mut().for_each(reached);
        }
    }

    /// Takes in `action`.
    pub fn action(&mut self, action: &Action, restored: Option<&Record>) {
        match action {
            Action::Admitted { record, .. } => {
                self.state(record);
                self.tune();
            }
            Action::Restored { .. } => {
                restored.into_iter().for_each(|record| self.state(record));
                self.tune();
            }
            Action::PolicySet { policy, was, .. } => {
                let gpus = was.iter().map(|(gpu, _)| (*gpu, *policy));
                self.policies.extend(gpus);
                self.tune();
            }
            Action::Retuned { record, .. } => self.retune(record),
            Action::Dismissed { container, .. } => {
                self.lanes.retain(|(id, _), _| id != container);
                self.tune();
            }
            Action::Attached { client, container, .. } => {
                let lanes = self.lanes.iter_mut().filter(|((id, _), _)| id == container);
                for (_, state) in lanes {
                    // a process that has not seen its page yet has nothing in flight
                    let fresh = state.shut_before;
                    state.processes.insert(*client, Reported { fresh, ..Reported::default() });
                }
            }
            Action::Disconnect { client, .. } => self.part(*client),
            Action::SetLane { container, lane, view } => self.set(*container, *lane, *view),
            Action::Stop { container, lane, order } => {
                self.set_preemption(*container, *lane, Preemption::Stopping);
                let state = self.lanes.get_mut(&(*container, *lane));
                state.into_iter().for_each(|state| state.order = *order);
            }
            Action::Resume { container, lane } => {
                self.set_preemption(*container, *lane, Preemption::Resuming)
            }
            Action::Late { container, lane, stage: Late::Overrun, .. } => {
                if let Some(state) = self.lanes.get_mut(&(*container, *lane)) {
                    state.freely |= state.untracked;
                    (state.overrun, state.untracked) = (true, false);
                    state.tail = state.tail.max(self.config.drain_max.0);
                    state.stopped_turns = 0;
                }
            }
            _ => {}
        }
        self.regroup();
        self.settle();
    }

    fn state(&mut self, record: &Record) {
        for (at, lane) in record.lanes.iter().enumerate() {
            let state = LaneState {
                gpu: lane.gpu,
                record: record.clone(),
                view: None,
                processes: BTreeMap::new(),
                closing: None,
                shut_before: false,
                untracked: false,
                freely: false,
                again: None,
                guest: false,
                shut: 0,
                was_untracked: false,
                preemption: Preemption::None,
                order: 0,
                overrun: false,
                granted: self.now,
                used: 0,
                off: 0,
                billed: 0,
                compensated: 0,
                compensating: 0,
                run: 0,
                idle: Idle::default(),
                rounded: 0,
                stretch: 0,
                last: 0,
                longest: 0,
                tail: 0,
                stopped_turns: 0,
                waits: None,
                cap: (1, 1),
                weight: 1,
                share: 0,
                surplus: 1,
                native: false,
                tuned: 0,
                gang: false,
                drawn: false,
                suspended: self.suspended.get(&record.container).copied(),
                was_away: false,
            };
            self.lanes.insert((record.container, Lane(at as u8)), state);
        }
    }

    fn set(&mut self, container: ContainerId, lane: Lane, view: LaneView) {
        let (now, key) = (self.now, (container, lane));
        let Some(state) = self.lanes.get(&key) else {
            return;
        };
        // a container that is known to be stopped when its turn ends is off the GPU at once, and may be
        // next
        let anew = state.view.is_some_and(|it| view.turn == it.turn.wrapping_add(2));
        let anew = anew && state.holds() && !state.gang;
        if anew && state.runnable() && !state.overrun {
            self.compensate(key);
        }
        let Some(state) = self.lanes.get_mut(&key) else {
            return;
        };
        let held = state.holds() && !anew;
        let before = state.view.replace(view);
        if state.holds() {
            let extended = before.is_some_and(|before| before.turn_end != view.turn_end);
            let again = state.gang && state.closing.is_some() && !state.overrun && !state.untracked;
            // an extension of a gang's turn that has not drained is the same turn, and so are the turns
            // that an overrun container has
            let late = again || state.overrun;
            if (if held { extended } else { !state.untracked }) && !late {
                state.rest();
            }
            if !held || extended {
                state.guest = false;
                let still = state.overrun && state.freely;
                (state.freely, state.run) = (!state.capped() || still, 0);
            }
            if !held {
                state.again = state.closing.filter(|_| again);
                // turns may begin and be granted in one step, where no other container has anything in
                // flight
                let opened = before.is_some_and(|it| it.mode == Mode::Open);
                state.was_untracked = std::mem::take(&mut state.untracked) || opened;
                (state.granted, state.closing) = (now, None);
                state.processes.values_mut().for_each(|reported| reported.fresh = false);
            }
        } else if state.open() {
            state.guest = false;
            if held && state.overrun {
                // what was read before its turn ended says nothing about that turn
                state.processes.values_mut().for_each(|reported| reported.fresh = false);
            }
            if std::mem::take(&mut state.untracked) {
                state.closing = None;
                state.adds_to_last();
            }
        } else if held || before.is_some_and(|it| it.mode == Mode::Open) {
            if !held && state.was_away {
                state.shut = now;
            } else if held || !state.overrun {
                let since = state.again.filter(|_| held).unwrap_or(now);
                (state.closing, state.untracked) = (Some(since), !held);
                state.shut = now;
            } else {
                // overrun already, and charged until it drains
                state.closing = state.closing.or(Some(now));
            }
            state.processes.values_mut().for_each(|reported| reported.fresh = false);
        }
    }

    fn part(&mut self, client: ClientId) {
        self.lanes.values_mut().for_each(|state| {
            state.processes.remove(&client);
            if state.processes.is_empty() {
                state.preemption = Preemption::None;
            }
        });
    }

    /// Ends the closing of containers that have drained; of a gang, when all its GPUs have that others wait
    /// for.
    fn settle(&mut self) {
        // in the middle of a step one of them may have its turn again before the others
        let closing = |state: &LaneState| state.closing.is_some() && !state.untracked;
        let waited = |state: &LaneState| state.holds() || closing(state) && !state.overrun;
        let busy: Vec<ContainerId> = self
            .lanes
            .iter()
            .filter(|(_, state)| {
                state.gang && waited(state) && !(state.drained() && state.closing.is_some())
            })
            .map(|(key, _)| key.0)
            .collect();
        let mut compensated: Vec<LaneKey> = Vec::new();
        for ((id, lane), state) in &mut self.lanes {
            let together = state.gang && !state.overrun && !state.untracked && busy.contains(id);
            let closed = state.closing.filter(|_| state.drained() && !together);
            if let Some(closed) = closed {
                if state.runnable() && !state.gang && !state.overrun && !state.untracked {
                    if let Some(ns) = state.idled(closed, self.now) {
                        state.idle.add(ns.min(self.config.turn_min.0 / 2));
                    }
                    compensated.push((*id, *lane));
                }
                let was_off = state.untracked && self.now == state.shut; // it did not drain
                if !state.overrun && !was_off {
                    let waited = (self.now - state.shut).min(self.config.drain_max.0);
                    state.tail = (state.tail / 2).max(waited);
                    let was_stopped = state.preemption == Preemption::Stopped;
                    state.stopped_turns = if was_stopped { state.stopped_turns + 1 } else { 0 };
                }
                if state.untracked {
                    state.adds_to_last();
                }
                (state.closing, state.overrun, state.untracked) = (None, false, false);
            }
            // an overrun container that has a turn, or needs none any more, may drain in it
            state.overrun &= !((state.holds() || state.open()) && state.drained());
        }
        compensated.into_iter().for_each(|key| self.compensate(key));
    }

    /// The GPUs with which this one is in a container that takes turns together.
    pub fn gang(&self, key: &LaneKey) -> impl Iterator<Item = (&LaneKey, &LaneState)> {
        let (id, gang) = (key.0, self.lanes.get(key).is_some_and(|state| state.gang));
        self.lanes.iter().filter(move |(other, state)| gang && other.0 == id && state.gang)
    }

    /// The containers of one GPU.
    pub fn on(&self, gpu: GpuUuid) -> impl Iterator<Item = (&LaneKey, &LaneState)> {
        self.lanes.iter().filter(move |(_, state)| state.gpu == gpu)
    }
}
