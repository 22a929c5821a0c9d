//! Measures the memory that the driver takes for itself: the daemon asks NVML for it.
//!
//! A context costs hundreds of MiB that no call reports; only the sum that NVML shows for the process includes
//! them. The part of that sum that this process has not accounted is the cost of the object just created.
//! Other threads continue meanwhile: bytes that they have reserved and the driver has not allocated yet make
//! the cost look smaller, and bytes that they free between measurement and accounting make it look larger.
//! So the larger of the accounted sums before and after counts. The daemon's own measurements correct a
//! cost that is too small; one that is too large would cause an undeserved refusal.

use super::reservation::OutOfMemory;
use super::session::Session;
use super::sys::{self, Backoff};
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::DAEMON_WAIT_NS;
use gpuslice_wire::units::Duration;

impl Session {
    /// The memory that the driver has taken on a GPU for this process beyond the accounted bytes, where
    /// `apart` of the accounted bytes are the guess to be corrected. `None` if the driver does not tell. The
    /// charges must be up to date.
    ///
    /// # Errors
    /// The daemon stayed away for 30 s.
    pub fn unaccounted(&self, lane: Lane, apart: u64) -> Result<Option<u64>, OutOfMemory> {
        let before = self.accounted(lane);
        let used = self.measured(lane)?;
        let accounted = before.max(self.accounted(lane)).saturating_sub(apart);
        let cap = self.facts(lane).cap.load(Relaxed);
        Ok(used.map(|used| used.saturating_sub(accounted).min(cap.saturating_add(1))))
    }

    /// Asks the daemon. One that is away is waited for, as by a request for memory: else the object would be charged
    /// too little. Until the answer, the process's requests for more memory wait too, since they need the connection.
    fn measured(&self, lane: Lane) -> Result<Option<u64>, OutOfMemory> {
        let deadline = sys::now().plus(Duration(DAEMON_WAIT_NS));
        let mut pause = Backoff::default();
        loop {
            let answer = self.request(|open, deadline| {
                self.claim(lane);
                open.measure(lane, deadline, || self.is_stale())
            });
            match answer {
                Some(used) => return Ok(used),
                None if sys::now() >= deadline => return Err(OutOfMemory),
                None => {}
            }
            self.reconnect();
            pause.nap();
        }
    }

    /// Accounted bytes of the kind that NVML shows.
    fn accounted(&self, lane: Lane) -> u64 {
        let held = self.account(lane).held();
        held.saturating_sub(self.unseen_of(lane))
    }
}
