//! A process's session in its slice: one connection, two pages, and its accounts.
//!
//! The addresses of the pages and the descriptor number of the doorbell never change. After a restart of the
//! daemon the new ones atomically replace the old ones, while other threads may be reading.

use super::conn::{Conn, Welcome};
use super::credit_return::CreditReturn;
use super::groups::ReportedGroups;
use super::shared::SharedHandles;
use super::{Backoff, clock, sys};
use crate::allocations::AllocationTable;
use crate::contexts::Contexts;
use crate::credit::{
    BYTES_MAX, CreditAccount, CreditReply, CreditRequest, CreditSource, TakeOutcome, chunk,
};
use crate::graphs::Graphs;
use crate::guard::Uncancelled;
use crate::lane::Devices;
use crate::pools::Pools;
use crate::vmm::PhysicalTable;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gpuslice_nvabi::types::CUresult;
use gpuslice_wire::ids::{GpuUuid, Lane};
use gpuslice_wire::limits::{
    ACCOUNTS_MAX, DAEMON_WAIT_NS, HEARTBEAT_STALE_NS, HELLO_DEADLINE_NS, LANES_MAX,
};
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientLane, ClientPage, ContainerLane, ContainerPage,
    PAGE_VERSION,
};
use gpuslice_wire::tenant::Request;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use std::io::Error;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a request to a connected daemon may take before the daemon counts as gone.
pub(super) const REPLY_WAIT: Duration = Duration(2 * HELLO_DEADLINE_NS);
/// The granularity of driver allocations; a smaller request costs as much.
const GRAIN: u64 = 512;

/// The purpose of an attach. Each library has a connection of its own, also in the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// CUDA: uses memory and time.
    Use,
    /// NVML: reads only. It reports no held memory, whatever the process holds.
    Look,
}

