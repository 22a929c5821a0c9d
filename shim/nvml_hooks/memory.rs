//! Memory of a device: the cap is the total, and the container's reserved bytes are used.

use super::{guard, lane};
use crate::real;
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_nvabi::types::*;

/// Total, free and used of one device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// Used and free add up to the total, and free is never more than the GPU has.
fn capped(cap: u64, reserved: u64, physical: MemoryInfo) -> MemoryInfo {
    let total = cap.min(physical.total);
    let free = total.saturating_sub(reserved).min(physical.free);
    MemoryInfo {
        total,
        free,
        used: total - free,
    }
}

fn slice_memory(
    device: nvmlDevice_t,
    physical: MemoryInfo,
) -> Result<Option<MemoryInfo>, nvmlReturn_t> {
    Ok(lane(device)?.map(|(session, lane)| {
        let facts = session.facts(lane);
        capped(
            facts.cap.load(Relaxed),
            facts.reserved.load(Relaxed),
            physical,
        )
    }))
}

pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    guard(|| {
        let result = real!(nvmlDeviceGetMemoryInfo(device, memory));
        if result != nvmlReturn_t::SUCCESS {
            return Ok(result);
        }
        // SAFETY: NVML has just written there and answered success.
        let memory = unsafe { &mut *memory };
        let physical = MemoryInfo {
            total: memory.total,
            free: memory.free,
            used: memory.used,
        };
        if let Some(capped) = slice_memory(device, physical)? {
            (memory.total, memory.free, memory.used) = (capped.total, capped.free, capped.used);
        }
        Ok(result)
    })
}

pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    guard(|| {
        let result = real!(nvmlDeviceGetMemoryInfo_v2(device, memory));
        if result != nvmlReturn_t::SUCCESS {
            return Ok(result);
        }
        // SAFETY: NVML has just written there and answered success.
        let memory = unsafe { &mut *memory };
        let physical = MemoryInfo {
            total: memory.total,
            free: memory.free,
            used: memory.used,
        };
        if let Some(capped) = slice_memory(device, physical)? {
            (memory.total, memory.free, memory.used) = (capped.total, capped.free, capped.used);
            memory.reserved = 0; // the driver's own share is outside the slice
        }
        Ok(result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_numbers_add_up() {
        let gpu = MemoryInfo {
            total: 1000,
            free: 900,
            used: 100,
        };
        assert_eq!(
            capped(500, 200, gpu),
            MemoryInfo {
                total: 500,
                free: 300,
                used: 200
            }
        );
        assert_eq!(
            capped(500, 700, gpu),
            MemoryInfo {
                total: 500,
                free: 0,
                used: 500
            }
        );
        assert_eq!(
            capped(5000, 0, gpu),
            MemoryInfo {
                total: 1000,
                free: 900,
                used: 100
            }
        );
        let full = MemoryInfo {
            total: 1000,
            free: 10,
            used: 990,
        };
        assert_eq!(
            capped(500, 0, full),
            MemoryInfo {
                total: 500,
                free: 10,
                used: 490
            }
        );
    }
}
