//! The charge of an allocation: reserved before the driver is called, recorded after it succeeds, released
//! after a free.
//!
//! All functions on the path of a small allocation are inlined: a [`Charging`] is too large for registers, and
//! passing it through memory costs as much as a locked instruction.

use super::attach::{attached, get};
use super::physical::released;
use super::state::Slice;
use crate::daemon::{OutOfMemory, Reservation};
use crate::guard::Outcome;
use crate::memory::allocations::{Allocation, Kind};
use crate::memory::contexts::key;
use crate::memory::devices::limited;
use crate::memory::physical::{Charge, Name};
use crate::real;
use gpuslice_nvabi::types::CUresult;
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::Lane;

impl From<OutOfMemory> for CUresult {
    fn from(_: OutOfMemory) -> CUresult {
        CUresult::ERROR_OUT_OF_MEMORY
    }
}

/// A reservation for an allocation that the driver has not granted yet.
#[derive(Debug)]
pub struct Charging {
    slice: &'static Slice,
    /// The bytes.
    pub reservation: Reservation<'static>,
    /// The context whose end frees the memory; 0 for none.
    pub context: u64,
    /// Its kind.
    pub kind: Kind,
}

impl Charging {
    /// Reserves `bytes` on the current context's GPU. `None`: the call is not limited.
    ///
    /// # Errors
    /// As [`get`], [`Slice::here`], [`limited`] and [`crate::daemon::Session::reserve`].
    #[inline(always)]
    pub fn here(bytes: usize) -> Result<Option<Charging>, CUresult> {
        let Some(slice) = get()? else {
            return Ok(None);
        };
        let here = slice.here()?;
        let lane = limited(here.lane)?;
        let reservation = slice.daemon.reserve(lane, bytes as u64)?;
        Ok(Some(Charging { slice, reservation, context: key(here.context), kind: Kind::Seen }))
    }

    /// Reserves `bytes` on a lane, for memory of a context (0: that outlives contexts).
    ///
    /// # Errors
    /// As [`crate::daemon::Session::reserve`].
    pub fn on(
        slice: &'static Slice,
        lane: Lane,
        context: u64,
        bytes: usize,
    ) -> Result<Charging, CUresult> {
        Ok(Charging {
            slice,
            reservation: slice.daemon.reserve(lane, bytes as u64)?,
            context,
            kind: Kind::Seen,
        })
    }

    /// Records the charge under the pointer that the driver returned.
    #[inline(always)]
    pub fn commit(self, pointer: u64) {
        let (lane, bytes) = (self.reservation.lane, self.reservation.bytes);
        let (context, kind) = (self.context, self.kind);
        self.reservation.commit();
        let allocation = Allocation { lane, bytes, context, kind };
        self.slice.record(allocation, pointer);
    }

    /// Commits the reservation as the charge of a physical allocation.
    #[must_use]
    pub fn into_charge(self) -> Charge {
        let (lane, bytes) = (self.reservation.lane, self.reservation.bytes);
        self.reservation.commit();
        self.slice.hold(lane, Family::Physical, bytes);
        Charge { lane, bytes }
    }
}

impl Slice {
    /// Records an allocation under the pointer that the driver returned.
    #[inline(always)]
    pub fn record(&self, allocation: Allocation, pointer: u64) {
        if matches!(allocation.kind, Kind::Unseen | Kind::Array) {
            self.note(&allocation, 1);
        }
        // The table still has an entry for that pointer: its memory was freed unseen.
        if let Some(gone) = self.allocations.insert(pointer, allocation) {
            self.release_charge(gone);
        }
    }

    /// Releases the charge of an allocation that was freed.
    #[inline(always)]
    pub fn release_charge(&self, allocation: Allocation) {
        let (lane, bytes) = (allocation.lane, allocation.bytes);
        match allocation.kind {
            Kind::Seen => {}
            Kind::Unseen | Kind::Array => self.note(&allocation, -1),
            Kind::Pool(pool) => return self.pools.freed(&self.daemon, pool, bytes),
        }
        self.daemon.release(lane, bytes);
    }

