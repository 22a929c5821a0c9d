//! Recorded turns: stretches of time in which a container had the GPU in one way, with what it was charged.
//!
//! # Problem
//! A dispute about shares is settled by looking at the turns. Sums over a second hide that one container has 4 ms and
//! 12 ms in turn and another one 200 ms once.
//!
//! # Idea
//! While turns are recorded, each charge extends the container's present stretch, or begins one: another kind, another
//! turn, or a gap ends it. So the charges of all stretches add up to the growth of the container's GPU time, to the
//! nanosecond, whatever the scheduler does. Without a recording, a charge costs one comparison more.

use gpuslice_wire::turns::TurnKind;
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::{Phase, Turns};
use crate::action::Stretch;
use crate::index::ContainerIndex;

/// The present stretch of a container, and the turn to which it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    stretch: Stretch,
    turn: u32,
}

impl Turns {
    /// How `entity`, which is charged, has the GPU.
    pub(super) fn kind(&self, entity: &Entity) -> TurnKind {
        match self.phase {
            Phase::Held { index, .. } if index == entity.index => TurnKind::Turn,
            Phase::Closing { index, .. } if index == entity.index => TurnKind::Drain,
            _ if entity.overrun.is_some() => TurnKind::Overrun,
            _ if entity.untracked.is_some() => TurnKind::Drain,
            _ => TurnKind::Open,
        }
    }

    /// Adds the time from `from` to now to the stretch of the entity at `at`; it was charged `charged`, if at all.
    pub(super) fn note_charge(
        &mut self,
        at: usize,
        from: Instant,
        charged: Option<(TurnKind, Duration)>,
    ) {
        let entity = &mut self.entities[at];
        let (now, index, turn) = (self.now, entity.index, entity.turn);
        if now <= from {
            return;
        }
        let Some((kind, charged)) = charged else {
            self.recorded.extend(entity.present.take().map(|it| (index, it.stretch)));
            return;
        };
        let goes_on =
            |it: &Present| it.turn == turn && it.stretch.kind == kind && it.stretch.to == from;
        match entity.present.filter(goes_on) {
            Some(mut present) => {
                let stretch = &mut present.stretch;
                (stretch.to, stretch.charged) = (now, Duration(stretch.charged.0 + charged.0));
                entity.present = Some(present);
            }
            None => {
                let stretch = Stretch { kind, from, to: now, charged };
                let before = entity.present.replace(Present { stretch, turn });
                self.recorded.extend(before.map(|it| (index, it.stretch)));
            }
        }
    }

    /// Begins or ends a recording. Either way the present stretches end.
    pub(crate) fn set_recording(&mut self, recording: bool) {
        for entity in &mut self.entities {
            let present = entity.present.take();
            self.recorded.extend(present.map(|it| (entity.index, it.stretch)));
        }
        self.is_recording = recording;
    }

    /// The stretches that have ended since the last call.
    pub(crate) fn take_recorded(&mut self) -> impl Iterator<Item = (ContainerIndex, Stretch)> {
        self.recorded.drain(..)
    }
}
