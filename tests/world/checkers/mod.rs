//! Checkers: each checks one promise after every step, from what the observer saw.
//!
//! A checker returns an objection as text; [`Checkers`] stops the world with it.

pub mod gangs;
pub mod guarantee;
pub mod loans;
mod looks;
pub mod memory;
pub mod pools;
pub mod priority;
pub mod progress;
pub mod requests;
pub mod shares;
pub mod stops;
pub mod surplus;
pub mod turns;
pub mod unfreed;
pub mod wall_time;

use std::collections::{BTreeMap, VecDeque};

use gpuslice_engine::{Action, Claims, Config, Event, Record, Untracked};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::snapshot::{Snapshot, SuspensionState};
use gpuslice_wire::units::Bytes;

use crate::observer::{LaneKey, LaneState, Observer, Preemption};

/// How often there was something of which promises speak, in steps or in ends, under all engines.
pub type Met = BTreeMap<&'static str, u64>;

/// The text of a broken promise.
pub type Objection = String;

/// All checkers and their input.
#[derive(Debug)]
pub struct Checkers {
    config: Config,
    seen: Observer,
    turns: turns::Turns,
    pairs: shares::Pairs,
    debts: shares::Debts,
    guarantee: guarantee::Guarantee,
    surplus: surplus::Surplus,
    caps: shares::Caps,
    memory: memory::Ledger,
    requests: requests::Requests,
    loans: loans::Loans,
    progress: progress::Progress,
    priority: priority::Priority,
    gangs: gangs::Gangs,
    stops: stops::Stops,
    wall_time: wall_time::WallTimes,
    /// The containers that are suspended after the next step.
    suspended: BTreeMap<ContainerId, SuspensionState>,
    met: Met,
    /// The last steps, to explain an objection.
    trail: VecDeque<(u64, Event, Vec<Action>)>,
}

/// Steps shown with an objection.
const TRAIL: usize = 60;

impl Checkers {
    /// Checkers of an engine that begins at `now`.
    #[must_use]
    pub fn new(config: Config, now: u64) -> Checkers {
        Checkers {
            config,
            seen: Observer::new(config, now),
            turns: turns::Turns,
            pairs: shares::Pairs::default(),
            debts: shares::Debts::default(),
            guarantee: guarantee::Guarantee::default(),
            surplus: surplus::Surplus::default(),
            caps: shares::Caps::default(),
            memory: memory::Ledger::default(),
            requests: requests::Requests::default(),
            loans: loans::Loans::default(),
            progress: progress::Progress::default(),
            priority: priority::Priority::default(),
            gangs: gangs::Gangs::default(),
            stops: stops::Stops::default(),
            wall_time: wall_time::WallTimes::new(now),
            suspended: BTreeMap::new(),
            met: Met::new(),
            trail: VecDeque::new(),
        }
    }

    /// The engine was restarted.
    pub fn restart(&mut self, now: u64) {
        let memory = self.memory.restart();
        let loans = self.loans.restart();
        let (met, trail) = (std::mem::take(&mut self.met), std::mem::take(&mut self.trail));
        *self = Checkers { memory, loans, met, trail, ..Checkers::new(self.config, now) };
    }

    /// Checks one step.
    ///
    /// # Panics
    /// With the objection, if a promise is broken.
    pub fn step(&mut self, now: u64, event: &Event, actions: &[Action]) {
        self.trail.push_back((now, event.clone(), actions.to_vec()));
        if self.trail.len() > TRAIL {
            self.trail.pop_front();
        }
        if let Err(objection) = self.look(now, event, actions) {
            self.object(&objection);
        }
    }

