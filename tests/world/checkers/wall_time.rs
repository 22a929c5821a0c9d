//! Wall time: a container's account adds up to the time since its admission, and each part is what events
//! and actions say.
//!
//! The checker rebuilds every account at each step. The observer does not know all that the engine knows: how
//! full a bucket is, and which gang a GPU is reserved for. There the checker keeps what is certain and what
//! is possible, and the engine's figure must lie between the two. All else is exact, to the nanosecond.

use std::collections::BTreeMap;

use gpuslice_engine::Action;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::HEARTBEAT_STALE_NS;
use gpuslice_wire::snapshot::Snapshot;

use super::Objection;
use crate::observer::{LaneKey, LaneState, Observer};

/// Rows of the engine's table of waits: with more containers than that, a row may be replaced.
const TABLE: usize = 8;

/// What a runnable container without the GPU may spend its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Behind(ContainerId),
    HandOver,
    Limited,
    Gang,
}

/// The certain and the possible part, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    least: u64,
    most: u64,
}

impl Range {
    fn has(&self, ns: u64) -> bool {
        (self.least..=self.most).contains(&ns)
    }
}

/// One container's account on one GPU.
#[derive(Clone, Debug, Default)]
struct Split {
    since: u64,
    /// After a restart: until when its processes may attach again.
    returns: u64,
    running: u64,
    idle: u64,
    absent: u64,
    suspended: u64,
    /// Runnable without the GPU.
    off: u64,
    uses: BTreeMap<Use, Range>,
    /// The most containers at once in the table of waits.
    crowd: usize,
}

impl Split {
    /// Adds time that was spent on one of `uses`.
    fn off(&mut self, uses: impl FnOnce() -> Vec<Use>, ns: u64) {
        if ns == 0 {
            return;
        }
        self.off += ns;
        let uses = uses();
        for one in &uses {
            let range = self.uses.entry(*one).or_default();
            range.most += ns;
            range.least += if uses.len() == 1 { ns } else { 0 };
        }
        let behind = self.uses.keys().filter(|one| matches!(one, Use::Behind(_)));
        self.crowd = self.crowd.max(behind.count());
    }

    fn of(&self, what: Use) -> Range {
        self.uses.get(&what).copied().unwrap_or_default()
    }
}

/// All accounts.
#[derive(Debug, Default)]
pub struct WallTimes {
    now: u64,
    /// When the engine asked to be stepped.
    due: Option<u64>,
    lanes: BTreeMap<LaneKey, Split>,
}

impl WallTimes {
    /// Accounts of an engine that begins at `now`.
    #[must_use]
    pub fn new(now: u64) -> WallTimes {
        WallTimes { now, ..WallTimes::default() }
    }

    /// The engine asks to be stepped at `due`.
    pub fn asks(&mut self, due: Option<u64>) {
        self.due = due;
    }

    /// Takes in `action`, which the observer has seen. Processes of a restored container may attach again for a
    /// while. Time behind a container that ends belongs to no container any more.
    pub fn action(&mut self, seen: &Observer, action: &Action) {
        match action {
            Action::Restored { container, .. } => {
                let returns = seen.now + seen.config.restore_grace.0;
                for key in seen.lanes.keys().filter(|key| key.0 == *container) {
                    let split = Split { since: seen.now, returns, ..Split::default() };
                    self.lanes.insert(*key, split);
                }
            }
            Action::Dismissed { container, .. } => {
                self.lanes.retain(|key, _| key.0 != *container);
                for split in self.lanes.values_mut() {
                    split.uses.remove(&Use::Behind(*container));
                }
            }
            _ => {}
        }
    }

    /// Advances the clock.
    pub fn advance(&mut self, seen: &Observer) {
        let (from, now) = (self.now, seen.now);
        let late = self.due.map_or(0, |due| now.saturating_sub(due.max(from) + HEARTBEAT_STALE_NS));
        let end = now - late.min(now - from);
        self.now = now;
        for (key, state) in &seen.lanes {
            let new = || Split { since: from, ..Split::default() };
            let split = self.lanes.entry(*key).or_insert_with(new);
            // none but the daemon resumes a suspended container
            let stays = state.suspended.is_some() && !state.pays();
            split.absent += if stays { 0 } else { now - end };
            if state.pays() {
                split.running += end - from;
            } else if stays {
                split.suspended += now - from;
            } else if !state.runnable() {
                let returns = split.returns.clamp(from, end);
                let unknown = if state.processes.is_empty() { returns - from } else { 0 };
                split.absent += unknown;
                split.idle += end - from - unknown;
            } else {
                let change = handed_over(seen, state).clamp(from, end);
                split.off(|| uses(seen, key, state, true), change - from);
                split.off(|| uses(seen, key, state, false), end - change);
            }
        }
    }

    /// Compares a row of the engine.
    ///
    /// # Errors
    /// The objection.
    pub fn agree(&self, row: &Snapshot) -> Result<(), Objection> {
        let (Snapshot::Slice { container, lane, .. } | Snapshot::SliceTime { container, lane, .. }) =
            row
        else {
            return Ok(());
        };
        let new = Split { since: self.now, ..Split::default() };
        let split = self.lanes.get(&(*container, *lane)).unwrap_or(&new);
        let agree = match row {
            Snapshot::Slice { wait_ns, .. } if *wait_ns != split.off => {
                differs("WAIT", *wait_ns, &split.off)
            }
            _ => split.agree(row, self.now).and_then(|()| split.agree_on_waits(row)),
        };
        agree.map_err(|why| format!("{container} lane {}: {why}", lane.0))
    }
}

