//! The engine's clients: connections of processes, and processes that linger without one.
//!
//! A process attaches once to its container's own socket, then reserves and releases memory; the socket alone
//! identifies the sender. A connection is closed if it sends nothing for 1 s, sends an invalid frame or descriptors, or
//! does not read its answers. Nothing queues and nothing is allocated on its behalf, and each event costs the same
//! small amount of work; only what a ring or a request beyond the cap costs grows with the container. The time for both
//! is limited (`time_queue.rs`).

mod handles;
mod lingering;
mod readings;
mod requests;
mod tenant;
mod time_queue;

use crate::containers::{ContainerWriter, Containers, HeldFamilies, UsageSlot};
use crate::first_messages::FirstMessages;
use crate::log_limit::LogLimit;
use crate::peer::Peer;
use crate::poll::{Source, Watch};
use crate::slab::{Key, Slab};
use crate::sockets::{Spare, packet_in};
use crate::suspend::shared::Shares;
use crate::tasks::{Task, Tasks};
use gpuslice_engine::{Event, Granted, Process};
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket::send;
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::{CLIENTS_MAX, FRAME_BYTES_MAX};
use gpuslice_wire::tenant::{Rejection, Reply};
use gpuslice_wire::units::Instant;
use handles::{Handles, Lookup};
use lingering::LingeringClient;
use nix::errno::Errno;
pub use requests::BURST;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
pub use tenant::{ChannelGroup, Channels, Tenant, channels_of};
pub use time_queue::TimedRead;
use time_queue::{ContainerTime, REQUESTS, RINGS, TimeQueue};

/// Where the daemon keeps a client of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientHolder {
    /// In the table of connections.
    Connected(Key),
    /// In the table of lingering clients.
    Lingering(Key),
}

/// The connections of a container's processes.
#[derive(Debug)]
struct Siblings {
    /// Attached or not.
    keys: Vec<Key>,
    /// Memory handles that they share.
    handles: Handles,
    /// Time for their rings and for their requests.
    rings: ContainerTime,
    requests: ContainerTime,
}

impl Default for Siblings {
    fn default() -> Siblings {
        let (rings, requests) = (ContainerTime::new(RINGS), ContainerTime::new(REQUESTS));
        Siblings { keys: Vec::new(), handles: Handles::default(), rings, requests }
    }
}

/// See the file's head.
pub struct Clients {
    watch: Watch,
    tenants: Slab<Tenant>,
    lingering: Slab<LingeringClient>,
    /// By slot of the engine's id.
    holders: Vec<Option<(ClientId, ClientHolder)>>,
    siblings: BTreeMap<ContainerId, Siblings>,
    /// Rings and requests that wait.
    rings: TimeQueue,
    requests: TimeQueue,
    /// Questions about handles that wait for their answer, one of each connection at most.
    lookups: Vec<Lookup>,
    first_messages: FirstMessages,
    /// A process released memory or exited since the last look.
    given_back: bool,
    /// Processes that could not be attached.
    unattached: LogLimit,
    /// Processes whose frames have a version that this daemon does not support.
    unsupported: LogLimit,
    /// Slots of the clients that the present step has removed: the process's next client keeps its slot.
    left: Vec<(ContainerId, Option<Process>, UsageSlot)>,
}

impl Clients {
    /// No clients; at most `connections`.
    pub fn new(watch: Watch, connections: u16) -> Clients {
        Clients {
            watch,
            tenants: Slab::new(connections),
            lingering: Slab::new(CLIENTS_MAX as u16),
            holders: vec![None; CLIENTS_MAX],
            siblings: BTreeMap::new(),
            rings: TimeQueue::new(RINGS),
            requests: TimeQueue::new(REQUESTS),
            lookups: Vec::new(),
            first_messages: FirstMessages::default(),
            given_back: false,
            unattached: LogLimit::default(),
            unsupported: LogLimit::default(),
            left: Vec::new(),
        }
    }

