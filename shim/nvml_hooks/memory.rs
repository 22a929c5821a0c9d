//! Memory of a device: the cap is the total and its size, and used are the bytes that the container's processes use.

use super::{guard, lane};
use crate::real;
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_nvabi::types::*;
use gpuslice_wire::units::MIB;

/// Total, free and used of one device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// Used and free add up to the total, and free is never more than the GPU has.
fn capped(cap: u64, used: u64, physical: MemoryInfo) -> MemoryInfo {
    let total = cap.min(physical.total);
    let free = total.saturating_sub(used).min(physical.free);
    MemoryInfo { total, free, used: total - free }
}

/// One function that reports a device's memory: its structure, and the fields that it clears.
macro_rules! memories {
    ($($name:ident($structure:ty) $(clears $field:ident)?;)*) => {$(
        pub unsafe extern "C" fn $name(
            device: nvmlDevice_t,
            memory: *mut $structure,
        ) -> nvmlReturn_t {
            guard(|| {
                let result = real!($name(device, memory));
                if result != nvmlReturn_t::SUCCESS {
                    return Ok(result);
                }
                let Some((daemon, lane)) = lane(device)? else {
                    return Ok(result);
                };
                // SAFETY: NVML has just written there and answered success.
                let memory = unsafe { &mut *memory };
                let cap = daemon.facts(lane).cap.load(Relaxed);
                let (total, free, used) = (memory.total, memory.free, memory.used);
                let physical = MemoryInfo { total, free, used };
                let capped = capped(cap, daemon.used(lane), physical);
                (memory.total, memory.free, memory.used) = (capped.total, capped.free, capped.used);
                $(memory.$field = 0;)?
                Ok(result)
            })
        }
    )*};
}
memories! {
    nvmlDeviceGetMemoryInfo(nvmlMemory_t);
    // The driver's own share is outside the slice.
    nvmlDeviceGetMemoryInfo_v2(nvmlMemory_v2_t) clears reserved;
}

/// One function that reports a device's size among its attributes.
macro_rules! attributes {
    ($($name:ident)*) => {$(
        pub unsafe extern "C" fn $name(
            device: nvmlDevice_t,
            attributes: *mut nvmlDeviceAttributes_t,
        ) -> nvmlReturn_t {
            guard(|| {
                let result = real!($name(device, attributes));
                if result != nvmlReturn_t::SUCCESS {
                    return Ok(result);
                }
                if let Some((daemon, lane)) = lane(device)? {
                    // SAFETY: NVML has just written there and answered success.
                    let attributes = unsafe { &mut *attributes };
                    let cap = daemon.facts(lane).cap.load(Relaxed);
                    attributes.memory_size_mb = attributes.memory_size_mb.min(cap / MIB);
                }
                Ok(result)
            })
        }
    )*};
}
attributes! { nvmlDeviceGetAttributes nvmlDeviceGetAttributes_v2 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_numbers_add_up() {
        let gpu = MemoryInfo { total: 1000, free: 900, used: 100 };
        assert_eq!(capped(500, 200, gpu), MemoryInfo { total: 500, free: 300, used: 200 });
        assert_eq!(capped(500, 700, gpu), MemoryInfo { total: 500, free: 0, used: 500 });
        assert_eq!(capped(5000, 0, gpu), MemoryInfo { total: 1000, free: 900, used: 100 });
        let full = MemoryInfo { total: 1000, free: 10, used: 990 };
        assert_eq!(capped(500, 0, full), MemoryInfo { total: 500, free: 10, used: 490 });
    }
}
