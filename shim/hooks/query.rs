//! Memory queries: the slice's memory, never more than the GPU's.

use crate::daemon::credit::CreditAccount;
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

/// Computes the visible memory, in bytes. `reserved` is that of the whole container and may lag behind this
/// process's own `account`. Bytes reserved by other processes are not free; the own unused credit is.
fn capped(cap: u64, reserved: u64, account: &CreditAccount, physical: MemoryInfo) -> MemoryInfo {
    let (granted, held) = (account.granted(), account.held());
    let others = reserved.saturating_sub(account.unacknowledged(reserved)).saturating_sub(granted);
    MemoryInfo {
        free: cap.saturating_sub(others).saturating_sub(held).min(physical.free),
        total: cap.min(physical.total),
    }
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
    let (facts, account) = (slice.daemon.facts(lane), slice.daemon.account(lane));
    let (cap, reserved) = (facts.cap.load(Relaxed), facts.reserved.load(Relaxed));
    Ok(capped(cap, reserved, account, physical))
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
    use crate::daemon::credit::CreditReply;

    /// `granted` bytes, of which `credit` are unused.
    fn account(granted: u64, credit: u64) -> CreditAccount {
        let account = CreditAccount::default();
        let _ = account.take_or_request(granted, 0, false, |_| CreditReply::Granted(granted));
        account.put(credit);
        account
    }

    #[test]
    fn reported_numbers_stay_within_both_bounds() {
        let gpu = MemoryInfo { free: 900, total: 1000 };
        let ours = account(300, 100);
        // A single process: 300 granted, 100 of them unused.
        assert_eq!(capped(500, 300, &ours, gpu), MemoryInfo { free: 300, total: 500 });
        // Another process has 150 reserved.
        assert_eq!(capped(500, 450, &ours, gpu), MemoryInfo { free: 150, total: 500 });
        // The page lags behind the own grant, and behind the own return of 50.
        assert_eq!(capped(500, 0, &ours, gpu), MemoryInfo { free: 300, total: 500 });
        ours.note_return(50, 350);
        assert_eq!(capped(500, 350, &ours, gpu), MemoryInfo { free: 300, total: 500 });
        // The cap was lowered below the held bytes: nothing is free, and no subtraction wraps.
        assert_eq!(capped(100, 300, &account(300, 0), gpu), MemoryInfo { free: 0, total: 100 });
        // A cap above the GPU's memory, and a GPU filled by others.
        let full = MemoryInfo { free: 10, ..gpu };
        assert_eq!(capped(5000, 0, &account(1, 1), full), MemoryInfo { free: 10, total: 1000 });
    }
}
