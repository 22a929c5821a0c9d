//! Preemption: late work is stopped on the GPU no sooner than an honest drain takes, or its claims take to be read if
//! its last turns ended so, but the engine has a deadline then; never that of a gang; and it resumes in its next turn,
//! and only then.

use std::collections::BTreeMap;

use gpuslice_engine::Action;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::snapshot::SuspensionState;

use super::Objection;
use crate::observer::{LaneKey, LaneState, Observer, Preemption};

/// The checker of stops.
#[derive(Debug, Default)]
pub struct Stops {
    /// The close after which each container's last stop was ordered.
    asked: BTreeMap<LaneKey, u64>,
    /// Resumes ordered in this step.
    resumed: Vec<LaneKey>,
}

/// How long after its close a container is waited for, ns, if a container waits that goes before it
/// (`such`).
fn patience(seen: &Observer, state: &LaneState, such: impl Fn(&LaneState) -> bool) -> u64 {
    let above = |other: &LaneState| other.record.class < state.record.class && such(other);
    match seen.on(state.gpu).any(|(_, other)| above(other)) {
        // its last turns ended with a stop, and this is not the 128th of them
        true if state.stopped_turns >= 2 && !state.stopped_turns.is_multiple_of(128) => 25_000,
        // the work allowed in flight and half of it again, or that between two gates; and 0.1 ms
        true => state.view.map_or(0, |view| {
            let window = u64::from(view.window_us) * 1_000;
            100_000 + if view.gates { window / 3 } else { window * 3 / 2 }
        }),
        false => seen.config.drain.0,
    }
}

/// A container's memory is on the host: it gets no turn in which its stopped work could go on.
fn is_away(seen: &Observer, key: &(ContainerId, Lane)) -> bool {
    seen.suspended.get(&key.0) == Some(&SuspensionState::Suspended)
}

impl Stops {
    /// Checks an action before it changes the observed state.
    ///
    /// # Errors
    /// The objection.
    pub fn before(&mut self, seen: &Observer, action: &Action) -> Result<(), Objection> {
        match *action {
            Action::Stop { container, lane, .. } => self.stop(seen, (container, lane)),
            Action::Resume { container, lane } => self.resume(seen, (container, lane)),
            _ => Ok(()),
        }
    }

    fn stop(&mut self, seen: &Observer, key: (ContainerId, Lane)) -> Result<(), Objection> {
        let who = key.0;
        let Some(state) = seen.lanes.get(&key) else {
            return Err(format!("{who} is stopped and unknown"));
        };
        let Some(closed) = state.closing.filter(|_| !state.drained()) else {
            return Err(format!("{who} is stopped and has nothing to drain"));
        };
        if state.gang || state.preemption != Preemption::None {
            return Err(format!("{who} is stopped as {:?}, gang {}", state.preemption, state.gang));
        }
        let (waited, least) = (seen.now - closed, patience(seen, state, LaneState::runnable));
        if waited < least {
            return Err(format!("{who} is stopped after {waited} ns, not {least}"));
        }
        self.asked.insert(key, closed.max(state.shut));
        Ok(())
    }

    fn resume(&mut self, seen: &Observer, key: (ContainerId, Lane)) -> Result<(), Objection> {
        let stopped = seen.lanes.get(&key).map(|state| state.preemption);
        self.resumed.push(key);
        match stopped {
            Some(Preemption::Stopped) => Ok(()),
            _ if is_away(seen, &key) => Ok(()),
            other => Err(format!("{} goes on and was {other:?}", key.0)),
        }
    }

    /// After a step.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&mut self, seen: &Observer) -> Result<(), Objection> {
        self.asked.retain(|key, _| seen.lanes.contains_key(key));
        let runs = |state: &LaneState| state.holds() || state.open();
        for key in self.resumed.drain(..) {
            if !seen.lanes.get(&key).is_some_and(runs) && !is_away(seen, &key) {
                return Err(format!("{} goes on out of turn", key.0));
            }
        }
        for (key, state) in &seen.lanes {
            if state.preemption == Preemption::Stopped && runs(state) {
                return Err(format!("{} may launch and stays stopped", key.0));
            }
        }
        match self.due(seen) {
            Some((who, due)) if due <= seen.now => {
                Err(format!("{who} is to be stopped since {} ns", seen.now - due))
            }
            _ => Ok(()),
        }
    }

    /// The first stop that is due, and when, if no event happens before.
    #[must_use]
    pub fn due(&self, seen: &Observer) -> Option<(ContainerId, u64)> {
        let waits = |other: &LaneState| !other.gang && other.may_wait() && !other.capped();
        let late = seen.lanes.iter().filter(|(key, state)| {
            let closed = state.closing.map(|since| since.max(state.shut));
            let tried = self.asked.get(key) == closed.as_ref();
            let none = state.gang || state.overrun || state.native || state.processes.is_empty();
            let busy = state.preemption == Preemption::None && !state.drained();
            seen.config.stop && !tried && !none && busy
        });
        let due = late.filter_map(|(key, state)| {
            let closed = state.closing?.max(state.shut);
            Some((key.0, closed + patience(seen, state, waits)))
        });
        due.min_by_key(|(_, due)| *due)
    }
}
