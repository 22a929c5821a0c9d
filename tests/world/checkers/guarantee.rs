//! Shares are guaranteed: over any interval in which a container with a share of c is always runnable, it
//! has at least c of its class's time, whatever weights others have, less an amount that is bounded:
//!
//! * a turn of its own and the c-th part of one turn of each other entry in its queue, as in start-time
//!   fair queueing, where the containers without a share are one entry ([`super::pools`]); of three turns,
//!   where gangs come when they can and not in their order;
//! * its initial debt, a turn, and its part of a round, which must gather before an empty bucket pays out again.
//!
//! The rest of a turn does not count as the class's time if its container came into the class, or gave its
//! share back, in the middle of it: another queue granted that turn.
//!
//! Shares that leave nothing leave one in a hundred and one to the weights. What a container has beyond its
//! share is another checker's ([`super::surplus`]).

use std::collections::BTreeMap;

use super::Objection;
use super::pools::Pools;
use crate::observer::{LaneKey, LaneState, Observer};

/// Time owed to each runnable container with a share, in 2^-20 ns.
#[derive(Debug, Default)]
pub struct Guarantee {
    owed: BTreeMap<LaneKey, Owed>,
    pools: Pools,
}

#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    time: i128,
    /// The longest turns of the others with a share in that time.
    others: u64,
    /// There were gangs among them.
    gangs: bool,
    /// Changes of weights, shares and classes on this GPU.
    tuned: u64,
}

impl Guarantee {
    /// Whether a container with a share is owed time.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.owed.values().any(|owed| owed.time > 0)
    }

    /// Advances the clock.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        self.pools.advance(seen);
        self.owed.retain(|key, _| !seen.gap && seen.lanes.get(key).is_some_and(counts));
        let all = seen.lanes.iter().filter(|(_, state)| counts(state));
        for (&key, me) in all.filter(|_| !seen.gap) {
            let class = |state: &LaneState| state.record.class == me.record.class;
            let queue = || {
                let others = seen.on(me.gpu).map(|(_, state)| state);
                others.filter(|state| class(state))
            };
            let shares: u64 = queue().map(|state| state.share).sum();
            // a container of the class has the GPU: a part of that time is due
            let on = queue().any(|state| state.pays() && !state.overrun && !state.guest);
            let compensated: u64 = queue().map(|state| state.compensated).sum();
            let had = if on { seen.elapsed } else { 0 };
            let due = (i128::from(had) - i128::from(compensated)) << 20;
            let due = due * i128::from(me.share) / i128::from(shares.max(99) + 1);
            let got = (i128::from(me.billed) - i128::from(me.compensated)) << 20;
            let owed = self.owed.entry(key).or_default();
            let tuned = seen.on(me.gpu).map(|(_, state)| state.tuned).sum();
            if owed.tuned != tuned {
                *owed = Owed { tuned, ..Owed::default() };
            }
            owed.time = (owed.time + due - got).max(0);
            owed.gangs |= queue().any(|state| state.gang);
            let turns = queue().filter(|state| state.share > 0);
            owed.others = owed.others.max(turns.map(|state| state.longest).sum());
            let times = if owed.gangs { 3 } else { 1 };
            let queues =
                times * owed.others + self.pools.ahead(me).max(times * self.pools.longest(me));
            let (owed, bound) = (owed.time >> 20, bound(seen, me, queues));
            if owed > bound {
                return Err(format!(
                    "{} has a share of {} and is owed {owed} ns; the bound is {bound}",
                    key.0, me.share
                ));
            }
        }
        Ok(())
    }
}

/// Whether its part is guaranteed now.
fn counts(state: &LaneState) -> bool {
    state.share > 0 && state.runnable() && !state.gang && !state.overrun
}

fn bound(seen: &Observer, me: &LaneState, queues: u64) -> i128 {
    let enough = seen.config.round.0 * me.share / 100;
    let turns = 3 * me.longest + seen.config.turn_min.0;
    i128::from(queues * me.share / 100 + enough + turns + 1_000_000)
}
