//! A container that waits is served: while i waits, each other of its class gets at most what the line owes
//! it, `l_i * w_j / w_i + 2 l_j` (`l_i` with a debt of a shortest turn, which keeps none from going on where turns
//! begin), and then it is i's turn. Since the GPU does not idle either, every wait ends.
//!
//! A container with a share has it beside those without one, taken together: `(P + l_P) * c / r + 2 l`, where P
//! is what those without one had while i waits, l_P what they may have had ahead ([`super::pools`]), c the share,
//! and r what all shares leave. What it is sure of itself is another checker's.

use std::collections::BTreeMap;

use super::Objection;
use super::pools::Pools;
use crate::observer::{LaneKey, LaneState, Observer};

/// What others had since each one waits.
#[derive(Debug, Default)]
pub struct Progress {
    waits: BTreeMap<LaneKey, Wait>,
    pools: Pools,
}

/// Since one waits.
#[derive(Clone, Debug, Default)]
struct Wait {
    had: BTreeMap<LaneKey, Had>,
    /// Those without a share together.
    pool: u64,
    /// The most that all shares were, in percent.
    shares: u64,
}

/// How much, and under which weights and classes of the two.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    time: u64,
    tuned: (u64, u64),
}

impl Progress {
    /// Time passed.
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
    /// Time passed; those without a share had `ahead` ns ahead of their line at most.
    fn advance(&mut self, seen: &Observer, me: &LaneState, ahead: u64) -> Result<(), Objection> {
        self.had.retain(|j, _| seen.lanes.contains_key(j));
        let class = seen.on(me.gpu).map(|(_, state)| state);
        let class = class.filter(|state| state.record.class == me.record.class);
        self.shares = self.shares.max(class.map(|state| state.share).sum());
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
                _ => self.above_me(other, ahead),
            };
            let had = self.had[&j].time;
            let bound = u64::try_from(bound).unwrap_or(u64::MAX);
            if had > bound {
                return Err(format!("{} had {had} ns of at most {bound}", j.0));
            }
        }
        Ok(())
    }

    /// What one with a share may have.
    fn above_me(&self, other: &LaneState, ahead: u64) -> u128 {
        let rest = 100u64.saturating_sub(self.shares).max(1);
        let pool = u128::from(self.pool + ahead);
        pool * u128::from(other.share) / u128::from(rest) + 2 * u128::from(other.longest) + 1_000
    }
}

fn beside(me: &LaneState, other: &LaneState) -> bool {
    let counts = other.pays() || other.compensated > 0;
    // who was passed runs beside others, and has turns of its own beside that
    let waited_for = !other.overrun || other.holds();
    other.record.class == me.record.class && counts && waited_for
}

/// What one without a share may have.
fn beside_me(seen: &Observer, me: &LaneState, other: &LaneState) -> u128 {
    let weight = |state: &LaneState| u128::from(state.weight);
    // what it owed when turns began, and was let go on with, comes on top of its longest turn
    let mine = u128::from(me.longest + seen.config.turn_min.0) * weight(other) / weight(me);
    // a gang that was called on all its GPUs comes, whoever else does on one of them
    let turns = if other.gang { 3 } else { 2 };
    mine + u128::from(turns * other.longest) + 1_000
}