    /// Accepts a connection to a container's socket. The next one waits until other sources are served.
    pub fn accept(
        &mut self,
        containers: &mut Containers,
        listener: Key,
        spare: &mut Spare,
        out: &mut Tasks,
    ) {
        let now = now();
        let Some((container, fd)) = containers.accept(now, listener, spare) else {
            return;
        };
        let Ok(peer) = Peer::of(fd.as_fd()) else {
            return;
        };
        let member = containers.is_member(&container, &peer, now);
        let tenant = Tenant::new(fd, container, peer);
        if !member {
            return tenant.say_rejected(Rejection::NotYours);
        }
        if self.is_crowded(containers, &tenant) {
            return tenant.say_rejected(Rejection::TooManyClients);
        }
        match self.tenants.insert(tenant) {
            Ok(key) => self.welcome(key, container, out),
            Err(tenant) => tenant.say_rejected(Rejection::TooManyClients),
        }
    }

    /// Whether a container may have no more connections. Lingering clients count as well, but do not keep their own
    /// processes from reconnecting, each with one connection.
    fn is_crowded(&self, containers: &Containers, tenant: &Tenant) -> bool {
        let (container, quota) = (&tenant.container, containers.quota());
        let connections = |of: &ContainerId| self.siblings.get(of).map_or(0, |it| it.keys.len());
        if !quota.admits(connections(container), containers.ids().map(connections)) {
            return true;
        }
        let places = |of: &ContainerId| connections(of) + self.lingering_count(of);
        self.lingering.len() > 0
            && !quota.admits(places(container), containers.ids().map(places))
            && (self.is_connected(tenant) || !self.is_lingering(container, tenant.peer.process()))
    }

    /// Whether a process already has a connection that can hold memory: a second one would take nothing over.
    fn is_connected(&self, tenant: &Tenant) -> bool {
        let mut all = self.of(&tenant.container);
        all.any(|(_, other)| other.peer.pid == tenant.peer.pid && !other.looks)
    }

    fn welcome(&mut self, key: Key, container: ContainerId, out: &mut Tasks) {
        self.siblings_of(container).keys.push(key);
        self.first_messages.expect(key, now());
        let Some(tenant) = self.tenants.get(key) else {
            return;
        };
        let exit = tenant.pidfd();
        let exit = exit.map_or(Ok(()), |pidfd| self.watch.add(pidfd, Source::Exit(key)));
        let watched = self.watch.add(&tenant.fd, Source::Tenant(key));
        if exit.and(watched).is_err() {
            self.remove(key, out);
        }
    }

    /// When the next connection must have sent its first message.
    pub fn deadline(&self) -> Option<Instant> {
        self.first_messages.deadline()
    }

    /// Removes the connections that have sent no first message by `now`.
    pub fn due(&mut self, now: Instant, out: &mut Tasks) {
        let waiting = |key| self.tenants.get(key).filter(|it| !it.asked).map(|it| &it.fd);
        for key in self.first_messages.missing(now, waiting) {
            tracing::debug!("a process connected and sent nothing; disconnected");
            self.remove(key, out);
        }
    }

    /// Sends a process its page, the container's page, its doorbell and the usage table, as the engine has attached
    /// it, with these grants.
    pub fn attach(
        &mut self,
        key: Key,
        (client, lanes, granted): (ClientId, u8, &Granted),
        container: &ContainerId,
        page: Option<&ContainerWriter>,
        out: &mut Tasks,
    ) {
        let slot = page.and_then(|page| self.slot_for(key, container, page, granted));
        let tenant = self.tenants.get_mut(key).zip(page);
        let sent = tenant.ok_or(Errno::ENOENT).and_then(|(tenant, page)| {
            tenant.slot = slot;
            if tenant.slot.is_none() && !tenant.looks {
                return Err(Errno::ENOSPC);
            }
            tenant.attach(key, (client, lanes), page, &self.watch)
        });
        match sent {
            Ok(()) => {
                let holder = ClientHolder::Connected(key);
                self.holders[usize::from(client.slot)] = Some((client, holder));
                out.push(Task::Connected(*container));
            }
            Err(why) => {
                if let Some(count) = self.unattached.one_more(now()) {
                    tracing::warn!(%container, %why, count, "processes could not be attached");
                }
                // It may hold the memory it reported.
                match self.remove(key, out) {
                    Some(tenant) => self.linger(client, tenant, out),
                    None => out.step(Event::Gone { client }),
                }
            }
        }
    }

