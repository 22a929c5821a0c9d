//! A process's session with the daemon: one connection, two pages, and the accounts of its credit.
//!
//! The addresses of the pages and the descriptor number of the doorbell never change. After a restart of the daemon
//! the new ones atomically replace the old ones, while other threads may be reading. The new usage table has a new
//! address, since this process's slot may be another process's there: a thread that is about to write into the old
//! slot writes into memory that no other process has. It costs 100 KiB of addresses and 16 bytes for each restart.

use super::clock;
use super::conn::{Conn, Welcome};
use super::credit::{Change, CreditAccount};
use super::sys;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::{GpuUuid, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, HEARTBEAT_STALE_NS, HELLO_DEADLINE_NS, LANES_MAX};
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientFamilies, ClientLane, ClientPage, ContainerLane,
    ContainerPage, PAGE_VERSION, SHARES_NOTHING,
};
use gpuslice_wire::tenant::Request;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use gpuslice_wire::usage::{USAGE_TABLE_MAGIC, USAGE_VERSION, UsageSlot, UsageTable};
use std::io::Result;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// How long a request to a connected daemon may take before the daemon counts as gone.
const REPLY_WAIT: Duration = Duration(2 * HELLO_DEADLINE_NS);

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

/// The duties of the rest of the process towards its session.
#[derive(Clone, Copy, Debug)]
pub struct Callbacks {
    /// The process asks for credit: from now on a thread must return it when another process is short.
    pub credit_begins: fn(),
    /// The daemon refused credit: releases unused memory of this process, and returns whether it may have found some.
    /// Called without any lock of the session.
    pub reclaim: fn() -> bool,
    /// Tells a restarted daemon what it cannot know. Called with the connection locked.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub report: fn(&mut Conn, Instant) -> Result<()>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Session {
    socket: PathBuf,
    purpose: Purpose,
    pub(super) callbacks: Callbacks,
    /// The slow path's lock. `None` while the daemon is away.
    conn: Mutex<Option<Conn>>,
    doorbell: sys::Doorbell,
    /// How often the process has attached.
    generation: AtomicU32,
    container: &'static ContainerPage,
    client: &'static ClientPage,
    usage: sys::Replaceable<OwnUsage>,
    /// The process's slot of the usage table.
    own: sys::Replaceable<UsageSlot>,
    lanes: u8,
    /// Not part of this value, which is made on the stack of the thread that attaches: 20 KiB, several times, are
    /// more than some threads have.
    accounts: Box<[CreditAccount]>,
    /// The part of the held memory that NVML does not show, by lane, bytes.
    unseen: [AtomicU64; ACCOUNTS_MAX],
    /// What the held memory is used for, by lane. A new page of claims gets it from here.
    families: [HeldFamilies; ACCOUNTS_MAX],
    /// [`ClientPage::shared`], for a new page.
    shared: Mutex<u32>,
}

/// A usage table, and the number of the process's slot in it: a thread that adds all other slots reads both at once.
#[derive(Debug)]
struct OwnUsage {
    table: &'static UsageTable,
    slot: u32,
}

impl OwnUsage {
    fn new(table: &'static UsageTable, slot: u32) -> &'static OwnUsage {
        Box::leak(Box::new(OwnUsage { table, slot }))
    }
}

/// The families of one lane.
#[derive(Debug, Default)]
struct HeldFamilies {
    bytes: [AtomicU64; Family::ALL.len()],
    contexts: AtomicU32,
}

type Pages = (&'static ContainerPage, &'static ClientPage);

/// The place of a lane in arrays with one element for each; in bounds for any number.
#[inline(always)]
fn at(lane: Lane) -> usize {
    usize::from(lane.0) % ACCOUNTS_MAX
}

/// Checks the heads of the shared mappings and maps them: the pages in place of `over` if given, the usage table at a
/// new address.
fn map_pages(
    welcome: &Welcome,
    over: Option<Pages>,
) -> Result<(&'static ContainerPage, &'static ClientPage, &'static UsageTable)> {
    sys::check_head(&welcome.container, CONTAINER_PAGE_MAGIC, PAGE_VERSION)?;
    sys::check_head(&welcome.client, CLIENT_PAGE_MAGIC, PAGE_VERSION)?;
    sys::check_head(&welcome.usage, USAGE_TABLE_MAGIC, USAGE_VERSION)?;
    let container = sys::map(&welcome.container, false, over.map(|pages| pages.0))?;
    let client = sys::map(&welcome.client, true, over.map(|pages| pages.1))?;
    let usage = sys::map(&welcome.usage, true, None)?;
    Ok((container, client, usage))
}

/// Runs `work` on an open connection. `None` without one, and if `work` fails, which ends it.
pub(super) fn request<T>(
    conn: &mut Option<Conn>,
    work: impl FnOnce(&mut Conn, Instant) -> Result<T>,
) -> Option<T> {
    let deadline = sys::now().plus(REPLY_WAIT);
    let done = work(conn.as_mut()?, deadline);
    if done.is_err() {
        *conn = None;
    }
    done.ok()
}

impl Session {
    /// Attaches for the first time.
    ///
    /// # Errors
    /// As [`Conn::attach`]; `InvalidData` for pages of another version.
    pub fn open(
        socket: &Path,
        purpose: Purpose,
        callbacks: Callbacks,
        deadline: Instant,
    ) -> Result<Session> {
        let asked = clock::asked();
        let request = purpose.request([Bytes::ZERO; ACCOUNTS_MAX]);
        let (conn, welcome) = Conn::attach(socket, &request, deadline)?;
        let session = Session::over(conn, welcome, (socket, purpose, callbacks))?;
        asked.answered(session.container.heartbeat_ns.load(Relaxed));
        Ok(session)
    }

