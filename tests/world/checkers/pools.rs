//! What the containers of a class without a share may have had ahead of those with one: one turn of any of them,
//! as start-time fair queueing has it.
//!
//! A gang is *called* when its place has come and comes later, when all its GPUs are free. Another container without a
//! share may have had a turn in between, and so may each other gang that was called. So each gang adds a turn.

use std::collections::BTreeMap;

use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Class;

use crate::observer::{LaneState, Observer};

/// Of each class of each GPU, also of containers that are gone: what these had is owed by the others.
#[derive(Debug, Default)]
pub struct Pools(BTreeMap<(GpuUuid, Class), Pool>);

#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    /// The longest stretch of any, ns.
    longest: u64,
    /// The most gangs at once.
    gangs: u64,
}

impl Pools {
    /// Time passed.
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

    /// What those without a share, of the class of `seat` on its GPU, had ahead of their line at most, ns.
    pub fn ahead(&self, state: &LaneState) -> u64 {
        let pool = self.0.get(&(state.gpu, state.record.class));
        pool.map_or(0, |pool| pool.longest * (1 + pool.gangs))
    }
}
