//! Device memory of one process in another: `cuIpcGetMemHandle` and its kin.
//!
//! A handle has the device's own key of the memory and the offset of the allocation in it. The key
//! becomes invalid with the memory, so a stale handle opens nothing. An opened allocation is held:
//! the exporter may free it, and the bytes stay until the last process has closed it.

use crate::allocations::{self, Allocation, Home, Kind};
use crate::context::{self, Context};
use crate::driver::{device_error, identity, process};
use crate::entry::{Out, Outcome, refuse_if};
use crate::exec;
use crate::vram::{Chunk, Pages};
use gpuslice_nvabi::types::{
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUdeviceptr, CUipcMemHandle, CUresult, c_char,
};
use gpuslice_sim_device::MemoryKey;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAGIC: [u8; 8] = *b"gpusimem";

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    key: [u8; 12],
    /// Of the allocation in the memory.
    offset: u64,
    bytes: u64,
    /// Which process made it; a process does not open its own.
    maker: u64,
}

impl Ticket {
    fn to_handle(self) -> CUipcMemHandle {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..20].copy_from_slice(&self.key);
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.maker.to_le_bytes());
        CUipcMemHandle { reserved: bytes.map(|byte: u8| byte as c_char) }
    }

    fn from_handle(handle: &CUipcMemHandle) -> Option<Self> {
        let bytes = handle.reserved.map(|byte| byte as u8);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let key = bytes[8..20].try_into().ok()?;
        let (offset, length, maker) = (word(24), word(32), word(40));
        (bytes[..8] == MAGIC).then_some(Self { key, offset, bytes: length, maker })
    }
}

/// The open handles: one opened again by the same context is the same memory, counted twice.
struct Opened {
    ticket: Ticket,
    context: &'static Context,
    pages: Pages,
    count: u32,
}

fn opened() -> MutexGuard<'static, Vec<Opened>> {
    static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Opened {
    fn address(&self) -> u64 {
        self.pages.address + self.ticket.offset
    }
}

/// What a context has opened is closed.
pub fn context_ends(context: &Context) {
    let mut opened = opened();
    let (gone, rest) = std::mem::take(&mut *opened)
        .into_iter()
        .partition::<Vec<_>, _>(|one| one.context.serial == context.serial);
    *opened = rest;
    drop(opened);
    for one in gone {
        allocations::remove(one.address(), |found| found.kind == Kind::Ipc);
    }
}

/// Opens what a ticket names.
fn open(context: &'static Context, ticket: Ticket) -> Result<u64, CUresult> {
    let mut opened = opened();
    let again =
        opened.iter_mut().find(|one| one.ticket == ticket && one.context.serial == context.serial);
    if let Some(one) = again {
        one.count += 1;
        return Ok(one.address());
    }
    let chunk: Arc<Chunk> = Chunk::import(MemoryKey::from_bytes(ticket.key))?;
    let end = ticket.offset.checked_add(ticket.bytes);
    if ticket.bytes == 0 || end.is_none_or(|end| end > chunk.bytes()) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let pages = Pages::of(chunk)?;
    let one = Opened { ticket, context, pages, count: 1 };
    let address = one.address();
    let allocation = Allocation::new(context, ticket.bytes, Kind::Ipc, Home::Elsewhere);
    allocations::insert(address, allocation);
    opened.push(one);
    Ok(address)
}

pub fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, dptr: CUdeviceptr) -> Outcome {
    handle.require()?;
    exec::working()?;
    let found = allocations::find(dptr).filter(|found| found.kind == Kind::Device);
    let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let source = allocations::look(found.base, |one| match (&one.home, one.context) {
        (Home::Pages(pages), _) => Some((pages.chunk.clone(), pages.address)),
        (Home::Heap { slab, .. }, Some(own)) => Some((own.heap.chunk(*slab)?, *slab)),
        _ => None,
    });
    let (chunk, start) = source.flatten().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    process()?.machine.mem_offer(chunk.memory.key).map_err(device_error)?;
    let key = chunk.memory.key.to_bytes();
    let (offset, bytes) = (found.base - start, found.bytes);
    handle.set(Ticket { key, offset, bytes, maker: identity() }.to_handle())
}

pub fn cuIpcOpenMemHandle_v2(
    pdptr: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> Outcome {
    pdptr.require()?;
    let context = exec::working()?;
    let ticket = Ticket::from_handle(&handle).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    // A card's driver looks at the maker before it looks at the flags.
    if ticket.maker == identity() {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    refuse_if(flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)?;
    pdptr.set(open(context, ticket)?)
}
pub use cuIpcOpenMemHandle_v2 as cuIpcOpenMemHandle;

pub fn cuIpcCloseMemHandle(dptr: CUdeviceptr) -> Outcome {
    let context = context::current()?;
    let settled = exec::settle(context);
    let mut opened = opened();
    let at = opened.iter().position(|one| one.address() == dptr);
    let at = at.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    opened[at].count -= 1;
    if opened[at].count == 0 {
        let gone = opened.swap_remove(at);
        allocations::remove(dptr, |found| found.kind == Kind::Ipc);
        drop(opened);
        drop(gone);
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_the_journey_and_garbage_is_none() {
        let ticket = Ticket { key: [7; 12], offset: 512, bytes: 4096, maker: 99 };
        let handle = ticket.to_handle();
        assert_eq!(Ticket::from_handle(&handle), Some(ticket));
        assert_eq!(Ticket::from_handle(&CUipcMemHandle { reserved: [0; 64] }), None);
    }
}
