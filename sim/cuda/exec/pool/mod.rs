//! Stream-ordered memory: pools, and allocations and frees in the order of a stream.
//!
//! Every device has a default pool; programs can make more and choose which one `cuMemAllocAsync`
//! takes from. A pool keeps its memory until a thread synchronises, and then gives unused memory
//! above its release threshold back, as the real driver does.

mod arena;
mod attributes;
mod share;

use super::stream::{StreamKey, shared};
use super::task::Task;
use super::{context_of, graph, named, resolve, spare, submit};
use crate::allocations::{self, Allocation, Home, Kind};
use crate::context::Context;
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::handles::{Key, Named, Table};
use crate::vram::Pages;
use arena::{Arena, Piece, part};
use gpuslice_nvabi::types::*;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// A pool takes at least so much from the device at once.
const PIECE: u64 = 32 << 20;

impl Piece for Pages {
    fn address(&self) -> u64 {
        self.address
    }
    fn bytes(&self) -> u64 {
        Pages::bytes(self)
    }
}

/// A memory pool of a device.
pub struct Pool {
    device: CUdevice,
    gpu: usize,
    /// Most bytes it may take from the device; 0 means as many as there are.
    max_size: u64,
    handle_types: CUmemAllocationHandleType,
    release_threshold: u64,
    /// The three reuse policies, in the order of their attributes.
    reuse: [i32; 3],
    access: HashMap<CUdevice, CUmemAccess_flags>,
    arena: Arena<Pages>,
    /// Where it comes from, if another process made it, and what of it is open here.
    origin: Option<share::Origin>,
    opened: HashMap<u64, Pages>,
    is_default: bool,
    /// Destroyed by the program; goes with its last allocation.
    dying: bool,
}

impl Named for Pool {
    const KIND: u8 = 10;
}

type PoolKey = Key<Pool>;

#[derive(Default)]
struct Pools {
    table: Table<Pool>,
    /// Default and current pool of each device.
    of_device: HashMap<CUdevice, (PoolKey, PoolKey)>,
    /// The context in whose stream each part was last freed, by serial.
    freed_in: HashMap<u64, u64>,
}

static POOLS: LazyLock<Mutex<Pools>> = LazyLock::new(Mutex::default);

