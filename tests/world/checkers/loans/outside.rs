//! Memory of processes outside of all slices.
//!
//! # What is promised
//! What two samples in a row have shown, and has been there all the time since, is not lent, and not shown as free. No
//! sample shows a growth before its time: the driver may refuse what is granted until then. No more is kept from
//! containers than the last two samples both show.
//!
//! # How the checker knows
//! The world tells it what these processes have, at each change. The samples are events as the engine sees them.

use super::*;

/// What processes outside of all slices have on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outside {
    used: u64,
    /// The least since the last sample and since the one before, as far as these samples showed it.
    held: [u64; 2],
    /// What the last two samples showed.
    shown: [u64; 2],
}

impl Outside {
    /// A new engine has no sample yet.
    pub(super) fn unseen(&self) -> Outside {
        Outside { used: self.used, ..Outside::default() }
    }

    fn sampled(&mut self, used: u64) {
        self.held = [used.min(self.used), self.held[0].min(used)];
        self.shown = [used, self.shown[0]];
    }

    /// What is kept from containers, at least and at most.
    pub(super) fn bounds(&self) -> (u128, u128) {
        let [last, before] = self.shown;
        (self.held[1].into(), last.min(before).into())
    }
}

impl Loans {
    /// Processes outside of all slices have so much of a GPU from now on.
    pub fn outside(&mut self, gpu: GpuUuid, used: u64) {
        let it = self.outside.entry(gpu).or_default();
        it.used = used;
        it.held = it.held.map(|held| held.min(used));
    }

    /// A sample shows what they have.
    pub(super) fn sampled(&mut self, gpu: GpuUuid, used: u64) {
        let it = self.outside.entry(gpu).or_default();
        it.sampled(used);
        if it.bounds().0 > 0 {
            self.meets("memory outside");
        }
    }

    /// What is kept from containers of a GPU for such processes, at least and at most.
    pub(super) fn beyond(&self, gpu: GpuUuid) -> (u128, u128) {
        self.outside.get(&gpu).map_or((0, 0), Outside::bounds)
    }
}