    /// A slot for a process that attaches: the one it had, if it goes on with its memory. A connection that only
    /// reads needs none.
    fn slot_for(
        &mut self,
        key: Key,
        container: &ContainerId,
        page: &ContainerWriter,
        granted: &Granted,
    ) -> Option<UsageSlot> {
        let tenant = self.tenants.get(key).filter(|it| !it.looks)?;
        let its = |(of, process, _): &(ContainerId, Option<Process>, UsageSlot)| {
            of == container && process.is_some() && *process == tenant.process
        };
        let Some(former) = self.left.iter().position(its) else {
            return page.usage.slot(granted);
        };
        let (_, _, slot) = self.left.swap_remove(former);
        if *granted == Granted::default() {
            slot.set(granted); // another program in the same process
        }
        Some(slot)
    }

    /// Empties the slots of clients that are gone and have no successor.
    pub fn free_slots(&mut self) {
        self.left.clear();
    }

    fn holder_of(&self, client: ClientId) -> Option<ClientHolder> {
        let (id, holder) = (*self.holders.get(usize::from(client.slot))?)?;
        (id == client).then_some(holder)
    }

    /// Frees the client's entry.
    fn free(&mut self, client: ClientId) {
        self.given_back = true;
        let place = self.holders.get_mut(usize::from(client.slot));
        if let Some(place) = place.filter(|it| it.is_some_and(|(id, _)| id == client)) {
            *place = None;
        }
    }

    /// Answers a process; one that does not read its answers is disconnected.
    pub fn reply(&mut self, client: ClientId, id: RequestId, reply: &Reply, out: &mut Tasks) {
        let Some(ClientHolder::Connected(key)) = self.holder_of(client) else {
            return;
        };
        let Some(tenant) = self.tenants.get(key) else {
            return;
        };
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = packet_in(tenant.version, id, reply, &mut buffer);
        if send(tenant.fd.as_fd(), &buffer[..len], &[]).is_err() {
            self.disconnect(key, out);
        }
    }

    /// Rejects a process with the rule it broke, and closes its connection.
    pub fn reject(&mut self, key: Key, why: Rejection, out: &mut Tasks) {
        if let Some(tenant) = self.tenants.get(key) {
            tracing::debug!(container = %tenant.container, pid = tenant.peer.pid, ?why, "rejected");
            tenant.say_rejected(why);
            self.disconnect(key, out);
        }
    }

    /// Removes a client that the engine has dropped; `broke`: the rule that its process broke.
    pub fn cut(&mut self, client: ClientId, broke: Option<Rejection>, out: &mut Tasks) {
        match (self.holder_of(client), broke) {
            (Some(ClientHolder::Connected(key)), Some(rule)) => self.reject(key, rule, out),
            (Some(ClientHolder::Connected(key)), None) => {
                let tenant = self.remove(key, out);
                let left = tenant.and_then(|it| Some((it.container, it.process, it.slot?)));
                self.left.extend(left);
            }
            (Some(ClientHolder::Lingering(key)), _) => {
                let lingering = self.forget_lingering(key);
                let left = lingering.and_then(|it| Some((it.container, it.process, it.slot?)));
                self.left.extend(left);
            }
            (None, _) => {}
        }
    }

