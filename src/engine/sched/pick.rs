//! Who is next, for how long, and whether the one who has the turn keeps it.

use alloc::vec::Vec;
use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::loose::May;
use super::slots::Slot;
use super::{Note, Phase, Turns};
use crate::lifecycle::Seat;

/// Who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    seat: Seat,
    /// A slot that interrupts those who go first.
    slot: bool,
}

impl Turns {
    /// The one to go next, the holder counted as if it got in line now.
    fn choose(&self) -> Option<Choice> {
        let best = |class: Class| {
            let waiting = self.entities.iter().filter(|e| e.class == class);
            let first = waiting.filter(|e| e.eligible()).min_by_key(|e| e.place());
            first.map(|entity| entity.seat)
        };
        let mut waiting = Class::ALL
            .into_iter()
            .filter_map(|class| Some((class, best(class)?)));
        let (_, seat) = waiting.next()?;
        let slot = waiting.find(|(class, _)| self.slot_open(*class));
        Some(match slot {
            Some((_, seat)) => Choice { seat, slot: true },
            None => Choice { seat, slot: false },
        })
    }

    /// `seat`, if it may have a turn now and nobody goes before it.
    fn first(&self, seat: Seat) -> Option<Choice> {
        let entity = self.find(seat).filter(|entity| entity.eligible())?;
        let own = entity.class;
        let before = |other| other < own || other > own && self.slot_open(other);
        (!self.others_wait(before)).then_some(Choice { seat, slot: false })
    }

    fn slot_open(&self, class: Class) -> bool {
        self.slots.due(class).is_some_and(|due| self.now >= due)
    }

    /// How long a turn of `entity` may last: a round's part by weight, corrected by what it is
    /// ahead or behind, as far as it is paid for.
    fn length(&self, entity: &Entity, slot: bool) -> Duration {
        let config = &self.config;
        if slot {
            return config.turn_min;
        }
        let (mut weights, mut rank, mut count) = (0u64, 0, 0);
        let line = self.entities.iter().filter(|e| e.class == entity.class);
        for rival in line.filter(|e| e.eligible() || e.seat == entity.seat) {
            weights += u64::from(rival.weight.get());
            rank += u64::from(rival.seat < entity.seat);
            count += 1;
        }
        let length = if count <= 1 {
            config.turn_max
        } else {
            let part = config.round.0.saturating_mul(entity.weight.get().into()) / weights;
            let nominal = Duration(part.max(config.turn_min.0).min(config.turn_max.0));
            let aimed = entity.start.aim(nominal, entity.weight, rank, count);
            aimed.max(config.turn_min).min(config.turn_max)
        };
        match entity.bucket.lasts() {
            Some(paid) => length.min(paid).max(config.turn_min.min(length)),
            None => length,
        }
    }

    /// Gives the next turn, if anybody may have it.
    pub(super) fn grant(&mut self) {
        if self.policy == Policy::Native {
            return self.open();
        }
        let choice = match self.may_go() {
            May::Anybody => self.choose(),
            May::Only(seat) => self.first(seat),
            May::Nobody => None,
        };
        let Some(choice) = choice else { return };
        let now = self.now;
        self.serve(choice, now);
        if let Some(entity) = self.find_mut(choice.seat) {
            entity.loose = None;
            entity.turn = entity.turn.wrapping_add(1);
            entity.turns += 1;
        }
    }

    /// `choice` has the GPU from `now` on.
    fn serve(&mut self, choice: Choice, now: Instant) {
        let Some(entity) = self.find(choice.seat) else {
            return;
        };
        let end = now.plus(self.length(entity, choice.slot));
        let (class, start) = (entity.class, entity.start);
        let line = &mut self.line[class as usize];
        *line = (*line).max(start);
        if let Some(entity) = self.find_mut(choice.seat) {
            entity.turn_end = end;
        }
        let slot = choice.slot.then_some(Slot { class, began: now });
        self.phase = Phase::Held {
            seat: choice.seat,
            end,
            slot,
        };
    }

    /// Looks whether the holder's turn goes on.
    pub(super) fn hold(
        &mut self,
        seat: Seat,
        end: Instant,
        slot: Option<Slot>,
        notes: &mut Vec<Note>,
    ) {
        let Some(entity) = self.find(seat) else {
            self.phase = Phase::Idle;
            return;
        };
        let (now, class) = (self.now, entity.class);
        let spent = !entity.bucket.funded();
        let wants = entity.said.wants;
        if self.policy == Policy::Native {
            return self.close(seat, slot, notes);
        }
        if wants && slot.is_none() && self.others_wait(|other| other < class) {
            if let Some(entity) = self.find_mut(seat) {
                entity.preemptions += 1;
            }
            return self.close(seat, slot, notes);
        }
        let slots = |other| other > class && self.slot_open(other);
        if !wants || spent || slot.is_none() && self.others_wait(slots) {
            return self.close(seat, slot, notes);
        }
        if now < self.renewal(end) {
            return;
        }
        // What it used counts from here on, as at the end of any turn.
        let line = self.line[class as usize];
        let (start, queued) = (entity.start, entity.queued);
        if let Some(entity) = self.find_mut(seat) {
            entity.queue(now, line);
        }
        match self.choose() {
            Some(choice) if choice.seat == seat && !choice.slot && slot.is_none() => {
                self.serve(choice, now);
            }
            _ if now >= end => self.close(seat, slot, notes),
            _ => {
                if let Some(entity) = self.find_mut(seat) {
                    (entity.start, entity.queued) = (start, queued);
                }
            }
        }
    }

    /// Whether anybody of such a class could have the GPU.
    fn others_wait(&self, such: impl Fn(Class) -> bool) -> bool {
        let mut all = self.entities.iter();
        all.any(|entity| such(entity.class) && entity.eligible())
    }

    /// A turn is extended a window's length before its end, so that a container that goes on
    /// does not thin out its work for an end that does not come.
    fn renewal(&self, end: Instant) -> Instant {
        let lead = Duration::from_micros(u64::from(self.window_us()));
        Instant(end.0.saturating_sub(lead.min(self.config.turn_min).0))
    }

    /// When to look at the holder again.
    pub(super) fn held_until(&self, end: Instant) -> Instant {
        let renewal = self.renewal(end);
        let look = if self.now < renewal { renewal } else { end };
        let slots = Class::ALL
            .into_iter()
            .filter(|class| self.others_wait(|other| other == *class))
            .filter_map(|class| self.slots.due(class).filter(|due| *due > self.now));
        slots.fold(look, core::cmp::min)
    }

    /// Work that may be in flight near a turn's end, µs.
    pub(crate) fn window_us(&self) -> u32 {
        let high = self
            .entities
            .iter()
            .any(|e| e.class == Class::High && e.said.attached);
        if high {
            self.config.window_high_us
        } else {
            self.config.window_us
        }
    }
}