    /// Checks one step.
    ///
    /// # Errors
    /// The first objection.
    pub fn look(&mut self, now: u64, event: &Event, actions: &[Action]) -> Result<(), Objection> {
        self.seen.advance(now);
        self.pairs.advance(&self.seen)?;
        self.caps.advance(&self.seen)?;
        self.progress.advance(&self.seen)?;
        self.debts.advance(&self.seen)?;
        self.guarantee.advance(&self.seen)?;
        self.surplus.advance(&self.seen)?;
        self.gangs.advance(&self.seen)?;
        self.requests.advance(&self.seen, &self.memory);
        self.wall_time.advance(&self.seen);
        self.memory.keep(&self.seen);
        self.seen.event(event);
        if self.suspended != self.seen.suspended {
            self.seen.suspend(self.suspended.clone());
        }
        let cut = |action: &Action| matches!(action, Action::Disconnect { .. });
        self.requests.event(&self.memory, event);
        self.loans.before(&self.seen, &self.memory, event);
        self.memory.event(&self.seen, event, actions.iter().any(cut))?;
        self.loans.event(&self.seen, &self.memory, event);
        let restored: Option<&Record> = match event {
            Event::Restore(record) => Some(record),
            _ => None,
        };
        for action in actions {
            self.turns.before(&self.seen, action)?;
            self.stops.before(&self.seen, action)?;
            self.seen.action(action, restored);
            self.wall_time.action(&self.seen, action);
            self.turns.after_action(&self.seen)?;
            self.loans.action(&self.seen, (&self.memory, &self.requests), action)?;
            self.requests.action(&self.seen, &self.memory, action)?;
            self.memory.action(&self.seen, event, action)?;
        }
        self.turns.after_step(&self.seen)?;
        self.priority.after_step(&self.seen)?;
        self.gangs.after_step(&self.seen)?;
        self.stops.after_step(&self.seen)?;
        self.meet(actions);
        match event {
            Event::Claims { .. } => Ok(()), // a claim changes no ledger by itself
            _ => {
                self.memory.after_step()?;
                self.loans.after_step(&self.seen, (&self.memory, &self.requests))?;
                self.requests.after_step(&self.seen, &self.memory, event)
            }
        }
    }

    /// Checks the engine's deadline `at`: it is not after a stop is due.
    ///
    /// # Panics
    /// If it is.
    pub fn looks(&mut self, at: Option<u64>) {
        self.wall_time.asks(at);
        self.gangs.asks(at);
        if let Some((who, due)) = self.stops.due(&self.seen)
            && at.is_none_or(|at| at > due)
        {
            self.object(&format!("{who} is to be stopped at {due}, and the deadline is {at:?}"));
        }
    }

    /// Counts what promises about time speak of: where no world has it, its checker checks nothing.
    fn meet(&mut self, actions: &[Action]) {
        let any = |such: fn(&LaneState) -> bool| self.seen.lanes.values().any(such);
        let there = [
            ("gang waits", self.gangs.any_waits()),
            ("GPU kept for a gang", self.gangs.any_kept()),
            ("share owed", self.guarantee.owes()),
            ("share's cap paid", any(|it| it.share > 0 && it.capped() && it.billed > 0)),
            ("overrun", any(|it| it.overrun)),
            ("stop", actions.iter().any(|it| matches!(it, Action::Stop { .. }))),
            ("guard turn", self.priority.guard_began(self.seen.now)),
        ];
        for (what, _) in there.into_iter().filter(|(_, is)| *is) {
            self.meets(what);
        }
    }

    /// Counts what the world itself judges.
    pub fn meets(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// What was met.
    #[must_use]
    pub fn met(&self) -> Met {
        self.met.iter().chain(&self.loans.met).map(|(what, times)| (*what, *times)).collect()
    }

    /// The time of the last step.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.seen.now
    }

    /// Whether the container is capped on one of its GPUs.
    #[must_use]
    pub fn capped(&self, container: ContainerId) -> bool {
        let mut its = self.seen.lanes.iter().filter(|(key, _)| key.0 == container);
        its.any(|(_, state)| state.capped())
    }

    /// Whether a container may have its next turn later than its weight says: it is capped, a higher class has work, or
    /// the clock has jumped.
    #[must_use]
    pub fn yields(&self, container: ContainerId) -> bool {
        let above = |state: &LaneState| {
            let mut others = self.seen.on(state.gpu).map(|(_, other)| other);
            others.any(|other| other.runnable() && other.record.class < state.record.class)
        };
        let mut its = self.seen.lanes.iter().filter(|(key, _)| key.0 == container);
        self.seen.gap || its.any(|(_, state)| state.capped() || above(state))
    }

