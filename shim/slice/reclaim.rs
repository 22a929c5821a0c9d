//! Brings the charges of this process's memory up to date, and releases what it does not use.

use super::state::Slice;
use crate::daemon::OutOfMemory;
use crate::daemon::sys::{self, nap};
use crate::memory::followed;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::units::Duration;

/// Pauses between measurements that do not show yet what the driver has done, in ns: together longer than the 100 ms
/// between two samples of a GPU.
const AGAIN_AFTER: [u64; 5] = [10_000_000, 20_000_000, 40_000_000, 80_000_000, 100_000_000];
/// No further measurement after this time: one can take as long as the daemon waits for NVML.
const AGAIN_WITHIN: Duration = Duration(2_000_000_000);

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
    /// the guess to be corrected. `None` if the driver does not tell.
    ///
    /// # Errors
    /// The daemon stayed away for 30 s.
    pub fn unaccounted(&self, lane: Lane, apart: u64) -> Result<Option<u64>, OutOfMemory> {
        self.settle_all();
        self.daemon.unaccounted(lane, apart)
    }

    /// The same after the driver has taken memory or given some back. NVML's figures may be older than that, or a list
    /// may lack them, so the daemon is asked again until an answer `fits`, for a bounded time.
    ///
    /// # Errors
    /// As [`Slice::unaccounted`].
    pub fn unaccounted_once(
        &self,
        lane: Lane,
        apart: u64,
        fits: impl Fn(Option<u64>) -> bool,
    ) -> Result<Option<u64>, OutOfMemory> {
        let until = sys::now().plus(AGAIN_WITHIN);
        let mut bytes = self.unaccounted(lane, apart)?;
        for pause in AGAIN_AFTER {
            if fits(bytes) || sys::now() >= until {
                break;
            }
            nap(pause);
            bytes = self.unaccounted(lane, apart)?;
        }
        Ok(bytes)
    }
}
