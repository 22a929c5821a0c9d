//! A daemon that commands share (`gpuslice run` where no other daemon answers) ends with the last of them.
//!
//! A command keeps its connection to the admin socket for as long as it runs, so the kernel tells of its
//! end, however it came. Slices that were given over a connection end with it. Without connections the
//! daemon ends; it also ends if none comes at all. A command that connects in that moment is not
//! answered, and starts another daemon.

use crate::admin::Admin;
use crate::daemon::{Daemon, Work};
use crate::effects::NOBODY;
use crate::poll::now;
use crate::slots::Key;
use gpuslice_engine::Event;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::{Duration, Instant};

/// How long the first command may take to connect.
const FIRST_WITHIN: Duration = Duration(10_000_000_000);

/// What keeps the daemon running.
#[derive(Clone, Copy, Debug, Default)]
pub enum Keepers {
    /// Nothing: it runs until it is told to end.
    #[default]
    Unneeded,
    /// The first command, which must connect by then.
    First(Instant),
    /// The commands that are connected.
    Connected,
}

impl Daemon {
    /// From now on the daemon runs for as long as commands are connected.
    pub fn runs_while_used(&mut self) {
        self.keepers = Keepers::First(now().plus(FIRST_WITHIN));
    }

    /// A client of the admin socket is served.
    pub fn is_used(&mut self) {
        if let Keepers::First(_) = self.keepers {
            self.keepers = Keepers::Connected;
        }
    }

    /// When the first command must have come.
    pub fn unused_deadline(&self) -> Option<Instant> {
        match self.keepers {
            Keepers::First(by) => Some(by),
            Keepers::Unneeded | Keepers::Connected => None,
        }
    }

    /// Ends the daemon if no command keeps it running.
    pub fn end_if_unused(&mut self) {
        let unused = match self.keepers {
            Keepers::Unneeded => false,
            Keepers::First(by) => by <= now(),
            Keepers::Connected => self.admins.iter().all(|(_, admin)| admin.observes()),
        };
        self.ending |= unused;
    }

    /// A client of the admin socket was given a slice.
    pub fn gave(&mut self, key: Key, container: ContainerId) {
        let keeps = !matches!(self.keepers, Keepers::Unneeded);
        if let Some(admin) = self.admins.get_mut(key).filter(|_| keeps) {
            admin.slices.push(container);
        }
    }

    /// Ends a connection to the admin socket.
    pub fn drop_admin(&mut self, key: Key) {
        let slices = self.admins.remove(key).map(|Admin { slices, .. }| slices);
        for container in slices.unwrap_or_default() {
            let token = NOBODY;
            self.work
                .push_back(Work::Tell(Event::Dismiss { token, container }));
        }
    }
}
