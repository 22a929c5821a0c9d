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
use gpuslice_wire::units::{Duration, Instant};

impl Session {
    /// The memory that the driver has taken on a GPU for this process beyond the accounted bytes, where
    /// `apart` of the accounted bytes are the guess to be corrected. `None` if the driver does not tell. The
    /// charges must be up to date.
    ///
    /// # Errors
    /// The daemon stayed away for 30 s.
    pub fn unaccounted(&self, lane: Lane, apart: u64) -> Result<Option<u64>, OutOfMemory> {
        let before = self.accounted(lane);
        let used = self.measured(lane, sys::now().plus(Duration(DAEMON_WAIT_NS)))?;
        let accounted = before.max(self.accounted(lane)).saturating_sub(apart);
        let cap = self.facts(lane).cap.load(Relaxed);
        Ok(used.map(|used| used.saturating_sub(accounted).min(cap.saturating_add(1))))
    }

    /// Asks the daemon. One that is away is waited for, as by a request for memory: else the object would be charged
    /// too little. Until the answer, the process's requests for more memory wait too, since they need the connection.
    fn measured(&self, lane: Lane, deadline: Instant) -> Result<Option<u64>, OutOfMemory> {
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

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, LANE, Socket};
    use super::*;
    use gpuslice_wire::tenant::Reply;
    use gpuslice_wire::units::{Bytes, GIB, MIB};

    fn measured(used: Option<u64>) -> Reply {
        Reply::Measured { lane: LANE, used: used.map(Bytes) }
    }

    /// What exceeds the cap counts as a byte more than it.
    #[test]
    fn what_the_driver_took_is_neither_accounted_nor_the_guess() {
        let Fake { session, daemon, .. } = Fake::new();
        daemon.grants(1, MIB);
        session.reserve(LANE, MIB).expect("granted").commit();
        session.unseen(LANE, 1024);
        let seen = MIB - 1024;
        let rows = [
            (None, 0, None),
            (Some(5 * MIB), 0, Some(5 * MIB - seen)),
            (Some(5 * MIB), 4096, Some(5 * MIB - seen + 4096)),
            (Some(seen - 1), 0, Some(0)),
            (Some(u64::MAX), 0, Some(GIB + 1)),
        ];
        for (number, (used, apart, expected)) in (2..).zip(rows) {
            daemon.answers(number, &measured(used));
            assert_eq!(session.unaccounted(LANE, apart), Ok(expected), "{used:?}");
        }
    }

    #[test]
    fn a_measurement_waits_for_a_daemon_until_its_deadline() {
        let socket = Socket::new(|daemon| {
            daemon.attaches();
            daemon.answers(2, &measured(Some(7)));
        });
        let Fake { session, daemon, .. } = Fake::at(&socket.0);
        drop(daemon);
        let deadline = sys::now().plus(Duration(DAEMON_WAIT_NS));
        assert_eq!(session.measured(LANE, deadline), Ok(Some(7)));
        let Fake { session, daemon, .. } = Fake::new();
        drop(daemon);
        assert_eq!(session.measured(LANE, Instant(0)), Err(OutOfMemory));
    }
}
