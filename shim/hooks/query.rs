//! Memory queries: the slice's memory, never more than the GPU's.

use crate::guard::{guard, quick};
use crate::real;
use crate::slice;
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_nvabi::types::*;

/// The memory of a lane as the process sees it, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryInfo {
    free: u64,
    total: u64,
}

/// Computes the visible memory where `used` bytes of `cap` are in use, unused credit not included.
fn capped(cap: u64, used: u64, physical: MemoryInfo) -> MemoryInfo {
    MemoryInfo { free: cap.saturating_sub(used).min(physical.free), total: cap.min(physical.total) }
}

/// The slice's memory on the current context's GPU, where the driver reports `physical`.
fn here(physical: MemoryInfo) -> Result<MemoryInfo, CUresult> {
    let Some(slice) = slice::get()? else {
        return Ok(physical);
    };
    let Some(lane) = slice.lane_of_current()? else {
        return Ok(physical);
    };
    slice.settle_all();
    let cap = slice.daemon.facts(lane).cap.load(Relaxed);
    Ok(capped(cap, slice.daemon.used(lane), physical))
}

/// A device's total memory, where the driver reports `physical`.
fn total(device: CUdevice, physical: u64) -> Result<u64, CUresult> {
    let Some(slice) = slice::get()? else {
        return Ok(physical);
    };
    let lane = slice.lane_of(device)?;
    let cap = lane.map(|lane| slice.daemon.facts(lane).cap.load(Relaxed));
    Ok(cap.map_or(physical, |cap| cap.min(physical)))
}

/// The hooks for one width of numbers. A null pointer is not written.
macro_rules! queries {
    ($number:ty: $info:ident $total:ident) => {
        pub unsafe extern "C" fn $info(free: *mut $number, total: *mut $number) -> CUresult {
            quick(|| {
                let result = real!($info(free, total));
                if result != CUresult::SUCCESS {
                    return Ok(result);
                }
                // SAFETY: null, or the driver has just written there and answered success.
                let (free, total) = unsafe { (free.as_mut(), total.as_mut()) };
                let capped = here(MemoryInfo {
                    free: free.as_deref().map_or(u64::MAX, |free| *free as u64),
                    total: total.as_deref().map_or(u64::MAX, |total| *total as u64),
                })?;
                let narrow = |bytes| <$number>::try_from(bytes).unwrap_or(<$number>::MAX);
                free.into_iter().for_each(|free| *free = narrow(capped.free));
                total.into_iter().for_each(|total| *total = narrow(capped.total));
                Ok(result)
            })
        }

        pub unsafe extern "C" fn $total(bytes: *mut $number, dev: CUdevice) -> CUresult {
            guard(|| {
                let result = real!($total(bytes, dev));
                // SAFETY: null, or the driver has just written there and answered success.
                let bytes = unsafe { bytes.as_mut() };
                if let (CUresult::SUCCESS, Some(bytes)) = (result, bytes) {
                    let capped = total(dev, *bytes as u64)?;
                    *bytes = <$number>::try_from(capped).unwrap_or(<$number>::MAX);
                }
                Ok(result)
            })
        }
    };
}
queries!(usize: cuMemGetInfo_v2 cuDeviceTotalMem_v2);
// CUDA before 3.2.
queries!(u32: cuMemGetInfo cuDeviceTotalMem);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_numbers_stay_within_both_bounds() {
        let gpu = MemoryInfo { free: 900, total: 1000 };
        assert_eq!(capped(500, 200, gpu), MemoryInfo { free: 300, total: 500 });
        // The cap was lowered below the used bytes: nothing is free, and no subtraction wraps.
        assert_eq!(capped(100, 300, gpu), MemoryInfo { free: 0, total: 100 });
        // A cap above the GPU's memory, and a GPU filled by others.
        let full = MemoryInfo { free: 10, ..gpu };
        assert_eq!(capped(5000, 0, full), MemoryInfo { free: 10, total: 1000 });
    }
}
