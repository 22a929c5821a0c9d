//! Turns: at most one container has a turn on a GPU; the next turn begins when the last one has drained,
//! and the first one when all untracked work is over; the GPU never idles while a container may have it.

use std::collections::BTreeMap;

use gpuslice_engine::{Action, LaneView, Late, Mode};
use gpuslice_wire::ids::GpuUuid;

use super::Objection;
use crate::observer::{LaneKey, Observer};

/// The checker of turns; it needs no state of its own.
#[derive(Debug, Default)]
pub struct Turns;

/// Accepts a turn that is granted and over in the same step: its container launches nothing in it, and
/// drains again.
fn no_turn_at_all(seen: &Observer, key: LaneKey, view: &LaneView) -> Result<(), Objection> {
    let before = seen.lanes.get(&key).and_then(|state| state.view);
    let closed = |view: &LaneView| view.mode == Mode::Turns && view.turn.is_multiple_of(2);
    match before {
        Some(it) if closed(&it) && closed(view) && it.turn != view.turn => {
            Err(format!("{} has a turn of no time", key.0))
        }
        _ => Ok(()),
    }
}

impl Turns {
    /// Checks an action before it changes the observed state.
    ///
    /// # Errors
    /// The objection.
    pub fn before(&self, seen: &Observer, action: &Action) -> Result<(), Objection> {
        if let Action::SetLane { container, lane, view } = action {
            return no_turn_at_all(seen, (*container, *lane), view);
        }
        let Action::Late { container, lane, stage: Late::Overrun, .. } = action else {
            return Ok(());
        };
        // for a gang the first GPU counts, and for an extended turn the first close
        let key = (*container, *lane);
        let all = seen.gang(&key).chain(seen.lanes.get_key_value(&key));
        let first = all.filter_map(|(_, state)| state.closing.or(state.again)).min();
        let waited = first.map(|closed| seen.now - closed);
        match waited {
            Some(waited) if waited >= seen.config.drain_max.0 => Ok(()),
            _ => Err(format!("{container} is treated as overrun after {waited:?} ns")),
        }
    }

    /// Checks between any two actions: one grant per GPU, and no other container at work.
    ///
    /// # Errors
    /// The objection.
    pub fn after_action(&self, seen: &Observer) -> Result<(), Objection> {
        let mut busy: BTreeMap<GpuUuid, (LaneKey, bool)> = BTreeMap::new();
        for (&key, state) in &seen.lanes {
            let on = state.holds() || (state.closing.is_some() && !state.overrun);
            if on && let Some((other, untracked)) = busy.insert(state.gpu, (key, state.untracked)) {
                if untracked && state.untracked {
                    continue; // their untracked work drains together
                }
                return Err(format!("{} and {} are on {} at once", other.0, key.0, state.gpu));
            }
        }
        Ok(())
    }

    /// Checks after a step: one mode per GPU, no unused turn, and no idle GPU while a container may have
    /// it.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&self, seen: &Observer) -> Result<(), Objection> {
        let mut modes: BTreeMap<GpuUuid, Mode> = BTreeMap::new();
        let mut busy: BTreeMap<GpuUuid, bool> = BTreeMap::new();
        for (key, state) in &seen.lanes {
            let Some(view) = state.view else {
                return Err(format!("{} has no page", key.0));
            };
            if *modes.entry(state.gpu).or_insert(view.mode) != view.mode {
                return Err(format!("{} differs in mode from others on {}", key.0, state.gpu));
            }
            let on = state.holds() || (state.closing.is_some() && !state.overrun);
            *busy.entry(state.gpu).or_default() |= on;
        }
        for (key, state) in &seen.lanes {
            if state.holds() && !state.runnable() {
                return Err(format!("{} holds {} and is not runnable", key.0, state.gpu));
            }
            let gated = modes.get(&state.gpu) == Some(&Mode::Turns);
            // another checker covers gangs, and the containers that wait for one
            let tied = seen.on(state.gpu).any(|(_, other)| other.gang);
            let may = state.may_wait() && !state.capped();
            if gated && may && !tied && busy.get(&state.gpu) == Some(&false) {
                return Err(format!("{} idles while {} waits", state.gpu, key.0));
            }
            let alone = seen.on(state.gpu).filter(|(_, other)| other.runnable()).count() < 2;
            let closes = seen.on(state.gpu).any(|(_, other)| other.closing.is_some());
            if state.native && gated && !closes {
                return Err(format!("{} takes turns under native", state.gpu));
            }
            if !gated && state.runnable() && !alone && !state.native {
                return Err(format!(
                    "{} takes no turns and several containers are runnable",
                    state.gpu
                ));
            }
        }
        Ok(())
    }
}
