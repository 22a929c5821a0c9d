//! The containers with a slice: socket, page, members, first process, and records on disk.
//!
//! A slice begins when its record is on disk and its socket listens, and ends when the engine has dismissed it. The
//! connections of its processes are in [`crate::clients`], the driver's limits on it in [`crate::cgroup_limits`].

mod accept_queue;
mod budget;
mod first_process;
mod grants;
mod joined;
mod members;
mod memory_file;
mod owner;
mod pages;
mod unopened;
mod untracked;

use crate::log_limit::LogLimit;
use crate::mps::MpsProcess;
use crate::paths::host_path;
use crate::peer::Peer;
use crate::poll::{Source, Watch};
use crate::replies::Denied;
use crate::slab::{Key, Slab};
use crate::socket_closer::{SocketCloser, SocketOwner};
use crate::sockets::{Socket, Spare};
use crate::state::{MEMBERS, State};
use crate::suspend::read_mark;
use accept_queue::{AcceptQueue, Allowance};
pub use budget::Budget;
pub use first_process::{FirstProcess, examine_asker};
use gpuslice_engine::{Engine, Quota, Record, Untracked};
use gpuslice_host::process::has_exited;
use gpuslice_wire::admin::Denial;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::limits::{CONTAINERS_MAX, HEARTBEAT_NS};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::units::{Duration, Instant};
use grants::Grants;
use joined::Joined;
pub use joined::Joining;
pub use members::Members;
use memory_file::MemoryFile;
use nix::errno::Errno;
pub use pages::{ClaimsReader, ContainerWriter, HeldFamilies, PageSettings, UsageSlot};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
pub use unopened::Reopened;
use unopened::Unopened;

/// Most processes of a sample whose mount namespaces are compared with those of containers.
const EXAMINED_MAX: usize = 16;

/// The slice of one container.
#[derive(Debug)]
struct Slice {
    container: ContainerId,
    /// The GPUs of its lanes.
    gpus: Vec<GpuUuid>,
    /// The container's socket.
    listener: Socket,
    /// The page that its processes read.
    page: ContainerWriter,
    /// Which processes may connect.
    members: Members,
    /// Processes that were refused.
    refused: LogLimit,
    /// Connections that were closed for want of descriptors.
    turned_away: LogLimit,
    /// How often its processes may connect.
    allowance: Allowance,
    /// Times that they had to wait for that.
    slowed: LogLimit,
    /// Grants of its processes, on disk.
    grants: Grants,
    /// What is charged beyond these, as it is on disk; empty before the first write.
    untracked: Vec<Untracked>,
    /// That it could not be written.
    untracked_failed: LogLimit,
    /// The container's first process; the slice ends with it.
    first: Option<OwnedFd>,
    /// The container as Kubernetes names it.
    owner: Owner,
    /// What its programs are told of its memory.
    memory: MemoryFile,
}

impl Slice {
    /// The container's first process, if it is known.
    fn first(&self) -> Option<BorrowedFd<'_>> {
        self.first.as_ref().map(AsFd::as_fd)
    }
}

/// See the file's head.
#[derive(Debug)]
pub struct Containers {
    state: State,
    settings: PageSettings,
    budget: Budget,
    watch: Watch,
    closer: SocketCloser,
    slots: Slab<Slice>,
    by_id: BTreeMap<ContainerId, Key>,
    /// Restored slices that are not open yet.
    unopened: BTreeMap<ContainerId, Unopened>,
    /// The one that was tried last.
    tried_last: Option<ContainerId>,
    /// Containers that live in the slices of claims.
    joined: Slab<Joined>,
    joined_by_id: BTreeMap<ContainerId, Key>,
    /// Listeners that accept nothing until their closed connections are gone.
    paused: Vec<Key>,
    /// Listeners that accept nothing until it is their turn.
    queue: AcceptQueue,
    /// When the next heartbeat is due.
    heartbeat: Instant,
    heartbeats: u64,
}

impl Containers {
    /// An empty table. The records of earlier daemons are in `state`.
    pub fn new(
        state: State,
        settings: PageSettings,
        budget: Budget,
        (watch, closer): (Watch, SocketCloser),
    ) -> Containers {
        Containers {
            state,
            heartbeat: Instant(settings.epoch),
            settings,
            budget,
            watch,
            closer,
            slots: Slab::new(CONTAINERS_MAX as u16),
            by_id: BTreeMap::new(),
            unopened: BTreeMap::new(),
            tried_last: None,
            joined: Slab::new(4 * CONTAINERS_MAX as u16),
            joined_by_id: BTreeMap::new(),
            paused: Vec::new(),
            queue: AcceptQueue::default(),
            heartbeats: 0,
        }
    }

