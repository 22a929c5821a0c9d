//! All decisions of gpuslice: admission of slices, grants of memory, and the order of turns.
//!
//! The engine is a state machine. An [`Event`] goes in with the time at which it happened; [`Action`]s come
//! out, in the order in which to perform them:
//! ```text
//! engine.step(now, event, &mut actions);   // then perform the actions
//! engine.next_deadline()                   // step with Event::Tick at the latest then
//! ```
//! It has no clock, file, thread or random source (the compiler holds that: `no_std`), so the daemon and a
//! seeded simulation run the very same decisions.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod action;
mod admission;
mod config;
mod crc;
mod deadlines;
mod engine;
mod event;
mod grants;
mod index;
mod invariants;
mod lanes;
mod ledger;
mod lending;
mod lifecycle;
mod memory;
mod no_slices;
mod quota;
mod record;
mod recording;
mod refusal;
mod retune;
mod sched;
mod snapshot;
mod suspend;
#[cfg(test)]
mod tests;
mod unfreed;
mod view;

pub use action::{Action, Actions, CapChange, Credit, Cut, LaneView, Late, Mode, Stretch};
pub use config::{Config, RECLAIM_GRACE_MAX, RECLAIM_MOVE_MAX, Reclaim};
pub use crc::crc32c;
pub use engine::Engine;
pub use event::{Bounds, Claims, Event, Process, SliceRequest, TimeChange, Token, Untracked};
pub use grants::{
    GRANTS_BYTES_MAX, GRANTS_MAGIC, GRANTS_VERSION, Grant, Granted, GrantsError, GrantsHead,
    copy_at, read_grants,
};
pub use memory::HOLD;
pub use no_slices::NoSlices;
pub use quota::Quota;
pub use record::{LaneRecord, RECORD_BYTES, RECORD_MAGIC, RECORD_VERSION, Record, RecordError};
pub use refusal::Refusal;
pub use snapshot::{Excess, Figures, MemoryShare, ProcessFigures};
pub use suspend::ResumeNeed;
pub use unfreed::{FIGURE_AGE, FREED_WITHIN};
