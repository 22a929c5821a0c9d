//! Progress: every waiting container is served. While i waits, each other container of its class gets at
//! most what the queue owes it, `l_i * w_j / w_i + 2 l_j`, and then it is i's turn. (`l_i` includes a debt
//! of a shortest turn, which keeps no container from going on where turns begin.) Since the GPU does not
//! idle either, every wait ends.
//!
//! A container with a share has, beside the containers without one, taken together: `(P + l_P) * c / r + 2 l`. P
//! is the time these had while i waits, l_P their possible lead ([`super::pools`]), c the share, and r the rest
//! that all shares leave. Where containers with a share have weights too, these take from r: with W the sum of
//! all weights, i is due `r * w_i / W` at least, and j `c + r * w_j / W`. So the factor is `(c * W / r + w_j) / w_i`.
//! Another checker checks its own guarantee.

use std::collections::BTreeMap;

use super::Objection;
use super::pools::Pools;
use crate::observer::{LaneKey, LaneState, Observer};

/// The others' GPU time since each container waits.
#[derive(Debug, Default)]
pub struct Progress {
    waits: BTreeMap<LaneKey, Wait>,
    pools: Pools,
}

/// The state since one container waits.
#[derive(Clone, Debug, Default)]
struct Wait {
    had: BTreeMap<LaneKey, Had>,
    /// The containers without a share together.
    pool: u64,
    /// The largest sum of shares, in percent.
    shares: u64,
    /// The largest sum of all weights, if a container with a share had one of them.
    weights: u64,
}

/// GPU time, and changes of weights and classes of the two.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    time: u64,
    tuned: (u64, u64),
}

impl Progress {
    /// Advances the clock.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        let waits = |key: &LaneKey| {
            seen.lanes.get(key).is_some_and(|state| {
                let free = !state.capped() && state.share == 0 && !state.overrun && !state.gang;
                free && state.waits.is_some() && !seen.gap
            })
        };
        self.pools.advance(seen);
        self.waits.retain(|i, _| waits(i));
        for (&i, me) in seen.lanes.iter().filter(|(key, _)| waits(key)) {
            let wait = self.waits.entry(i).or_default();
            wait.advance(seen, me, self.pools.ahead(me))
                .map_err(|why| format!("{} waits while {why}", i.0))?;
        }
        Ok(())
    }
}

impl Wait {
    /// Advances the clock; containers without a share had a lead of at most `ahead` ns.
    fn advance(&mut self, seen: &Observer, me: &LaneState, ahead: u64) -> Result<(), Objection> {
        self.had.retain(|j, _| seen.lanes.contains_key(j));
        let class = seen.on(me.gpu).map(|(_, state)| state);
        let class = class.filter(|state| state.record.class == me.record.class);
        let class: Vec<&LaneState> = class.collect();
        self.shares = self.shares.max(class.iter().map(|state| state.share).sum());
        if class.iter().any(|state| state.share > 0 && state.surplus > 0) {
            self.weights = self.weights.max(class.iter().map(|state| state.surplus).sum());
        }
        for (&j, other) in seen.on(me.gpu).filter(|(_, other)| beside(me, other)) {
            let used = if other.pays() { seen.elapsed } else { 0 };
            if other.share == 0 && !other.guest {
                self.pool = (self.pool + used).saturating_sub(other.compensated);
            }
            let had = self.had.entry(j).or_default();
            let tuned = (me.tuned, other.tuned);
            if had.tuned != tuned {
                *had = Had { time: 0, tuned };
            }
            had.time = (had.time + used).saturating_sub(other.compensated);
            let bound = match other.share {
                0 => beside_me(seen, me, other),
                _ => self.above_me(me, other, ahead),
            };
            let had = self.had[&j].time;
            let bound = u64::try_from(bound).unwrap_or(u64::MAX);
            if had > bound {
                return Err(format!("{} had {had} ns of at most {bound}", j.0));
            }
        }
        Ok(())
    }

    /// The bound for a container with a share.
    fn above_me(&self, me: &LaneState, other: &LaneState, ahead: u64) -> u128 {
        let rest = 100u64.saturating_sub(self.shares).max(1);
        let (theirs, mine) = match self.weights {
            0 => (other.share, rest),
            all => (other.share * all + other.surplus * rest, me.surplus * rest),
        };
        let pool = u128::from(self.pool + ahead);
        pool * u128::from(theirs) / u128::from(mine) + 2 * u128::from(other.longest) + 1_000
    }
}

fn beside(me: &LaneState, other: &LaneState) -> bool {
    let counts = other.pays() || other.compensated > 0;
    // an overrun container runs beside others, and has turns of its own beside that
    let waited_for = !other.overrun || other.holds();
    other.record.class == me.record.class && counts && waited_for
}

/// The bound for a container without a share.
fn beside_me(seen: &Observer, me: &LaneState, other: &LaneState) -> u128 {
    let weight = |state: &LaneState| u128::from(state.weight);
    // its debt when turns began, with which it may go on, comes on top of its longest turn
    let mine = u128::from(me.longest + seen.config.turn_min.0) * weight(other) / weight(me);
    // a gang that was called on all its GPUs gets its turn, whatever else waits on one of them
    let turns = if other.gang { 3 } else { 2 };
    mine + u128::from(turns * other.longest) + 1_000
}