    /// Bytes that processes of a container may hold on one account, unless an exception allows more.
    #[must_use]
    pub fn strict_limit(&self, key: &LaneKey) -> Option<u64> {
        let strict = !self.memory.may_exceed(key);
        self.memory.account(key).filter(|_| strict).map(|it| it.limit)
    }

    /// Compares what the next daemon is told of a container with what was seen.
    ///
    /// # Panics
    /// If they differ.
    pub fn untracked(&self, container: ContainerId, untracked: &[Untracked]) {
        if !self.memory.is_untracked(container, untracked) {
            self.object(&format!("{container} is not charged {untracked:?} beyond its grants"));
        }
    }

    /// The promise of an account, if all grants of its container are known.
    #[must_use]
    pub fn promise(&self, key: &LaneKey) -> Option<u64> {
        let known = self.memory.is_complete(&key.0);
        self.memory.account(key).filter(|_| known).map(|it| it.cap)
    }

    /// Whether a process has a connection.
    #[must_use]
    pub fn is_connected(&self, client: ClientId) -> bool {
        self.memory.is_connected(client)
    }

    /// What an account's page shows beyond what counts for living processes.
    #[must_use]
    pub fn charged_for_ended(&self, key: &LaneKey) -> u128 {
        let shown = self.memory.account(key).map_or(0, |it| u128::from(it.shown));
        shown.saturating_sub(self.memory.reserved(key.0, key.1))
    }

    /// Takes in what processes outside of all slices have of a GPU from now on.
    pub fn outside(&mut self, gpu: GpuUuid, used: u64) {
        self.loans.outside(gpu, used);
    }

    /// Takes in which containers are suspended after the next step.
    pub fn suspend(&mut self, suspended: BTreeMap<ContainerId, SuspensionState>) {
        self.suspended = suspended;
    }

    /// Whether others may run beside this container, or it is unknown.
    #[must_use]
    pub fn overran(&self, container: ContainerId, lane: Lane) -> bool {
        self.seen.lanes.get(&(container, lane)).is_none_or(|state| state.overrun)
    }

    /// Whether the engine knows that this container may be stopped, or it is unknown.
    #[must_use]
    pub fn may_be_stopped(&self, container: ContainerId, lane: Lane) -> bool {
        self.seen
            .lanes
            .get(&(container, lane))
            .is_none_or(|state| state.preemption != Preemption::None || state.suspended.is_some())
    }

    /// Stops the world.
    ///
    /// # Panics
    /// Always.
    pub fn object(&self, objection: &str) -> ! {
        let trail: Vec<String> = self.trail.iter().map(brief).collect();
        let lanes: Vec<String> = self.seen.lanes.iter().map(describe).collect();
        let (trail, lanes) = (trail.join("\n"), lanes.join("\n"));
        panic!("a promise is broken: {objection}\nlast steps:\n{trail}\nnow:\n{lanes}")
    }

    /// Compares a snapshot with the observer's state.
    ///
    /// # Panics
    /// If they differ.
    pub fn agree(&self, rows: &[Snapshot]) {
        for row in rows {
            if let Err(objection) = self.wall_time(row).and(self.loans(row)) {
                self.object(&objection);
            }
            let Snapshot::Slice { container, lane, gpu_ns, reserved, used, cap_ppm, .. } = row
            else {
                continue;
            };
            let state = self.seen.lanes.get(&(*container, *lane));
            let Some(state) = state else { self.object(&format!("{container} is unknown")) };
            if u64::from(*cap_ppm) != (state.cap.0 * 1_000_000 / state.cap.1).max(1) {
                let (part, whole) = state.cap;
                self.object(&format!("{container} is capped at {cap_ppm} ppm, not {part}/{whole}"));
            }
            let counted = self.memory.reserved(*container, *lane);
            let counts = self.memory.counts(&(*container, *lane), reserved.0, counted);
            let right = gpu_ns.abs_diff(state.used) <= state.rounded;
            if !right || !counts || used > reserved {
                self.object(&format!(
                    "{container} lane {}: the snapshot says {gpu_ns} ns and {reserved:?}, seen \
                     were {} ns and {counted} bytes",
                    lane.0, state.used
                ));
            }
        }
    }

