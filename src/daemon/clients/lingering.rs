//! Lingering clients: processes that can still hold GPU memory after their connection has ended.
//!
//! # Problem
//! A connection may end while its process runs: the process closed the descriptor, broke a rule, or stopped
//! reading. An exiting process closes its descriptors one after the other, perhaps the connection first and
//! the driver's last; closing the driver's frees its GPU memory. A process that has exited may have forked a
//! child that inherited the driver's descriptors: the driver then keeps the memory until the child closes them.
//! If the ledger were cleared before the memory is freed, a sibling would be granted memory that the device
//! does not have.
//!
//! # Idea
//! A process's grants stay charged until its pidfd is readable, which the kernel makes it after all descriptors
//! are closed. A forked child inherits the connection together with the driver's descriptors, and loses both
//! in the same ways: it closes them, executes another program, or exits. So if a process has exited and its
//! connection is still open, the daemon waits for the end of the connection, too. A client in either state is
//! *lingering*; the next connection of its process takes it over.
//!
//! Limits: a child forked before its parent reconnected (after a restart of the daemon) holds only the old
//! connection, which shows nothing. On a kernel without pidfds (before 5.3), a client ends with its connection.

use super::{ClientHolder, Clients, Tenant};
use crate::containers::UsageSlot;
use crate::poll::Source;
use crate::slab::Key;
use crate::sockets::Socket;
use crate::tasks::Tasks;
use gpuslice_engine::{Event, Process};
use gpuslice_host::process::has_exited;
use gpuslice_host::seqpacket::hung_up;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use std::os::fd::{AsFd, OwnedFd};

/// The event that ends a lingering client.
#[derive(Debug)]
pub enum LingerUntil {
    /// The exit of its process, which still runs.
    Exit(OwnedFd),
    /// The end of a connection whose process has exited: another process has it open.
    Close(Socket),
}

/// A client of the engine whose process has no connection.
#[derive(Debug)]
pub struct LingeringClient {
    /// The process's container.
    pub container: ContainerId,
    /// The engine's id of the client.
    pub client: ClientId,
    /// The process, if it is known.
    pub process: Option<Process>,
    /// The event that ends it.
    pub until: LingerUntil,
    /// Its slot of the container's usage table.
    pub slot: Option<UsageSlot>,
}

impl LingerUntil {
    /// The event to wait for after a connection ends; `None` if no process can hold memory any more.
    fn of(tenant: Tenant) -> Option<LingerUntil> {
        let (pidfd, connection) = (tenant.peer.pidfd?, tenant.fd);
        if !has_exited(pidfd.as_fd()) {
            Some(LingerUntil::Exit(pidfd))
        } else {
            (!hung_up(connection.as_fd())).then_some(LingerUntil::Close(connection))
        }
    }

    fn is_over(&self) -> bool {
        match self {
            LingerUntil::Exit(pidfd) => has_exited(pidfd.as_fd()),
            LingerUntil::Close(connection) => hung_up(connection.as_fd()),
        }
    }
}

impl LingeringClient {
    /// Its pid while the process runs; 0 if it has none in the daemon's namespace.
    pub fn pid(&self) -> Option<u32> {
        let lives = matches!(self.until, LingerUntil::Exit(_));
        lives.then(|| self.process.map_or(0, |process| process.pid))
    }
}

impl Clients {
    /// Handles the end of a connection; its process may still run.
    pub fn disconnect(&mut self, key: Key, out: &mut Tasks) {
        let Some(tenant) = self.remove(key, out) else {
            return;
        };
        if let Some(client) = tenant.client() {
            self.linger(client, tenant, out);
        }
    }

