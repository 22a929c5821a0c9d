//! Untracked work: work launched in open mode drains before another container gets a turn.
//!
//! While a GPU is open, every container launches freely and the engine does not track its launches. When
//! turns begin, that work is still queued, and a turn granted at once would run beside it. So the end of
//! open mode advances every container's turn word, as the close of a turn does. All containers are
//! *untracked* until their processes, read after it, have nothing in flight; mostly all but one are drained
//! in that same instant. While one container is untracked, only that one may have a turn: it goes on with
//! its own queue, in a turn that is charged and ends like any other. While several are untracked, none may.
//! An untracked container is charged, and is not waited for longer than the holder of a closed turn: see
//! [`super::Turns::drain`].

use alloc::vec::Vec;
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::{Note, Phase, Turns};
use crate::action::Late;
use crate::config::Config;
use crate::index::ContainerIndex;

/// Work may be in flight that was launched in open mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untracked {
    since: Instant,
    reported: bool,
}

impl Untracked {
    pub(super) fn new(since: Instant) -> Untracked {
        Untracked { since, reported: false }
    }
    pub(super) fn since(self) -> Instant {
        self.since
    }
    fn due(self, config: &Config) -> Instant {
        let patience = match self.reported {
            true => config.drain_max,
            false => config.drain,
        };
        self.since.plus(patience)
    }
}

/// Which containers may have the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    Any,
    Only(ContainerIndex),
    None,
}

impl Turns {
    /// Ends open mode: revokes the permission to launch without a turn.
    pub(super) fn revoke(&mut self, notes: &mut Vec<Note>) {
        let since = self.now;
        for entity in self.entities.iter_mut().filter(|it| it.reported.attached) {
            entity.turn = entity.turn.wrapping_add(2);
            entity.shut();
            let untracked = Untracked::new(since);
            // An overrun container is not waited for again, stopped work does not run, and a container that
            // attached in this step has launched nothing. Otherwise a debtor that lies would delay others
            // each time it comes back.
            let runs = entity.overrun.is_none() && !entity.is_off() && !entity.arrives;
            entity.untracked = runs.then_some(untracked);
            notes.push(Note::Closed(entity.index));
        }
        // a runnable container was enqueued before; one that only left work running is charged from the
        // queue's time, too
        for at in 0..self.entities.len() {
            let entity = &self.entities[at];
            if entity.untracked.is_some() && !entity.reported.runnable {
                self.becomes_runnable(entity.index);
            }
        }
        self.phase = Phase::Idle;
    }

    /// Ends the untracked state of containers that have drained, or were waited for long enough.
    pub(super) fn drain_untracked(&mut self, notes: &mut Vec<Note>) {
        let (now, config) = (self.now, self.config);
        for at in 0..self.entities.len() {
            let entity = &self.entities[at];
            let Some(untracked) = entity.untracked else {
                continue;
            };
            let entity = &mut self.entities[at];
            let waited = now.since(untracked.since);
            if entity.is_off() {
                entity.drained_in(waited, config.drain_max);
                entity.untracked = None;
                let (index, class) = (entity.index, entity.class);
                self.requeue(index);
                self.guards.later(class, now);
            } else if waited >= config.drain_max {
                entity.untracked = None;
                let (index, class) = (entity.index, entity.class);
                self.overran(index, Some(untracked.since));
                self.guards.later(class, now);
                notes.push(Note::Late(index, Late::Overrun, waited));
            } else if waited >= config.drain && !untracked.reported {
                entity.late_turns += 1;
                entity.untracked = Some(Untracked { reported: true, ..untracked });
                notes.push(Note::Late(entity.index, Late::Waiting, waited));
            }
        }
    }

    pub(super) fn allowed(&self) -> Allowed {
        let mut untracked = self.untracked().map(|entity| entity.index);
        match (untracked.next(), untracked.next()) {
            (None, _) => Allowed::Any,
            (Some(index), None) => Allowed::Only(index),
            (Some(_), Some(_)) => Allowed::None,
        }
    }

    pub(super) fn untracked(&self) -> impl Iterator<Item = &Entity> {
        self.entities.iter().filter(|e| e.untracked.is_some())
    }

    /// Whether `index` may go, if it is first in its queue.
    pub(super) fn allows(&self, index: ContainerIndex) -> bool {
        match self.allowed() {
            Allowed::Any => true,
            Allowed::Only(untracked) => untracked == index,
            Allowed::None => false,
        }
    }

    /// Since when a container is untracked.
    pub(super) fn revoked_at(&self) -> Option<Instant> {
        self.untracked()
            .filter_map(|entity| entity.untracked)
            .map(|untracked| untracked.since)
            .min()
    }

    /// When the wait for an untracked container ends.
    pub(super) fn untracked_until(&self) -> Option<Instant> {
        let due = |entity: &Entity| {
            let untracked = entity.untracked?;
            let stop = self.stop_at(entity.index, untracked.since);
            Some(stop.into_iter().fold(untracked.due(&self.config), Instant::min))
        };
        self.entities.iter().filter_map(due).min()
    }

    /// The part of the elapsed time that is charged to `entity`. The engine cannot tell which of several
    /// containers without turns used it, so it is divided evenly.
    pub(crate) fn bill(&self, entity: &Entity, elapsed: Duration) -> Duration {
        let among = match self.phase {
            Phase::Open if entity.reported.runnable => {
                self.entities.iter().filter(|e| e.reported.runnable).count()
            }
            _ if entity.untracked.is_some() => self.untracked().count(),
            _ => 1,
        };
        Duration(elapsed.0 / (among as u64).max(1))
    }
}