    /// Notes an allocation of another kind than the plain one as made (`sign` 1) or freed (-1).
    #[inline(never)]
    fn note(&self, allocation: &Allocation, sign: i64) {
        let (lane, change) = (allocation.lane, sign * allocation.bytes as i64);
        match allocation.kind {
            Kind::Unseen => {
                self.daemon.unseen(lane, change);
                self.daemon.hold(lane, Family::Managed, change);
            }
            Kind::Array => self.daemon.hold(lane, Family::Arrays, change),
            // A pool is charged as a whole.
            Kind::Seen | Kind::Pool(_) => {}
        }
    }

    /// Notes that `bytes` of a lane are used for this.
    pub fn hold(&self, lane: Lane, family: Family, bytes: u64) {
        self.daemon.hold(lane, family, bytes as i64);
    }

    /// Releases `bytes` of a lane that were used for this.
    pub fn release_of(&self, lane: Lane, family: Family, bytes: u64) {
        self.daemon.hold(lane, family, -(bytes as i64));
        self.daemon.release(lane, bytes);
    }
}

/// A plain allocation of `bytes` on the current context's GPU: the same as [`charged`] after
/// [`Charging::here`], written out so that no value is passed through memory.
///
/// # Safety
/// `pointer` is where `call` writes what it allocated.
///
/// # Errors
/// As [`Charging::here`].
#[inline(always)]
pub unsafe fn charged_here(
    bytes: usize,
    pointer: *const u64,
    call: impl Fn() -> CUresult,
) -> Outcome {
    let Some(slice) = get()? else {
        return Ok(call());
    };
    let here = slice.here()?;
    let lane = limited(here.lane)?;
    let reservation = slice.daemon.reserve(lane, bytes as u64)?;
    let result = call();
    if result == CUresult::SUCCESS {
        let (bytes, context) = (reservation.bytes, key(here.context));
        reservation.commit();
        let kind = Kind::Seen;
        let allocation = Allocation { lane, bytes, context, kind };
        // SAFETY: the driver has just written there and answered success.
        slice.record(allocation, unsafe { *pointer });
    }
    Ok(result)
}

/// Calls the driver, and commits the reservation or releases it.
///
/// # Safety
/// `pointer` is where `call` writes what it allocated.
///
/// # Errors
/// None of its own.
#[inline(always)]
pub unsafe fn charged(
    charging: Option<Charging>,
    pointer: *const u64,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let result = call();
    if result == CUresult::SUCCESS
        && let Some(charging) = charging
    {
        // SAFETY: the driver has just written there and answered success.
        charging.commit(unsafe { *pointer });
    }
    Ok(result)
}

/// Removes the entry of `pointer`, calls the driver, and releases the charge or restores the entry.
///
/// # Errors
/// None of its own.
#[inline(always)]
pub fn freed(pointer: u64, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(slice) = attached() else {
        return Ok(call());
    };
    let Some(allocation) = slice.allocations.remove(pointer) else {
        // Not charged by itself.
        let result = released(Name::Within(pointer), call);
        slice.graphs.settle_all(&slice.daemon);
        return result;
    };
    let result = call();
    if result == CUresult::SUCCESS || is_gone(pointer, &allocation) {
        slice.release_charge(allocation);
    } else {
        // No other thread can have obtained the pointer meanwhile: it was not freed.
        let _none = slice.allocations.insert(pointer, allocation);
    }
    Ok(result)
}

/// Whether the driver refused a free because another thread has freed the same memory: after the entry's removal and
/// before the call, so without an entry. The driver's code does not tell, since a bad stream is refused as a bad
/// pointer is.
#[cold]
fn is_gone(pointer: u64, allocation: &Allocation) -> bool {
    if allocation.kind != Kind::Seen || allocation.lane == Lane::HOST {
        return false;
    }
    let (mut base, mut bytes) = (0, 0);
    let found = real!(cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, pointer));
    found == CUresult::ERROR_NOT_FOUND
}
