//! Memory pools: a pool is charged for the device memory it has reserved, not for allocations from it.
//!
//! A pool keeps freed memory for later allocations, and reserves more from the device than one allocation
//! needs. Other processes cannot use that memory. The charge is therefore the driver's own number
//! (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`), updated around every call that may change it and
//! periodically ([`Pools::settle_all`]). [`reservation`] has the arithmetic.
//!
//! * The allocation table names the pool of each allocation, because a destroyed pool lives on until its
//!   last allocation is freed. Until then it keeps its charge: the driver cannot be asked about it.
//! * A pool imported from another process is charged there, and so are allocations from it.
//! * A pool of managed memory is charged to its GPU, although NVML does not show it. A pool of host memory
//!   is charged to the account of pinned memory.
//! * `maxSize` of a new pool stays as the application requested. A pool bounded by the present cap could
//!   not grow when the cap is raised, and the bound would enforce nothing: the cap covers all memory of a
//!   container, the bound one pool.
//! * Growth is reserved in advance even where a pool seems to have room, since that room may be fragmented.

pub mod reservation;
#[cfg(test)]
mod tests;

use super::devices::Devices;
use super::followed;
use crate::daemon::{Reservation, Session};
use crate::real;
use crate::resolve::call::{check, relaxed};
use core::ffi::c_void;
use gpuslice_nvabi::types::*;
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use reservation::{PoolBackend, PoolReservation, Step};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

/// The number of a pool in the allocation table; reused after the pool's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId(u16);

/// The kind of memory that a pool reservation follows.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A memory pool.
    Pool(CUmemoryPool),
    /// The memory of all graphs on a device.
    Graphs(CUdevice),
}

/// The growth steps of pools, by lane.
pub type Steps = [Arc<Step>; ACCOUNTS_MAX];

/// A memory pool, or a device's graph memory, and its reservation.
#[derive(Debug)]
pub struct Pool {
    source: Source,
    /// The lane it is charged to.
    pub lane: Lane,
    /// NVML does not show its memory.
    unseen: bool,
    /// Of all such pools on the lane.
    step: Arc<Step>,
    /// See [`reservation`].
    pub reservation: PoolReservation,
    /// Locked while the driver trims the pool (shared) or destroys it (exclusive).
    trimming: RwLock<()>,
    id: PoolId,
}

/// A pool and the account that it is charged to.
struct AccountBackend<'a>(&'a Session, &'a Pool);

impl PoolBackend for AccountBackend<'_> {
    fn take(&self, bytes: u64) -> Option<u64> {
        self.0.reserve_credited(self.1.lane, bytes).map(taken)
    }

    fn reserve(&self, bytes: u64) -> Result<u64, CUresult> {
        Ok(taken(self.0.reserve(self.1.lane, bytes)?))
    }

    fn release(&self, bytes: u64) {
        self.0.release(self.1.lane, bytes);
    }

    fn changed(&self, bytes: i64) {
        if self.1.unseen {
            self.0.unseen(self.1.lane, bytes);
        }
        self.0.hold(self.1.lane, Family::Pools, bytes);
    }

    fn reserved(&self) -> Option<u64> {
        match self.1.source {
            Source::Pool(pool) => attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
            Source::Graphs(device) => {
                graph_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
            }
        }
    }

    fn step(&self) -> &Step {
        &self.1.step
    }
}

/// The bytes of a reservation, which the pool keeps.
fn taken(reservation: Reservation<'_>) -> u64 {
    let bytes = reservation.bytes;
    reservation.commit();
    bytes
}

fn attribute(pool: CUmemoryPool, which: CUmemPool_attribute) -> Option<u64> {
    let mut value = 0u64;
    let to = (&raw mut value).cast::<c_void>();
    let asked = real!(cuMemPoolGetAttribute(pool, which, to));
    (asked == CUresult::SUCCESS).then_some(value)
}

fn graph_attribute(device: CUdevice, which: CUgraphMem_attribute) -> Option<u64> {
    let mut value = 0u64;
    let to = (&raw mut value).cast::<c_void>();
    let asked = real!(cuDeviceGetGraphMemAttribute(device, which, to));
    (asked == CUresult::SUCCESS).then_some(value)
}

impl Pool {
    /// A pool that is not in any list.
    #[must_use]
    pub fn new(source: Source, lane: Lane, unseen: bool, step: &Steps) -> Pool {
        Pool {
            source,
            lane,
            unseen,
            step: Arc::clone(&step[usize::from(lane.0) % ACCOUNTS_MAX]),
            reservation: PoolReservation::default(),
            trimming: RwLock::default(),
            id: PoolId(0),
        }
    }

    /// Its number in the allocation table.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// See [`PoolReservation::begin`].
    ///
    /// # Errors
    /// As there.
    pub fn begin(&self, daemon: &Session, bytes: u64) -> Result<reservation::PoolCall, CUresult> {
        self.reservation.begin(&AccountBackend(daemon, self), bytes)
    }