impl Purpose {
    fn request(self, held: [Bytes; ACCOUNTS_MAX]) -> Request {
        match self {
            Purpose::Use => Request::Attach { held },
            Purpose::Look => Request::Look {},
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Session {
    socket: PathBuf,
    purpose: Purpose,
    /// The slow path's lock. `None` while the daemon is away.
    pub(super) conn: Mutex<Option<Conn>>,
    doorbell: sys::Number,
    /// How often the process has attached.
    generation: AtomicU32,
    container: &'static ContainerPage,
    client: &'static ClientPage,
    lanes: u8,
    accounts: [CreditAccount; ACCOUNTS_MAX],
    /// The part of the held memory that NVML does not show, by lane, bytes.
    unseen: [AtomicU64; ACCOUNTS_MAX],
    /// Answered recalls and idle credit; see `credit_return`.
    pub(super) credit_return: CreditReturn,
    /// Exported memory handles.
    pub(super) shared: SharedHandles,
    /// Channel groups reported to the daemon.
    pub(super) reported: ReportedGroups,
    /// Charged pointers.
    pub allocations: AllocationTable,
    /// Charged physical memory of the virtual-memory API.
    pub physical: Mutex<PhysicalTable>,
    /// Lanes by device ordinal.
    pub devices: Devices,
    /// Devices and costs of contexts.
    pub contexts: Contexts,
    /// Memory pools.
    pub pools: Pools,
    /// Memory of graphs.
    pub graphs: Graphs,
}

/// Memory taken from the account and not yet allocated; returned when dropped.
#[derive(Debug)]
#[must_use]
pub struct Reservation<'a> {
    session: &'a Session,
    /// Of this lane.
    pub lane: Lane,
    /// Its size, bytes.
    pub bytes: u64,
}

impl Reservation<'_> {
    /// Commits the reservation after a successful allocation, whose table entry now holds the bytes.
    pub fn commit(self) {
        core::mem::forget(self);
    }

    /// Changes the reservation to `bytes`, the amount that the driver actually took.
    ///
    /// # Errors
    /// As [`Session::reserve`]; the reservation is then as it was.
    pub fn adjust(&mut self, bytes: u64) -> Result<(), CUresult> {
        let bytes = grains(bytes);
        if bytes > self.bytes {
            self.session
                .reserve(self.lane, bytes - self.bytes)?
                .commit();
        } else {
            self.session.release(self.lane, self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.session.release(self.lane, self.bytes);
    }
}

/// Runs `reclaim`, unless this thread is inside it: trimmed pools settle their charges, and may request
/// credit for that. Returns whether it ran.
fn reclaim_once(reclaim: impl FnOnce()) -> bool {
    thread_local!(static RECLAIMING: Cell<bool> = const { Cell::new(false) });
    let set = |to| RECLAIMING.try_with(|flag| flag.replace(to));
    if set(true) != Ok(false) {
        return false;
    }
    reclaim();
    let _ = set(false);
    true
}

fn grains(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX)
}

type Pages = (&'static ContainerPage, &'static ClientPage);

/// Checks the heads of both pages and maps them, in place of `over` if given.
fn map_pages(welcome: &Welcome, over: Option<Pages>) -> Result<Pages, Error> {
    sys::check_head(&welcome.container, CONTAINER_PAGE_MAGIC, PAGE_VERSION)?;
    sys::check_head(&welcome.client, CLIENT_PAGE_MAGIC, PAGE_VERSION)?;
    let container = sys::map(&welcome.container, false, over.map(|pages| pages.0))?;
    let client = sys::map(&welcome.client, true, over.map(|pages| pages.1))?;
    Ok((container, client))
}

impl Session {
    /// Attaches for the first time.
    ///
    /// # Errors
    /// As [`Conn::attach`]; `InvalidData` for pages of another version.
    pub fn open(socket: &Path, purpose: Purpose, deadline: Instant) -> Result<Session, Error> {
        let asked = clock::asked();
        let request = purpose.request([Bytes::ZERO; ACCOUNTS_MAX]);
        let (conn, welcome) = Conn::attach(socket, &request, deadline)?;
        let (container, client) = map_pages(&welcome, None)?;
        asked.answered(container.heartbeat_ns.load(Ordering::Relaxed));
        Ok(Session {
            socket: socket.to_path_buf(),
            purpose,
            conn: Mutex::new(Some(conn)),
            doorbell: sys::Number::eventfd(welcome.doorbell.into_raw_fd()),
            generation: AtomicU32::new(1),
            container,
            client,
            lanes: welcome.lanes.min(LANES_MAX as u8),
            accounts: Default::default(),
            unseen: Default::default(),
            credit_return: CreditReturn::default(),
            shared: SharedHandles::default(),
            reported: ReportedGroups::default(),
            allocations: AllocationTable::default(),
            physical: Mutex::default(),
            devices: Devices::default(),
            contexts: Contexts::default(),
            pools: Pools::default(),
            graphs: Graphs::default(),
        })
    }

    /// Facts from the daemon.
    #[must_use]
    pub fn container(&self) -> &'static ContainerPage {
        self.container
    }

    /// This process's claims.
    #[must_use]
    pub fn client(&self) -> &'static ClientPage {
        self.client
    }

    /// GPUs of the slice: lanes 0 to `lanes` - 1.
    #[must_use]
    pub fn lanes(&self) -> u8 {
        self.lanes
    }