/// The text of a difference.
fn differs(what: &str, is: u64, was: &dyn std::fmt::Debug) -> Result<(), Objection> {
    Err(format!("{what} is {is} ns, seen was {was:?}"))
}

impl Split {
    /// Compares the parts of a row at `now`.
    fn agree(&self, row: &Snapshot, now: u64) -> Result<(), Objection> {
        let Snapshot::SliceTime {
            since_ns,
            running_ns,
            waiting_ns,
            handover_ns,
            limited_ns,
            gang_ns,
            idle_ns,
            suspended_ns,
            absent_ns,
            ..
        } = row
        else {
            return Ok(());
        };
        let off = waiting_ns + handover_ns + limited_ns + gang_ns;
        let total = running_ns + off + idle_ns + suspended_ns + absent_ns;
        if (*since_ns, total) != (self.since, now - self.since) {
            return differs("wall time", total, &(self.since, now));
        }
        if *running_ns != self.running {
            return differs("running", *running_ns, &self.running);
        }
        // the daemon may be absent while a restored container's processes are unknown
        let slack = self.returns.saturating_sub(self.since);
        if idle_ns.abs_diff(self.idle) > slack {
            return differs("idle", *idle_ns, &self.idle);
        }
        if *suspended_ns != self.suspended {
            return differs("suspended", *suspended_ns, &self.suspended);
        }
        if off != self.off {
            return differs("runnable without the GPU", off, &self.off);
        }
        for (name, ns, what) in [
            ("hand-over", *handover_ns, Use::HandOver),
            ("limited", *limited_ns, Use::Limited),
            ("gang", *gang_ns, Use::Gang),
        ] {
            if !self.of(what).has(ns) {
                return differs(name, ns, &self.of(what));
            }
        }
        Ok(())
    }

    /// Compares the containers that a row names.
    fn agree_on_waits(&self, row: &Snapshot) -> Result<(), Objection> {
        let Snapshot::SliceTime { waiting_ns, behind, others_ns, .. } = row else {
            return Ok(());
        };
        let shown = behind.iter().filter_map(|wait| Some((wait.container?, wait)));
        let sum: u64 = shown.clone().map(|(_, wait)| wait.total_ns).sum();
        if sum + others_ns != *waiting_ns {
            return differs("waiting", *waiting_ns, &(sum, others_ns));
        }
        for (id, wait) in shown.clone() {
            if wait.by_cause_ns.iter().sum::<u64>() != wait.total_ns {
                return differs(&format!("behind {id}"), wait.total_ns, &wait.by_cause_ns);
            }
            let range = self.of(Use::Behind(id));
            let least = if self.crowd > TABLE { 0 } else { range.least };
            let range = Range { least, ..range };
            if !range.has(wait.total_ns) || wait.longest_ns > wait.total_ns {
                return differs(&format!("behind {id}"), wait.total_ns, &(range, wait));
            }
        }
        let smallest = shown.clone().map(|(_, wait)| wait.total_ns).min().unwrap_or(0);
        let smallest = if shown.clone().count() < behind.len() { 0 } else { smallest };
        for (what, range) in &self.uses {
            let Use::Behind(id) = what else { continue };
            let is_shown = shown.clone().any(|(other, _)| other == *id);
            if self.crowd <= TABLE && !is_shown && range.least > smallest {
                return differs(&format!("not shown is {id}: the smallest"), smallest, range);
            }
        }
        Ok(())
    }
}

/// Until when the GPU of `state` is between two turns, as long as an honest drain takes.
fn handed_over(seen: &Observer, state: &LaneState) -> u64 {
    let drains = seen.on(state.gpu).filter(|(_, other)| drains(other));
    let window = state.view.map_or(0, |view| u64::from(view.window_us));
    let shut = drains.map(|(_, other)| other.shut).max();
    shut.map_or(0, |shut| shut + (window * 3 / 2 + 100) * 1_000)
}

/// Others wait for the work of its last turn, or for its untracked work.
fn drains(state: &LaneState) -> bool {
    state.closing.is_some() && !state.overrun && !state.holds()
}

/// What a runnable container may spend its time on now. The first of what drains, `early` after its turn.
fn uses(seen: &Observer, key: &LaneKey, state: &LaneState, early: bool) -> Vec<Use> {
    let behind = |key: &LaneKey| Use::Behind(key.0);
    let others = || seen.on(state.gpu).filter(|(other, _)| *other != key);
    let holder = others().find(|(_, other)| other.holds());
    let draining: Vec<Use> =
        others().filter(|(_, other)| drains(other)).map(|(other, _)| behind(other)).collect();
    let gangs: Vec<Use> =
        others().filter(|(_, other)| other.gang).map(|(other, _)| behind(other)).collect();
    let mut uses: Vec<Use> = match holder {
        Some((holder, _)) => vec![behind(holder)],
        None if !draining.is_empty() && early => vec![Use::HandOver],
        None if !draining.is_empty() => draining,
        None if state.gang => gangs,
        None if !gangs.is_empty() => [gangs, vec![Use::HandOver]].concat(),
        // the GPU does not idle while a container may have it
        None if state.capped() => Vec::new(),
        None => vec![Use::HandOver],
    };
    uses.extend(state.capped().then_some(Use::Limited));
    uses.extend((state.gang && !(holder.is_none() && early)).then_some(Use::Gang));
    uses
}
