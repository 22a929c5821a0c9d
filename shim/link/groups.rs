//! The daemon is told of the channel groups in which this process's kernels run, so that it can stop them.
//!
//! It is told what changed, when a context was made or ended; and everything again when it came back.

use super::conn::Conn;
use super::session::REPLY_WAIT;
use super::{Session, sys};
use crate::channels::{self, objects::Group};
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_wire::units::Instant;
use std::io::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The groups the daemon knows of. Taken only by who has the connection.
#[derive(Debug, Default)]
pub struct Told(Mutex<Vec<Group>>);

impl Told {
    fn list(&self) -> MutexGuard<'_, Vec<Group>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Tells the daemon what became of groups, if it wants to know.
    pub fn tell_groups(&self) {
        if self.container().stop.load(Relaxed) == 0 {
            return;
        }
        let mut conn = self.slow_path();
        let deadline = sys::now().plus(REPLY_WAIT);
        let told = conn
            .as_mut()
            .is_none_or(|open| self.tell_changes(open, deadline).is_ok());
        if !told {
            self.hang_up(&mut conn);
        }
    }

    /// The daemon is away: what it may have stopped goes on, as everything does without it.
    pub fn resume_own(&self) {
        if self.container().stop.load(Relaxed) != 0 {
            channels::resume();
        }
    }

    /// Tells a daemon that came back of all groups there are.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) fn tell_groups_again(&self, conn: &mut Conn, deadline: Instant) -> Result<()> {
        self.told.list().clear();
        if self.container().stop.load(Relaxed) == 0 {
            return Ok(());
        }
        self.tell_changes(conn, deadline)
    }

    fn tell_changes(&self, conn: &mut Conn, deadline: Instant) -> Result<()> {
        let (now, mut told) = (channels::groups(self.lanes()), self.told.list());
        for gone in told.iter().filter(|group| !now.contains(group)) {
            conn.group_gone(gone, deadline)?;
        }
        for new in now.iter().filter(|group| !told.contains(group)) {
            conn.group(new, deadline)?;
        }
        *told = now;
        Ok(())
    }
}
