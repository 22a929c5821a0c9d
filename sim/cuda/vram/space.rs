//! The range of device pointers: one large range of addresses, reserved without memory behind it.
//!
//! A pointer in this range is meant for a device, so a wrong one can be refused.
//! Ranges are handed out in steps of 2 MiB.

use super::{FreeRanges, map};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Granularity of addresses, and of the memory behind them.
pub const STEP: u64 = gpuslice_sim_device::limits::PAGE_BYTES;
/// Size of the range requested from the system; smaller where that fails (limits on address space).
const MOST: u64 = 16 << 40;
const LEAST: u64 = 1 << 30;

struct Space {
    start: u64,
    end: u64,
    free: Mutex<FreeRanges>,
}

/// The process's one range; `None` where the system refuses even a small one.
fn space() -> Option<&'static Space> {
    static SPACE: OnceLock<Option<Space>> = OnceLock::new();
    let made = SPACE.get_or_init(|| {
        let mut len = MOST;
        while len >= LEAST {
            if let Ok(start) = map::reserve(len) {
                let first = start.next_multiple_of(STEP);
                let end = (start + len) / STEP * STEP;
                let free = Mutex::new(FreeRanges::new(first, end - first));
                return Some(Space { start: first, end, free });
            }
            len /= 2;
        }
        None
    });
    made.as_ref()
}

/// Takes `len` bytes (a multiple of [`STEP`]) of addresses, aligned to `align` (a power of two, at
/// least [`STEP`]), at `wanted` if that is free and not 0.
pub fn take(len: u64, align: u64, wanted: u64) -> Option<u64> {
    let space = space()?;
    space.free.lock().unwrap_or_else(PoisonError::into_inner).take(len, align, wanted)
}

/// Gives addresses back; nothing is mapped there any more.
pub fn give(address: u64, len: u64) {
    if let Some(space) = space() {
        space.free.lock().unwrap_or_else(PoisonError::into_inner).give(address, len);
    }
}

/// Whether an address is one of a device.
pub fn contains(address: u64) -> bool {
    space().is_some_and(|space| (space.start..space.end).contains(&address))
}
