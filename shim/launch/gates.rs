//! Gates in streams: waits that the GPU itself evaluates, so that it stops without scheduling a thread.
//!
//! A window keeps little in flight so that the process drains soon; but then the GPU runs dry whenever the
//! process is late. With a *gate* in front of every ~50 µs of work the queue may be deep. The daemon closes
//! the gates by one store; the work between two gates ends, and the rest stays queued until the next turn.
//! `gpuslice_wire::page` says where the word lies, and why there.
//!
//! # Rounds
//! The distance is counted over all streams of the GPU, which run concurrently. When that much was launched
//! since the last *round* began, a new round begins, and each stream gets a gate in front of its first
//! launch in it. All gates of a process wait for one word, so streams that share a channel cannot deadlock
//! each other.
//!
//! # Failures
//! * The driver refuses (an old one, or memory that cannot be pinned): no gates in that context.
//! * The daemon is gone: the gate thread opens the word, since launches then go without turns. Words of
//!   earlier connections are opened for good, since no other process writes them.
//! * A context is about to be destroyed, or the process ends: all gates of the process are opened, until the
//!   daemon closes them again.
//! * A stream waits for another one that is behind its gate: it counts as drained when it is far later than
//!   expected ([`InFlight::blocked`]), so that the next turn comes, which resumes both.
//! * Nothing is put into a stream under capture, as with fences.
//!
//! [`InFlight::blocked`]: super::window::InFlight::blocked
#![forbid(unsafe_code)]

use super::backend::{Context, DriverBackend, Pinned};
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::page::{ClientPage, GATE_CLOSED, GATE_OPEN};
use std::mem::offset_of;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages pinned by a process at once, one for each of its contexts and attaches.
const PINS_MAX: usize = 64;

struct Pin {
    context: Context,
    generation: u32,
    /// `None` if the driver refused.
    pinned: Option<Pinned>,
}

/// The gate words that the GPU reads.
#[derive(Default)]
pub struct Gates(Mutex<Vec<Pin>>);

/// Opens all gates of a page.
pub fn open(page: &ClientPage) {
    for lane in &page.lane[..LANES_MAX] {
        if lane.gate.load(SeqCst) == GATE_CLOSED {
            lane.gate.store(GATE_OPEN, SeqCst);
        }
    }
}

impl Gates {
    fn pins(&self) -> MutexGuard<'_, Vec<Pin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPU's address of a lane's word in the current context; `None` without gates.
    pub fn word(&self, backend: &dyn DriverBackend, context: Context, lane: usize) -> Option<u64> {
        let generation = backend.generation();
        let address = |pins: &[Pin]| {
            let known = |pin: &&Pin| pin.context == context && pin.generation == generation;
            let pin = pins.iter().find(known)?;
            Some(pin.pinned.as_ref().map(|pinned| pinned.address))
        };
        let known = address(&self.pins());
        let address = match known {
            Some(known) => known?,
            None => {
                // Without the lock, for which threads that open gates may be waiting.
                let pinned = backend.pin();
                let mut pins = self.pins();
                let stale = backend.generation() != generation; // it may be the page of either attach
                if stale || pins.len() >= PINS_MAX || address(&pins).is_some() {
                    std::mem::forget(pinned); // the GPU may read it until the context ends
                    return None;
                }
                pins.push(Pin { context, generation, pinned });
                address(&pins)??
            }
        };
        let offset = offset_of!(ClientPage, lane) + offset_of_gate(lane);
        Some(address + offset as u64)
    }

    /// Notes that the driver puts no waits into streams of this context.
    pub fn refused(&self, context: Context) {
        let mut pins = self.pins();
        let of_it = |pin: &&mut Pin| pin.context == context;
        // The mapping stays until the context is gone: other threads may be using it.
        pins.iter_mut().filter(of_it).for_each(|pin| {
            if let Some(pinned) = pin.pinned.take() {
                std::mem::forget(pinned);
            }
        });
    }

    /// Opens the gates of earlier connections' pages, or, if `all`, of all pages.
    pub fn open(&self, backend: &dyn DriverBackend, all: bool) {
        let generation = backend.generation();
        for pin in self.pins().iter() {
            if let Some(pinned) = &pin.pinned
                && (all || pin.generation != generation)
            {
                open(&pinned.page);
            }
        }
    }

    /// Drops the pins of a context that is gone.
    pub fn forget(&self, context: Context) {
        self.pins().retain(|pin| pin.context != context);
    }
}

fn offset_of_gate(lane: usize) -> usize {
    use gpuslice_wire::page::ClientLane;
    lane * size_of::<ClientLane>() + offset_of!(ClientLane, gate)
}
