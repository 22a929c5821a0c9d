//! A share is given: over any interval in which a container with a share of c always wants a GPU, it has at
//! least c of the time that its class had, whatever weights others have, less what can be told:
//!
//! * a turn of its own and the c-th part of one turn of each other in its line, as start-time fair queueing
//!   has it, where those without a share are one ([`super::pools`]); of three, where gangs come when they can and
//!   not in their order;
//! * the debt it came with, a turn, and what must gather before an empty bucket pays out again.
//!
//! Not of the class's time is the rest of a turn whose container came into the class, or gave its share back, in the
//! middle of it: another line gave that turn.
//!
//! Shares that leave nothing leave one in a hundred and one to those without a share.

use std::collections::BTreeMap;

use super::Objection;
use super::pools::Pools;
use crate::observer::{LaneKey, LaneState, Observer};

/// What is owed to each that has a share and wants the GPU, in 2^-20 ns.
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
    /// Gangs were among them.
    gangs: bool,
    /// Weights, shares and classes on this GPU.
    tuned: u64,
}

impl Guarantee {
    /// Time passed.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        self.pools.advance(seen);
        self.owed
            .retain(|key, _| !seen.gap && seen.lanes.get(key).is_some_and(counts));
        let all = seen.lanes.iter().filter(|(_, state)| counts(state));
        for (&key, me) in all.filter(|_| !seen.gap) {
            let class = |state: &LaneState| state.record.class == me.record.class;
            let queue = || {
                let others = seen.on(me.gpu).map(|(_, state)| state);
                others.filter(|state| class(state))
            };
            let shares: u64 = queue().map(|state| state.share).sum();
            // somebody of the class has the GPU: of that time a part is due
            let on = queue().any(|state| state.pays() && !state.overrun && !state.guest);
            let compensated: u64 = queue().map(|state| state.compensated).sum();
            let had = if on { seen.elapsed } else { 0 };
            let due = (i128::from(had) - i128::from(compensated)) << 20;
            let due = due * i128::from(me.share) / i128::from(shares.max(99) + 1);
            let got = (i128::from(me.billed) - i128::from(me.compensated)) << 20;
            let owed = self.owed.entry(key).or_default();
            let tuned = seen.on(me.gpu).map(|(_, state)| state.tuned).sum();
            if owed.tuned != tuned {
                *owed = Owed {
                    tuned,
                    ..Owed::default()
                };
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

/// Is sure of its part now.
fn counts(state: &LaneState) -> bool {
    state.share > 0 && state.runnable() && !state.gang && !state.overrun
}

fn bound(seen: &Observer, me: &LaneState, queues: u64) -> i128 {
    let enough = (seen.config.round.0 * me.share / 100).max(seen.config.turn_min.0);
    let turns = 3 * me.longest + seen.config.turn_min.0;
    i128::from(queues * me.share / 100 + enough + turns + 1_000_000)
}