    /// See [`PoolReservation::begin_growth`].
    ///
    /// # Errors
    /// As there.
    pub fn begin_growth(
        &self,
        daemon: &Session,
        bytes: u64,
        limit: u64,
    ) -> Result<reservation::PoolCall, CUresult> {
        self.reservation.begin_growth(&AccountBackend(daemon, self), bytes, limit)
    }

    /// See [`PoolReservation::end`].
    ///
    /// # Errors
    /// As there.
    pub fn end(&self, daemon: &Session, call: &reservation::PoolCall) -> Result<(), CUresult> {
        self.reservation.end(&AccountBackend(daemon, self), call)
    }

    /// See [`PoolReservation::cancel`].
    pub fn cancel(&self, daemon: &Session, call: &reservation::PoolCall) {
        self.reservation.cancel(&AccountBackend(daemon, self), call);
    }

    /// See [`PoolReservation::settle`].
    pub fn settle(&self, daemon: &Session) {
        self.reservation.settle(&AccountBackend(daemon, self));
    }

    /// Makes the driver release unused memory, and settles. Never waits for streams, nor for another
    /// thread that trims.
    pub fn trim(&self, daemon: &Session) {
        let _trimming = match self.trimming.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !self.reservation.has_slack() {
            return self.settle(daemon);
        }
        // A refusal changes nothing; settling reads the actual state.
        let _ = relaxed(|| match self.source {
            Source::Pool(pool) => real!(cuMemPoolTrimTo(pool, 0)),
            Source::Graphs(device) => real!(cuDeviceGraphMemTrim(device)),
        });
        self.settle(daemon);
    }

    /// Destroys the pool by `call`.
    fn destroy(&self, call: impl FnOnce() -> CUresult) -> CUresult {
        let _no_trim = self.trimming.write().unwrap_or_else(PoisonError::into_inner);
        self.reservation.close();
        let result = call();
        if result == CUresult::SUCCESS {
            self.reservation.destroyed();
        } else {
            self.reservation.reopen();
        }
        result
    }
}

/// All pools of a process.
#[derive(Debug, Default)]
pub struct Pools {
    known: Mutex<Known>,
    /// The growth step of pools, by lane.
    steps: Steps,
    /// The only stream in which the program has freed memory; 0 before the first one, [`MANY`] after a second one.
    freeing: AtomicUsize,
}

/// In place of a stream's handle.
const MANY: usize = usize::MAX;

/// A stream's handle; [`MANY`] for the one of which each thread has its own.
fn name(stream: CUstream) -> usize {
    match stream {
        CUstream::NULL => CU_STREAM_LEGACY.0.addr(),
        CU_STREAM_PER_THREAD => MANY,
        stream => stream.0.addr(),
    }
}

/// Frees that streams will have executed after a wait, by pool.
#[derive(Debug)]
#[must_use]
pub struct AwaitedFrees(Vec<(Arc<Pool>, u64)>);

impl AwaitedFrees {
    /// The wait has ended.
    pub fn executed(self) {
        self.0.iter().for_each(|(pool, frees)| pool.reservation.executed(*frees));
    }
}

#[derive(Debug, Default)]
struct Known {
    /// `None` for a pool that is charged in another process.
    by_handle: HashMap<CUmemoryPool, Option<Arc<Pool>>>,
    /// By [`PoolId`], including destroyed pools that still have allocations.
    by_id: Vec<Option<Arc<Pool>>>,
}

impl Known {
    fn add(
        &mut self,
        handle: CUmemoryPool,
        lane: Lane,
        unseen: bool,
        steps: &Steps,
    ) -> Option<Arc<Pool>> {
        followed::follow();
        let free = self.by_id.iter().position(Option::is_none);
        let index = free.unwrap_or(self.by_id.len());
        let pool = Arc::new(Pool {
            id: PoolId(u16::try_from(index).ok()?),
            ..Pool::new(Source::Pool(handle), lane, unseen, steps)
        });
        if free.is_none() {
            self.by_id.push(None);
        }
        self.by_id[index] = Some(Arc::clone(&pool));
        self.by_handle.insert(handle, Some(Arc::clone(&pool)));
        Some(pool)
    }
}

