//! The intercepted driver functions, one Rust function per row marked `hook`, under its own name.
//!
//! Each has the signature of its row (the doors and [`crate::resolve::lookup`] would not compile
//! otherwise), runs in [`crate::guard::guard`], and calls the real function of the same name exactly
//! once when it lets the call through.
#![allow(non_snake_case, missing_docs)] // the driver's names; NVIDIA documents them

mod array;
mod context;
mod init;
mod launch;
mod memory;
mod physical;
mod pool;
mod query;

pub use array::*;
pub use context::*;
pub use init::*;
pub use launch::*;
pub use memory::*;
pub use physical::*;
pub use pool::*;
pub use query::*;

use crate::book::Held;
use crate::guard::Outcome;
use crate::lane;
use crate::link::{self, Reservation, Session};
use gpuslice_nvabi::types::CUresult;

/// A charge that the driver has not granted yet, and where it is to be written down.
struct Charging<'a> {
    session: &'static Session,
    reservation: Reservation<'a>,
    context: u64,
}

impl Charging<'_> {
    /// Reserves `bytes` on the current context's GPU. `None`: nothing limits this call.
    // Inlined, like all on this way: what it gives is too large for registers, and a trip through
    // memory costs as much as a locked instruction.
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
        }))
    }

    /// The driver answered success: writes the charge down under what it gave.
    #[inline(always)]
    fn commit(self, pointer: u64) {
        write_down(self.session, self.reservation, self.context, pointer);
    }
}

/// Turns a reservation into a charge of what the driver gave.
#[inline(always)]
fn write_down(session: &Session, reservation: Reservation<'_>, context: u64, pointer: u64) {
    let (lane, bytes) = (reservation.lane, reservation.bytes);
    reservation.commit();
    let before = session.book.insert(
        pointer,
        Held {
            lane,
            bytes,
            context,
        },
    );
    // The driver gave a pointer that the book still has: what was there is gone, freed in a way
    // that passed us by.
    if let Some(gone) = before {
        session.release(gone.lane, gone.bytes);
    }
}

/// The whole way of a plain allocation of `bytes` on the current context's GPU. Written out, so that
/// nothing of it takes a trip through memory: [`charged`] after [`Charging::here`] does the same.
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
        // SAFETY: the driver has just written there and answered success.
        write_down(session, reservation, lane::key(here.context), unsafe {
            *pointer
        });
    }
    Ok(result)
}

/// Reserve, call, commit or give back.
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

/// Takes the charge of `pointer` out, calls, and gives the bytes back or the charge its place.
#[inline(always)]
fn freed(pointer: u64, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(session) = link::attached() else {
        return Ok(call());
    };
    let Some(held) = session.book.remove(pointer) else {
        return Ok(call()); // Not charged by us: the driver's business alone.
    };
    let result = call();
    if result == CUresult::SUCCESS {
        session.release(held.lane, held.bytes);
    } else {
        // Nobody can have been given the pointer meanwhile: it was not freed.
        let _none = session.book.insert(pointer, held);
    }
    Ok(result)
}
