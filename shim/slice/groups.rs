//! Reports the channel groups in which this process's kernels run, so that the daemon can stop them.
//!
//! Changes are reported when a context is created or ends; all groups are reported to a restarted daemon.

use crate::channels::{self, objects::ChannelGroup};
use crate::daemon::{Session, conn::Conn};
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_wire::page::STOP_CHANNELS;
use gpuslice_wire::tenant::{ObjectName, Request};
use gpuslice_wire::units::Instant;
use std::io::{ErrorKind, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The groups reported to the daemon. Locked only by the thread that holds the connection.
#[derive(Debug, Default)]
pub struct ReportedGroups(Mutex<Vec<ChannelGroup>>);

/// Whether the daemon uses channel groups.
pub fn wanted(daemon: &Session) -> bool {
    daemon.container().stop.load(Relaxed) != 0
}

impl ReportedGroups {
    fn list(&self) -> MutexGuard<'_, Vec<ChannelGroup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports changes of groups, if the daemon uses them.
    pub fn report(&self, daemon: &Session) {
        if wanted(daemon) {
            let _ = daemon.request(|conn, deadline| self.report_changes(daemon, conn, deadline));
        }
    }

    /// Reports all groups to a daemon that came back.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn report_again(&self, daemon: &Session, conn: &mut Conn, deadline: Instant) -> Result<()> {
        self.list().clear();
        if !wanted(daemon) {
            return Ok(());
        }
        self.report_changes(daemon, conn, deadline)
    }

    fn report_changes(&self, daemon: &Session, conn: &mut Conn, deadline: Instant) -> Result<()> {
        let with_channels = daemon.container().stop.load(Relaxed) >= STOP_CHANNELS;
        let lanes = daemon.lanes();
        let (now, mut reported) = (channels::groups(lanes), self.list());
        for gone in reported.iter().filter(|group| !now.contains(group)) {
            let (client, group) = (ObjectName(gone.client), ObjectName(gone.group));
            conn.tell(&Request::GroupGone { client, group }, deadline)?;
        }
        for new in now.iter().filter(|group| !reported.contains(group)) {
            let request = Request::Group {
                lane: new.lane,
                fd: u32::try_from(new.fd).map_err(|_| ErrorKind::InvalidInput)?,
                client: ObjectName(new.client),
                group: ObjectName(new.group),
                subdevice: ObjectName(new.subdevice),
            };
            conn.tell(&request, deadline)?;
            if with_channels {
                let (client, group) = (ObjectName(new.client), ObjectName(new.group));
                let channels = new.channels.map(ObjectName);
                conn.tell(&Request::Channels { client, group, channels }, deadline)?;
            }
        }
        *reported = now;
        Ok(())
    }
}
