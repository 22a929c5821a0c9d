//! Gates in streams: waits that the GPU itself looks at, so that it stops without anybody being scheduled.
//!
//! A window keeps little in flight so that quiet comes soon; but then the GPU runs underrun whenever the
//! process is late. With a *gate* before every ~100 µs of work the queue may be deep: the daemon closes
//! the gates by one store, what is between two gates ends, and the rest stays where it is until the next
//! turn. `gpuslice_wire::page` says where the word lies, and why there.
//!
//! # Rounds
//! The distance is counted over all streams of the GPU, which run side by side: when so much was launched
//! since the last *round* began, a new one begins, and each stream gets a gate before its first
//! launch in it. All gates of a process are one word, so streams that share a channel cannot lock each
//! other out.
//!
//! # What can go wrong, and what then
//! * The driver refuses (an old one, or memory that cannot be pinned): no gates in that context.
//! * The daemon is gone: who looks after the gate opens the word, as launches go freely then. Words
//!   of earlier connections are opened for good, since nobody else writes them.
//! * A context is about to be destroyed, or the process ends: all gates of the process are opened, until the
//!   daemon closes them again.
//! * A stream waits for another one that is behind its gate: it is taken for quiet when it is far later than
//!   expected ([`InFlight::blocked`]), so that the next turn comes, which frees both.
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

/// Pages pinned by a process at once, one for each of its contexts and each time it attached.
const PINS_MAX: usize = 64;

struct Pin {
    context: Context,
    generation: u32,
    /// `None` where the driver refused.
    pinned: Option<Pinned>,
}

/// The gate words that the GPU reads.
#[derive(Default)]
pub struct Gates(Mutex<Vec<Pin>>);

/// Lets everything past the gates of a page.
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

    /// The GPU's address of a lane's word in the current context; `None` where there are no gates.
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
                // Not while others wait to open gates.
                let pinned = backend.pin();
                let mut pins = self.pins();
                let stale = backend.generation() != generation; // it may be the page of either
                if stale || pins.len() >= PINS_MAX || address(&pins).is_some() {
                    std::mem::forget(pinned); // the GPU may read it until the context ends
                    return None;
                }
                pins.push(Pin {
                    context,
                    generation,
                    pinned,
                });
                address(&pins)??
            }
        };
        let offset = offset_of!(ClientPage, lane) + offset_of_gate(lane);
        Some(address + offset as u64)
    }

    /// The driver puts no waits into streams of this context.
    pub fn refused(&self, context: Context) {
        let mut pins = self.pins();
        let of_it = |pin: &&mut Pin| pin.context == context;
        // What is mapped stays so until the context is gone: other threads may just be using it.
        pins.iter_mut().filter(of_it).for_each(|pin| {
            if let Some(pinned) = pin.pinned.take() {
                std::mem::forget(pinned);
            }
        });
    }

    /// Lets everything through that waits for pages of earlier connections, or, if `all`, for any.
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

    /// The context is gone, and what was pinned in it.
    pub fn forget(&self, context: Context) {
        self.pins().retain(|pin| pin.context != context);
    }
}

fn offset_of_gate(lane: usize) -> usize {
    use gpuslice_wire::page::ClientLane;
    lane * size_of::<ClientLane>() + offset_of!(ClientLane, gate)
}
