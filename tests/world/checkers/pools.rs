//! The pool's possible lead over the containers with a share: one turn of any container of the pool, as in
//! start-time fair queueing.
//!
//! A gang is *called* when it is first in its queue, and gets its turn later, when all its GPUs are free.
//! Another container without a share may have had a turn in between, and so may each other gang that was
//! called. So each gang adds a turn.

use std::collections::BTreeMap;

use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Class;

use crate::observer::{LaneState, Observer};

/// For each class of each GPU, also for containers that are gone: the others owe their time.
#[derive(Debug, Default)]
pub struct Pools(BTreeMap<(GpuUuid, Class), Pool>);

#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    /// The longest stretch of any container, ns.
    longest: u64,
    /// The largest number of gangs at once.
    gangs: u64,
}

impl Pools {
    /// Advances the clock.
    pub fn advance(&mut self, seen: &Observer) {
        let mut gangs: BTreeMap<(GpuUuid, Class), u64> = BTreeMap::new();
        for state in seen.lanes.values().filter(|state| state.share == 0) {
            let key = (state.gpu, state.record.class);
            let pool = self.0.entry(key).or_default();
            pool.longest = pool.longest.max(state.longest);
            *gangs.entry(key).or_default() += u64::from(state.gang);
        }
        for (key, gangs) in gangs {
            let pool = self.0.entry(key).or_default();
            pool.gangs = pool.gangs.max(gangs);
        }
    }

    /// The longest stretch of them, ns.
    pub fn longest(&self, state: &LaneState) -> u64 {
        let pool = self.0.get(&(state.gpu, state.record.class));
        pool.map_or(0, |pool| pool.longest)
    }

    /// The largest lead of the containers without a share, of the class of `state` on its GPU, over their
    /// queue, ns.
    pub fn ahead(&self, state: &LaneState) -> u64 {
        let pool = self.0.get(&(state.gpu, state.record.class));
        pool.map_or(0, |pool| pool.longest * (1 + pool.gangs))
    }
}
