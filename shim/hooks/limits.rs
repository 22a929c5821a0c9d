//! Limits of a context that cost memory: heap, printf buffer and stacks of kernels.
//!
//! Raising one makes the driver take memory that no allocation reports, immediately or when a kernel first
//! needs it. The cost of a larger heap or buffer is known, and charged from then on, used or not. Stacks
//! are allocated for every thread that can be resident: that much must fit, and the measured amount is
//! charged. The daemon's own measurements cover what the driver takes later. A limit whose cost does not
//! fit is reset.

use crate::guard::Outcome;
use crate::memory::contexts::{ContextCharge, LIMITS};
use crate::memory::devices::limited;
use crate::real;
use crate::slice::{self, Slice};
use gpuslice_nvabi::types::*;
use gpuslice_wire::family::Family;

/// The cost of raising `limit` by `more`: a lower and an upper bound, bytes.
fn price(limit: CUlimit, more: u64, threads: u64) -> (u64, u64) {
    match limit {
        CU_LIMIT_MALLOC_HEAP_SIZE | CU_LIMIT_PRINTF_FIFO_SIZE => (more, more),
        CU_LIMIT_STACK_SIZE => (0, more.saturating_mul(threads)),
        _ => (0, 0),
    }
}

/// Number of threads that can be resident on the device; 0 if the driver does not report it.
fn threads(device: CUdevice) -> u64 {
    let ask = |what| {
        let mut number = 0;
        let result = real!(cuDeviceGetAttribute(&raw mut number, what, device));
        u64::try_from(number).unwrap_or(0) * u64::from(result == CUresult::SUCCESS)
    };
    ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        * ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)
}

/// The present limit; `None` if the driver does not support it.
fn present(limit: CUlimit) -> Option<u64> {
    let mut value = 0;
    let known = real!(cuCtxGetLimit(&raw mut value, limit)) == CUresult::SUCCESS;
    known.then_some(value as u64)
}

/// Sets a limit of the current context by `call`.
fn set(slice: &Slice, limit: CUlimit, value: usize, call: impl FnOnce() -> CUresult) -> Outcome {
    let mut device = 0;
    if limit as usize >= LIMITS || real!(cuCtxGetDevice(&raw mut device)) != CUresult::SUCCESS {
        return Ok(call());
    }
    let here = slice.here()?;
    let lane = limited(here.lane)?;
    let _alone = slice.contexts.alone(lane);
    let Some(before) = present(limit) else {
        return Ok(call());
    };
    let more = (value as u64).saturating_sub(before);
    let (_, most) = price(limit, more, threads(device));
    let mut reservation = slice.daemon.reserve(lane, most)?;
    let result = call();
    if result != CUresult::SUCCESS {
        return Ok(result);
    }
    // The driver may have adjusted the value.
    let after = present(limit).unwrap_or(value as u64);
    if after <= before {
        let (less, _) = price(limit, before - after, 0);
        let back = slice.contexts.lower(here.context, limit as usize, less);
        slice.release_of(lane, Family::Contexts, back);
        return Ok(result);
    }
    let (least, _) = price(limit, after - before, 0);
    let taken = slice.unaccounted(lane, reservation.bytes).unwrap_or(0);
    if let Err(refused) = reservation.adjust(taken.max(least)) {
        let _ = real!(cuCtxSetLimit(limit, before as usize));
        return Err(refused.into());
    }
    let mut charge = ContextCharge::default();
    charge.limits[limit as usize] = reservation.bytes;
    let bytes = reservation.bytes;
    reservation.commit();
    slice.hold(lane, Family::Contexts, bytes);
    slice.contexts.charge(here.context, device, charge);
    Ok(result)
}

hooks! {
    guard cuCtxSetLimit(limit: CUlimit, value: usize) as |call| {
        match slice::get()? {
            Some(slice) => set(slice, limit, value, call),
            None => Ok(call()),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_are_charged_and_stacks_must_fit() {
        assert_eq!(price(CU_LIMIT_MALLOC_HEAP_SIZE, 7, 1000), (7, 7));
        assert_eq!(price(CU_LIMIT_PRINTF_FIFO_SIZE, 7, 1000), (7, 7));
        assert_eq!(price(CU_LIMIT_STACK_SIZE, 7, 1000), (0, 7000));
        assert_eq!(price(CU_LIMIT_STACK_SIZE, u64::MAX, 2), (0, u64::MAX));
        assert_eq!(price(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 7, 1000), (0, 0));
    }
}
