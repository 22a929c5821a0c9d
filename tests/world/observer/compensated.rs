//! What a hand-over costs, which is nobody's time.

use gpuslice_wire::ids::GpuUuid;

use super::{LaneKey, Observer};

impl Observer {
    /// What the last turn's hand-over cost is nobody's.
    pub(super) fn compensate(&mut self, key: LaneKey) {
        let compensation = self.compensation(self.lanes[&key].gpu);
        if let Some(state) = self.lanes.get_mut(&key) {
            state.compensating = compensation.min(state.run / 2);
            state.off += state.compensating;
        }
    }

    /// What a hand-over costs each of those who compete for a GPU, by the word of the one in the middle, or the
    /// lower one of two; of one alone nothing.
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