    /// A session over an attached connection.
    pub(super) fn over(
        conn: Conn,
        welcome: Welcome,
        (socket, purpose, callbacks): (&Path, Purpose, Callbacks),
    ) -> Result<Session> {
        let (container, client, usage) = map_pages(&welcome, None)?;
        let slot = client.slot.load(Relaxed);
        let shared = if purpose == Purpose::Use { SHARES_NOTHING } else { 0 };
        client.shared.store(shared, SeqCst);
        Ok(Session {
            socket: socket.to_path_buf(),
            purpose,
            callbacks,
            conn: Mutex::new(Some(conn)),
            doorbell: sys::Doorbell::new(welcome.doorbell.into_raw_fd()),
            generation: AtomicU32::new(1),
            container,
            client,
            usage: sys::Replaceable::new(Some(OwnUsage::new(usage, slot))),
            own: sys::Replaceable::new(usage.slot.get(slot as usize)),
            lanes: welcome.lanes.min(LANES_MAX as u8),
            accounts: (0..ACCOUNTS_MAX).map(|_| CreditAccount::default()).collect(),
            unseen: Default::default(),
            families: Default::default(),
            shared: Mutex::new(shared),
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
        &self.container.lane[at(lane)]
    }

    /// Bytes of a lane that are promised to the container, or free, and not granted yet.
    #[must_use]
    pub fn left(&self, lane: Lane) -> u64 {
        let facts = self.facts(lane);
        facts.cap.load(Relaxed).saturating_sub(facts.reserved.load(Relaxed))
    }

    /// Claims of one lane.
    #[must_use]
    pub fn claims(&self, lane: Lane) -> &'static ClientLane {
        &self.client.lane[at(lane)]
    }

    /// This process's account of one lane.
    #[must_use]
    pub fn account(&self, lane: Lane) -> &CreditAccount {
        &self.accounts[at(lane)]
    }

    /// The lane of a GPU; `None` for one that is not of the slice.
    #[must_use]
    pub fn lane_of(&self, gpu: GpuUuid) -> Option<Lane> {
        let wanted = u128::from_be_bytes(gpu.0);
        (0..self.lanes).map(Lane).find(|&lane| {
            let facts = self.facts(lane);
            let half = |word: &AtomicU64| u128::from(word.load(Relaxed));
            half(&facts.uuid_high) << 64 | half(&facts.uuid_low) == wanted
        })
    }

    /// Number of attaches of this process; when it changes, the claims page is a new one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// Notifies the daemon that the claims changed.
    pub fn ring(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            sys::ring(doorbell);
        }
    }

    /// Changes by `change` bytes the memory held on a lane that NVML does not show.
    pub fn unseen(&self, lane: Lane, change: i64) {
        let words = &self.unseen[at(lane)];
        words.fetch_add(change as u64, Relaxed);
        self.claim(lane);
    }

    /// Bytes that all processes of the container use on a lane, without credit. The own part is exact, but while
    /// another thread moves what is in caches; those of other processes have what is in the caches of their threads.
    #[inline]
    #[must_use]
    pub fn used(&self, lane: Lane) -> u64 {
        let at = at(lane);
        let others = self.usage.get().map_or(0, |own| own.table.others(at, own.slot));
        let untracked = self.container.untracked[at].load(Relaxed);
        self.account(lane).held().saturating_add(others).saturating_add(untracked)
    }

    /// Changes by `change` bytes the memory of a lane that is used for this. Two threads that write the claim may leave
    /// the older sum there, until [`Session::settle`].
    pub fn hold(&self, lane: Lane, family: Family, change: i64) {
        let at = at(lane);
        let sum = &self.families[at].bytes[family as usize];
        sum.fetch_add(change as u64, Relaxed);
        self.client.families[at].bytes[family as usize].store(sum.load(Relaxed), Relaxed);
    }

    /// Notes how many contexts the process has on a lane.
    pub fn hold_contexts(&self, lane: Lane, number: usize) {
        let at = at(lane);
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.families[at].contexts.store(number, Relaxed);
        self.client.families[at].contexts.store(number, Relaxed);
    }

