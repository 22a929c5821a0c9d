//! What the driver takes for itself: asked of the daemon, which asks NVML.
//!
//! A context costs hundreds of MiB that no call names; only the sum that NVML shows for the process
//! tells. What is in that sum and not in this process's books yet is the price of what was just
//! made. Other threads go on meanwhile: what they have reserved and the driver has not handed out
//! yet makes the price look smaller, what they free between measurement and books makes it look
//! larger, so the larger of the books before and after counts. Too small is made good by the daemon's own
//! measurements; too large would be a refusal that nobody deserves.

use super::Session;
use super::session::REPLY_WAIT;
use super::sys;
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_wire::ids::Lane;

impl Session {
    /// What the driver has taken of a GPU for this process beyond what the books name, where
    /// `apart` bytes of the books are the guess that is to be made right. `None`: nobody knows.
    #[must_use]
    pub fn unnamed(&self, lane: Lane, apart: u64) -> Option<u64> {
        crate::hooks::settle_all(self);
        let before = self.named(lane);
        let used = self.measure(lane)?;
        let named = before.max(self.named(lane)).saturating_sub(apart);
        let cap = self.facts(lane).cap.load(Relaxed);
        Some(used.saturating_sub(named).min(cap.saturating_add(1)))
    }

    /// What the books name of what NVML shows, bytes.
    fn named(&self, lane: Lane) -> u64 {
        let held = self.account(lane).held();
        held.saturating_sub(self.unseen_of(lane))
    }

    fn measure(&self, lane: Lane) -> Option<u64> {
        let mut conn = self.slow_path();
        self.publish(lane);
        let open = conn.as_mut()?;
        match open.measure(lane, sys::now().plus(REPLY_WAIT)) {
            Ok(used) => used,
            Err(_) => {
                self.hang_up(&mut conn);
                None
            }
        }
    }
}