    /// The runtime directory.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How connections are divided among the containers.
    pub fn quota(&self) -> Quota {
        self.budget.quota(self.len())
    }

    /// Opens page and socket of a slice whose record is on disk.
    ///
    /// # Errors
    /// A system call failed; nothing is left open.
    pub fn open(&mut self, now: Instant, record: &Record) -> io::Result<()> {
        if self.len() == 0 {
            self.beat(now); // the first slice: heartbeats start again
        }
        let container = record.container;
        let page = ContainerWriter::new(self.settings, now, record)?;
        let listener = self.state.listen_tenants(&container)?;
        let owner = SocketOwner::Container(container);
        let dir = self.state.container_dir(&container);
        // Of an earlier daemon's suspension.
        page.set_suspended(read_mark(&dir).is_some());
        let slice = Slice {
            container,
            gpus: record.lanes.iter().map(|lane| lane.gpu).collect(),
            listener: Socket::listening(listener, owner, &self.closer),
            page,
            members: Members::noted(&dir, record),
            refused: LogLimit::default(),
            turned_away: LogLimit::default(),
            allowance: Allowance::default(),
            slowed: LogLimit::default(),
            grants: Grants::of(&dir, record.lanes.len()),
            untracked: Vec::new(),
            untracked_failed: LogLimit::default(),
            first: None,
            owner: owner::noted(&dir),
            memory: MemoryFile::of(&self.state.inside(&container), record)?,
        };
        let full = |_| io::Error::other("more slices than there can be");
        let key = self.slots.insert(slice).map_err(full)?;
        self.by_id.insert(container, key);
        let Some(slice) = self.slots.get(key) else {
            return Ok(());
        };
        self.watch.add(&slice.listener, Source::Listener(key)).map_err(|why| {
            self.close_open(&container);
            why.into()
        })
    }

    /// Writes the record of a new slice and opens it.
    ///
    /// # Errors
    /// A system call failed. The slice must be dismissed.
    pub fn admit(
        &mut self,
        now: Instant,
        record: &Record,
        owner: &Owner,
        (members, first): (Members, Option<FirstProcess>),
    ) -> io::Result<()> {
        self.state.keep(record, &notes(&members, first.as_ref(), owner))?;
        self.open(now, record)?;
        if let Some(slice) = self.of_mut(&record.container) {
            slice.grants.begin()?;
        }
        match first {
            Some(first) => self.watch_first(&record.container, first.pidfd),
            None => Ok(()),
        }
    }

    /// Closes page and socket.
    pub fn close(&mut self, container: &ContainerId) {
        self.unopened.remove(container);
        self.close_open(container);
    }

    fn close_open(&mut self, container: &ContainerId) {
        let key = self.by_id.remove(container);
        key.and_then(|key| self.slots.remove(key));
    }

    /// Whether a new slice fits.
    ///
    /// # Errors
    /// Why not.
    pub fn has_room(&self, container: &ContainerId) -> Result<(), Denied> {
        let dir = self.state.container_dir(container);
        host_path(&dir).map_err(|why| (Denial::Host, why.to_string()))?;
        let limit = self.budget.containers;
        let (of_containers, of_claims) = self.counts();
        let is_claims = ClaimId::is_reserved(container);
        let fits = self.budget.has_descriptors(
            of_containers + usize::from(!is_claims),
            of_claims + usize::from(is_claims),
            self.joined.len(),
        );
        if self.claim_of(container).is_some() {
            let text = format!("a container {container} lives in a claim");
            return Err((Denial::Exists, text));
        }
        if self.is_restored(container) {
            return Ok(()); // the engine refuses with a better error
        }
        if self.len() >= usize::from(limit) || !fits {
            let text = format!(
                "{limit} slices exist, as many as containers_max and the daemon's descriptor \
                 limit allow; remove one first, or raise them"
            );
            return Err((Denial::Capacity, text));
        }
        if self.state.has_record(container) {
            let text = format!(
                "{}: its record could not be restored, see the daemon's log; delete it with \
                 gpuslice rm {container}",
                dir.display()
            );
            return Err((Denial::Host, text));
        }
        Ok(())
    }

