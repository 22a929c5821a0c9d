//! Memory that graphs allocate.
//!
//! The address of a graph's allocation is fixed when its node is made, so that other nodes can use
//! it; the memory behind it is taken from the device at the first launch and kept for the next
//! one until the program trims it. In between the addresses map to host memory: a program that uses
//! them too early reads zeros and does not crash. Allocations of a graph, one of which is made after the
//! other was freed, may have one address.

use super::super::task::Task;
use crate::allocations::{self, Allocation, Home, Kind};
use crate::context::Context;
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::vram::{Chunk, STEP, map, map_part, space, unmap};
use gpuslice_nvabi::types::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// An allocation of a graph.
pub struct Memory {
    pub address: u64,
    pub bytes: u64,
    pub device: CUdevice,
    len: u64,
    gpu: usize,
}

/// The present memory behind an allocation's address.
struct Behind {
    device: CUdevice,
    len: u64,
    chunk: Option<Arc<Chunk>>,
    /// Held while the program may use it, whether or not its graph still exists.
    in_use: Option<Arc<Memory>>,
    /// Launches to whose allocation the stream has not come yet: they have the memory already.
    queued: usize,
    /// Freed by the program, and still counted as used: [`free`].
    freed: bool,
}

#[derive(Default, Clone, Copy)]
struct High {
    used: u64,
    reserved: u64,
}

#[derive(Default)]
struct Ledger {
    memory: HashMap<u64, Behind>,
    high: HashMap<CUdevice, High>,
}

static LEDGER: LazyLock<Mutex<Ledger>> = LazyLock::new(Mutex::default);

fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Addresses for an allocation in a context.
    pub fn new(context: &'static Context, bytes: u64) -> Result<Arc<Self>, CUresult> {
        let len = bytes.checked_next_multiple_of(STEP).filter(|len| *len > 0);
        let len = len.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if len > context.gpu().total_bytes {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let address = space::take(len, STEP, 0).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let (device, gpu) = (context.device, context.gpu().index);
        let memory = Arc::new(Self { address, bytes, device, len, gpu });
        leave_empty(address, len);
        allocations::insert(address, Allocation::new(context, bytes, Kind::Graph, Home::Elsewhere));
        let behind = Behind { device, len, chunk: None, in_use: None, queued: 0, freed: false };
        ledger().memory.insert(address, behind);
        Ok(memory)
    }

    /// Sees to it that there is device memory behind the address.
    pub fn back(&self) -> Outcome {
        let mut ledger = ledger();
        let reserved = ledger.sum(self.device).reserved;
        let Some(behind) = ledger.memory.get_mut(&self.address) else {
            return Err(CUresult::ERROR_INVALID_VALUE);
        };
        if behind.chunk.is_none() {
            let chunk = Chunk::new(self.gpu, self.len)?;
            map_part(&chunk, 0, self.len, self.address, true)?;
            behind.chunk = Some(chunk);
            let high = ledger.high.entry(self.device).or_default();
            high.reserved = high.reserved.max(reserved + self.len);
        }
        Ok(())
    }

    /// The stream has come to the allocation.
    fn begin_use(this: &Arc<Self>) {
        let mut ledger = ledger();
        if let Some(behind) = ledger.memory.get_mut(&this.address) {
            behind.in_use = Some(Arc::clone(this));
            behind.freed = false;
        }
        let used = ledger.sum(this.device).used;
        let high = ledger.high.entry(this.device).or_default();
        high.used = high.used.max(used);
    }

    /// Whether the program may use it now.
    pub fn is_in_use(&self) -> bool {
        ledger().memory.get(&self.address).is_some_and(|behind| behind.in_use.is_some())
    }
}

/// A launch that a stream is to do: what it allocates is not trimmed meanwhile.
pub struct Queued(Arc<Memory>);

impl Queued {
    pub fn new(memory: &Arc<Memory>) -> Self {
        if let Some(behind) = ledger().memory.get_mut(&memory.address) {
            behind.queued += 1;
        }
        Self(Arc::clone(memory))
    }