    /// Compares a row of wall time with what was seen; accepts rows of other kinds.
    ///
    /// # Errors
    /// The objection.
    pub fn wall_time(&self, row: &Snapshot) -> Result<(), Objection> {
        self.wall_time.agree(row)
    }

    /// Compares a row of a limit or a suspension with what was seen; accepts rows of other kinds.
    ///
    /// # Errors
    /// The objection.
    pub fn loans(&self, row: &Snapshot) -> Result<(), Objection> {
        self.loans.agree(&self.memory, row)
    }

    /// Checks the end of all processes: nothing is reserved, no slice is runnable, no request waits. The account of a
    /// suspended container has what NVML showed of strangers before, until it is resumed.
    ///
    /// # Panics
    /// If something is left.
    pub fn no_process_left(&self, rows: &[Snapshot]) {
        let on_host = |container| {
            let of = |row: &Snapshot| match row {
                Snapshot::Suspension { container: it, memory, .. } if it == container => {
                    Some(*memory)
                }
                _ => None,
            };
            rows.iter().find_map(of).unwrap_or(Bytes::ZERO)
        };
        for row in rows {
            if let Snapshot::Slice { container, reserved, clients, runnable, .. } = row
                && (*reserved > on_host(container) || (*clients, *runnable) != (0, 0))
            {
                self.object(&format!(
                    "all processes are gone, and {container} has {reserved:?} reserved, {clients} \
                     processes and {runnable} runnable"
                ));
            }
        }
        let left = self.memory.no_process_left().and(self.requests.no_process_left());
        if let Err(objection) = left {
            self.object(&objection);
        }
    }

    /// No container is left: nothing is promised.
    ///
    /// # Panics
    /// If something is left.
    pub fn nothing_left(&self, rows: &[Snapshot]) {
        for row in rows {
            match row {
                Snapshot::Gpu { promised, slices, .. } if (promised.0, *slices) != (0, 0) => {
                    self.object(&format!("{promised:?} stay promised to {slices} slices"));
                }
                Snapshot::Slice { container, .. } => self.object(&format!("{container} is left")),
                _ => {}
            }
        }
    }
}

/// A step on a few lines.
fn brief((now, event, actions): &(u64, Event, Vec<Action>)) -> String {
    let mut text = match event {
        Event::Claims { client, lane, claims } => {
            let Claims { runnable, active, drained, .. } = claims;
            format!(
                "{now} {client:?} {lane:?} runnable {runnable} active {active} drained {drained}"
            )
        }
        other => format!("{now} {other:?}"),
    };
    for action in actions {
        text += &match action {
            Action::SetLane { container, lane, view } => {
                let (mode, turn, end) = (view.mode, view.turn, view.turn_end.0);
                format!("\n    {container} {lane:?} {mode:?} turn {turn} to {end}")
            }
            other => format!("\n    {other:?}"),
        };
    }
    text
}

/// A slice on one line.
fn describe((key, state): (&LaneKey, &LaneState)) -> String {
    let Record { weight, share, class, .. } = &state.record;
    let share = share.map_or(0, |share| share.get());
    let weight = weight.map_or(0, |weight| weight.get());
    format!(
        "{} {:?} on {}: weight {weight} share {share} {class}, runnable {} holds {} closing {:?} \
         overrun {}, gang {} used {} stretch {} longest {} waits {:?}",
        key.0,
        key.1,
        state.gpu,
        state.runnable(),
        state.holds(),
        state.closing,
        state.overrun,
        state.gang,
        state.used,
        state.stretch,
        state.longest,
        state.waits
    )
}
