//! The daemon's side of a slice: record on disk, socket, page, connections.

use crate::grants::Grants;
use crate::handles::Handles;
use crate::members::Members;
use crate::pages::ContainerWriter;
use crate::poll::{Poll, Source};
use crate::slab::{Key, Slab};
use crate::socket_closer::{SocketCloser, SocketOwner};
use crate::sockets::Socket;
use crate::state::State;
use gpuslice_engine::Record;
use gpuslice_host::process::has_exited;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::CONTAINERS_MAX;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Shortest time between two log lines about refused processes.
const TELL_EVERY: Duration = Duration(60_000_000_000);

/// The slice of one container.
#[derive(Debug)]
pub struct Slice {
    /// The container.
    pub container: ContainerId,
    /// The container's socket.
    pub listener: Socket,
    /// The page that its processes read.
    pub page: ContainerWriter,
    /// Which processes may connect.
    pub members: Members,
    /// Processes that were refused.
    pub refused: Refused,
    /// Connections of its processes, attached or not.
    pub tenants: Vec<Key>,
    /// Memory handles that its processes share.
    pub handles: Handles,
    /// Grants of its processes, on disk.
    pub grants: Grants,
    /// The container's first process; the slice ends with it.
    first: Option<OwnedFd>,
}

/// Counts refused processes, to log them at intervals.
#[derive(Debug, Default)]
pub struct Refused {
    count: u64,
    next: Instant,
}

impl Refused {
    /// Counts one more; returns the count since the last log line if another is due.
    pub fn one_more(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        (self.next <= now).then(|| {
            self.next = now.plus(TELL_EVERY);
            std::mem::take(&mut self.count)
        })
    }
}

impl Slice {
    /// The container's first process, if it is known.
    pub fn first(&self) -> Option<BorrowedFd<'_>> {
        self.first.as_ref().map(AsFd::as_fd)
    }

    /// Whether the container's first process is known to have exited.
    pub fn is_over(&self) -> bool {
        self.first
            .as_ref()
            .is_some_and(|first| has_exited(first.as_fd()))
    }
}

/// All of them.
#[derive(Debug)]
pub struct Slices {
    slots: Slab<Slice>,
    by_id: BTreeMap<ContainerId, Key>,
}

/// The daemon's settings on each container's page.
#[derive(Clone, Copy, Debug)]
pub struct PageSettings {
    /// Number of this run of the daemon; it grows with each start.
    pub epoch: u64,
    /// Whether launches block while no daemon runs.
    pub hard: bool,
    /// Whether processes must report their channel groups.
    pub stop: bool,
    /// Treatment of memory that another container exported; a value of the page.
    pub foreign: u32,
}

impl Slices {
    /// An empty table.
    pub fn new() -> Slices {
        Slices {
            slots: Slab::new(CONTAINERS_MAX as u16),
            by_id: BTreeMap::new(),
        }
    }

    /// Opens page and socket of a slice whose record is on disk.
    ///
    /// # Errors
    /// A system call failed; nothing is left open.
    pub fn open(
        &mut self,
        state: &State,
        (poll, closer): (&Poll, &SocketCloser),
        settings: PageSettings,
        now: Instant,
        record: &Record,
    ) -> io::Result<()> {
        let container = record.container;
        let page = ContainerWriter::new(settings, now, record)?;
        let listener = state.listen_tenants(&container)?;
        let listener = Socket::listening(listener, SocketOwner::Container(container), closer);
        let dir = state.container_dir(&container);
        let members = Members::noted(&dir, record);
        let slice = Slice {
            container,
            listener,
            page,
            members,
            refused: Refused::default(),
            tenants: Vec::new(),
            handles: Handles::default(),
            grants: Grants::of(&dir, record.lanes.len()),
            first: None,
        };
        let full = |_| io::Error::other("more slices than there can be");
        let key = self.slots.insert(slice).map_err(full)?;
        self.by_id.insert(container, key);
        let Some(slice) = self.slots.get(key) else {
            return Ok(());
        };
        poll.add(&slice.listener, Source::Listener(key))
            .map_err(|why| {
                self.close(&container);
                why.into()
            })
    }

    /// Watches for the exit of a container's first process.
    ///
    /// # Errors
    /// The descriptor cannot be watched.
    pub fn watch(
        &mut self,
        poll: &Poll,
        container: &ContainerId,
        first: OwnedFd,
    ) -> io::Result<()> {
        let Some(&key) = self.by_id.get(container) else {
            return Ok(());
        };
        poll.add(&first, Source::ContainerExit(key))?;
        if let Some(slice) = self.slots.get_mut(key) {
            slice.first = Some(first);
        }
        Ok(())
    }

    /// Closes page and socket; returns the slice for the remaining work.
    pub fn close(&mut self, container: &ContainerId) -> Option<Slice> {
        let key = self.by_id.remove(container)?;
        self.slots.remove(key)
    }

    /// The slice of a container.
    pub fn of(&self, container: &ContainerId) -> Option<&Slice> {
        self.slots.get(*self.by_id.get(container)?)
    }

    /// The slice of a container.
    pub fn of_mut(&mut self, container: &ContainerId) -> Option<&mut Slice> {
        self.slots.get_mut(*self.by_id.get(container)?)
    }

    /// The slice whose listener is watched with this key.
    pub fn get(&self, key: Key) -> Option<&Slice> {
        self.slots.get(key)
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.slots.iter().map(|(_, slice)| slice)
    }

    /// All slices, mutably.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slice> {
        self.slots.iter_mut()
    }

    /// Number of slices.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}
