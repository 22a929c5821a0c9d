//! The requests of processes.

use super::handles::Lookup;
use super::{ChannelGroup, Channels, Clients};
use crate::replies::token_of;
use crate::slab::Key;
use crate::sockets::{Received, id_of};
use crate::tasks::{Measure, Task, Tasks};
use gpuslice_engine::{Event, Token};
use gpuslice_host::clock::now;
use gpuslice_wire::frame::{FrameError, RequestId, decode, version_of};
use gpuslice_wire::ids::{ClientId, ContainerId};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, WIRE_VERSION, WIRE_VERSION_MIN};
use gpuslice_wire::tenant::{HandleKey, Rejection, Reply, Request};
use gpuslice_wire::units::Bytes;

/// Packets read before other sources are served.
pub const BURST: usize = 16;

impl Clients {
    /// Handles one packet on a process's connection, or its end; returns whether another one may wait.
    pub fn receive(&mut self, key: Key, out: &mut Tasks) -> bool {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let Some(tenant) = self.tenants.get_mut(key) else {
            return false;
        };
        let frame = match tenant.fd.receive(&mut buffer) {
            Received::Packet(len) => {
                tenant.request = id_of(&buffer[..len]);
                let version = version_of(&buffer[..len]);
                tenant.version = version.clamp(WIRE_VERSION_MIN, WIRE_VERSION);
                decode::<Request>(&buffer[..len])
            }
            Received::Nothing => return false,
            Received::End => {
                self.disconnect(key, out);
                return false;
            }
            Received::Violation => {
                self.reject(key, Rejection::Protocol, out);
                return false;
            }
        };
        let done = match frame {
            Ok((id, request)) => self.asked(key, id, request, out),
            Err(FrameError::Version(version)) => {
                self.report_unsupported(key, version);
                Err(Rejection::Version)
            }
            Err(_) => Err(Rejection::Protocol),
        };
        if let Err(why) = done {
            self.reject(key, why, out);
        }
        true
    }

    /// Says in the log why a process of another version is refused: the process itself cannot, its program sees only
    /// an error code.
    fn report_unsupported(&mut self, key: Key, version: u16) {
        let Some(tenant) = self.tenants.get(key) else {
            return;
        };
        if let Some(count) = self.unsupported.one_more(now()) {
            let (container, pid) = (tenant.container, tenant.peer.pid);
            tracing::warn!(
                %container, pid, version, oldest = WIRE_VERSION_MIN, newest = WIRE_VERSION, count,
                "a container's library has a version that this daemon does not support, and gets no \
                 memory: install the daemon of that version, or start the container again"
            );
        }
    }

    fn asked(
        &mut self,
        key: Key,
        id: RequestId,
        request: Request,
        out: &mut Tasks,
    ) -> Result<(), Rejection> {
        let Some(tenant) = self.tenants.get_mut(key) else {
            return Ok(());
        };
        let first = match request {
            Request::Attach { held } => Some((held, true)),
            Request::Look {} => Some(([Bytes::ZERO; ACCOUNTS_MAX], false)),
            _ => None,
        };
        match (first, tenant.client()) {
            (Some((held, takes_over)), None) if !tenant.asked => {
                tenant.asked = true;
                tenant.looks = !takes_over;
                tenant.process = tenant.peer.process();
                let container = tenant.container;
                // A client of an unknown process takes over no client, and none takes it over.
                let process = tenant.process.filter(|_| takes_over);
                if tracing::enabled!(tracing::Level::DEBUG) {
                    let (pid, cgroup) = (tenant.peer.pid, tenant.peer.cgroup());
                    tracing::debug!(%container, pid, cgroup, "a process attaches");
                }
                out.step(Event::Attach { token: token_of(key), container, process, held });
                Ok(())
            }
            (Some(_), _) | (_, None) => Err(Rejection::Protocol),
            (None, Some(_)) if tenant.looks && matches!(request, Request::Reserve { .. }) => {
                Err(Rejection::Protocol)
            }
            (None, Some(client)) => self.asked_by(key, client, id, request, out),
        }
    }

    /// Handles a request of an attached process.
    fn asked_by(
        &mut self,
        key: Key,
        client: ClientId,
        id: RequestId,
        request: Request,
        out: &mut Tasks,
    ) -> Result<(), Rejection> {
        let event = match request {
            Request::Reserve { lane, need, wish } => {
                Event::Reserve { client, token: Token(id.0), lane, need, wish }
            }
            Request::Release { lane, bytes } => Event::Release { client, lane, bytes },
            Request::Yield { lane, recall, bytes } => Event::Yield { client, lane, recall, bytes },
            other => return self.asked_beside(key, client, id, other, out),
        };
        self.given_back |= !matches!(event, Event::Reserve { .. });
        out.step(event);
        Ok(())
    }

    /// Handles a request of an attached process that does not concern the engine.
    fn asked_beside(
        &mut self,
        key: Key,
        client: ClientId,
        id: RequestId,
        request: Request,
        out: &mut Tasks,
    ) -> Result<(), Rejection> {
        let Some(tenant) = self.tenants.get_mut(key) else {
            return Ok(());
        };
        match request {
            Request::Share { key: handle } => self.share(key, handle),
            Request::Open { key: handle } => {
                let container = tenant.container;
                self.look_up(Lookup { key, client, request: id, container, handle }, out);
            }
            Request::Group { lane, fd, client, group, subdevice } => {
                let channels = Channels::default();
                let named = ChannelGroup { lane, fd, client, group, subdevice, channels };
                tenant.name_group(named)?;
            }
            Request::Channels { client, group, channels } => {
                tenant.name_channels(client, group, channels);
            }
            Request::GroupGone { client, group } => tenant.forget_group(client, group),
            Request::Measure { lane } => out.push(Task::Measure(Measure {
                key,
                client,
                request: id,
                container: tenant.container,
                lane,
                pid: tenant.pid(),
            })),
            _ => return Err(Rejection::Protocol),
        }
        Ok(())
    }

    /// Queues a question about a handle, unless one of the same connection waits already.
    fn look_up(&mut self, lookup: Lookup, out: &mut Tasks) {
        if self.lookups.iter().any(|it| it.key == lookup.key) {
            self.answer_lookup(&lookup, out);
        } else {
            self.lookups.push(lookup);
        }
    }

    /// Answers questions about handles: those about a known one, and those of containers to which no process `returns`.
    pub fn answer_lookups(&mut self, returns: impl Fn(ContainerId) -> bool, out: &mut Tasks) {
        for it in std::mem::take(&mut self.lookups) {
            if self.knows(&it) || !returns(it.container) {
                self.answer_lookup(&it, out);
            } else {
                self.lookups.push(it);
            }
        }
    }

    fn answer_lookup(&mut self, lookup: &Lookup, out: &mut Tasks) {
        let ours = self.knows(lookup);
        self.reply(lookup.client, lookup.request, &Reply::Origin { ours }, out);
    }

    fn knows(&self, lookup: &Lookup) -> bool {
        let siblings = self.siblings.get(&lookup.container);
        siblings.is_some_and(|it| it.handles.knows(lookup.handle))
    }

    fn share(&mut self, key: Key, handle: HandleKey) {
        let Some(tenant) = self.tenants.get_mut(key) else {
            return;
        };
        if let Some(siblings) = self.siblings.get_mut(&tenant.container) {
            siblings.handles.share(&mut tenant.shared, handle);
        }
    }
}
