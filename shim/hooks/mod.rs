//! The intercepted driver functions, one Rust function per row marked `hook`, under its own name.
//!
//! Each has the signature of its row (the shim libraries and [`crate::resolve::lookup`] would not compile
//! otherwise), runs in [`crate::guard::guard`], and calls the real function of the same name exactly
//! once when it lets the call through.
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

use crate::book::{Held, Kind};
use crate::guard::Outcome;
use crate::lane;
use crate::link::{self, Reservation, Session};
use crate::pools;
use crate::vmm::Name;
use core::sync::atomic::{AtomicBool, Ordering};
use gpuslice_nvabi::types::CUresult;

/// A charge that the driver has not granted yet, and where it is to be written down.
struct Charging<'a> {
    session: &'static Session,
    reservation: Reservation<'a>,
    context: u64,
    kind: Kind,
}

/// Gives back what the process could do without: called when it is short of memory itself, and when
/// a sibling is. Safe from any thread, needs no current context, and takes no lock of the link.
pub fn squeeze(session: &Session) {
    pools::squeeze(session);
    session.graphs.squeeze(session);
    physical::look_again(session);
}

/// Whether there is anything to settle: most processes have neither pools nor exports, and ask often how
/// much memory there is. Set once; a forked child only looks in vain.
static FOLLOWED: AtomicBool = AtomicBool::new(false);

/// From now on there is something whose charge changes without a call of ours.
pub fn follow() {
    FOLLOWED.store(true, Ordering::Relaxed);
}

/// Brings charges up to date that only the driver knows: called before somebody looks at the books.
#[inline]
pub fn settle_all(session: &Session) {
    if FOLLOWED.load(Ordering::Relaxed) {
        settle_what_is_followed(session);
    }
}

#[cold]
fn settle_what_is_followed(session: &Session) {
    pools::settle_all(session);
    session.graphs.settle_all(session);
    physical::look_again(session);
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

    /// The driver answered success: writes the charge down under what it gave.
    #[inline(always)]
    fn commit(self, pointer: u64) {
        let (lane, bytes) = (self.reservation.lane, self.reservation.bytes);
        let (context, kind) = (self.context, self.kind);
        self.reservation.commit();
        let held = Held {
            lane,
            bytes,
            context,
            kind,
        };
        write_down(self.session, held, pointer);
    }
}

/// Turns what was reserved into a charge of what the driver gave.
#[inline(always)]
fn write_down(session: &Session, held: Held, pointer: u64) {
    if held.kind == Kind::Unseen {
        session.unseen(held.lane, held.bytes as i64);
    }
    // The driver gave a pointer that the book still has: what was there is gone, freed in a way
    // that passed us by.
    if let Some(gone) = session.book.insert(pointer, held) {
        given_back(session, gone);
    }
}

/// What was charged is no more.
#[inline(always)]
fn given_back(session: &Session, held: Held) {
    match held.kind {
        Kind::Seen => {}
        Kind::Unseen => session.unseen(held.lane, -(held.bytes as i64)),
        Kind::Pool(pool) => return pools::parted(session, pool, held.bytes),
    }
    session.release(held.lane, held.bytes);
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
        let (bytes, context) = (reservation.bytes, lane::key(here.context));
        reservation.commit();
        let kind = Kind::Seen;
        let held = Held {
            lane,
            bytes,
            context,
            kind,
        };
        // SAFETY: the driver has just written there and answered success.
        write_down(session, held, unsafe { *pointer });
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
        // Not charged by itself.
        let result = physical::released(Name::Within(pointer), call);
        session.graphs.settle_all(session);
        return result;
    };
    let result = call();
    if result == CUresult::SUCCESS {
        given_back(session, held);
    } else {
        // Nobody can have been given the pointer meanwhile: it was not freed.
        let _none = session.book.insert(pointer, held);
    }
    Ok(result)
}