impl Pools {
    fn open(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a pool that was created or is seen for the first time, charged to `lane`.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` beyond 65536 pools.
    pub fn insert(
        &self,
        handle: CUmemoryPool,
        lane: Lane,
        unseen: bool,
    ) -> Result<Arc<Pool>, CUresult> {
        let mut known = self.open();
        if let Some(Some(pool)) = known.by_handle.get(&handle) {
            return Ok(Arc::clone(pool));
        }
        known.add(handle, lane, unseen, &self.steps).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Records an imported pool, which is charged in the process that created it.
    pub fn insert_foreign(&self, handle: CUmemoryPool) {
        self.open().by_handle.insert(handle, None);
    }

    /// The pool of a handle; `Some(None)` for a pool that is charged in another process.
    #[must_use]
    pub fn get(&self, handle: CUmemoryPool) -> Option<Option<Arc<Pool>>> {
        self.open().by_handle.get(&handle).cloned()
    }

    fn by_id(&self, id: PoolId) -> Option<Arc<Pool>> {
        self.open().by_id.get(usize::from(id.0)).cloned().flatten()
    }

    fn all(&self) -> Vec<Arc<Pool>> {
        self.open().by_id.iter().flatten().map(Arc::clone).collect()
    }

    /// Notes that memory is freed in a stream.
    #[inline]
    pub fn frees_in(&self, stream: CUstream) {
        let name = name(stream);
        let known = self.freeing.load(Relaxed);
        if known != name && known != MANY {
            // Of two threads that come first, one finds the other's.
            let first = self.freeing.compare_exchange(0, name, Relaxed, Relaxed);
            if first.is_err_and(|other| other != name) {
                self.freeing.store(MANY, Relaxed);
            }
        }
    }

    /// Notes that a stream is destroyed. It may still have memory to free, and another stream may get its handle.
    pub fn stream_closes(&self, stream: CUstream) {
        let _ = self.freeing.compare_exchange(name(stream), MANY, Relaxed, Relaxed);
    }

    /// Before a wait for a stream, or for all of a lane's: the frees of the lane that are executed when it has ended.
    pub fn awaited(&self, lane: Lane, stream: Option<CUstream>) -> AwaitedFrees {
        let mut pools = self.all();
        pools.retain(|pool| pool.lane == lane);
        // Counted first: a free in another stream that is among them has been noted before.
        let frees = pools.into_iter().map(|pool| (Arc::clone(&pool), pool.reservation.frees()));
        let frees = frees.collect();
        let is_all =
            stream.map(name).is_none_or(|name| name != MANY && self.freeing.load(Relaxed) == name);
        AwaitedFrees(if is_all { frees } else { Vec::new() })
    }

    fn forget(&self, id: PoolId) {
        self.open().by_id[usize::from(id.0)] = None;
    }

    /// Notes that an allocation from a pool was freed.
    pub fn freed(&self, daemon: &Session, id: PoolId, bytes: u64) {
        let Some(pool) = self.by_id(id) else {
            return;
        };
        // The next settlement sees what the pool returns to the device.
        if pool.reservation.freed(bytes) {
            self.release_destroyed(daemon, &pool);
        }
    }

    fn release_destroyed(&self, daemon: &Session, pool: &Pool) {
        if pool.reservation.release_destroyed(&AccountBackend(daemon, pool)) {
            self.forget(pool.id);
        }
    }

    /// Destroys a pool by `call`. Its handle is removed first: afterwards it may name another pool.
    pub fn destroy(
        &self,
        daemon: &Session,
        handle: CUmemoryPool,
        call: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let Some(known) = self.open().by_handle.remove(&handle) else {
            return call();
        };
        let Some(pool) = known else {
            let result = call();
            if result != CUresult::SUCCESS {
                self.insert_foreign(handle);
            }
            return result;
        };
        pool.settle(daemon);
        let result = pool.destroy(call);
        if result == CUresult::SUCCESS {
            self.release_destroyed(daemon, &pool);
        } else {
            let again = Some(Arc::clone(&pool));
            self.open().by_handle.insert(handle, again);
        }
        result
    }

    /// The current pool of a device.
    ///
    /// # Errors
    /// The driver's.
    pub fn of_device(&self, device: CUdevice, lane: Lane) -> Result<Option<Arc<Pool>>, CUresult> {
        let mut handle = CUmemoryPool::NULL;
        check(real!(cuDeviceGetMemPool(&raw mut handle, device)))?;
        match self.get(handle) {
            Some(known) => Ok(known),
            // Not created by this process, so it is the device's default pool.
            None => self.insert(handle, lane, false).map(Some),
        }
    }

    /// The pool of a handle. An unknown handle is a device's default pool, or else a pool on `device`.
    ///
    /// # Errors
    /// The driver's.
    pub fn of_handle(
        &self,
        daemon: &Session,
        devices: &Devices,
        handle: CUmemoryPool,
        device: CUdevice,
    ) -> Result<Option<Arc<Pool>>, CUresult> {
        if let Some(known) = self.get(handle) {
            return Ok(known);
        }
        let mut count = 0;
        let _ = real!(cuDeviceGetCount(&raw mut count));
        let own = |device: &CUdevice| {
            let mut default = CUmemoryPool::NULL;
            let asked = real!(cuDeviceGetDefaultMemPool(&raw mut default, *device));
            asked == CUresult::SUCCESS && default == handle
        };
        let device = (0..count).find(own).unwrap_or(device);
        let lane = devices.limited(daemon, device)?;
        self.insert(handle, lane, false).map(Some)
    }

    /// Brings the charges of all pools up to date.
    pub fn settle_all(&self, daemon: &Session) {
        for pool in self.all() {
            pool.settle(daemon);
        }
    }

    /// Makes all pools release unused memory.
    pub fn reclaim(&self, daemon: &Session) {
        for pool in self.all() {
            pool.trim(daemon);
        }
    }
}
