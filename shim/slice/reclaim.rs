//! Brings the charges of this process's memory up to date, and releases what it does not use.

use super::state::Slice;
use crate::memory::followed;
use gpuslice_wire::ids::Lane;

impl Slice {
    /// Releases unused memory: called when this process is short of memory, and when another one of the
    /// container is. Safe from any thread, needs no current context, and takes no lock of the session.
    /// Returns whether the process has memory of a kind that may have been released.
    pub fn reclaim(&self) -> bool {
        self.pools.reclaim(&self.daemon);
        self.graphs.reclaim(&self.daemon);
        self.drop_closed_exports();
        followed::any()
    }

    /// Updates the charges that only the driver knows: called before charges are read.
    #[inline]
    pub fn settle_all(&self) {
        if followed::any() {
            self.settle_followed();
        }
    }

    #[cold]
    fn settle_followed(&self) {
        self.pools.settle_all(&self.daemon);
        self.graphs.settle_all(&self.daemon);
        self.drop_closed_exports();
    }

    /// The memory that the driver has taken on a GPU beyond the charges, where `apart` of the charged bytes are
    /// the guess to be corrected. `None` if it cannot be measured.
    #[must_use]
    pub fn unaccounted(&self, lane: Lane, apart: u64) -> Option<u64> {
        self.settle_all();
        self.daemon.unaccounted(lane, apart)
    }
}
