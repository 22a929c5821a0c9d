//! Memory pools: a pool is charged by what it has of the device, not by what is allocated from it.
//!
//! A pool keeps freed memory for the next allocation, and takes more from the device at once than was
//! asked for. Other processes cannot have what it keeps, so that is what counts: the driver's own number
//! (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`), brought up to date around every call that may change it and
//! now and then in between ([`settle_all`]). [`pot`] has the arithmetic.
//!
//! * The book names the pool of each allocation, because a pool that was destroyed lives on until the
//!   last of them is freed. Until then it keeps its charge: the driver cannot be asked about it.
//! * A pool imported from another process is charged there, and so is what is allocated from it.
//! * A pool of managed memory is charged to its GPU, but NVML does not show it; one of the host's
//!   memory is charged to the account of pinned memory.
//! * `maxSize` of a new pool is left as the application asked. A pool bounded by today's cap could not
//!   grow when the cap is raised, and the bound would not spare anything: a cap counts all memory
//!   of a container, a pool's bound one pool.
//! * Growth is paid for in advance, also where a pool seems to have room: room in splinters is none.

pub mod pot;
#[cfg(test)]
mod tests;

use crate::lane::{self, check};
use crate::link::Session;
use crate::real;
use core::ffi::c_void;
use gpuslice_nvabi::types::*;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use pot::{Charge, PoolBackend, Step};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

/// A pool as the book names it: a small number, used again after the pool's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId(u16);

/// Whose memory a charge follows.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A memory pool's.
    Pool(CUmemoryPool),
    /// That of all graphs on a device.
    Graphs(CUdevice),
}

/// A pool, or what is like one, and its charge.
#[derive(Debug)]
pub struct Pool {
    source: Source,
    /// Where it is charged.
    pub lane: Lane,
    /// NVML does not show its memory.
    unseen: bool,
    /// See [`pot`].
    pub charge: Charge,
    /// Held while the driver trims the pool or destroys it.
    trimming: RwLock<()>,
    id: PoolId,
}

/// A pool within its session.
struct SessionBackend<'a>(&'a Session, &'a Pool);

impl PoolBackend for SessionBackend<'_> {
    fn reserve(&self, bytes: u64) -> Result<u64, CUresult> {
        let reservation = self.0.reserve(self.1.lane, bytes)?;
        let bytes = reservation.bytes;
        reservation.commit();
        Ok(bytes)
    }

    fn release(&self, bytes: u64) {
        self.0.release(self.1.lane, bytes);
    }

    fn changed(&self, bytes: i64) {
        if self.1.unseen {
            self.0.unseen(self.1.lane, bytes);
        }
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
        let lane = usize::from(self.1.lane.0) % ACCOUNTS_MAX;
        match self.1.source {
            Source::Pool(_) => &self.0.pools.steps[lane],
            Source::Graphs(_) => &self.0.graphs.steps[lane],
        }
    }
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
    pub fn new(source: Source, lane: Lane, unseen: bool) -> Pool {
        Pool {
            source,
            lane,
            unseen,
            charge: Charge::default(),
            trimming: RwLock::default(),
            id: PoolId(0),
        }
    }

    /// How the book names it.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// See [`Charge::begin`].
    ///
    /// # Errors
    /// As there.
    pub fn begin(&self, session: &Session, bytes: u64) -> Result<pot::Call, CUresult> {
        self.charge.begin(&SessionBackend(session, self), bytes)
    }

    /// See [`Charge::begin_growth`].
    ///
    /// # Errors
    /// As there.
    pub fn begin_growth(&self, session: &Session, bytes: u64) -> Result<pot::Call, CUresult> {
        self.charge
            .begin_growth(&SessionBackend(session, self), bytes)
    }

    /// See [`Charge::end`].
    ///
    /// # Errors
    /// As there.
    pub fn end(&self, session: &Session, call: &pot::Call) -> Result<(), CUresult> {
        self.charge.end(&SessionBackend(session, self), call)
    }

    /// See [`Charge::cancel`].
    pub fn cancel(&self, session: &Session, call: &pot::Call) {
        self.charge.cancel(&SessionBackend(session, self), call);
    }

    /// See [`Charge::settle`].
    pub fn settle(&self, session: &Session) {
        self.charge.settle(&SessionBackend(session, self));
    }

    /// Has the driver give back what nothing uses, and settles. Never waits for streams, nor for
    /// another thread that does the same.
    pub fn trim(&self, session: &Session) {
        let _trimming = match self.trimming.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !self.charge.has_slack() {
            return self.settle(session);
        }
        // A refusal leaves all as it was, and settling tells.
        let _ = crate::gate::relaxed(|| match self.source {
            Source::Pool(pool) => real!(cuMemPoolTrimTo(pool, 0)),
            Source::Graphs(device) => real!(cuDeviceGraphMemTrim(device)),
        });
        self.settle(session);
    }

    /// Destroys the pool by `call`.
    fn destroy(&self, call: impl FnOnce() -> CUresult) -> CUresult {
        let _nobody_trims = self
            .trimming
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        self.charge.close();
        let result = call();
        if result != CUresult::SUCCESS {
            self.charge.reopen();
        }
        result
    }
}

