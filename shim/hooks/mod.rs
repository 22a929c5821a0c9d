//! The intercepted driver functions, one Rust function per row marked `hook`, under its own name.
//!
//! Each has the signature of its row; otherwise the shim libraries and [`crate::resolve::lookup`] would not
//! compile. It runs in [`crate::guard::guard`], and calls the real function of the same name exactly once
//! when it lets the call through.
#![allow(non_snake_case, missing_docs)] // the driver's names; NVIDIA documents them

mod array;
mod capture;
mod context;
mod external;
mod graph;
mod host;
mod init;
mod ipc;
mod launch;
mod limits;
mod memory;
mod moving;
mod multicast;
mod physical;
mod pool;
mod query;
mod shape;
mod sharing;
mod sparse;

pub use array::*;
pub use capture::*;
pub use context::*;
pub use external::*;
pub use graph::*;
pub use host::*;
pub use init::*;
pub use ipc::*;
pub use launch::*;
pub use limits::*;
pub use memory::*;
pub use moving::*;
pub use multicast::*;
pub use physical::*;
pub use pool::*;
pub use query::*;
pub use sharing::*;
pub use sparse::*;

use crate::allocations::{Allocation, Kind};
use crate::guard::Outcome;
use crate::lane;
use crate::link::{self, Reservation, Session};
use crate::pools;
use crate::vmm::Name;
use core::sync::atomic::{AtomicBool, Ordering};
use gpuslice_nvabi::types::CUresult;

/// A reservation for an allocation that the driver has not granted yet.
struct Charging<'a> {
    session: &'static Session,
    reservation: Reservation<'a>,
    context: u64,
    kind: Kind,
}

/// Reclaims unused memory of the process: called when it is short of memory itself, and when a sibling is.
/// Safe from any thread, needs no current context, and takes no lock of the link.
pub fn reclaim(session: &Session) {
    pools::reclaim(session);
    session.graphs.reclaim(session);
    physical::drop_closed_exports(session);
}

/// Whether there is anything to settle: most processes have neither pools nor exports, and query the free
/// memory often. Set once; for a forked child the check is merely unnecessary.
static FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Notes that the process has memory whose charge changes without a hooked call.
pub fn follow() {
    FOLLOWED.store(true, Ordering::Relaxed);
}

/// Updates the charges that only the driver knows: called before charges are read.
#[inline]
pub fn settle_all(session: &Session) {
    if FOLLOWED.load(Ordering::Relaxed) {
        settle_followed(session);
    }
}

#[cold]
fn settle_followed(session: &Session) {
    pools::settle_all(session);
    session.graphs.settle_all(session);
    physical::drop_closed_exports(session);
}

impl Charging<'_> {
    /// Reserves `bytes` on the current context's GPU. `None`: the call is not limited.
    // Inlined, like all functions on this path: the result is too large for registers, and passing it
    // through memory costs as much as a locked instruction.
    #[inline(always)]
    fn here(bytes: usize) -> Result<Option<Charging<'static>>, CUresult> {
        let Some(session) = link::session()? else {
            return Ok(None);
        };
        let here = lane::current(session)?;
        let lane = lane::limited(here.lane)?;
        let reservation = session.reserve(lane, bytes as u64)?;
        Ok(Some(Charging {
            session,
            reservation,
            context: lane::key(here.context),
            kind: Kind::Seen,
        }))
    }

    /// Reserves `bytes` on a lane, for memory that outlives contexts.
    fn on(
        session: &'static Session,
        lane: Option<gpuslice_wire::ids::Lane>,
        bytes: usize,
    ) -> Result<Option<Charging<'static>>, CUresult> {
        let Some(lane) = lane else {
            return Ok(None);
        };
        let reservation = session.reserve(lane, bytes as u64)?;
        Ok(Some(Charging {
            session,
            reservation,
            context: 0,
            kind: Kind::Seen,
        }))
    }

    /// Records the charge under the pointer that the driver returned.
    #[inline(always)]
    fn commit(self, pointer: u64) {
        let (lane, bytes) = (self.reservation.lane, self.reservation.bytes);
        let (context, kind) = (self.context, self.kind);
        self.reservation.commit();
        let allocation = Allocation {
            lane,
            bytes,
            context,
            kind,
        };
        record(self.session, allocation, pointer);
    }
}

/// Records an allocation under the pointer that the driver returned.
#[inline(always)]
fn record(session: &Session, allocation: Allocation, pointer: u64) {
    if allocation.kind == Kind::Unseen {
        session.unseen(allocation.lane, allocation.bytes as i64);
    }
    // The table still has an entry for that pointer: its memory was freed unseen.
    if let Some(gone) = session.allocations.insert(pointer, allocation) {
        release_charge(session, gone);
    }
}

/// Releases the charge of an allocation that was freed.
#[inline(always)]
fn release_charge(session: &Session, allocation: Allocation) {
    match allocation.kind {
        Kind::Seen => {}
        Kind::Unseen => session.unseen(allocation.lane, -(allocation.bytes as i64)),
        Kind::Pool(pool) => return pools::freed(session, pool, allocation.bytes),
    }
    session.release(allocation.lane, allocation.bytes);
}

/// A plain allocation of `bytes` on the current context's GPU: the same as [`charged`] after
/// [`Charging::here`], written out so that no value is passed through memory.
///
/// # Safety
/// `pointer` is where `call` writes what it allocated.
#[inline(always)]
unsafe fn charged_here(bytes: usize, pointer: *const u64, call: impl Fn() -> CUresult) -> Outcome {
    let Some(session) = link::session()? else {
        return Ok(call());
    };
    let here = lane::current(session)?;
    let lane = lane::limited(here.lane)?;
    let reservation = session.reserve(lane, bytes as u64)?;
    let result = call();
    if result == CUresult::SUCCESS {
        let (bytes, context) = (reservation.bytes, lane::key(here.context));
        reservation.commit();
        let kind = Kind::Seen;
        let allocation = Allocation {
            lane,
            bytes,
            context,
            kind,
        };
        // SAFETY: the driver has just written there and answered success.
        record(session, allocation, unsafe { *pointer });
    }
    Ok(result)
}

/// Calls the driver, and commits the reservation or releases it.
///
/// # Safety
/// `pointer` is where `call` writes what it allocated.
#[inline(always)]
unsafe fn charged(
    charging: Option<Charging<'_>>,
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
#[inline(always)]
fn freed(pointer: u64, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(session) = link::attached() else {
        return Ok(call());
    };
    let Some(allocation) = session.allocations.remove(pointer) else {
        // Not charged by itself.
        let result = physical::released(Name::Within(pointer), call);
        session.graphs.settle_all(session);
        return result;
    };
    let result = call();
    if result == CUresult::SUCCESS {
        release_charge(session, allocation);
    } else {
        // No other thread can have obtained the pointer meanwhile: it was not freed.
        let _none = session.allocations.insert(pointer, allocation);
    }
    Ok(result)
}
