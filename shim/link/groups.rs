//! Reports the channel groups in which this process's kernels run, so that the daemon can stop them.
//!
//! Changes are reported when a context is created or ends; all groups are reported to a restarted daemon.

use super::conn::Conn;
use super::session::REPLY_WAIT;
use super::{Session, sys};
use crate::channels::{self, objects::ChannelGroup};
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_wire::units::Instant;
use std::io::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The groups reported to the daemon. Locked only by the thread that holds the connection.
#[derive(Debug, Default)]
pub struct ReportedGroups(Mutex<Vec<ChannelGroup>>);

impl ReportedGroups {
    fn list(&self) -> MutexGuard<'_, Vec<ChannelGroup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Reports changes of groups, if the daemon uses them.
    pub fn report_groups(&self) {
        if self.container().stop.load(Relaxed) == 0 {
            return;
        }
        let mut conn = self.slow_path();
        let deadline = sys::now().plus(REPLY_WAIT);
        let sent = conn
            .as_mut()
            .is_none_or(|open| self.report_changes(open, deadline).is_ok());
        if !sent {
            self.hang_up(&mut conn);
        }
    }

    /// Resumes groups that a daemon may have stopped before it went away.
    pub fn resume_own(&self) {
        if self.container().stop.load(Relaxed) != 0 {
            channels::resume();
        }
    }

    /// Reports all groups to a daemon that came back.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) fn report_groups_again(&self, conn: &mut Conn, deadline: Instant) -> Result<()> {
        self.reported.list().clear();
        if self.container().stop.load(Relaxed) == 0 {
            return Ok(());
        }
        self.report_changes(conn, deadline)
    }

    fn report_changes(&self, conn: &mut Conn, deadline: Instant) -> Result<()> {
        let (now, mut reported) = (channels::groups(self.lanes()), self.reported.list());
        for gone in reported.iter().filter(|group| !now.contains(group)) {
            conn.group_gone(gone, deadline)?;
        }
        for new in now.iter().filter(|group| !reported.contains(group)) {
            conn.group(new, deadline)?;
        }
        *reported = now;
        Ok(())
    }
}
