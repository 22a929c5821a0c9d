//! Classes: a turn ends in the step in which a container of a higher class begins to wait, except for guard
//! turns, which have the shortest length and are rare; and every class gets guard turns.
//!
//! GPUs with a capped container that is not of the last class are not checked: an observer cannot tell when
//! that one may run. A gang's position depends on other GPUs, so its wait is not checked, nor are guard
//! turns on its GPUs. But its turn gives way to a higher class like any other, on all its GPUs, with two
//! exceptions that are not interrupted: it was extended because a collective was cut in two, or began with
//! untracked work.

use std::collections::BTreeMap;

use gpuslice_engine::{Config, Mode};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Class;

use super::Objection;
use crate::observer::{LaneState, Observer};

/// The classes below another one.
const LOWER: [Class; 2] = [Class::Normal, Class::BestEffort];

/// The state of one GPU.
#[derive(Debug)]
struct Gpu {
    /// Turn word and start of the present turn, and whether it is a guard turn.
    turn: Option<(u32, u64, bool)>,
    /// When each lower class's last guard turn began.
    guard: [Option<u64>; 2],
    /// When each of them was last on the GPU, or did not wait.
    served: [u64; 2],
    /// The longest stretch of any container since then, also of one that is gone by now.
    longest: [u64; 2],
}

/// The checker of classes.
#[derive(Debug, Default)]
pub struct Priority(BTreeMap<GpuUuid, Gpu>);

impl Priority {
    /// Whether a guard turn began at this time.
    #[must_use]
    pub fn guard_began(&self, now: u64) -> bool {
        self.0.values().any(|gpu| gpu.guard.contains(&Some(now)))
    }

    /// After a step.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&mut self, seen: &Observer) -> Result<(), Objection> {
        let gpus: Vec<GpuUuid> = seen.lanes.values().map(|state| state.gpu).collect();
        for gpu in gpus {
            let strange =
                seen.on(gpu).any(|(_, s)| s.record.class != Class::BestEffort && s.capped());
            if strange || seen.gap {
                self.0.remove(&gpu);
            } else {
                let new =
                    || Gpu { turn: None, guard: [None; 2], served: [seen.now; 2], longest: [0; 2] };
                self.0.entry(gpu).or_insert_with(new).check(seen, gpu)?;
            }
        }
        Ok(())
    }
}

/// Percent that the classes above keep, and the longest wait that a guard turn can cause, ns.
fn rule(config: &Config, class: Class) -> (u64, u64) {
    match class {
        Class::High | Class::Normal => (u64::from(config.class_caps.high.get()), 1_000_000_000),
        Class::BestEffort => (u64::from(config.class_caps.normal.get()), 60_000_000_000),
    }
}

impl Gpu {
    fn check(&mut self, seen: &Observer, gpu: GpuUuid) -> Result<(), Objection> {
        let all: Vec<&LaneState> = seen.on(gpu).map(|(_, state)| state).collect();
        let tied = all.iter().any(|state| state.gang);
        self.holder(seen, gpu, &all, tied)?;
        if tied {
            (self.guard, self.served) = ([None; 2], [seen.now; 2]);
            return Ok(());
        }
        for (at, class) in LOWER.into_iter().enumerate() {
            self.starves(seen, gpu, &all, (at, class))?;
        }
        Ok(())
    }

    /// Whether the holder may have its turn.
    fn holder(
        &mut self,
        seen: &Observer,
        gpu: GpuUuid,
        all: &[&LaneState],
        tied: bool,
    ) -> Result<(), Objection> {
        let Some((key, state)) = seen.on(gpu).find(|(_, state)| state.holds()) else {
            self.turn = None;
            return Ok(());
        };
        let mut gang = seen.gang(key);
        // a turn extended on one of its GPUs is extended on all, also where others run beside it by now
        let bound = gang.any(|(_, part)| part.was_untracked || part.again.is_some());
        let bound = state.gang && bound || state.again.is_some();
        let (class, word) = (state.record.class, state.view.map_or(0, |view| view.turn));
        if bound {
            self.turn = None;
            return Ok(());
        }
        let goes_first = |s: &LaneState| s.record.class < class && s.may_wait();
        let above = all.iter().any(|s| goes_first(s) && !s.gang);
        // a gang's turn is a guard turn on all its GPUs if it is one on any, and a gang may be the reason
        // for one
        let gpus = seen.gang(key).map(|(_, part)| part.gpu).chain([gpu]);
        let guard = gpus.into_iter().any(|gpu| seen.on(gpu).any(|(_, s)| goes_first(s)));
        let known = self.turn.filter(|it| (it.0, it.1) == (word, state.granted));
        // a turn that began before this GPU was first seen may have been of another class then, or a guard
        // turn
        let begins = known.is_none() && state.granted == seen.now;
        let turn = known.unwrap_or((word, state.granted, guard || !begins));
        if turn.2 && begins && !tied {
            self.began(seen, class)?;
        }
        self.turn = Some(turn);
        let now = seen.now;
        if above && !turn.2 {
            return Err(format!("a {class} turn goes on on {gpu} while a higher class waits"));
        }
        if above && !tied && now >= state.granted + seen.config.turn_min.0 {
            return Err(format!("a guard turn on {gpu} goes on after {} ns", now - state.granted));
        }
        Ok(())
    }

    fn starves(
        &mut self,
        seen: &Observer,
        gpu: GpuUuid,
        all: &[&LaneState],
        (at, class): (usize, Class),
    ) -> Result<(), Objection> {
        let gated = all.iter().any(|s| s.view.is_some_and(|view| view.mode == Mode::Turns));
        let mut own = all.iter().filter(|s| s.record.class == class);
        let may = |s: &LaneState| s.may_wait() && !s.capped();
        let waits = own.clone().any(|s| may(s));
        if own.any(|s| s.pays()) || !waits || !gated {
            (self.served[at], self.longest[at]) = (seen.now, 0);
        }
        let (above, most) = rule(&seen.config, class);
        let stretch = all.iter().map(|s| s.stretch.max(s.last)).max().unwrap_or(0);
        self.longest[at] = self.longest[at].max(stretch);
        let patience = most + 2 * self.longest[at] + seen.elapsed + 2 * seen.config.turn_min.0;
        if above < 100 && seen.now > self.served[at] + patience {
            return Err(format!(
                "{class} containers starve on {gpu} since {} ns",
                seen.now - self.served[at]
            ));
        }
        Ok(())
    }

    /// A guard turn begins.
    fn began(&mut self, seen: &Observer, class: Class) -> Result<(), Objection> {
        let Some(at) = LOWER.iter().position(|lower| *lower == class) else {
            return Ok(());
        };
        let (above, _) = rule(&seen.config, class);
        let every = seen.config.turn_min.0 * 100 / (100 - above).max(1);
        if let Some(last) = self.guard[at].replace(seen.now)
            && seen.now < last + every
        {
            return Err(format!("guard turns follow each other after {} ns", seen.now - last));
        }
        Ok(())
    }
}
