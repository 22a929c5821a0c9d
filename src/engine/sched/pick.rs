//! Who is next, for how long, and whether the one who has the turn keeps it.

use alloc::vec::Vec;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::{Note, Phase, Turns};
use crate::lifecycle::Seat;

/// Longest time that one slot of the fair can make them wait for the next one.
const SLOT_EVERY_MAX: Duration = Duration::from_millis(1_000);

/// Who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    seat: Seat,
    /// A slot that interrupts the high ones.
    slot: bool,
}

impl Turns {
    /// The one to go next, the holder counted as if it got in line now.
    fn choose(&self) -> Option<Choice> {
        let best = |class: Class| {
            let waiting = self
                .entities
                .iter()
                .filter(|e| e.class == class && e.eligible());
            waiting
                .min_by_key(|entity| entity.place())
                .map(|entity| entity.seat)
        };
        match (best(Class::High), best(Class::Normal)) {
            (Some(_), Some(seat)) if self.slot_open() => Some(Choice { seat, slot: true }),
            (Some(seat), _) | (None, Some(seat)) => Some(Choice { seat, slot: false }),
            (None, None) => None,
        }
    }

    fn slot_open(&self) -> bool {
        self.config.high_cap.get() < 100 && self.now >= self.slot_due
    }

    /// A shortest turn this often leaves the high ones just their cap.
    pub(super) fn slot_every(&self) -> Duration {
        self.slot_pays(self.config.turn_min)
    }

    fn slot_pays(&self, used: Duration) -> Duration {
        let rest = u64::from(100 - self.config.high_cap.get()).max(1);
        Duration(used.0.saturating_mul(100) / rest)
    }

    /// A slot that began at `began` is over: the next one may come when the high ones have had
    /// their part of the time since then, and in any case after a second.
    pub(super) fn slot_over(&mut self, began: Instant) {
        let used = self.now.since(began).max(self.config.turn_min);
        let every = self
            .slot_pays(used)
            .min(SLOT_EVERY_MAX)
            .max(self.slot_every());
        self.slot_due = began.plus(every).max(self.now);
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
        match entity.bucket.as_ref().and_then(|bucket| bucket.lasts()) {
            Some(paid) => length.min(paid).max(config.turn_min.min(length)),
            None => length,
        }
    }

    /// Gives the next turn, if anybody may have it.
    pub(super) fn grant(&mut self) {
        let Some(choice) = self.choose() else { return };
        let now = self.now;
        self.serve(choice, now);
        if let Some(entity) = self.find_mut(choice.seat) {
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
        let slot = choice.slot.then_some(now);
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
        slot: Option<Instant>,
        notes: &mut Vec<Note>,
    ) {
        let Some(entity) = self.find(seat) else {
            self.phase = Phase::Idle;
            return;
        };
        let (now, class) = (self.now, entity.class);
        let spent = entity
            .bucket
            .as_ref()
            .is_some_and(|bucket| !bucket.funded());
        if !entity.said.wants || spent || self.outranked(class, slot) {
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

    /// Whether the other class goes first now.
    fn outranked(&self, class: Class, slot: Option<Instant>) -> bool {
        let waits = |class| {
            self.entities
                .iter()
                .any(|e| e.class == class && e.eligible())
        };
        match class {
            Class::Normal | Class::BestEffort => slot.is_none() && waits(Class::High),
            Class::High => waits(Class::Normal) && self.slot_open(),
        }
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
        let fair_waits = self
            .entities
            .iter()
            .any(|e| e.class == Class::Normal && e.eligible());
        if fair_waits && self.config.high_cap.get() < 100 && self.slot_due > self.now {
            look.min(self.slot_due)
        } else {
            look
        }
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
