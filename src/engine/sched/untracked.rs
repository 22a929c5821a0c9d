//! The end of freedom: what was launched without turns runs out before anybody else has one.
//!
//! While a GPU is open, whoever wants it launches, and nobody counts. When turns begin, that work is
//! still queued, and a turn given at once would run beside it. So with the close of freedom every
//! container's turn word moves on, as at the close of a turn; all are *untracked* until their processes, read
//! after it, have nothing in flight. Mostly all but one are in that same instant. While one is untracked only
//! that one may have a turn: it then goes on with its own queue, in a turn that is billed and ends as any
//! other; while several are, nobody may. An untracked one pays, and is not waited for longer than the
//! holder of a closed turn: see [`super::Turns::drain`].

use alloc::vec::Vec;
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::{Note, Phase, Turns};
use crate::action::Late;
use crate::config::Config;
use crate::lifecycle::ContainerIndex;

/// May have work in flight that was launched without turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untracked {
    since: Instant,
    reported: bool,
}

impl Untracked {
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

/// Who may have the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    Any,
    Only(ContainerIndex),
    None,
}

impl Turns {
    /// Freedom ends.
    pub(super) fn revoke(&mut self, notes: &mut Vec<Note>) {
        let since = self.now;
        for entity in self.entities.iter_mut().filter(|it| it.reported.attached) {
            entity.turn = entity.turn.wrapping_add(2);
            entity.shut();
            let untracked = Untracked {
                since,
                reported: false,
            };
            // who was passed before is not waited for again, and what is stopped does not run; who comes in this
            // step has launched nothing: else a debtor that lies would hold others up each time it comes back
            let runs = entity.overrun.is_none() && !entity.is_off() && !entity.arrives;
            entity.untracked = runs.then_some(untracked);
            notes.push(Note::Closed(entity.index));
        }
        // who wants was in line before; who only left something running pays for it from where the line is, too
        for at in 0..self.entities.len() {
            let entity = &self.entities[at];
            if entity.untracked.is_some() && !entity.reported.runnable {
                self.becomes_runnable(entity.index);
            }
        }
        self.phase = Phase::Idle;
    }

    /// Ends the looseness of those who are quiet, and of those who were waited for long enough.
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
                (entity.untracked, entity.overrun) = (None, Some(untracked.since));
                self.guards.later(entity.class, now);
                notes.push(Note::Late(entity.index, Late::Overrun, waited));
            } else if waited >= config.drain && !untracked.reported {
                entity.late_turns += 1;
                entity.untracked = Some(Untracked {
                    reported: true,
                    ..untracked
                });
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

    /// Whether `seat` may go, if it is its turn.
    pub(super) fn allows(&self, index: ContainerIndex) -> bool {
        match self.allowed() {
            Allowed::Any => true,
            Allowed::Only(untracked) => untracked == index,
            Allowed::None => false,
        }
    }

    /// Since when somebody is untracked.
    pub(super) fn revoked_at(&self) -> Option<Instant> {
        self.untracked()
            .filter_map(|entity| entity.untracked)
            .map(|untracked| untracked.since)
            .min()
    }

    /// When somebody untracked is waited for no longer.
    pub(super) fn untracked_until(&self) -> Option<Instant> {
        let due = |entity: &Entity| {
            let untracked = entity.untracked?;
            let stop = self.stop_at(entity.index, untracked.since);
            Some(
                stop.into_iter()
                    .fold(untracked.due(&self.config), Instant::min),
            )
        };
        self.entities.iter().filter_map(due).min()
    }

    /// What goes to the account of `entity`, which is charged, of the time that passed: where several
    /// run without turns nobody knows who had it, and it is divided evenly.
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
