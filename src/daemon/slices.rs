//! A container's slice as the daemon holds it: record on disk, socket, page, connections.

use crate::grants::Grants;
use crate::handles::Handles;
use crate::lingering::has_exited;
use crate::members::Members;
use crate::pages::ContainerWriter;
use crate::poll::{Poll, Source};
use crate::slab::{Key, Slab};
use crate::socket_closer::{SocketCloser, SocketOwner};
use crate::sockets::Socket;
use crate::state::State;
use gpuslice_engine::Record;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::CONTAINERS_MAX;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The log is told of refused processes no more often than this.
const TELL_EVERY: Duration = Duration(60_000_000_000);

/// One container's.
#[derive(Debug)]
pub struct Slice {
    /// Whose.
    pub container: ContainerId,
    /// The container's own socket.
    pub listener: Socket,
    /// What its processes read.
    pub page: ContainerWriter,
    /// Which processes may connect.
    pub members: Members,
    /// Processes that may not, and tried.
    pub refused: Refused,
    /// Connections of its processes, attached or not.
    pub tenants: Vec<Key>,
    /// What they let each other open.
    pub handles: Handles,
    /// What they were granted, on disk.
    pub grants: Grants,
    /// The container's first process: it ends with that one.
    first: Option<OwnedFd>,
}

/// Processes that were refused: the log is told now and then, not of each.
#[derive(Debug, Default)]
pub struct Refused {
    count: u64,
    next: Instant,
}

impl Refused {
    /// One more; how many there were since the log was last told, if it is to be told again.
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

    /// Whether the container has ended, as far as anybody can tell.
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

/// What pages say about the daemon itself.
#[derive(Clone, Copy, Debug)]
pub struct PageSettings {
    /// Which life of the daemon this is; later ones have larger numbers.
    pub epoch: u64,
    /// Whether containers hold still when it ends.
    pub hard: bool,
    /// Whether processes are to tell of their channel groups.
    pub stop: bool,
    /// What becomes of memory that another container exported; a word of the page.
    pub foreign: u32,
}

impl Slices {
    /// None yet.
    pub fn new() -> Slices {
        Slices {
            slots: Slab::new(CONTAINERS_MAX as u16),
            by_id: BTreeMap::new(),
        }
    }

    /// Opens page and socket of a slice whose record is on disk.
    ///
    /// # Errors
    /// What the system says; nothing is left half open.
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

    /// Has us told when a container's first process has ended.
    ///
    /// # Errors
    /// What the system says.
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

    /// Closes page and socket; gives the slice for what is left to do.
    pub fn close(&mut self, container: &ContainerId) -> Option<Slice> {
        let key = self.by_id.remove(container)?;
        self.slots.remove(key)
    }

    /// By the container's id.
    pub fn of(&self, container: &ContainerId) -> Option<&Slice> {
        self.slots.get(*self.by_id.get(container)?)
    }

    /// By the container's id.
    pub fn of_mut(&mut self, container: &ContainerId) -> Option<&mut Slice> {
        self.slots.get_mut(*self.by_id.get(container)?)
    }

    /// By the key its listener is watched with.
    pub fn get(&self, key: Key) -> Option<&Slice> {
        self.slots.get(key)
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.slots.iter().map(|(_, slice)| slice)
    }

    /// All, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slice> {
        self.slots.iter_mut()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}
