//! The protocol of a container's own socket: a process attaches once, then reserves and releases memory.
//!
//! The socket alone identifies the sender. A connection is closed if it sends nothing for 1 s, sends an invalid
//! frame or descriptors, or does not read its answers. Nothing queues and nothing is allocated on its behalf,
//! and each event costs the same small amount of work.

use crate::daemon::{Daemon, Task};
use crate::executor::token_of;
use crate::handles::SharedHandles;
use crate::lingering::ClientHolder;
use crate::pages::ClaimsReader;
use crate::peer::Peer;
use crate::poll::Source;
use crate::preempt::ChannelGroup;
use crate::slab::Key;
use crate::slices::Slice;
use crate::sockets::{Received, Socket, id_of, packet};
use gpuslice_engine::{Claims, Event, Process, Token};
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket::send;
use gpuslice_wire::frame::{FrameError, RequestId, decode};
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, HELLO_DEADLINE_NS};
use gpuslice_wire::tenant::{HandleKey, Rejection, Reply, Request};
use gpuslice_wire::units::{Bytes, Duration};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Packets read, or connections accepted, before other sources are served.
const BURST: usize = 16;

/// A process's connection.
#[derive(Debug)]
pub struct Tenant {
    fd: Socket,
    container: ContainerId,
    peer: Peer,
    /// Id of the last request, for a final rejection.
    request: RequestId,
    attached: Option<Attached>,
    /// Memory handles that its siblings may open.
    shared: SharedHandles,
    /// Channel groups in which its work runs, as it reported.
    pub groups: Vec<ChannelGroup>,
    /// The process, known once it asked to attach.
    process: Option<Process>,
    /// It has sent `Attach` or `Look`; a second one is a violation.
    asked: bool,
    /// It attached with `Look`.
    looks: bool,
}

#[derive(Debug)]
struct Attached {
    client: ClientId,
    lanes: u8,
    claims: ClaimsReader,
    /// The last claims about host memory passed to the engine; unchanged ones are not passed again.
    host: Claims,
    /// Kept open for epoll; see `Poll::add_edge_triggered`.
    _doorbell: EventFd,
}

impl Tenant {
    /// Whether it is attached.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }
    /// Whether its slice has that GPU.
    pub fn has_lane(&self, lane: Lane) -> bool {
        self.attached.as_ref().is_some_and(|it| lane.0 < it.lanes)
    }
    /// Whether it reports no work in flight on that GPU.
    pub fn is_quiet(&self, lane: Lane) -> bool {
        let claims = self.attached.as_ref().map(|it| it.claims.read(lane));
        claims.is_none_or(|claims| claims.active == claims.drained)
    }
    /// The process's container.
    pub fn container(&self) -> ContainerId {
        self.container
    }
    /// The process's pidfd.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.peer.pidfd.as_ref().map(AsFd::as_fd)
    }
    /// Pid and start time, if known.
    pub fn process(&self) -> Option<Process> {
        self.process
    }
    /// The engine's id of the client, once attached.
    pub fn client(&self) -> Option<ClientId> {
        self.attached.as_ref().map(|attached| attached.client)
    }
    /// Its pidfd and its connection.
    pub fn into_parts(self) -> (Option<OwnedFd>, Socket) {
        (self.peer.pidfd, self.fd)
    }
    /// Its pid in the daemon's namespace; 0 if it has none there.
    pub fn pid(&self) -> u32 {
        u32::try_from(self.peer.pid).unwrap_or(0)
    }
}

impl Daemon {
    /// Accepts connections to a container's socket.
    pub fn accept_tenant(&mut self, listener: Key) {
        for _ in 0..BURST {
            if self.pause(Source::Listener(listener)) {
                return;
            }
            let Some(slice) = self.slices.get(listener) else {
                return;
            };
            let (container, own) = (slice.container, slice.tenants.len());
            let fd = match slice.listener.accept() {
                Ok(fd) => fd,
                Err(Errno::EMFILE | Errno::ENFILE) => return self.turn_away(listener),
                Err(_) => return,
            };
            let Ok(peer) = Peer::of(fd.as_fd()) else {
                continue;
            };
            if !self.is_member(listener, &peer) {
                say_rejected(fd.as_fd(), RequestId(0), Rejection::NotYours);
                continue;
            }
            let request = RequestId(0);
            if self.is_crowded(&container, own, &peer) {
                say_rejected(fd.as_fd(), request, Rejection::TooManyClients);
                continue;
            }
            let tenant = Tenant {
                fd,
                container,
                peer,
                request,
                attached: None,
                shared: SharedHandles::default(),
                groups: Vec::new(),
                process: None,
                asked: false,
                looks: false,
            };
            match self.tenants.insert(tenant) {
                Ok(key) => self.welcome_tenant(key, &container),
                Err(t) => say_rejected(t.fd.as_fd(), request, Rejection::TooManyClients),
            }
        }
    }

