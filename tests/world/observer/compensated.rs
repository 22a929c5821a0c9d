//! Switch-overhead compensation, as the observer computes it.

use std::collections::VecDeque;

use gpuslice_wire::ids::GpuUuid;

use super::{LaneKey, Observer};

/// A container's reported idle time of its last 16 turns, ns.
#[derive(Clone, Debug, Default)]
pub(super) struct Idle(VecDeque<u64>);

impl Idle {
    pub(super) fn add(&mut self, ns: u64) {
        self.0.push_back(ns);
        if self.0.len() > 16 {
            self.0.pop_front();
        }
    }
    /// The mean, once there are so many.
    pub(super) fn mean(&self) -> Option<u64> {
        (self.0.len() == 16).then(|| self.0.iter().sum::<u64>() / 16)
    }
}

impl Observer {
    /// Takes the overhead of the last turn's switch off its charge.
    pub(super) fn compensate(&mut self, key: LaneKey) {
        let compensation = self.compensation(self.lanes[&key].gpu);
        if let Some(state) = self.lanes.get_mut(&key) {
            state.compensating = compensation.min(state.run / 2);
            state.off += state.compensating;
        }
    }

    /// The overhead of a switch, by the median report of the containers that compete for a GPU, of two the
    /// lower; with one alone, zero.
    fn compensation(&self, gpu: GpuUuid) -> u64 {
        let rivals = self.on(gpu).map(|(_, state)| state);
        let rivals = rivals.filter(|state| state.runnable() || state.overrun || state.untracked);
        let mut means: Vec<u64> = rivals.filter_map(|state| state.idle.mean()).collect();
        means.sort_unstable();
        match means.len() {
            0 | 1 => 0,
            count => means[count.div_ceil(2) - 1],
        }
    }
}