    /// Facts of one lane.
    #[must_use]
    pub fn facts(&self, lane: Lane) -> &'static ContainerLane {
        &self.container.lane[usize::from(lane.0) % ACCOUNTS_MAX]
    }

    /// Claims of one lane.
    #[must_use]
    pub fn claims(&self, lane: Lane) -> &'static ClientLane {
        &self.client.lane[usize::from(lane.0) % ACCOUNTS_MAX]
    }

    /// This process's account of one lane.
    #[must_use]
    pub fn account(&self, lane: Lane) -> &CreditAccount {
        &self.accounts[usize::from(lane.0) % ACCOUNTS_MAX]
    }

    /// The lane of a GPU; `None` for one that is not of the slice.
    #[must_use]
    pub fn lane_of(&self, gpu: GpuUuid) -> Option<Lane> {
        let wanted = u128::from_be_bytes(gpu.0);
        (0..self.lanes).map(Lane).find(|&lane| {
            let facts = self.facts(lane);
            let half = |word: &AtomicU64| u128::from(word.load(Ordering::Relaxed));
            half(&facts.uuid_high) << 64 | half(&facts.uuid_low) == wanted
        })
    }

    /// Number of attaches of this process; when it changes, the claims page is a new one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Notifies the daemon that the claims changed.
    pub fn ring(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            sys::ring(doorbell);
        }
    }

    /// Reserves `bytes` of a lane, before the driver is called.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` at the cap, or when the daemon stayed away for 30 s.
    #[inline]
    pub fn reserve(&self, lane: Lane, bytes: u64) -> Result<Reservation<'_>, CUresult> {
        let bytes = grains(bytes);
        match self.account(lane).take(bytes) {
            Some(CreditSource::ThreadCache) => {}
            Some(CreditSource::Common(_)) => self.publish(lane),
            None => {
                self.reserve_slowly(lane, bytes)?;
                self.publish(lane);
            }
        }
        Ok(Reservation {
            session: self,
            lane,
            bytes,
        })
    }

    /// Releases `bytes` of a lane.
    #[inline]
    pub fn release(&self, lane: Lane, bytes: u64) {
        let CreditSource::Common(credit) = self.account(lane).put(bytes) else {
            return;
        };
        self.publish(lane);
        if CreditAccount::has_surplus(credit, self.chunk(lane)) && !self.is_alone() {
            self.return_surplus(lane);
        }
    }

    /// Whether no other process of the container is attached. Credit that this one keeps is then missed by no
    /// other process, and a program that allocates and frees large blocks in turn needs no second request.
    fn is_alone(&self) -> bool {
        self.container.clients.load(Ordering::Relaxed) <= 1
    }

    /// Changes by `change` bytes the memory held on a lane that NVML does not show.
    pub fn unseen(&self, lane: Lane, change: i64) {
        let words = &self.unseen[usize::from(lane.0) % ACCOUNTS_MAX];
        words.fetch_add(change as u64, Ordering::Relaxed);
        self.publish(lane);
    }

    fn chunk(&self, lane: Lane) -> u64 {
        chunk(self.facts(lane).cap.load(Ordering::Relaxed))
    }

    /// Writes the claims of held memory. Changes within a thread cache are not written immediately (all
    /// threads would write one word), but by [`Session::settle`]; the claims are used for display alone.
    pub(super) fn publish(&self, lane: Lane) {
        let (claims, unseen) = (self.claims(lane), self.unseen_of(lane));
        let write = |claimed: &AtomicU64, is: u64| {
            if claimed.load(Ordering::Relaxed) != is {
                claimed.store(is, Ordering::Relaxed);
            }
        };
        write(&claims.held, self.account(lane).held());
        write(&claims.unseen, unseen);
    }

    pub(super) fn unseen_of(&self, lane: Lane) -> u64 {
        self.unseen[usize::from(lane.0) % ACCOUNTS_MAX].load(Ordering::Relaxed)
    }

    /// The lanes in use: one for each GPU, and the host's.
    pub(super) fn all_lanes(&self) -> impl Iterator<Item = Lane> {
        (0..self.lanes).map(Lane).chain([Lane::HOST])
    }

    /// Updates the claims of held memory.
    pub fn settle(&self) {
        self.all_lanes().for_each(|lane| self.publish(lane));
    }

    pub(super) fn slow_path(&self) -> MutexGuard<'_, Option<Conn>> {
        self.conn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn reserve_slowly(&self, lane: Lane, bytes: u64) -> Result<(), CUresult> {
        let _uncancelled = Uncancelled::begin();
        if self.grow(lane, bytes)? {
            return Ok(());
        }
        // Before the refusal, reclaim unused memory of the process's own pools.
        if reclaim_once(|| crate::hooks::reclaim(self)) && self.grow(lane, bytes)? {
            return Ok(());
        }
        self.claims(lane).denied.fetch_add(1, Ordering::Relaxed);
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Takes `bytes`, requesting the missing part from the daemon. Returns whether it was granted.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` when the daemon was away for 30 s.
    fn grow(&self, lane: Lane, bytes: u64) -> Result<bool, CUresult> {
        if bytes > BYTES_MAX {
            return Ok(false);
        }
        // From the first credit on, the gate thread must run to return it when a sibling is short.
        crate::gate::watch();
        let deadline = sys::now().plus(Duration(DAEMON_WAIT_NS));
        let (chunk, mut pause) = (self.chunk(lane), Backoff::default());
        let mut attached_anew = false;
        loop {
            let mut conn = self.slow_path();
            let ask = |asked| self.ask(&mut conn, lane, asked);
            let siblings = !self.is_alone();
            match self
                .account(lane)
                .take_or_request(bytes, chunk, siblings, ask)
            {
                TakeOutcome::Taken => return Ok(true),
                // The daemon may still be counting the old connection too: retry after a pause.
                TakeOutcome::Refused if attached_anew => {
                    attached_anew = false;
                    drop(conn);
                    pause.nap();
                    continue;
                }
                TakeOutcome::Refused => return Ok(false),
                TakeOutcome::Gone if sys::now() >= deadline => {
                    return Err(CUresult::ERROR_OUT_OF_MEMORY);
                }
                TakeOutcome::Gone => {}
            }
            attached_anew = self.reattach(&mut conn);
            if !attached_anew {
                drop(conn);
                pause.nap();
            }
        }
    }

    fn ask(&self, conn: &mut Option<Conn>, lane: Lane, asked: CreditRequest) -> CreditReply {
        let Some(open) = conn else {
            return CreditReply::Gone;
        };
        let deadline = sys::now().plus(REPLY_WAIT);
        let reserved = self.facts(lane).reserved.load(Ordering::Relaxed);
        self.publish(lane);
        let sent = match asked.returned {
            0 => Ok(()),
            returned => open.release(lane, returned, deadline),
        };
        if sent.is_ok() && asked.returned > 0 {
            self.account(lane).note_return(asked.returned, reserved);
        }
        sent.and_then(|()| open.reserve(lane, asked.need, asked.wish, deadline))
            .unwrap_or_else(|_| {
                self.hang_up(conn);
                CreditReply::Gone
            })
    }

    /// Returns surplus credit to the daemon, unless another thread holds the connection: a free never waits,
    /// and a later one returns the surplus.
    #[cold]
    fn return_surplus(&self, lane: Lane) {
        let _uncancelled = Uncancelled::begin();
        let Ok(mut conn) = self.conn.try_lock() else {
            return;
        };
        let reserved = self.facts(lane).reserved.load(Ordering::Relaxed);
        let extra = self.account(lane).take_surplus(self.chunk(lane));
        self.account(lane).note_return(extra, reserved);
        let sent = match &mut *conn {
            Some(open) if extra > 0 => open.release(lane, extra, sys::now().plus(REPLY_WAIT)),
            // Without a daemon, the next attach reports the smaller total.
            _ => Ok(()),
        };
        if sent.is_err() {
            self.hang_up(&mut conn);
        }
    }

    pub(super) fn hang_up(&self, conn: &mut Option<Conn>) {
        *conn = None;
    }

    /// Whether the daemon's heartbeat is stale.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let beat = Instant(self.container.heartbeat_ns.load(Ordering::Relaxed));
        sys::now().since(beat).0 > HEARTBEAT_STALE_NS
    }

    /// Checks the connection, and reattaches if the daemon restarted. Does not wait long, so it suits a
    /// background thread. Returns whether there is a connection.
    pub fn tend(&self) -> bool {
        let Ok(mut conn) = self.conn.try_lock() else {
            return true;
        };
        if conn.as_mut().is_some_and(Conn::is_alive) {
            return true;
        }
        self.hang_up(&mut conn);
        self.reattach(&mut conn)
    }

    /// Tries once to reattach with the memory granted so far; the lock keeps that from changing.
    pub(super) fn reattach(&self, conn: &mut Option<Conn>) -> bool {
        let held = core::array::from_fn(|lane| Bytes(self.accounts[lane].granted()));
        let deadline = sys::now().plus(Duration(HELLO_DEADLINE_NS));
        let asked = clock::asked();
        let Ok((mut fresh, welcome)) =
            Conn::attach(&self.socket, &self.purpose.request(held), deadline)
        else {
            return false;
        };
        let again = self.take_over(welcome).and_then(|()| {
            asked.answered(self.container.heartbeat_ns.load(Ordering::Relaxed));
            self.report_shared(&mut fresh, deadline)?;
            self.report_groups_again(&mut fresh, deadline)
        });
        if again.is_err() {
            return false;
        }
        self.settle();
        *conn = Some(fresh);
        self.generation.fetch_add(1, Ordering::Release);
        true
    }

    fn take_over(&self, welcome: Welcome) -> Result<(), Error> {
        map_pages(&welcome, Some((self.container, self.client)))?;
        match self.doorbell.get() {
            // If the application has closed the old one, the new one may have its number.
            Some(old) if old != welcome.doorbell.as_raw_fd() => {
                sys::replace(&welcome.doorbell, old)
            }
            _ => {
                self.doorbell.set(welcome.doorbell.into_raw_fd());
                Ok(())
            }
        }
    }

    /// Closes the child's copy of the doorbell; async-signal-safe.
    pub(super) fn close_in_child(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            sys::close(doorbell);
        }
    }
}
