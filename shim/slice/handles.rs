//! Legacy memory handles that this process exports, and the origin of handles that it opens.
//!
//! A legacy handle of memory may be passed to any process. The daemon keeps a digest of each handle with
//! the container that reported it, so that memory of one container is charged once, and memory of another
//! container is recognised.
//!
//! An exported handle may be opened at any time, so the daemon must have its digest before the application
//! has the handle. The exporting process therefore asks about its own handle next, on the same connection;
//! the reply shows that the daemon has read both. A restarted daemon has no digests; all are reported again.

use crate::daemon::Session;
use crate::daemon::conn::Conn;
use crate::daemon::sys::{self, Backoff};
use gpuslice_wire::limits::{DAEMON_WAIT_NS, HANDLES_PER_CLIENT_MAX};
use gpuslice_wire::tenant::{HandleKey, Request};
use gpuslice_wire::units::{Duration, Instant};
use std::collections::VecDeque;
use std::io::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pause before a second lookup, ns. A restarted daemon answers the first one when the processes have attached again,
/// and they report their handles right after that.
const SECOND_LOOK_NS: u64 = 300_000_000;

/// Exported handles, the oldest first; as many as the daemon keeps.
#[derive(Debug, Default)]
pub struct SharedHandles(Mutex<VecDeque<HandleKey>>);

impl SharedHandles {
    fn keys(&self) -> MutexGuard<'_, VecDeque<HandleKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a handle. Returns whether it is new.
    fn add(&self, key: HandleKey) -> bool {
        let mut keys = self.keys();
        if keys.contains(&key) {
            return false;
        }
        if keys.len() == HANDLES_PER_CLIENT_MAX {
            keys.pop_front();
        }
        keys.push_back(key);
        true
    }

    /// Reports a handle that is about to be exported. Without a daemon, it is reported when the daemon is
    /// back.
    pub fn share(&self, daemon: &Session, key: HandleKey) {
        if self.add(key) {
            let _ = daemon.request(|conn, deadline| {
                conn.tell(&Request::Share { key }, deadline)?;
                conn.origin(key, deadline)
            });
        }
    }

    /// Reports all handles to a daemon that came back.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn report_again(&self, conn: &mut Conn, deadline: Instant) -> Result<()> {
        let keys = self.keys().clone();
        keys.into_iter().try_for_each(|key| conn.tell(&Request::Share { key }, deadline))
    }
}

/// Whether a process of this container exported the handle. Waits for a daemon that is away; if it stays
/// away, the handle counts as another container's.
#[must_use]
pub fn is_ours(daemon: &Session, key: HandleKey) -> bool {
    let deadline = sys::now().plus(Duration(DAEMON_WAIT_NS));
    origin(daemon, key, deadline) || {
        sys::nap(SECOND_LOOK_NS);
        origin(daemon, key, deadline)
    }
}

fn origin(daemon: &Session, key: HandleKey, deadline: Instant) -> bool {
    let mut pause = Backoff::default();
    loop {
        let ours = daemon.request(|conn, deadline| conn.origin(key, deadline));
        if let Some(ours) = ours {
            return ours;
        }
        if !daemon.reconnect() {
            if sys::now() >= deadline {
                return false;
            }
            pause.nap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_is_kept_once_and_the_oldest_are_dropped_first() {
        let shared = SharedHandles::default();
        for _ in 0..2 {
            for key in 0..HANDLES_PER_CLIENT_MAX as u64 {
                shared.add(HandleKey(key));
            }
        }
        assert!(!shared.add(HandleKey(7)) && shared.add(HandleKey(u64::MAX)));
        let keys = shared.keys();
        assert_eq!(keys.len(), HANDLES_PER_CLIENT_MAX);
        assert_eq!((keys.front(), keys.back()), (Some(&HandleKey(1)), Some(&HandleKey(u64::MAX))));
    }
}