    /// Whether a peer is one of the container's processes; logs refused ones at intervals.
    fn is_member(&mut self, listener: Key, peer: &Peer) -> bool {
        let Some(slice) = self.slices.get(listener) else {
            return false;
        };
        let container = slice.container;
        let others = self.slices.iter().filter(|it| it.container != container);
        let others = others.map(|other| &other.members);
        if slice.members.has(peer, slice.first(), others) {
            return true;
        }
        if peer.has_ended() {
            return false; // before it could be looked at
        }
        let slice = self.slices.of_mut(&container);
        if let Some(count) = slice.and_then(|slice| slice.refused.one_more(now())) {
            let (pid, uid) = (peer.pid, peer.uid);
            tracing::warn!(%container, pid, uid, count, "refused a process that is not one of the container's");
        }
        false
    }

    /// Whether a container with this many connections may have no more. Lingering clients count as well, but do
    /// not keep their own processes from reconnecting, each with one connection.
    fn is_crowded(&self, container: &ContainerId, connections: usize, peer: &Peer) -> bool {
        let quota = self.budget.quota(self.slices.len());
        let connected = self.slices.iter().map(|it| it.tenants.len());
        if !quota.admits(connections, connected) {
            return true;
        }
        let lingering = |container| self.lingering_count(container);
        let all = self.slices.iter();
        let all = all.map(|it| it.tenants.len() + lingering(&it.container));
        self.lingering.len() > 0
            && !quota.admits(connections + lingering(container), all)
            && (self.is_connected(container, peer) || !self.is_lingering(container, peer.process()))
    }

    /// Whether a process already has a connection that can hold memory: a second one would take nothing over.
    fn is_connected(&self, container: &ContainerId, peer: &Peer) -> bool {
        let slice = self.slices.of(container);
        let keys = slice.into_iter().flat_map(|slice| &slice.tenants);
        let mut all = keys.filter_map(|key| self.tenants.get(*key));
        all.any(|tenant| tenant.peer.pid == peer.pid && !tenant.looks)
    }

    fn welcome_tenant(&mut self, key: Key, container: &ContainerId) {
        if let Some(slice) = self.slices.of_mut(container) {
            slice.tenants.push(key);
        }
        let by = now().plus(Duration(HELLO_DEADLINE_NS));
        self.handshake_deadlines
            .push_back((by, Source::Tenant(key)));
        let Some(tenant) = self.tenants.get(key) else {
            return;
        };
        let exit = tenant
            .peer
            .pidfd
            .as_ref()
            .map(|pidfd| self.poll.add(pidfd, Source::Exit(key)));
        let watched = self.poll.add(&tenant.fd, Source::Tenant(key));
        if exit.unwrap_or(Ok(())).and(watched).is_err() {
            self.remove_tenant(key);
        }
    }

    /// Accepts and closes a connection with the spare descriptor when none is left, so that the connection does
    /// not wait forever and does not keep the daemon busy.
    fn turn_away(&mut self, listener: Key) {
        self.spare = None;
        if let Some(slice) = self.slices.get(listener) {
            tracing::warn!(container = %slice.container, "out of descriptors; closed a process's connection");
            drop(slice.listener.accept());
        }
        self.spare = File::open("/dev/null").ok();
    }

    /// Handles input on, or the end of, a process's connection.
    pub fn tenant_ready(&mut self, key: Key) {
        let mut buffer = [0; FRAME_BYTES_MAX];
        for _ in 0..BURST {
            let Some(tenant) = self.tenants.get_mut(key) else {
                return;
            };
            let frame = match tenant.fd.receive(&mut buffer) {
                Received::Packet(len) => {
                    tenant.request = id_of(&buffer[..len]);
                    decode::<Request>(&buffer[..len])
                }
                Received::Nothing => return,
                Received::End => return self.disconnect(key),
                Received::Violation => return self.reject(key, Rejection::Protocol),
            };
            match frame {
                Ok((id, request)) => self.asked(key, id, request),
                Err(FrameError::Version(_)) => self.reject(key, Rejection::Version),
                Err(_) => self.reject(key, Rejection::Protocol),
            }
            self.settle();
        }
    }