    /// Numbers of slices: of containers, and of claims.
    fn counts(&self) -> (usize, usize) {
        let all = self.by_id.keys().chain(self.unopened.keys());
        let claims = all.filter(|slice| ClaimId::is_reserved(slice)).count();
        (self.len().saturating_sub(claims), claims)
    }

    /// The next connection to a container's socket. `None`: there is none, the container's processes have connected too
    /// often, or too many of its closed connections still wait to be closed.
    pub fn accept(
        &mut self,
        now: Instant,
        listener: Key,
        spare: &mut Spare,
    ) -> Option<(ContainerId, Socket)> {
        let slice = self.slots.get_mut(listener)?;
        let container = slice.container;
        let behind = self.closer.is_behind(SocketOwner::Container(container));
        if behind && self.watch.forget(&slice.listener).is_ok() {
            self.paused.push(listener);
            return None;
        }
        if !self.queue.admits(&mut slice.allowance, now) {
            if let Some(count) = slice.slowed.one_more(now) {
                tracing::warn!(%container, count, "its processes connect very often, and must wait for it");
            }
            if self.watch.forget(&slice.listener).is_ok() {
                self.queue.wait(listener);
            }
            return None;
        }
        match slice.listener.accept() {
            Ok(fd) => Some((container, fd)),
            Err(Errno::EMFILE | Errno::ENFILE) => {
                if let Some(count) = slice.turned_away.one_more(now) {
                    tracing::warn!(%container, count, "out of descriptors; closed connections of processes");
                }
                spare.turn_away(&slice.listener);
                None
            }
            Err(_) => None,
        }
    }

    /// When the next socket that waits for it may accept a connection.
    pub fn accept_deadline(&self) -> Option<Instant> {
        self.queue.deadline()
    }

    /// Accepts again from the sockets whose turn it is.
    pub fn accept_due(&mut self, now: Instant) {
        while let Some(key) = self.queue.due(now) {
            // As in `accept_again`, the slice may have ended meanwhile.
            if let Some(slice) = self.slots.get_mut(key) {
                slice.allowance.call();
                let _ = self.watch.add(&slice.listener, Source::Listener(key));
            }
        }
    }

    /// Accepts again from all sockets, since closed connections are gone.
    pub fn accept_again(&mut self) {
        for key in std::mem::take(&mut self.paused) {
            // A slice may have ended meanwhile; a listener that was replaced is watched already.
            if let Some(slice) = self.slots.get(key) {
                let _ = self.watch.add(&slice.listener, Source::Listener(key));
            }
        }
    }

    /// Whether a peer is one of the container's processes; logs refused ones at intervals. The processes of a claim's
    /// slice are those of the containers that live in it.
    pub fn is_member(&mut self, container: &ContainerId, peer: &Peer, now: Instant) -> bool {
        if self.has_member(container, peer) {
            return true;
        }
        if peer.has_ended() {
            return false; // before it could be looked at
        }
        let slice = self.of_mut(container);
        if let Some(count) = slice.and_then(|slice| slice.refused.one_more(now)) {
            let (pid, uid) = (peer.pid, peer.uid);
            tracing::warn!(%container, pid, uid, count, "refused a process that is not one of the container's");
        }
        false
    }

    fn has_member(&self, container: &ContainerId, peer: &Peer) -> bool {
        let Some(slice) = self.of(container) else {
            return false;
        };
        let claim = ClaimId::of_slice(container);
        let of_claim = |joined: &&Joined| Some(joined.claim) == claim;
        let joined = || self.joined.iter().map(|(_, joined)| joined);
        let others = || {
            let slices = self.slots.iter().map(|(_, other)| other);
            let slices = slices.filter(|other| other.container != *container);
            let elsewhere = joined().filter(|joined| !of_claim(joined));
            slices.map(|other| &other.members).chain(elsewhere.map(|joined| &joined.members))
        };
        slice.members.has(peer, slice.first(), others())
            || joined()
                .filter(of_claim)
                .any(|joined| joined.members.has(peer, joined.first(), others()))
    }

