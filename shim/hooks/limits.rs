//! Limits of a context that cost memory: heap, printf buffer and stacks of kernels.
//!
//! Raising one makes the driver take memory that no allocation reports, immediately or when a kernel first
//! needs it. The cost of a larger heap or buffer is known, and charged from then on, used or not. Stacks
//! are allocated for every thread that can be resident: that much must fit, and the measured amount is
//! charged. The daemon's own measurements cover what the driver takes later. A limit whose cost does not
//! fit is reset.
//!
//! A lower limit releases what a larger heap or buffer was charged. For stacks it releases what the driver has given
//! back by a measurement, so that no memory that the driver still has is without a charge. An H200 (driver
//! 580.159.04) took the whole price of a larger stack in `cuCtxSetLimit`, and gave all of it back when the first limit
//! was set again.

use crate::guard::Outcome;
use crate::memory::contexts::{ContextCharge, LIMITS};
use crate::memory::devices::limited;
use crate::real;
use crate::slice::{self, Slice};
use gpuslice_nvabi::types::*;
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::Lane;

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

/// The part of a charge to release after a limit was lowered. `known` bytes are surely no longer needed, `most` bytes
/// may not be, and `kept` of these the driver still has; `None`: that could not be measured.
fn returned((known, most): (u64, u64), kept: Option<u64>) -> u64 {
    most.saturating_sub(kept.unwrap_or(most)).max(known)
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
    let threads = threads(device);
    let (_, most) = price(limit, (value as u64).saturating_sub(before), threads);
    let mut reservation = slice.daemon.reserve(lane, most)?;
    let lowering = Lowering::begin(slice, (lane, here.context), limit, {
        price(limit, before.saturating_sub(value as u64), threads)
    });
    let result = call();
    if result != CUresult::SUCCESS {
        return Ok(result);
    }
    // The driver may have adjusted the value.
    let after = present(limit).unwrap_or(value as u64);
    if after <= before {
        lowering.end(slice, price(limit, before - after, threads));
        return Ok(result);
    }
    let (least, most) = price(limit, after - before, threads);
    let known = least == most;
    let taken = slice.unaccounted_once(lane, reservation.bytes, |taken| taken > Some(0) || known);
    let taken = taken.unwrap_or_default().unwrap_or(0);
    // Memory that was freed a moment ago may still show: a stack costs no more than its price.
    let cost = if known { taken.max(least) } else { taken.min(most) };
    if let Err(refused) = reservation.adjust(cost) {
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

/// A limit that is about to be lowered.
struct Lowering {
    lane: Lane,
    context: CUcontext,
    limit: CUlimit,
    /// The part of its charge that the driver may give back, if that is to be measured; else 0.
    measured: u64,
    /// The memory of the process beyond its other charges.
    before: Option<u64>,
}

impl Lowering {
    fn begin(
        slice: &Slice,
        (lane, context): (Lane, CUcontext),
        limit: CUlimit,
        (known, most): (u64, u64),
    ) -> Lowering {
        let charged = slice.contexts.of_limit(context, limit as usize);
        let measured = if known < most { most.min(charged) } else { 0 };
        let ask = || slice.unaccounted_once(lane, measured, |bytes| bytes.is_some()).ok().flatten();
        let before = (measured > 0).then(ask).flatten();
        Lowering { lane, context, limit, measured, before }
    }

    /// Releases what the driver has given back; `price` is of the part by which it has lowered the limit.
    fn end(&self, slice: &Slice, (known, most): (u64, u64)) {
        let kept = self.before.and_then(|before| {
            let fell = |now: u64| now == 0 || now.saturating_add(self.measured) <= before;
            let fell = |now: Option<u64>| now.is_some_and(fell);
            slice.unaccounted_once(self.lane, self.measured, fell).ok().flatten()
        });
        let back = returned((known, self.measured), kept).min(most);
        let back = slice.contexts.lower(self.context, self.limit as usize, back);
        slice.release_of(self.lane, Family::Contexts, back);
    }
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

    #[test]
    fn what_the_driver_keeps_of_a_stack_stays_charged() {
        assert_eq!(returned((0, 792), Some(0)), 792);
        assert_eq!(returned((0, 792), Some(700)), 92);
        assert_eq!(returned((0, 792), Some(5000)), 0, "it has other memory without a charge");
        assert_eq!(returned((0, 792), None), 0);
        assert_eq!(returned((7, 0), None), 7, "heaps are not measured");
    }
}