    /// Removes all connections of a container whose slice has ended.
    pub fn close_all(&mut self, container: &ContainerId, out: &mut Tasks) {
        let keys: Vec<Key> = self.of(container).map(|(key, _)| key).collect();
        for key in keys {
            self.remove(key, out);
        }
        self.siblings.remove(container);
    }

    /// Removes a connection from all tables. The process's memory is handled separately.
    fn remove(&mut self, key: Key, out: &mut Tasks) -> Option<Tenant> {
        let mut tenant = self.tenants.remove(key)?;
        let container = tenant.container;
        self.lookups.retain(|it| it.key != key);
        if let Some(siblings) = self.siblings.get_mut(&container) {
            siblings.keys.retain(|other| *other != key);
            let shared = std::mem::take(&mut tenant.shared);
            siblings.handles.drop_all(shared);
        }
        out.push(Task::Disconnected(key, container));
        if let Some(attached) = &tenant.attached {
            // The process has it open as well, so closing it would not end this.
            let _ = self.watch.forget(&attached.doorbell);
        }
        if let Some(client) = tenant.client() {
            self.free(client);
        }
        Some(tenant)
    }

    /// Queues reading a process's page.
    pub fn read_claims(&self, key: Key, out: &mut Tasks) {
        if let Some(tenant) = self.tenants.get(key).filter(|it| it.attached.is_some()) {
            let lanes = tenant.lanes().map(Lane).chain([Lane::HOST]);
            lanes.for_each(|lane| out.push(Task::ReadClaims(key, lane)));
        }
    }

    /// Queues reading every page, for observers.
    pub fn read_all_claims(&self, out: &mut Tasks) {
        for (key, _) in self.tenants.iter() {
            self.read_claims(key, out);
        }
    }

    /// Queues reading the claims of a process about a GPU.
    pub fn read_lane(&self, client: ClientId, lane: Lane, out: &mut Tasks) {
        if let Some(ClientHolder::Connected(key)) = self.holder_of(client) {
            out.push(Task::ReadClaims(key, lane));
        }
    }

    /// A process's present claims, unless they are known to be unchanged.
    pub fn claims_of(&mut self, key: Key, lane: Lane) -> Option<Event> {
        self.tenants.get_mut(key)?.claims(lane)
    }

    /// Opens or closes the gates in the streams of a container's processes.
    pub fn set_gates(&self, container: &ContainerId, lane: Lane, open: bool) {
        for (_, tenant) in self.of(container) {
            tenant.set_gate(lane, open);
        }
    }

    fn of(&self, container: &ContainerId) -> impl Iterator<Item = (Key, &Tenant)> {
        let keys = self.siblings.get(container).into_iter();
        let keys = keys.flat_map(|siblings| &siblings.keys);
        keys.filter_map(|key| Some((*key, self.tenants.get(*key)?)))
    }

    /// The attached processes of a container.
    pub fn attached_of(&self, container: &ContainerId) -> impl Iterator<Item = (Key, &Tenant)> {
        self.of(container).filter(|(_, it)| it.attached.is_some())
    }

    /// Whether a container has a process that can hold memory, connected or not.
    pub fn has_processes(&self, container: &ContainerId) -> bool {
        let absent = |it: &LingeringClient| it.container == *container && it.pid().is_some();
        self.attached_of(container).next().is_some()
            || self.lingering.iter().any(|(_, it)| absent(it))
    }

    /// All attached processes.
    pub fn attached(&self) -> impl Iterator<Item = (Key, &Tenant)> {
        let all = self.tenants.iter();
        all.filter(|(_, it)| it.attached.is_some())
    }

    /// Container and pid of each client that can hold memory. The pid is 0 if it has none in the daemon's namespace.
    pub fn pids(&self) -> impl Iterator<Item = (ClientId, ContainerId, u32)> {
        self.holders.iter().flatten().filter_map(|(client, holder)| {
            let (container, pid) = self.pid_of(*holder)?;
            Some((*client, container, pid))
        })
    }

