//! A daemon shared by commands (`gpuslice run` where no other daemon answers) ends with the last of them.
//!
//! A command keeps its connection to the admin socket as long as it runs, so the kernel reports its end in
//! every case. Slices requested over a connection end with it. The daemon ends without connections, and if
//! none arrives within [`FIRST_WITHIN`]. A command that connects at that moment gets no answer and starts
//! another daemon.

use crate::admin::Admin;
use crate::daemon::{Daemon, Task};
use crate::executor::NO_REPLY;
use crate::slab::Key;
use gpuslice_engine::Event;
use gpuslice_host::clock::now;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::{Duration, Instant};

/// How long the first command may take to connect.
const FIRST_WITHIN: Duration = Duration(10_000_000_000);

/// When the daemon ends by itself.
#[derive(Clone, Copy, Debug, Default)]
pub enum IdleExit {
    /// Never: it runs until a signal.
    #[default]
    Never,
    /// If no command has connected by then.
    AwaitFirst(Instant),
    /// When no command is connected.
    WhenUnused,
}

impl Daemon {
    /// Ends the daemon when no command is connected any more.
    pub fn runs_while_used(&mut self) {
        self.idle_exit = IdleExit::AwaitFirst(now().plus(FIRST_WITHIN));
    }

    /// A client of the admin socket is served.
    pub fn is_used(&mut self) {
        if let IdleExit::AwaitFirst(_) = self.idle_exit {
            self.idle_exit = IdleExit::WhenUnused;
        }
    }

    /// When the first command must have come.
    pub fn unused_deadline(&self) -> Option<Instant> {
        match self.idle_exit {
            IdleExit::AwaitFirst(by) => Some(by),
            IdleExit::Never | IdleExit::WhenUnused => None,
        }
    }

    /// Ends the daemon if no command keeps it running.
    pub fn end_if_unused(&mut self) {
        let unused = match self.idle_exit {
            IdleExit::Never => false,
            IdleExit::AwaitFirst(by) => by <= now(),
            IdleExit::WhenUnused => self.admins.iter().all(|(_, admin)| admin.observes()),
        };
        self.ending |= unused;
    }

    /// A client of the admin socket was given a slice.
    pub fn gave(&mut self, key: Key, container: ContainerId) {
        let keeps = !matches!(self.idle_exit, IdleExit::Never);
        if let Some(admin) = self.admins.get_mut(key).filter(|_| keeps) {
            admin.slices.push(container);
        }
    }

    /// Ends a connection to the admin socket.
    pub fn drop_admin(&mut self, key: Key) {
        let slices = self.admins.remove(key).map(|Admin { slices, .. }| slices);
        for container in slices.unwrap_or_default() {
            let token = NO_REPLY;
            self.tasks
                .push_back(Task::Step(Event::Dismiss { token, container }));
        }
    }
}