    /// Those of these processes that cannot be of a slice. The processes of a container without a group of its own are
    /// known by their mount namespace, which takes longer to read: of many such processes the first ones count.
    pub fn outside_of_slices(&self, listed: &[MpsProcess]) -> Vec<u32> {
        let slices = self.slots.iter().map(|(_, slice)| (&slice.members, slice.first()));
        let joined = self.joined.iter().map(|(_, joined)| (&joined.members, joined.first()));
        let all: Vec<_> = slices.chain(joined).collect();
        let in_no_group = listed.iter().filter(|it| {
            let may_hold = |(members, _): &(&Members, _)| members.may_hold(&it.groups);
            !all.iter().any(may_hold)
        });
        let pids = in_no_group.map(|it| it.pid).take(EXAMINED_MAX);
        pids.filter(|pid| !all.iter().any(|(members, first)| members.may_have(*pid, *first)))
            .collect()
    }

    /// When the next heartbeat is due, if there is any slice.
    pub fn deadline(&self) -> Option<Instant> {
        (self.len() > 0).then_some(self.heartbeat)
    }

    /// Writes the heartbeat to every page; returns the number of heartbeats.
    pub fn beat(&mut self, now: Instant) -> u64 {
        self.heartbeat = now.plus(Duration(HEARTBEAT_NS));
        self.heartbeats += 1;
        for (_, slice) in self.slots.iter() {
            slice.page.heartbeat(now);
        }
        self.heartbeats
    }

    /// Writes grants that have become smaller to disk.
    pub fn follow_grants(&mut self, engine: &Engine) {
        for slice in self.slots.iter_mut() {
            slice.grants.follow(|client| engine.granted_to(client));
        }
    }

    /// Writes the grants that could not be written, if that works again.
    pub fn write_lost_grants(&mut self) {
        self.slots.iter_mut().for_each(|slice| slice.grants.write_if_lost());
    }

    /// The page of a container.
    pub fn page(&self, container: &ContainerId) -> Option<&ContainerWriter> {
        Some(&self.of(container)?.page)
    }

    /// The GPU behind a container's lane.
    pub fn gpu_of(&self, container: &ContainerId, lane: Lane) -> Option<GpuUuid> {
        self.of(container)?.gpus.get(usize::from(lane.0)).copied()
    }

    /// The lane of a container's slice of a GPU.
    pub fn lane_of(&self, container: &ContainerId, gpu: GpuUuid) -> Option<Lane> {
        let lane = self.of(container)?.gpus.iter().position(|it| *it == gpu)?;
        Some(Lane(lane as u8))
    }

    /// Whether a container has a slice.
    pub fn has(&self, container: &ContainerId) -> bool {
        self.by_id.contains_key(container)
    }

    /// The container of a slice.
    pub fn container_of(&self, key: Key) -> Option<ContainerId> {
        Some(self.slots.get(key)?.container)
    }

    /// Whether the container's first process is known to have exited.
    pub fn is_over(&self, container: &ContainerId) -> bool {
        let first = self.of(container).and_then(Slice::first);
        first.is_some_and(has_exited)
    }

    /// All containers with a slice.
    pub fn ids(&self) -> impl Iterator<Item = &ContainerId> {
        self.by_id.keys()
    }

    /// Number of slices, also of those that are not open yet: what is kept of descriptors for them is no other's.
    pub fn len(&self) -> usize {
        self.slots.len() + self.unopened.len()
    }

    fn of(&self, container: &ContainerId) -> Option<&Slice> {
        self.slots.get(*self.by_id.get(container)?)
    }

    fn of_mut(&mut self, container: &ContainerId) -> Option<&mut Slice> {
        self.slots.get_mut(*self.by_id.get(container)?)
    }

    /// Ends all slices with the daemon: removes the sockets; if `ephemeral`, removes all files.
    pub fn end(self, ephemeral: bool) {
        let containers = self.by_id.keys().chain(self.joined_by_id.keys()).copied();
        self.state.close(containers, ephemeral);
    }
}
/// What is noted of a new container beside its record: by these a restarted daemon knows its processes and its end.
fn notes(
    members: &Members,
    first: Option<&FirstProcess>,
    owner: &Owner,
) -> Vec<(&'static str, Vec<u8>)> {
    let first = first.and_then(FirstProcess::note).map(|it| (first_process::NOTE, it.into_bytes()));
    let owner = owner::note(owner).map(|it| (owner::NOTE, it.into_bytes()));
    [(MEMBERS, members.note())].into_iter().chain(first).chain(owner).collect()
}
