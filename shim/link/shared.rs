//! What this process lets others open, and where what it opens comes from.
//!
//! A legacy handle of memory is a name that any process may be given. The daemon keeps a digest of each
//! with the container whose process told of it, so that memory of one container is charged once, and
//! memory of another is known for what it is.
//!
//! A process that gave out a handle cannot know when somebody asks about it, so the daemon must have it
//! before the application does: who shares asks about his own handle next, on the same connection, and
//! the answer says that both have been read. A daemon that comes back knows nothing; all is told again.

use super::conn::Conn;
use super::session::REPLY_WAIT;
use super::{Backoff, Session, sys};
use gpuslice_wire::limits::{DAEMON_WAIT_NS, HANDLES_PER_CLIENT_MAX};
use gpuslice_wire::tenant::HandleKey;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::VecDeque;
use std::io::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Who shared a handle may be attaching anew just now. So it is asked a second time before it counts
/// as another container's, after so long, ns.
const SECOND_LOOK_NS: u64 = 300_000_000;

/// Handles given out, the oldest first; as many as the daemon remembers.
#[derive(Debug, Default)]
pub struct Shared(Mutex<VecDeque<HandleKey>>);

impl Shared {
    fn keys(&self) -> MutexGuard<'_, VecDeque<HandleKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a handle down; whether it is new.
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
}

impl Session {
    /// Tells the daemon of a handle that is about to be given out. Without a daemon, it is told when
    /// that is back.
    pub fn share(&self, key: HandleKey) {
        if !self.shared.add(key) {
            return;
        }
        let mut conn = self.slow_path();
        let deadline = sys::now().plus(REPLY_WAIT);
        let told = conn.as_mut().is_none_or(|open| {
            let told = open.share(key, deadline);
            told.and_then(|()| open.origin(key, deadline)).is_ok()
        });
        if !told {
            self.hang_up(&mut conn);
        }
    }

    /// Tells a daemon that came back of all handles there are.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) fn share_again(&self, conn: &mut Conn, deadline: Instant) -> Result<()> {
        let keys = self.shared.keys().clone();
        keys.into_iter()
            .try_for_each(|key| conn.share(key, deadline))
    }

    /// Whether a process of this container shared the handle. Waits for a daemon that is away, and takes
    /// a handle of which nobody could be asked for another container's.
    #[must_use]
    pub fn is_ours(&self, key: HandleKey) -> bool {
        let deadline = sys::now().plus(Duration(DAEMON_WAIT_NS));
        self.origin(key, deadline) || {
            sys::nap(SECOND_LOOK_NS);
            self.origin(key, deadline)
        }
    }

    fn origin(&self, key: HandleKey, deadline: Instant) -> bool {
        let mut pause = Backoff::default();
        loop {
            let mut conn = self.slow_path();
            if let Some(open) = conn.as_mut() {
                match open.origin(key, sys::now().plus(REPLY_WAIT)) {
                    Ok(ours) => return ours,
                    Err(_) => self.hang_up(&mut conn),
                }
            }
            if self.reattach(&mut conn) {
                continue;
            }
            drop(conn);
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
    fn each_handle_is_kept_once_and_the_oldest_go_first() {
        let shared = Shared::default();
        for _ in 0..2 {
            for key in 0..HANDLES_PER_CLIENT_MAX as u64 {
                shared.add(HandleKey(key));
            }
        }
        assert!(!shared.add(HandleKey(7)) && shared.add(HandleKey(u64::MAX)));
        let keys = shared.keys();
        assert_eq!(keys.len(), HANDLES_PER_CLIENT_MAX);
        assert_eq!(
            (keys.front(), keys.back()),
            (Some(&HandleKey(1)), Some(&HandleKey(u64::MAX)))
        );
    }
}
