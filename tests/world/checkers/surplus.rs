//! What containers have beyond their shares: while the same containers of a class are runnable, each without a
//! cap has its *due* of the class's time, less an amount that is bounded. The due is the share and a part by
//! weight of the rest, where limits bind others; the rest of all limits goes to shares without a weight, in
//! proportion.
//!
//! The bound: three turns of its own, a shortest turn, and one turn of each other container of the class on
//! the GPU, runnable or not: it may have a lead, which the others wait to have back. A container that left in
//! the interval counts as well: the GPU may have drained for it until then. One with a cap that was idle may use what
//! its cap allows at once, its part of the burst. An interval ends when a container begins or ceases to be runnable, or
//! changes, and where gangs, overruns or untracked work decide.

use std::collections::BTreeMap;

use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Class;

use super::Objection;
use super::pools::Pools;
use crate::observer::{LaneKey, LaneState, Observer};

/// Intervals for each class of each GPU that has shares.
#[derive(Debug, Default)]
pub struct Surplus {
    intervals: BTreeMap<(GpuUuid, Class), Interval>,
    pools: Pools,
}

/// Time in which the same containers are runnable.
#[derive(Debug, Default)]
struct Interval {
    who: Vec<Member>,
    /// What each is owed, ns.
    owed: BTreeMap<LaneKey, f64>,
    /// The longest stretch of each container of the class in this time, also of those that are gone, ns.
    longest: BTreeMap<LaneKey, u64>,
}

/// A runnable container, changes of its weights, and its cap.
type Member = (LaneKey, u64, (u64, u64));

impl Surplus {
    /// Advances the clock.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        self.pools.advance(seen);
        let mut classes: BTreeMap<(GpuUuid, Class), Vec<(LaneKey, &LaneState)>> = BTreeMap::new();
        for (&key, state) in &seen.lanes {
            classes.entry((state.gpu, state.record.class)).or_default().push((key, state));
        }
        let odd = |state: &LaneState| {
            state.gang || state.overrun || state.untracked || state.native || state.guest
        };
        classes.retain(|_, all| {
            let shares = all.iter().any(|(_, state)| state.share > 0);
            shares && !seen.gap && !all.iter().any(|(_, state)| odd(state))
        });
        self.intervals.retain(|key, _| classes.contains_key(key));
        for (key, all) in classes {
            let interval = self.intervals.entry(key).or_default();
            interval.advance(seen, &all, &self.pools)?;
        }
        Ok(())
    }
}

impl Interval {
    fn advance(
        &mut self,
        seen: &Observer,
        all: &[(LaneKey, &LaneState)],
        pools: &Pools,
    ) -> Result<(), Objection> {
        let runs: Vec<(LaneKey, &LaneState)> =
            all.iter().filter(|(_, state)| state.runnable()).copied().collect();
        let who = runs.iter().map(|(key, state)| (*key, state.tuned, state.cap)).collect();
        if self.who != who {
            *self = Interval { who, ..Interval::default() };
        }
        let on = all.iter().any(|(_, state)| state.pays());
        let had = if on { seen.elapsed as f64 } else { 0.0 };
        let compensated: u64 = all.iter().map(|(_, state)| state.compensated).sum();
        self.longest.extend(all.iter().map(|(key, state)| (*key, state.longest)));
        let turns: u64 = self.longest.values().sum();
        let states: Vec<&LaneState> = runs.iter().map(|(_, state)| *state).collect();
        for ((key, me), due) in runs.iter().zip(dues(&states)) {
            let got = me.billed as f64 - me.compensated as f64;
            let owed = self.owed.entry(*key).or_default();
            *owed = (*owed + (had - compensated as f64) * due - got).max(0.0);
            let own = 3 * me.longest + seen.config.turn_min.0;
            let capped = runs.iter().filter(|(other, state)| other != key && state.capped());
            let burst = |(_, it): &(LaneKey, &LaneState)| seen.config.burst.0 * it.cap.0 / it.cap.1;
            let at_once: u64 = capped.map(burst).sum();
            let bound = own + turns + pools.ahead(me) + at_once + 1_000_000;
            if !me.capped() && *owed > bound as f64 {
                return Err(format!(
                    "{} is due {:.2} % and is owed {owed} ns; the bound is {bound}",
                    key.0,
                    due * 100.0
                ));
            }
        }
        Ok(())
    }
}

/// The part of the time due to each of these, 0 to 1, all of them runnable.
fn dues(all: &[&LaneState]) -> Vec<f64> {
    let mut dues: Vec<f64> = all.iter().map(|it| it.share as f64 / 100.0).collect();
    let rest = (1.0 - dues.iter().sum::<f64>()).max(0.01);
    let rest = pour(&mut dues, all, rest, |it| it.surplus as f64);
    pour(&mut dues, all, rest, |it| if it.surplus > 0 { 0.0 } else { it.share as f64 });
    let sum = dues.iter().sum::<f64>().max(1.0);
    dues.iter().map(|due| due / sum).collect()
}

/// Adds `left` by weight, no container above its cap; returns what remains. Containers are taken in the order
/// in which they reach their caps.
fn pour(
    dues: &mut [f64],
    all: &[&LaneState],
    mut left: f64,
    weight: impl Fn(&LaneState) -> f64,
) -> f64 {
    let room = |at: usize, dues: &[f64]| all[at].cap.0 as f64 / all[at].cap.1 as f64 - dues[at];
    let mut order: Vec<usize> = (0..all.len()).filter(|at| weight(all[*at]) > 0.0).collect();
    let level = |at: usize, dues: &[f64]| room(at, dues) / weight(all[at]);
    order.sort_by(|a, b| level(*a, dues).total_cmp(&level(*b, dues)));
    let mut weights: f64 = order.iter().map(|at| weight(all[*at])).sum();
    for at in order {
        let more = (left * weight(all[at]) / weights).min(room(at, dues)).max(0.0);
        dues[at] += more;
        (left, weights) = (left - more, weights - weight(all[at]));
    }
    left
}