    fn pid_of(&self, holder: ClientHolder) -> Option<(ContainerId, u32)> {
        Some(match holder {
            ClientHolder::Connected(key) => {
                let tenant = self.tenants.get(key)?;
                (tenant.container, tenant.pid())
            }
            // The pid of an ended process may belong to another one.
            ClientHolder::Lingering(key) => {
                let absent = self.lingering.get(key)?;
                (absent.container, absent.pid()?)
            }
        })
    }

    /// The processes of a container, those without a connection included.
    pub fn processes_of(&self, container: &ContainerId) -> Vec<Process> {
        let connected = self.tenants.iter().map(|(_, it)| (it.container, it.process));
        let apart = self.lingering.iter().map(|(_, it)| (it.container, it.process));
        let its = connected.chain(apart).filter(|(of, _)| of == container);
        its.filter_map(|(_, process)| process).collect()
    }

    /// The pids of a container's processes that may have GPU memory, and whether they claim to share it. One without a
    /// connection does not tell, nor one that attaches at this moment. The daemon does not ask one that only looks.
    pub fn shares(&self, container: &ContainerId) -> Vec<(u32, Shares)> {
        let uses = |it: &Tenant| it.container == *container && !it.looks;
        let users = self.tenants.iter().filter(|(_, it)| uses(it));
        let mut all: Vec<_> = users.map(|(_, it)| (it.pid(), it.shares())).collect();
        let apart = self.lingering.iter().filter(|(_, it)| it.container == *container);
        for pid in apart.filter_map(|(_, it)| it.slot.as_ref().and(it.pid())) {
            if !all.iter().any(|(known, _)| *known == pid) {
                all.push((pid, None));
            }
        }
        all
    }

    /// The clients of a container that are of none of these processes, given by pid and start time.
    pub fn beside(&self, container: &ContainerId, processes: &[(u32, u64)]) -> Vec<ClientId> {
        let identity = |holder: &ClientHolder| match *holder {
            ClientHolder::Connected(key) => {
                self.tenants.get(key).map(|it| (it.container, it.process))
            }
            ClientHolder::Lingering(key) => {
                self.lingering.get(key).map(|it| (it.container, it.process))
            }
        };
        let its = self.holders.iter().flatten().filter(|(_, holder)| {
            identity(holder).is_some_and(|(of, process)| {
                let is_one = process.is_some_and(|it| processes.contains(&(it.pid, it.born)));
                of == *container && !is_one
            })
        });
        its.map(|(client, _)| *client).collect()
    }

    /// A client's pid, 0 if it has none, and what it claims that its memory on a GPU is used for.
    pub fn shown(&self, client: ClientId, lane: Lane) -> (u32, HeldFamilies) {
        let Some(holder) = self.holder_of(client) else {
            return Default::default();
        };
        let pid = self.pid_of(holder).map_or(0, |(_, pid)| pid);
        let families = match holder {
            ClientHolder::Connected(key) => self.tenants.get(key).map(|it| it.families(lane)),
            ClientHolder::Lingering(_) => None,
        };
        (pid, families.unwrap_or_default())
    }

    /// The process of a connection, if it is known.
    pub fn process(&self, key: Key) -> Option<Process> {
        self.tenants.get(key)?.process
    }

    /// Container and process of a connected client.
    pub fn connected(&self, client: ClientId) -> Option<(ContainerId, Option<Process>)> {
        let Some(ClientHolder::Connected(key)) = self.holder_of(client) else {
            return None;
        };
        let tenant = self.tenants.get(key)?;
        Some((tenant.container, tenant.process))
    }

    /// Whether a process released memory or exited since the last call.
    pub fn take_given_back(&mut self) -> bool {
        std::mem::take(&mut self.given_back)
    }
}
