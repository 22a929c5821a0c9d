//! A process's connection.

use super::handles::SharedHandles;
use crate::containers::{ClaimsReader, ContainerWriter, HeldFamilies, UsageSlot};
use crate::peer::Peer;
use crate::poll::{Source, Watch};
use crate::slab::Key;
use crate::sockets::{Socket, packet_in};
use crate::suspend::shared::Shares;
use gpuslice_engine::{Claims, Event, Process};
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket::send;
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::{
    CHANNELS_PER_GROUP_MAX, FRAME_BYTES_MAX, GROUPS_PER_CLIENT_MAX, WIRE_VERSION,
};
use gpuslice_wire::tenant::{ObjectName, Rejection, Reply};
use gpuslice_wire::usage::NO_SLOT;
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The first version of frames whose processes know the usage table. For an older one the daemon writes the slot,
/// from the claims in the process's page.
const USAGE_SINCE: u16 = 2;

/// The channels of a group, 0 after the last one; none if its process did not report them.
pub type Channels = [ObjectName; CHANNELS_PER_GROUP_MAX];

/// A channel group, as its process reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "GroupWords", from = "GroupWords")]
pub struct ChannelGroup {
    /// GPU of the slice.
    pub lane: Lane,
    /// The process's descriptor number of the open file.
    pub fd: u32,
    /// The driver's client of that file.
    pub client: ObjectName,
    /// The group.
    pub group: ObjectName,
    /// The object of its GPU in that client.
    pub subdevice: ObjectName,
    /// Its channels.
    pub channels: Channels,
}

impl ChannelGroup {
    /// Its channels, as far as they were reported.
    pub fn channels(&self) -> impl Iterator<Item = ObjectName> + Clone {
        self.channels.into_iter().take_while(|channel| channel.0 != 0)
    }
}

/// A channel group in a message to the process that stops work: lane, fd, client, group, subdevice, channels.
type GroupWords = (u8, u32, u32, u32, u32, Vec<u32>);

impl From<ChannelGroup> for GroupWords {
    fn from(it: ChannelGroup) -> GroupWords {
        let channels = it.channels().map(|channel| channel.0).collect();
        (it.lane.0, it.fd, it.client.0, it.group.0, it.subdevice.0, channels)
    }
}

impl From<GroupWords> for ChannelGroup {
    fn from((lane, fd, client, group, subdevice, names): GroupWords) -> ChannelGroup {
        let [client, group, subdevice] = [client, group, subdevice].map(ObjectName);
        let channels = channels_of(names);
        ChannelGroup { lane: Lane(lane), fd, client, group, subdevice, channels }
    }
}

/// The channels of these names, as many as a group has at most.
pub fn channels_of(names: impl IntoIterator<Item = u32>) -> Channels {
    let mut channels = Channels::default();
    for (channel, name) in channels.iter_mut().zip(names) {
        *channel = ObjectName(name);
    }
    channels
}

/// See the file's head.
#[derive(Debug)]
pub struct Tenant {
    pub(super) fd: Socket,
    pub(super) container: ContainerId,
    pub(super) peer: Peer,
    /// Id of the last request, for a final rejection.
    pub(super) request: RequestId,
    /// Version of its frames.
    pub(super) version: u16,
    /// Its slot of the container's usage table; none for a connection that only reads.
    pub(super) slot: Option<UsageSlot>,
    pub(super) attached: Option<Attached>,
    /// Memory handles that its siblings may open.
    pub(super) shared: SharedHandles,
    /// Channel groups in which its work runs, as it reported.
    groups: Vec<ChannelGroup>,
    /// The process, known once it asked to attach.
    pub(super) process: Option<Process>,
    /// It has sent `Attach` or `Look`; a second one is a violation.
    pub(super) asked: bool,
    /// It attached with `Look`.
    pub(super) looks: bool,
    /// Its ring waits for its turn.
    pub(super) rung: bool,
    /// Its requests wait for their turn.
    pub(super) paused: bool,
}

#[derive(Debug)]
pub(super) struct Attached {
    pub client: ClientId,
    lanes: u8,
    claims: ClaimsReader,
    /// The last claims about host memory passed to the engine; unchanged ones are not passed again.
    host: Claims,
    /// Watched for its rings; see `Watch::add_edge_triggered`.
    pub(super) doorbell: EventFd,
}

impl Tenant {
    /// A connection that has sent nothing yet.
    pub(super) fn new(fd: Socket, container: ContainerId, peer: Peer) -> Tenant {
        Tenant {
            fd,
            container,
            peer,
            request: RequestId(0),
            version: WIRE_VERSION,
            slot: None,
            attached: None,
            shared: SharedHandles::default(),
            groups: Vec::new(),
            process: None,
            asked: false,
            looks: false,
            rung: false,
            paused: false,
        }
    }

    /// Attached as this client, without a page of its container.
    #[cfg(test)]
    pub(super) fn attach_alone(&mut self, client: ClientId) {
        let (claims, _) = ClaimsReader::new(NO_SLOT).expect("a page");
        let doorbell = EventFd::new().expect("a bell");
        self.attached =
            Some(Attached { client, lanes: 1, claims, host: Claims::default(), doorbell });
    }