    /// The stream has come to the allocation.
    pub fn begin_use(self) {
        Memory::begin_use(&self.0);
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(behind) = ledger().memory.get_mut(&self.0.address) {
            behind.queued -= 1;
        }
    }
}

/// Puts zeroed memory of the host at the addresses of an allocation, which costs nothing until it
/// is touched.
fn leave_empty(address: u64, len: u64) {
    // SAFETY: the addresses were taken for this allocation alone, and nothing refers to what is
    // mapped there now. Should the system refuse, what is mapped there stays.
    let _ = unsafe { map::empty(address, len, true) };
}

impl Drop for Memory {
    fn drop(&mut self) {
        let behind = ledger().memory.remove(&self.address);
        allocations::remove(self.address, |one| one.kind == Kind::Graph);
        unmap(self.address, self.len);
        space::give(self.address, self.len);
        drop(behind);
    }
}

/// How often `tasks` allocate and free the memory at an address.
pub fn uses<'a>(tasks: impl IntoIterator<Item = &'a Task>, address: u64) -> (usize, usize) {
    let (mut allocs, mut frees) = (0, 0);
    for task in tasks {
        match task {
            Task::Alloc(memory) if memory.address == address => allocs += 1,
            Task::Free(other) if *other == address => frees += 1,
            _ => {}
        }
    }
    (allocs, frees)
}

/// The stream has come to the free of an allocation; an address of none is a fault.
pub fn end_use(address: u64) -> Outcome {
    let mut ledger = ledger();
    let behind = ledger.memory.get_mut(&address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let used = behind.in_use.take();
    drop(ledger);
    // The last reference may go here, and its end takes the ledger's lock.
    used.map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// The program frees an allocation that its graph left. A card's driver still counts it as used after the context was
/// synchronised. Until when is not known; here, until the memory is launched again or trimmed.
pub fn free(address: u64) -> Outcome {
    end_use(address)?;
    // The end of use may be the end of the allocation too.
    if let Some(behind) = ledger().memory.get_mut(&address) {
        behind.freed = true;
    }
    Ok(())
}

impl Ledger {
    fn sum(&self, device: CUdevice) -> High {
        let mut sum = High::default();
        for behind in self.memory.values().filter(|behind| behind.device == device) {
            sum.reserved += if behind.chunk.is_some() { behind.len } else { 0 };
            let counts = behind.in_use.is_some() || behind.freed;
            sum.used += if counts { behind.len } else { 0 };
        }
        sum
    }
}

pub fn cuDeviceGraphMemTrim(device: CUdevice) -> Outcome {
    process()?.gpu(device)?;
    let mut unused = Vec::new();
    let mut ledger = ledger();
    for (address, behind) in &mut ledger.memory {
        let is_used = behind.in_use.is_some() || behind.queued > 0;
        if behind.device == device && !is_used && behind.chunk.is_some() {
            leave_empty(*address, behind.len);
            behind.freed = false;
            unused.extend(behind.chunk.take());
        }
    }
    drop(ledger);
    drop(unused);
    Ok(())
}

pub fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: Out<c_void>,
) -> Outcome {
    value.require()?;
    process()?.gpu(device)?;
    let ledger = ledger();
    let (now, high) = (ledger.sum(device), ledger.high.get(&device).copied());
    let high = high.unwrap_or_default();
    let number = match attr {
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => now.used,
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => high.used,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => now.reserved,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => high.reserved,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    value.cast::<u64>().set(number)
}

pub fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: In<c_void>,
) -> Outcome {
    process()?.gpu(device)?;
    refuse_if(value.cast::<u64>().get()? != 0)?;
    let mut ledger = ledger();
    let now = ledger.sum(device);
    let high = ledger.high.entry(device).or_default();
    match attr {
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => high.used = now.used,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => high.reserved = now.reserved,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(())
}
