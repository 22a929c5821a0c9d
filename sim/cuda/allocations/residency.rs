//! Where managed memory is, on a machine where it moves.

use super::{Home, Kind, read};
use crate::driver::process;
use gpuslice_sim_device::MemoryKey;

/// The managed memory of a GPU in which an address lies.
fn key_of(address: u64) -> Option<MemoryKey> {
    let map = read();
    let (&base, one) = map.range(..=address).next_back()?;
    let its = address - base < one.bytes && matches!(one.kind, Kind::Managed { .. });
    match &one.home {
        Home::Pages(pages) if its => Some(pages.chunk.memory.key),
        _ => None,
    }
}

/// The device uses the managed memory in which an address lies: it comes there, if there is room. The bytes that moved.
pub fn come(address: u64) -> u64 {
    let (Ok(process), Some(key)) = (process(), key_of(address)) else {
        return 0;
    };
    process.machine.mem_come(key).unwrap_or(0)
}

/// Moves that memory to the host.
pub fn leave(address: u64) {
    if let (Ok(process), Some(key)) = (process(), key_of(address)) {
        // Memory that is gone is nowhere.
        let _ = process.machine.mem_leave(key);
    }
}
