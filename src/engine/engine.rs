//! The state machine: one event in, actions out.

use alloc::vec::Vec;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::Instant;

use crate::action::Actions;
use crate::config::Config;
use crate::event::Event;

/// All that is known and decided about a node's GPUs.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    now: Instant,
}

impl Engine {
    /// An engine that knows no GPU and no container.
    #[must_use]
    pub fn new(config: Config) -> Engine {
        Engine {
            config,
            now: Instant(0),
        }
    }

    /// Takes in what happened at `now` and appends what is to be done. An instant earlier than
    /// a former one counts as that one.
    pub fn step(&mut self, now: Instant, event: Event, actions: &mut Actions) {
        self.now = self.now.max(now);
        let _ = (event, actions, self.config);
    }

    /// When to step with [`Event::Tick`] if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// What an observer sees at `now`: all GPUs, all slices, and the end.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> Vec<Snapshot> {
        Vec::from([Snapshot::End { now_ns: now.0 }])
    }

    /// Checks that all books agree with each other.
    ///
    /// # Panics
    /// If they do not; that is a bug of the engine.
    pub fn check(&self) {}
}