    fn asked(&mut self, key: Key, id: RequestId, request: Request) {
        let Some(tenant) = self.tenants.get_mut(key) else {
            return;
        };
        let first = match request {
            Request::Attach { held } => Some((held, true)),
            Request::Look {} => Some(([Bytes::ZERO; ACCOUNTS_MAX], false)),
            _ => None,
        };
        match (first, &tenant.attached) {
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
                self.tasks.push_back(Task::Step(Event::Attach {
                    token: token_of(key),
                    container,
                    process,
                    held,
                }));
            }
            (Some(_), _) | (_, None) => self.reject(key, Rejection::Protocol),
            (None, Some(attached)) => {
                let client = attached.client;
                if tenant.looks && matches!(request, Request::Reserve { .. }) {
                    return self.reject(key, Rejection::Protocol);
                }
                self.asked_by(key, client, id, request);
            }
        }
    }

    /// Handles a request of an attached process.
    fn asked_by(&mut self, key: Key, client: ClientId, id: RequestId, request: Request) {
        let event = match request {
            Request::Reserve { lane, need, wish } => Event::Reserve {
                client,
                token: Token(id.0),
                lane,
                need,
                wish,
            },
            Request::Release { lane, bytes } => Event::Release {
                client,
                lane,
                bytes,
            },
            Request::Yield {
                lane,
                recall,
                bytes,
            } => Event::Yield {
                client,
                lane,
                recall,
                bytes,
            },
            Request::Share { key: handle } => return self.share(key, handle),
            Request::Open { key: handle } => {
                let slice = self.slice_of(key);
                let ours = slice.is_some_and(|slice| slice.handles.knows(handle));
                return self.reply_to(client, id, &Reply::Origin { ours });
            }
            Request::Group {
                lane,
                fd,
                client,
                group,
                subdevice,
            } => {
                let named = ChannelGroup {
                    lane,
                    fd,
                    client,
                    group,
                    subdevice,
                };
                return self.name_group(key, named);
            }
            Request::GroupGone { client, group } => return self.forget_group(key, client, group),
            Request::Measure { lane } => return self.measure(key, client, id, lane),
            Request::Attach { .. } | Request::Look {} => {
                return self.reject(key, Rejection::Protocol);
            }
        };
        self.given_back |= !matches!(event, Event::Reserve { .. });
        self.tasks.push_back(Task::Step(event));
    }

    fn slice_of(&self, key: Key) -> Option<&Slice> {
        self.slices.of(&self.tenants.get(key)?.container)
    }

    fn share(&mut self, key: Key, handle: HandleKey) {
        let Some(tenant) = self.tenants.get_mut(key) else {
            return;
        };
        if let Some(slice) = self.slices.of_mut(&tenant.container) {
            slice.handles.share(&mut tenant.shared, handle);
        }
    }

    /// Sends an attached process its page, the container's page and its doorbell.
    pub fn attached(&mut self, key: Key, client: ClientId, container: &ContainerId, lanes: u8) {
        let process = self.tenants.get(key).and_then(Tenant::process);
        self.note_granted(container, client, process);
        let sent = self.send_pages(key, client, container, lanes);
        if let Err(why) = sent {
            tracing::warn!(%container, %why, "a process could not be attached");
            // It may hold the memory it reported.
            match self.remove_tenant(key) {
                Some(tenant) => self.linger(client, tenant),
                None => self.tasks.push_back(Task::Step(Event::Gone { client })),
            }
        }
    }

    fn send_pages(
        &mut self,
        key: Key,
        client: ClientId,
        container: &ContainerId,
        lanes: u8,
    ) -> nix::Result<()> {
        let slice = self.slices.of(container).ok_or(Errno::ENOENT)?;
        let tenant = self.tenants.get_mut(key).ok_or(Errno::ENOENT)?;
        let (claims, claims_fd) = ClaimsReader::new()?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        self.poll.add_edge_triggered(&bell, Source::Doorbell(key))?;
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = packet(
            tenant.request,
            &Reply::Attached { client, lanes },
            &mut buffer,
        );
        // The process derives the offset of its clock from this heartbeat.
        slice.page.heartbeat(now());
        let fds = [slice.page.fd(), claims_fd.as_fd(), bell.as_fd()].map(|fd| fd.as_raw_fd());
        send(tenant.fd.as_fd(), &buffer[..len], &fds)?;
        tenant.attached = Some(Attached {
            client,
            lanes,
            claims,
            host: Claims::default(),
            _doorbell: bell,
        });
        self.clients[usize::from(client.slot)] = Some((client, ClientHolder::Connected(key)));
        self.show_clients(container);
        Ok(())
    }

    /// Writes the number of a container's processes to its page.
    fn show_clients(&self, container: &ContainerId) {
        if let Some(slice) = self.slices.of(container) {
            let tenants = slice
                .tenants
                .iter()
                .filter_map(|key| self.tenants.get(*key));
            let attached = tenants.filter(|tenant| tenant.is_attached()).count();
            slice.page.set_clients(attached);
        }
    }

    /// Where the daemon keeps this client of the engine.
    pub fn holder_of(&self, client: ClientId) -> Option<ClientHolder> {
        let (id, holder) = (*self.clients.get(usize::from(client.slot))?)?;
        (id == client).then_some(holder)
    }

    /// Frees the client's entry.
    pub fn free_client(&mut self, client: ClientId) {
        self.given_back = true;
        let place = self.clients.get_mut(usize::from(client.slot));
        if let Some(place) = place.filter(|it| it.is_some_and(|(id, _)| id == client)) {
            *place = None;
        }
    }

    /// Answers a process; one that does not read its answers is disconnected.
    pub fn reply_to(&mut self, client: ClientId, id: RequestId, reply: &Reply) {
        let Some(ClientHolder::Connected(key)) = self.holder_of(client) else {
            return;
        };
        let Some(tenant) = self.tenants.get(key) else {
            return;
        };
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = packet(id, reply, &mut buffer);
        if send(tenant.fd.as_fd(), &buffer[..len], &[]).is_err() {
            self.disconnect(key);
        }
    }

    /// Rejects a process with the rule it broke, and closes its connection.
    pub fn reject(&mut self, key: Key, why: Rejection) {
        if let Some(tenant) = self.tenants.get(key) {
            tracing::debug!(container = %tenant.container, pid = tenant.peer.pid, ?why, "rejected");
            say_rejected(tenant.fd.as_fd(), tenant.request, why);
            self.disconnect(key);
        }
    }

    /// Removes a connection from all tables. The process's memory is handled separately.
    pub fn remove_tenant(&mut self, key: Key) -> Option<Tenant> {
        let mut tenant = self.tenants.remove(key)?;
        if let Some(slice) = self.slices.of_mut(&tenant.container) {
            slice.tenants.retain(|other| *other != key);
            slice.handles.drop_all(std::mem::take(&mut tenant.shared));
        }
        self.show_clients(&tenant.container);
        self.release_work(key);
        if let Some(client) = tenant.client() {
            self.free_client(client);
        }
        Some(tenant)
    }

    /// Queues reading a process's page.
    pub fn read_claims(&mut self, key: Key) {
        if let Some(attached) = self
            .tenants
            .get(key)
            .and_then(|tenant| tenant.attached.as_ref())
        {
            let lanes = (0..attached.lanes).map(Lane).chain([Lane::HOST]);
            self.tasks
                .extend(lanes.map(|lane| Task::ReadClaims(key, lane)));
        }
    }

    /// Queues reading every page, for observers.
    pub fn read_all_claims(&mut self) {
        let keys: Vec<Key> = self.tenants.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.read_claims(key));
    }

    /// Opens or closes the gates in a process's streams.
    pub fn set_gate(&self, key: Key, lane: Lane, open: bool) {
        let attached = self.tenants.get(key).and_then(|it| it.attached.as_ref());
        if let Some(attached) = attached {
            attached.claims.set_gate(lane, open);
        }
    }

    /// A process's present claims, unless they are known to be unchanged.
    pub fn claims_of(&mut self, key: Key, lane: Lane) -> Option<Event> {
        let tenant = self.tenants.get_mut(key)?;
        let attached = tenant.attached.as_mut()?;
        let claims = attached.claims.read(lane);
        if lane == Lane::HOST && std::mem::replace(&mut attached.host, claims) == claims {
            return None;
        }
        Some(Event::Claims {
            client: attached.client,
            lane,
            claims,
        })
    }
}

fn say_rejected(connection: BorrowedFd<'_>, id: RequestId, why: Rejection) {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let len = packet(id, &Reply::Rejected { why }, &mut buffer);
    // The connection is closed in any case; if this fails, the peer sees only that.
    let _ = send(connection, &buffer[..len], &[]);
}