fn pools() -> MutexGuard<'static, Pools> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pools {
    fn pool(&mut self, key: PoolKey) -> Result<&mut Pool, CUresult> {
        let living = self.table.get_mut(key).filter(|pool| !pool.dying);
        living.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    fn create(&mut self, device: CUdevice, is_default: bool) -> Result<PoolKey, CUresult> {
        let gpu = process()?.gpu(device)?.index;
        let pool = Pool {
            device,
            gpu,
            max_size: 0,
            handle_types: CU_MEM_HANDLE_TYPE_NONE,
            release_threshold: 0,
            reuse: [1; 3],
            access: HashMap::new(),
            arena: Arena::new(),
            origin: None,
            opened: HashMap::new(),
            is_default,
            dying: false,
        };
        self.table.insert(pool).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Default and current pool of a device.
    fn of_device(&mut self, device: CUdevice) -> Result<(PoolKey, PoolKey), CUresult> {
        if let Some(pair) = self.of_device.get(&device) {
            return Ok(*pair);
        }
        let default = self.create(device, true)?;
        self.of_device.insert(device, (default, default));
        Ok((default, default))
    }

    fn bury(&mut self, key: PoolKey) -> Option<Pool> {
        let idle = self
            .table
            .get(key)
            .is_some_and(|pool| pool.dying && pool.arena.is_idle() && pool.opened.is_empty());
        if idle { self.table.remove(key) } else { None }
    }
}

/// Allocates from a pool, in the order of a stream.
fn alloc(key: PoolKey, bytes: usize, stream: StreamKey) -> Result<u64, CUresult> {
    let bytes = bytes as u64;
    refuse_if(bytes == 0)?;
    let context = context_of(stream)?;
    shared()?.check(context.id)?;
    // Each step gives up more than the one before: the last waits for what was freed and takes
    // from all pools of the process what they do not use.
    let steps: [fn(StreamKey) -> Outcome; 2] = [
        |_| Ok(()),
        |stream| {
            let context = context_of(stream)?;
            super::settle(context)?;
            spare::give_back(context.gpu().index);
            Ok(())
        },
    ];
    let mut last = CUresult::ERROR_OUT_OF_MEMORY;
    for step in steps {
        step(stream)?;
        match take(key, bytes, stream) {
            Ok((address, true)) => return Ok(address),
            Ok((address, false)) => {
                let kind = Kind::Pool { pool: key.to_pointer() as u64 };
                let allocation =
                    Allocation::without_context(context.device, bytes, kind, Home::Elsewhere);
                allocations::insert(address, allocation);
                return Ok(address);
            }
            Err(error) => last = error,
        }
        if last != CUresult::ERROR_OUT_OF_MEMORY {
            break;
        }
    }
    Err(last)
}

/// A part of a pool, and whether it is one taken again before it was free.
fn take(key: PoolKey, bytes: u64, stream: StreamKey) -> Result<(u64, bool), CUresult> {
    let mut pools = pools();
    let pool = pools.pool(key)?;
    if pool.origin.is_some() {
        // Only its maker allocates from a pool.
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let len = part(bytes).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    if let Some(address) = pool.arena.reuse(bytes, stream.id()) {
        return Ok((address, true));
    }
    if let Some(address) = pool.arena.take(len) {
        return Ok((address, false));
    }
    let room = match pool.max_size {
        0 => u64::MAX,
        most => most.saturating_sub(pool.arena.reserved),
    };
    let exact = len.checked_next_multiple_of(gpuslice_sim_device::limits::PAGE_BYTES);
    let exact = exact.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let wanted = if exact.max(PIECE) <= room { exact.max(PIECE) } else { exact };
    if wanted > room {
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    let piece = match Pages::new(pool.gpu, wanted) {
        Err(CUresult::ERROR_OUT_OF_MEMORY) if wanted > exact => Pages::new(pool.gpu, exact),
        other => other,
    };
    pool.arena.grow(piece?);
    let address = pool.arena.take(len).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    Ok((address, false))
}

fn pool_of(address: u64) -> Option<(PoolKey, u64)> {
    let found = allocations::find(address).filter(|found| found.base == address)?;
    let Kind::Pool { pool } = found.kind else {
        return None;
    };
    Some((PoolKey::from_pointer(pool as usize as *mut _)?, found.bytes))
}

/// Frees memory of a pool: at once, or when the stream is there. False where it is of no pool.
pub fn free(address: u64, stream: Option<StreamKey>) -> Result<bool, CUresult> {
    let Some((key, bytes)) = pool_of(address) else {
        return Ok(false);
    };
    if share::close(key, address)? {
        return Ok(true);
    }
    let context = stream.map(context_of).transpose()?;
    let mut pools = pools();
    let pool = pools.table.get_mut(key).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    refuse_if(pool.arena.in_limbo(address))?;
    match stream {
        None => {
            pool.arena.give(address);
            allocations::remove(address, |one| matches!(one.kind, Kind::Pool { .. }));
            pools.freed_in.remove(&address);
            let buried = pools.bury(key);
            drop((pools, buried));
        }
        Some(stream) => {
            let ticket = pool.arena.give_later(address, bytes, stream.id());
            let ticket = ticket.ok_or(CUresult::ERROR_INVALID_VALUE)?;
            pools.freed_in.extend(context.map(|context| (address, context.serial)));
            drop(pools);
            submit(stream, Task::Retire { pool: key, address, ticket })?;
        }
    }
    Ok(true)
}

/// The stream has come to the free of a part.
pub fn retire(key: PoolKey, address: u64, ticket: u64) {
    let mut pools = pools();
    let Some(pool) = pools.table.get_mut(key) else {
        return;
    };
    if pool.arena.retire(ticket) {
        allocations::remove(address, |one| matches!(one.kind, Kind::Pool { .. }));
        pools.freed_in.remove(&address);
    }
    let buried = pools.bury(key);
    drop((pools, buried));
}

/// A thread has synchronised: pools give unused memory above their thresholds back.
pub fn synchronized() {
    let mut pools = pools();
    let keys: Vec<_> = pools.table.iter().map(|(key, _)| key).collect();
    let mut given = Vec::new();
    for key in keys {
        if let Some(pool) = pools.table.get_mut(key).filter(|pool| pool.arena.reserved > 0) {
            given.extend(pool.arena.trim(pool.release_threshold));
        }
    }
    // The pieces are released under the lock, so that a pool's attributes always match its memory.
    drop((given, pools));
}

/// Gives back what the pools on a GPU (by the machine's index) do not use; returns whether there
/// was any.
pub fn trim_unused(gpu: usize) -> bool {
    let mut pools = pools();
    let keys: Vec<_> = pools.table.iter().map(|(key, _)| key).collect();
    let mut given = Vec::new();
    for key in keys {
        if let Some(pool) = pools.table.get_mut(key).filter(|pool| pool.gpu == gpu) {
            given.extend(pool.arena.trim(0));
        }
    }
    let any = !given.is_empty();
    drop((given, pools));
    any
}

/// Ends the allocations that were freed in a context's streams, which do not come to the free any more. Others have no
/// context and outlive it (CUDA driver API, `cuCtxDestroy`).
pub fn context_ends(context: &'static Context) {
    let freed: Vec<u64> = {
        let of_it = |one: (&u64, &u64)| (*one.1 == context.serial).then_some(*one.0);
        let mut pools = pools();
        let freed = pools.freed_in.iter().filter_map(of_it).collect();
        pools.freed_in.retain(|_, serial| *serial != context.serial);
        freed
    };
    for address in freed {
        let Some((key, _)) = pool_of(address) else {
            continue;
        };
        let mut pools = pools();
        if let Some(pool) = pools.table.get_mut(key)
            && pool.arena.forget(address)
        {
            allocations::remove(address, |one| matches!(one.kind, Kind::Pool { .. }));
        }
        let buried = pools.bury(key);
        drop((pools, buried));
    }
    synchronized();
}

/// Entry points.
pub mod imp {
    use super::*;

    pub use super::attributes::*;
    pub use super::share::*;

    pub fn cuMemAllocAsync(dptr: Out<CUdeviceptr>, bytesize: usize, h_stream: CUstream) -> Outcome {
        dptr.require()?;
        let stream = resolve(h_stream)?;
        if let Some(address) = graph::capture_alloc(stream, bytesize)? {
            return dptr.set(address);
        }
        if bytesize == 0 {
            // A card's driver answers success. The pointer that it then writes is not known.
            return dptr.set(0);
        }
        let pool = pools().of_device(context_of(stream)?.device)?.1;
        dptr.set(alloc(pool, bytesize, stream)?)
    }
    pub use cuMemAllocAsync as cuMemAllocAsync_ptsz;

    pub fn cuMemAllocFromPoolAsync(
        dptr: Out<CUdeviceptr>,
        bytesize: usize,
        pool: CUmemoryPool,
        h_stream: CUstream,
    ) -> Outcome {
        dptr.require()?;
        let stream = resolve(h_stream)?;
        let pool = named(pool.0)?;
        pools().pool(pool)?;
        if let Some(address) = graph::capture_alloc(stream, bytesize)? {
            return dptr.set(address);
        }
        dptr.set(alloc(pool, bytesize, stream)?)
    }
    pub use cuMemAllocFromPoolAsync as cuMemAllocFromPoolAsync_ptsz;

    pub fn cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream) -> Outcome {
        let stream = resolve(h_stream)?;
        if dptr == 0 {
            return Ok(());
        }
        let found = allocations::find(dptr).filter(|found| found.base == dptr);
        let kind = found.ok_or(CUresult::ERROR_INVALID_VALUE)?.kind;
        // A graph frees only what a graph has allocated.
        refuse_if(kind != Kind::Graph && graph::is_capturing(stream))?;
        match kind {
            Kind::Pool { .. } => free(dptr, Some(stream)).map(|_| ()),
            Kind::Graph => submit(stream, Task::Free(dptr)),
            Kind::Device | Kind::Managed { .. } => submit(stream, Task::Release(dptr)),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
    pub use cuMemFreeAsync as cuMemFreeAsync_ptsz;

    pub fn cuMemPoolCreate(pool: Out<CUmemoryPool>, pool_props: In<CUmemPoolProps>) -> Outcome {
        pool.require()?;
        let props = pool_props.get()?;
        let pinned = props.alloc_type == CU_MEM_ALLOCATION_TYPE_PINNED;
        let shareable = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        if !pinned
            || props.location.kind != CU_MEM_LOCATION_TYPE_DEVICE
            || props.handle_types & !shareable != 0
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut pools = pools();
        let new = pools.create(props.location.id, false)?;
        let made = pools.pool(new)?;
        (made.max_size, made.handle_types) = (props.max_size as u64, props.handle_types);
        pool.set(CUmemoryPool(new.to_pointer()))
    }

    pub fn cuMemPoolDestroy(pool: CUmemoryPool) -> Outcome {
        let key = named(pool.0)?;
        let mut pools = pools();
        let pool = pools.pool(key)?;
        refuse_if(pool.is_default)?;
        (pool.dying, pool.release_threshold) = (true, 0);
        let device = pool.device;
        if let Some(pair) = pools.of_device.get_mut(&device)
            && pair.1 == key
        {
            pair.1 = pair.0;
        }
        let buried = pools.bury(key);
        drop((pools, buried));
        Ok(())
    }

    pub fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) -> Outcome {
        let key = named(pool.0)?;
        let mut pools = pools();
        let given = pools.pool(key)?.arena.trim(min_bytes_to_keep as u64);
        drop((given, pools));
        Ok(())
    }

    pub fn cuDeviceGetDefaultMemPool(pool_out: Out<CUmemoryPool>, dev: CUdevice) -> Outcome {
        pool_out.require()?;
        pool_out.set(CUmemoryPool(pools().of_device(dev)?.0.to_pointer()))
    }

    pub fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, dev: CUdevice) -> Outcome {
        pool.require()?;
        pool.set(CUmemoryPool(pools().of_device(dev)?.1.to_pointer()))
    }

    pub fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) -> Outcome {
        let key = named(pool.0)?;
        let mut pools = pools();
        let (default, _) = pools.of_device(dev)?;
        refuse_if(pools.pool(key)?.device != dev)?;
        pools.of_device.insert(dev, (default, key));
        Ok(())
    }

    fn located(location: In<CUmemLocation>, kind: CUmemAllocationType) -> Result<i32, CUresult> {
        let location = location.get()?;
        let pinned = kind == CU_MEM_ALLOCATION_TYPE_PINNED;
        refuse_if(location.kind != CU_MEM_LOCATION_TYPE_DEVICE || !pinned)?;
        Ok(location.id)
    }

    pub fn cuMemGetDefaultMemPool(
        pool_out: Out<CUmemoryPool>,
        location: In<CUmemLocation>,
        kind: CUmemAllocationType,
    ) -> Outcome {
        cuDeviceGetDefaultMemPool(pool_out, located(location, kind)?)
    }

    pub fn cuMemGetMemPool(
        pool: Out<CUmemoryPool>,
        location: In<CUmemLocation>,
        kind: CUmemAllocationType,
    ) -> Outcome {
        cuDeviceGetMemPool(pool, located(location, kind)?)
    }

    pub fn cuMemSetMemPool(
        location: In<CUmemLocation>,
        kind: CUmemAllocationType,
        pool: CUmemoryPool,
    ) -> Outcome {
        cuDeviceSetMemPool(located(location, kind)?, pool)
    }
}