    /// Keeps a process's grants charged as long as it can hold the memory.
    pub(super) fn linger(&mut self, client: ClientId, mut tenant: Tenant, out: &mut Tasks) {
        let (container, process) = (tenant.container, tenant.process);
        // What it claimed last may name a context that was not charged yet.
        for lane in tenant.lanes().map(Lane) {
            tenant.claims(lane).into_iter().for_each(|claims| out.step(claims));
        }
        let slot = tenant.slot.take();
        let Some(until) = LingerUntil::of(tenant) else {
            return out.step(Event::Gone { client });
        };
        let lingering = LingeringClient { container, client, process, until, slot };
        match self.watch_lingering(lingering, true) {
            Ok(()) => out.step(Event::Left { client }),
            Err(why) => {
                tracing::error!(%container, why, "cannot watch for the end of a process; its memory is no longer charged");
                out.step(Event::Gone { client });
            }
        }
    }

    /// Waits for the exit of a process that has not connected yet.
    ///
    /// # Errors
    /// Why it cannot be watched.
    pub fn wait_for(
        &mut self,
        container: ContainerId,
        client: ClientId,
        (process, pidfd): (Process, OwnedFd),
        slot: Option<UsageSlot>,
    ) -> Result<(), &'static str> {
        let lingering = LingeringClient {
            container,
            client,
            process: Some(process),
            until: LingerUntil::Exit(pidfd),
            slot,
        };
        self.watch_lingering(lingering, false)
    }

    /// Watches a lingering client; `known`: its descriptor is in the epoll set already.
    fn watch_lingering(
        &mut self,
        lingering: LingeringClient,
        known: bool,
    ) -> Result<(), &'static str> {
        let client = lingering.client;
        let key = self.lingering.insert(lingering);
        let key = key.map_err(|_| "too many clients")?;
        let watched = match self.lingering.get(key).map(|it| &it.until) {
            Some(LingerUntil::Exit(pidfd)) if !known => {
                self.watch.add(pidfd, Source::Lingering(key))
            }
            Some(LingerUntil::Exit(pidfd)) => {
                self.watch.watch_on(pidfd, Source::Lingering(key), true)
            }
            Some(LingerUntil::Close(fd)) => self.watch.watch_on(fd, Source::Lingering(key), false),
            None => Ok(()),
        };
        if watched.is_err() {
            self.lingering.remove(key);
            return Err("no memory to watch it");
        }
        self.holders[usize::from(client.slot)] = Some((client, ClientHolder::Lingering(key)));
        Ok(())
    }

    /// Handles an event of a lingering client.
    pub fn lingering_ready(&mut self, key: Key, out: &mut Tasks) {
        let lingering = self.lingering.get(key);
        if lingering.is_some_and(|it| it.until.is_over())
            && let Some(gone) = self.forget_lingering(key)
        {
            out.step(Event::Gone { client: gone.client });
        }
    }

    /// The ends of a container's lingering clients whose events wait behind what is read now.
    pub fn gone_of(&mut self, container: &ContainerId) -> Vec<Event> {
        let all = self.lingering.iter().filter(|(_, it)| it.container == *container);
        let over: Vec<Key> = all.filter(|(_, it)| it.until.is_over()).map(|(key, _)| key).collect();
        let gone = over.into_iter().filter_map(|key| self.forget_lingering(key));
        gone.map(|it| Event::Gone { client: it.client }).collect()
    }

    /// Removes a lingering client that the engine has dropped.
    pub(super) fn forget_lingering(&mut self, key: Key) -> Option<LingeringClient> {
        let lingering = self.lingering.remove(key)?;
        self.free(lingering.client);
        Some(lingering)
    }

    /// How many lingering clients a container has.
    pub(super) fn lingering_count(&self, container: &ContainerId) -> usize {
        let all = self.lingering.iter();
        all.filter(|(_, it)| it.container == *container).count()
    }

    /// Whether a process of a container is a lingering client.
    pub(super) fn is_lingering(&self, container: &ContainerId, process: Option<Process>) -> bool {
        let mut all = self.lingering.iter();
        process.is_some() && all.any(|(_, it)| it.container == *container && it.process == process)
    }
}
