//! Which of NVML's device handles is which lane of the slice.
//!
//! NVML tells a handle's GPU as text, which takes longer than all else that a query does here. A handle stays the same
//! GPU's until `nvmlShutdown`.

use super::guard;
use crate::real;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_nvabi::types::{nvmlDevice_t, nvmlReturn_t};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::LANES_MAX;

/// Bits of a handle: it is an address.
const HANDLE_BITS: u32 = 56;

/// By lane: its handle, and above that the lane plus one, in one word, so that a reader never sees half of a change.
static KNOWN: [AtomicU64; LANES_MAX] = [const { AtomicU64::new(0) }; LANES_MAX];

fn word(device: nvmlDevice_t, lane: Lane) -> Option<u64> {
    let handle = device.0 as u64;
    let is_address = handle != 0 && handle >> HANDLE_BITS == 0;
    is_address.then_some(handle | (u64::from(lane.0) + 1) << HANDLE_BITS)
}

/// The lane of a handle, if it was asked for before.
pub(super) fn known(device: nvmlDevice_t) -> Option<Lane> {
    let lanes = (0..LANES_MAX as u8).map(Lane).zip(&KNOWN);
    let mut found =
        lanes.filter(|(lane, word)| Some(word.load(Relaxed)) == self::word(device, *lane));
    found.next().map(|(lane, _)| lane)
}

/// Notes the lane of a handle.
pub(super) fn note(device: nvmlDevice_t, lane: Lane) {
    if let (Some(known), Some(word)) = (KNOWN.get(usize::from(lane.0)), word(device, lane)) {
        known.store(word, Relaxed);
    }
}

fn forget() {
    KNOWN.iter().for_each(|known| known.store(0, Relaxed));
}

/// After it the same handle may be another GPU's.
pub unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    guard(|| {
        let result = real!(nvmlShutdown());
        forget();
        Ok(result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_its_lane_until_the_shutdown() {
        let device = |at: usize| nvmlDevice_t(core::ptr::without_provenance_mut(at));
        let lanes = [0x7f00_1234_5000, 0x7f00_1234_6000].map(device);
        assert_eq!(lanes.map(known), [None, None]);
        note(lanes[0], Lane(0));
        note(lanes[1], Lane(3));
        // Neither is an address.
        note(device(0), Lane(1));
        note(device(1 << HANDLE_BITS), Lane(2));
        assert_eq!(lanes.map(known), [Some(Lane(0)), Some(Lane(3))]);
        assert_eq!([device(0), device(1 << HANDLE_BITS)].map(known), [None, None]);
        forget();
        assert_eq!(lanes.map(known), [None, None]);
    }
}
