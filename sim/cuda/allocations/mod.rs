//! The allocations of the process: every pointer that a program may use, by address.
//!
//! A pointer that lies in no allocation is refused before any use, so that a wrong pointer does not
//! crash the program. The modules change the bytes of allocations, at once and in no order; `exec`
//! calls them when it is an operation's turn:
//! - `array`: allocations with a shape, which have handles instead of pointers;
//! - `copy`, `fill`: ranges of bytes; `word`: single words;
//! - `residency`: where managed memory is.

pub mod array;
pub mod copy;
pub mod fill;
pub mod residency;
pub mod word;

use crate::context::Context;
use crate::vram::{Pages, map, space};
use gpuslice_nvabi::types::{CUdevice, CUresult};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The function family that made an allocation, and so the one that may free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cuMemAlloc`, `cuMemAllocPitch`.
    Device,
    /// `cuMemAllocManaged`, with its flags.
    Managed { flags: u32 },
    /// `cuMemHostAlloc` and its kin, with flags.
    Host { flags: u32 },
    /// `cuMemHostRegister`, with flags: memory of the program.
    Registered { flags: u32 },
    /// Opened from another process.
    Ipc,
    /// `cuMemMap`; readable and writable as `cuMemSetAccess` said.
    Mapped { read: bool, write: bool },
    /// From a memory pool, by the pool's handle.
    Pool { pool: u64 },
    /// Made by a graph.
    Graph,
    /// A variable of a module.
    Module,
}

/// Where the bytes of an allocation come from, to be given back.
pub enum Home {
    /// A piece of a slab of the context's heap.
    Heap { slab: u64, order: u8 },
    /// Pages of its own.
    Pages(Pages),
    /// Memory of the host, of this many bytes.
    Host(usize),
    /// Not ours to give back.
    Elsewhere,
}

impl Home {
    /// Gives the bytes at `address` back.
    pub fn give_back(self, context: &Context, address: u64) {
        match self {
            Self::Heap { slab, order } => context.heap.give(slab, address, usize::from(order)),
            Self::Pages(pages) => drop(pages),
            // SAFETY: host memory has this home only where it was mapped for it, and it is freed
            // once: the allocation was taken out of the table.
            Self::Host(bytes) => unsafe { map::drop_anonymous(address, bytes) },
            Self::Elsewhere => {}
        }
    }
}

/// An allocation.
pub struct Allocation {
    /// As the program asked for.
    pub bytes: u64,
    pub kind: Kind,
    pub context: Option<&'static Context>,
    /// The CUDA ordinal it is on; for host memory that of the context that made it.
    pub device: CUdevice,
    pub home: Home,
    /// `cuPointerSetAttribute(SYNC_MEMOPS)`.
    pub sync_memops: bool,
    /// Never the same twice in a process.
    pub id: u64,
}

impl Allocation {
    /// Of a context, and on its device.
    pub fn new(context: &'static Context, bytes: u64, kind: Kind, home: Home) -> Self {
        Self { context: Some(context), ..Self::without_context(context.device, bytes, kind, home) }
    }

    /// On a device, and of no context.
    pub fn without_context(device: CUdevice, bytes: u64, kind: Kind, home: Home) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { bytes, kind, context: None, device, home, sync_memops: false, id }
    }

    /// Gives back an allocation that was taken out of the table.
    pub fn release(self, base: u64) {
        if let Some(context) = self.context {
            self.home.give_back(context, base);
        }
    }
}

/// The properties of an allocation found.
#[derive(Clone, Copy)]
pub struct Found {
    pub base: u64,
    pub bytes: u64,
    pub kind: Kind,
    pub context: Option<&'static Context>,
    pub device: CUdevice,
    pub sync_memops: bool,
    pub id: u64,
}

impl Found {
    /// Whether its bytes are the host's.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host { .. } | Kind::Registered { .. })
    }

    fn end(&self) -> u64 {
        self.base + self.bytes
    }
}

type Map = BTreeMap<u64, Allocation>;
static ALLOCATIONS: RwLock<Map> = RwLock::new(BTreeMap::new());

fn read() -> RwLockReadGuard<'static, Map> {
    ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Map> {
    ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Enters an allocation; false if its range overlaps another one.
pub fn insert(base: u64, allocation: Allocation) -> bool {
    let mut map = write();
    let end = base.saturating_add(allocation.bytes);
    let before = map.range(..end).next_back();
    if before.is_some_and(|(&other, found)| other + found.bytes > base) {
        return false;
    }
    map.insert(base, allocation);
    true
}

/// Takes an allocation out that begins at `base` and that `fits` accepts.
pub fn remove(base: u64, fits: impl FnOnce(&Allocation) -> bool) -> Option<Allocation> {
    let mut map = write();
    if map.get(&base).is_some_and(fits) { map.remove(&base) } else { None }
}

/// Takes all allocations of a context out.
pub fn remove_of(context: &Context) -> Vec<(u64, Allocation)> {
    let mut map = write();
    let is_of = |one: &Allocation| one.context.is_some_and(|own| own.serial == context.serial);
    // The rest has lives of its own: mappings of virtual memory, pools, modules.
    let ends = |kind: Kind| {
        let host = matches!(kind, Kind::Host { .. } | Kind::Registered { .. });
        host || matches!(kind, Kind::Device | Kind::Managed { .. } | Kind::Ipc)
    };
    let goes = |one: &Allocation| is_of(one) && ends(one.kind);
    let bases: Vec<u64> = map.iter().filter(|(_, one)| goes(one)).map(|(&base, _)| base).collect();
    bases.into_iter().filter_map(|base| Some((base, map.remove(&base)?))).collect()
}

/// Changes an allocation in place.
pub fn change<R>(base: u64, change: impl FnOnce(&mut Allocation) -> R) -> Option<R> {
    write().get_mut(&base).map(change)
}

/// Looks at an allocation in place.
pub fn look<R>(base: u64, look: impl FnOnce(&Allocation) -> R) -> Option<R> {
    read().get(&base).map(look)
}

fn found_in(map: &Map, address: u64) -> Option<Found> {
    let (&base, one) = map.range(..=address).next_back()?;
    let (bytes, kind, context) = (one.bytes, one.kind, one.context);
    (address - base < bytes.max(1)).then_some(Found {
        base,
        bytes,
        kind,
        context,
        device: one.device,
        sync_memops: one.sync_memops,
        id: one.id,
    })
}

/// The allocation an address lies in.
pub fn find(address: u64) -> Option<Found> {
    found_in(&read(), address)
}

/// The allocations that lie in a range as a whole, by base.
pub fn within(start: u64, bytes: u64) -> Vec<Found> {
    let map = read();
    let bases = map.range(start..start.saturating_add(bytes)).map(|(&base, _)| base);
    bases.filter_map(|base| found_in(&map, base)).collect()
}

/// Whether `bytes` from `address` on may be read, or written, by the device. Memory of the host
/// that was never registered is accepted when `pageable`: nothing is known of it.
pub fn check(
    address: u64,
    bytes: u64,
    write: bool,
    pageable: bool,
) -> Result<Option<Found>, CUresult> {
    let end = address.checked_add(bytes).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let map = read();
    let Some(first) = found_in(&map, address) else {
        let known = !pageable || address == 0 || space::contains(address);
        return if known { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(None) };
    };
    let mut here = first;
    loop {
        if let Kind::Mapped { read: readable, write: writable } = here.kind
            && !(if write { writable } else { readable })
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if end <= here.end() {
            return Ok(Some(first));
        }
        // Mappings of virtual memory that lie side by side are one range.
        let next = found_in(&map, here.end()).filter(|next| {
            matches!((here.kind, next.kind), (Kind::Mapped { .. }, Kind::Mapped { .. }))
        });
        here = match next {
            Some(next) => next,
            None if first.is_host() => return Ok(Some(first)),
            None => return Err(CUresult::ERROR_INVALID_VALUE),
        };
    }
}
