//! What a hand-over costs, which is nobody's time.

use gpuslice_wire::ids::GpuUuid;

use super::{Observer, Place};

impl Observer {
    /// What the last turn's hand-over cost is nobody's.
    pub(super) fn spare(&mut self, place: Place) {
        let common = self.common(self.seats[&place].gpu);
        if let Some(seat) = self.seats.get_mut(&place) {
            seat.sparing = common.min(seat.stint / 2);
            seat.off += seat.sparing;
        }
    }

    /// What a hand-over costs each of those who compete for a GPU, by the word of the one in the middle, or the
    /// lower one of two; of one alone nothing.
    fn common(&self, gpu: GpuUuid) -> u64 {
        let rivals = self.on(gpu).map(|(_, seat)| seat);
        let rivals = rivals.filter(|seat| seat.wants() || seat.overrun || seat.untracked);
        let mut means: Vec<u64> = rivals.filter_map(|seat| seat.idle.mean()).collect();
        means.sort_unstable();
        match means.len() {
            0 | 1 => 0,
            count => means[count.div_ceil(2) - 1],
        }
    }
}
