//! A process in its slice: the daemon's session, the tables of its memory, and the gate, put together.
//!
//! The rooms below know neither this one nor each other, but for `daemon`, which the others use. `daemon` counts
//! bytes, `memory` records what was allocated, `launch` holds launches. One [`Slice`] owns a value of each. It
//! is created by the first call that needs it ([`get`]) and never freed. This room has the steps that need
//! several of them:
//!
//! * [`mod@attach`] creates the slice, finds it again, and drops it in a forked child;
//! * [`charge`] reserves, records and releases allocations; `physical` does so for physical memory;
//! * `lanes` finds the GPU of the current context or of a stream;
//! * `reclaim` brings charges up to date and releases unused memory; `driver` is the gate's backend;
//! * [`handles`] and [`groups`] report exported memory and channel groups to the daemon.
//!
//! The hooks stand above and use these steps; nothing here knows a hook.

pub mod attach;
pub mod charge;
mod driver;
pub mod groups;
pub mod handles;
mod lanes;
mod physical;
mod reclaim;
mod state;

pub use attach::{at_init, attach, attached, get};
pub use charge::{Charging, charged, charged_here, freed};
pub use lanes::{Here, admitted};
pub use physical::{handed, released};
pub use state::Slice;