/// All pools of a process.
#[derive(Debug, Default)]
pub struct Pools {
    known: Mutex<Known>,
    /// What pools of each lane grow by.
    steps: [Step; ACCOUNTS_MAX],
}

#[derive(Debug, Default)]
struct Known {
    /// `None` for a pool that is charged elsewhere.
    by_handle: HashMap<CUmemoryPool, Option<Arc<Pool>>>,
    /// By [`PoolId`], also those that were destroyed and have allocations.
    by_id: Vec<Option<Arc<Pool>>>,
}

impl Known {
    fn add(&mut self, handle: CUmemoryPool, lane: Lane, unseen: bool) -> Option<Arc<Pool>> {
        crate::hooks::follow();
        let free = self.by_id.iter().position(Option::is_none);
        let index = free.unwrap_or(self.by_id.len());
        let pool = Arc::new(Pool {
            id: PoolId(u16::try_from(index).ok()?),
            ..Pool::new(Source::Pool(handle), lane, unseen)
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

    /// A pool was made, or is seen for the first time: charged to `lane`.
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
        known
            .add(handle, lane, unseen)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// A pool was imported, which is charged where it was made.
    pub fn insert_foreign(&self, handle: CUmemoryPool) {
        self.open().by_handle.insert(handle, None);
    }

    /// What is known of a handle; `Some(None)` for a pool that is charged elsewhere.
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

    fn forget(&self, id: PoolId) {
        self.open().by_id[usize::from(id.0)] = None;
    }
}

/// An allocation of a pool was freed.
pub fn parted(session: &Session, id: PoolId, bytes: u64) {
    let Some(pool) = session.pools.by_id(id) else {
        return;
    };
    // What the pool gives back to the device now or later is seen by the next look at it.
    if pool.charge.parted(bytes) {
        bury(session, &pool);
    }
}

fn bury(session: &Session, pool: &Pool) {
    if pool.charge.bury(&SessionBackend(session, pool)) {
        session.pools.forget(pool.id);
    }
}

/// Destroys a pool by `call`. Its handle leaves the list before: afterwards it may be another's.
pub fn destroy(
    session: &Session,
    handle: CUmemoryPool,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(known) = session.pools.open().by_handle.remove(&handle) else {
        return call();
    };
    let Some(pool) = known else {
        let result = call();
        if result != CUresult::SUCCESS {
            session.pools.insert_foreign(handle);
        }
        return result;
    };
    pool.settle(session);
    let result = pool.destroy(call);
    if result == CUresult::SUCCESS {
        bury(session, &pool);
    } else {
        let again = Some(Arc::clone(&pool));
        session.pools.open().by_handle.insert(handle, again);
    }
    result
}

/// The current pool of a device.
///
/// # Errors
/// The driver's.
pub fn of_device(session: &Session, device: CUdevice) -> Result<Option<Arc<Pool>>, CUresult> {
    let mut handle = CUmemoryPool::NULL;
    check(real!(cuDeviceGetMemPool(&raw mut handle, device)))?;
    match session.pools.get(handle) {
        Some(known) => Ok(known),
        None => {
            // Not made here, so it is the one that the device came with.
            let lane = lane::limited(lane::of_device(session, device)?)?;
            session.pools.insert(handle, lane, false).map(Some)
        }
    }
}

/// A pool by its handle: one that was not noted is a device's own, else on the GPU of `device`.
///
/// # Errors
/// The driver's.
pub fn of_handle(
    session: &Session,
    handle: CUmemoryPool,
    device: CUdevice,
) -> Result<Option<Arc<Pool>>, CUresult> {
    if let Some(known) = session.pools.get(handle) {
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
    let lane = lane::limited(lane::of_device(session, device)?)?;
    session.pools.insert(handle, lane, false).map(Some)
}

/// Brings the charges of all pools up to date.
pub fn settle_all(session: &Session) {
    for pool in session.pools.all() {
        pool.settle(session);
    }
}

/// Has all pools give back what nothing uses.
pub fn squeeze(session: &Session) {
    for pool in session.pools.all() {
        pool.trim(session);
    }
}