    /// Writes the claims of what held memory is used for.
    fn publish_families(&self, lane: Lane) {
        let at = at(lane);
        let (held, claims): (&HeldFamilies, &ClientFamilies) =
            (&self.families[at], &self.client.families[at]);
        for (claimed, is) in claims.bytes.iter().zip(&held.bytes) {
            claimed.store(is.load(Relaxed), Relaxed);
        }
        claims.contexts.store(held.contexts.load(Relaxed), Relaxed);
    }

    /// Counts an export or import of GPU memory (1), or takes one back (-1).
    pub fn share(&self, change: i32) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        *shared = shared.saturating_add_signed(change);
        self.client.shared.store(*shared, SeqCst);
    }

    /// Publishes a change of the held memory for the daemon and the container's processes, in the slot. Changes within
    /// a thread cache are not (all threads would write one word); they are smaller than the granularity of a driver's
    /// allocations.
    #[inline]
    pub(super) fn publish_change(&self, lane: Lane, change: Change) {
        if let Some(slot) = self.own.get() {
            let copy = &slot.held[at(lane)];
            self.account(lane).publish_change(copy, change);
        }
    }

    /// Publishes the held memory as it is.
    pub(super) fn publish(&self, lane: Lane) {
        if let Some(slot) = self.own.get() {
            self.account(lane).publish(&slot.held[at(lane)]);
        }
    }

    /// Publishes the held memory and writes the claims of it, by which a daemon of an older build knows it. Of two
    /// threads that write at the same time the older sum may stay, until [`Session::settle`].
    pub(super) fn claim(&self, lane: Lane) {
        let claims = self.claims(lane);
        write(&claims.unseen, self.unseen_of(lane));
        write(&claims.held, self.account(lane).held());
        self.publish(lane);
    }

    pub(super) fn unseen_of(&self, lane: Lane) -> u64 {
        self.unseen[at(lane)].load(Relaxed)
    }

    /// The lanes in use: one for each GPU, and the host's.
    pub(super) fn all_lanes(&self) -> impl Iterator<Item = Lane> {
        (0..self.lanes).map(Lane).chain([Lane::HOST])
    }

    /// Writes the held memory of all lanes; from any thread.
    pub fn settle(&self) {
        for lane in self.all_lanes() {
            self.claim(lane);
            self.publish_families(lane);
        }
        self.share(0);
    }

    /// The connection, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Conn>> {
        self.conn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, unless another thread holds it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Conn>>> {
        free(&self.conn)
    }

    /// Runs `work` on the connection. `None` without one, and if `work` fails, which ends it.
    pub fn request<T>(&self, work: impl FnOnce(&mut Conn, Instant) -> Result<T>) -> Option<T> {
        request(&mut self.lock(), work)
    }

    /// Whether the daemon's heartbeat is stale.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let beat = Instant(self.container.heartbeat_ns.load(Relaxed));
        sys::now().since(beat).0 > HEARTBEAT_STALE_NS
    }

    /// Checks the connection, and reattaches if the daemon restarted. Does not wait long, so it suits a
    /// background thread. Returns whether there is a connection.
    pub fn tend(&self) -> bool {
        let Some(mut conn) = self.try_lock() else {
            return true;
        };
        if conn.as_mut().is_some_and(Conn::is_alive) {
            return true;
        }
        *conn = None;
        self.reattach(&mut conn)
    }

    /// Tries once to reattach, if there is no connection. Returns whether there is one.
    pub fn reconnect(&self) -> bool {
        let mut conn = self.lock();
        conn.is_some() || self.reattach(&mut conn)
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
            asked.answered(self.container.heartbeat_ns.load(Relaxed));
            (self.callbacks.report)(&mut fresh, deadline)
        });
        if again.is_err() {
            return false;
        }
        self.settle();
        *conn = Some(fresh);
        self.generation.fetch_add(1, Release);
        true
    }

    fn take_over(&self, welcome: Welcome) -> Result<()> {
        let (_, client, usage) = map_pages(&welcome, Some((self.container, self.client)))?;
        let slot = client.slot.load(Relaxed);
        let before = self.usage.get();
        // All lanes are published after this: a thread that still has the old slot changed its account before.
        self.own.set(usage.slot.get(slot as usize));
        self.usage.set(Some(OwnUsage::new(usage, slot)));
        before.into_iter().for_each(|own| sys::blank(own.table));
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
    pub fn close_in_child(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            sys::close(doorbell);
        }
    }
}

/// Writes a word that the daemon reads, unless it is as it should be.
#[inline]
fn write(word: &AtomicU64, is: u64) {
    if word.load(Relaxed) != is {
        word.store(is, Relaxed);
    }
}

/// The lock, unless another thread holds it. A thread that ended inside it, as by pthread_exit, holds it no more.
fn free<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(left)) => Some(left.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests;