    /// Sends the container's page, the process's page, its doorbell and the usage table.
    ///
    /// # Errors
    /// A system call failed, or the process does not read.
    pub(super) fn attach(
        &mut self,
        key: Key,
        (client, lanes): (ClientId, u8),
        page: &ContainerWriter,
        watch: &Watch,
    ) -> nix::Result<()> {
        let slot = self.slot.as_ref().map_or(NO_SLOT, UsageSlot::number);
        let (claims, claims_fd) = ClaimsReader::new(slot)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        watch.add_edge_triggered(&bell, Source::Doorbell(key))?;
        let mut buffer = [0; FRAME_BYTES_MAX];
        let reply = Reply::Attached { client, lanes };
        let len = packet_in(self.version, self.request, &reply, &mut buffer);
        // The process derives the offset of its clock from this heartbeat.
        page.heartbeat(now());
        let fds = [page.fd(), claims_fd.as_fd(), bell.as_fd(), page.usage.fd()];
        let fds = fds.map(|fd| fd.as_raw_fd());
        let known = if self.writes_slot() { fds.len() } else { fds.len() - 1 };
        send(self.fd.as_fd(), &buffer[..len], &fds[..known])?;
        self.attached =
            Some(Attached { client, lanes, claims, host: Claims::default(), doorbell: bell });
        Ok(())
    }

    /// Whether the process writes its slot of the usage table itself.
    fn writes_slot(&self) -> bool {
        self.version >= USAGE_SINCE
    }

    /// Stores a channel group that the process reports, in a bounded list. It is checked when it is used.
    ///
    /// # Errors
    /// The rule that the report breaks.
    pub(super) fn name_group(&mut self, named: ChannelGroup) -> Result<(), Rejection> {
        if !self.lanes().contains(&named.lane.0) {
            return Err(Rejection::NoSuchLane);
        }
        self.forget_group(named.client, named.group);
        if self.groups.len() >= GROUPS_PER_CLIENT_MAX {
            return Err(Rejection::Overdrawn);
        }
        self.groups.push(named);
        Ok(())
    }

    /// Stores the channels of a group that the process has reported; of another one they are ignored.
    pub(super) fn name_channels(
        &mut self,
        client: ObjectName,
        group: ObjectName,
        channels: Channels,
    ) {
        let its = |it: &&mut ChannelGroup| (it.client, it.group) == (client, group);
        if let Some(named) = self.groups.iter_mut().find(its) {
            named.channels = channels;
        }
    }

    /// Removes a channel group that the process reports as gone.
    pub(super) fn forget_group(&mut self, client: ObjectName, group: ObjectName) {
        let its = |it: &ChannelGroup| (it.client, it.group) == (client, group);
        self.groups.retain(|it| !its(it));
    }

    /// Rejects the process with the rule it broke.
    pub(super) fn say_rejected(&self, why: Rejection) {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = packet_in(self.version, self.request, &Reply::Rejected { why }, &mut buffer);
        // The connection is closed in any case; if this fails, the peer sees only that.
        let _ = send(self.fd.as_fd(), &buffer[..len], &[]);
    }

    /// The present claims, unless they are known to be unchanged.
    pub(super) fn claims(&mut self, lane: Lane) -> Option<Event> {
        let (writes_slot, account) = (self.writes_slot(), usize::from(lane.0));
        let attached = self.attached.as_mut()?;
        let mut claims = attached.claims.read(lane);
        claims.untold &= !self.looks;
        match &self.slot {
            Some(slot) if writes_slot => claims.held = slot.account(account),
            Some(slot) => slot.set_account(account, claims.held),
            None => {}
        }
        if lane == Lane::HOST && std::mem::replace(&mut attached.host, claims) == claims {
            return None;
        }
        Some(Event::Claims { client: attached.client, lane, claims })
    }

    /// What it claims that its memory on a GPU is used for.
    pub(super) fn families(&self, lane: Lane) -> HeldFamilies {
        self.attached.as_ref().map(|it| it.claims.families(lane)).unwrap_or_default()
    }

    /// Whether it claims to have shared GPU memory with another process; `None`: it does not tell.
    pub(super) fn shares(&self) -> Shares {
        self.attached.as_ref()?.claims.shares()
    }

    /// Opens or closes the gates in the process's streams.
    pub(super) fn set_gate(&self, lane: Lane, open: bool) {
        if let Some(attached) = &self.attached {
            attached.claims.set_gate(lane, open);
        }
    }

    /// The GPUs of the slice, by lane.
    pub(super) fn lanes(&self) -> std::ops::Range<u8> {
        0..self.attached.as_ref().map_or(0, |it| it.lanes)
    }

    /// The channel groups that the process reported.
    pub fn groups(&self) -> &[ChannelGroup] {
        &self.groups
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
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.peer.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// The process; `None` if it has no pid in the daemon's namespace.
    pub fn process(&self) -> Option<Process> {
        self.process
    }

    /// The engine's id of the client, once attached.
    pub(super) fn client(&self) -> Option<ClientId> {
        self.attached.as_ref().map(|attached| attached.client)
    }

    /// Its pid in the daemon's namespace; 0 if it has none there.
    pub fn pid(&self) -> u32 {
        u32::try_from(self.peer.pid).unwrap_or(0)
    }
}
