//! The choice of the next container, the length of its turn, and whether a turn is renewed.

use alloc::vec::Vec;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::starvation::GuardTurn;
use super::untracked::Allowed;
use super::{Note, Phase, Turns};
use crate::config::ROUND_FOR;
use crate::index::ContainerIndex;

/// The container to go next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) index: ContainerIndex,
    /// It is a guard turn, which interrupts the classes above.
    pub(super) guard: bool,
}

/// The decision on a turn; of several, the largest holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// It is extended by the next one.
    Renew,
    /// It goes on.
    Keep,
    /// It is over.
    Close,
    /// It is over, for a container of a higher class.
    CloseEarly,
}

impl Turns {
    /// The container to go next, the holder counted as if it were enqueued now. Waiting gangs are not
    /// considered here: theirs is a decision for several GPUs.
    pub(super) fn choose(&self) -> Option<Choice> {
        let best = |class: Class| {
            let waiting = self.entities.iter().filter(|e| e.class == class);
            let here = |e: &&Entity| e.gang.is_none() || self.on_gpu() == Some(e.index);
            let waiting = waiting.filter(|e| e.eligible()).filter(here);
            let first = waiting.min_by_key(|e| self.position(e));
            first.map(|entity| entity.index)
        };
        let mut waiting = Class::ALL.into_iter().filter_map(|class| Some((class, best(class)?)));
        let (first, index) = waiting.next()?;
        let kept = self.demand.kept.is_some_and(|kept| kept.class < first);
        if kept && self.guard_free(first) {
            return Some(Choice { index, guard: true });
        }
        let guard = waiting.find(|(class, _)| self.guard_free(*class));
        Some(match guard {
            Some((_, index)) => Choice { index, guard: true },
            None => Choice { index, guard: false },
        })
    }

    /// `index`, if it may have a turn now and none goes before it. It goes on with the work it launched
    /// before turns began, unless it owes other containers too much for that.
    pub(super) fn first(&self, index: ContainerIndex) -> Option<Choice> {
        let may = |entity: &&Entity| entity.eligible() && entity.gang.is_none();
        let entity = self.find(index).filter(may)?;
        let own = entity.class;
        if self.owes(entity) && !self.none_before(index, |_| false) {
            return None;
        }
        // a gang that waits for other GPUs too would end such a turn in the step that grants it
        let guard = |class: Class| class > own && self.guard_open(class);
        let goes = |class: Class| class < own || guard(class);
        let gang = self.demand.kept.is_some_and(|kept| goes(kept.class));
        let before = gang || self.others_wait(|other| other < own) || self.guard_waits(own);
        (!before).then_some(Choice { index, guard: false })
    }

    pub(super) fn guard_open(&self, class: Class) -> bool {
        self.guard_due(class).is_some_and(|due| self.now >= due)
    }

    /// The same, for containers in no gang.
    fn guard_free(&self, class: Class) -> bool {
        self.guard_open(class) && !self.demand.guards[class as usize]
    }

    /// Whether a guard turn is due that interrupts `class`.
    pub(super) fn guard_waits(&self, class: Class) -> bool {
        let mut single = self.entities.iter().filter(|entity| entity.gang.is_none());
        let may = |other: &Entity| other.class > class && self.guard_free(other.class);
        let gang = self.demand.pressed.filter(|other| *other > class);
        single.any(|other| may(other) && other.eligible())
            || gang.is_some_and(|other| self.guard_open(other))
    }

    pub(super) fn guard_due(&self, class: Class) -> Option<Instant> {
        self.guards.due(class)
    }

    /// The length of a turn of `index`.
    pub(super) fn length_of(&self, index: ContainerIndex) -> Option<Duration> {
        self.find(index).map(|entity| self.length(entity, false))
    }

    /// The length of a turn of `entity`: its part of a round by weight, corrected by its lead or lag, as
    /// far as its cap pays for it.
    fn length(&self, entity: &Entity, guard: bool) -> Duration {
        let config = &self.config;
        if guard {
            return config.turn_min;
        }
        let (mut rank, mut count) = (0, 0);
        let rivals = self.entities.iter().filter(|e| e.class == entity.class);
        for rival in rivals.filter(|e| e.eligible() || e.index == entity.index) {
            rank += u64::from(rival.index < entity.index);
            count += 1;
        }
        let length = if count <= 1 {
            config.turn_max
        } else {
            let round = config.round.0.saturating_mul(count.max(ROUND_FOR)) / ROUND_FOR;
            let (own, all) = self.due(entity);
            let part = round.saturating_mul(own) / all;
            let nominal = Duration(part.max(config.turn_min.0).min(config.turn_max.0));
            let aimed = entity.start.aim(nominal, entity.weight, rank, count);
            aimed.max(config.turn_min).min(config.turn_max)
        };
        match entity.bucket.lasts() {
            Some(paid) => length.min(paid).max(config.turn_min.min(length)),
            None => length,
        }
    }

    /// Grants the next turn, if a container may have it.
    pub(super) fn grant(&mut self) {
        if self.phase != Phase::Idle {
            return;
        }
        if !self.policy.rules().turns {
            return self.open();
        }
        let choice = match self.allowed() {
            Allowed::Any => self.choose(),
            Allowed::Only(index) => self.first(index),
            Allowed::None => None,
        };
        let Some(choice) = choice else { return };
        let Some(entity) = self.find(choice.index) else {
            return;
        };
        let mut length = self.length(entity, choice.guard);
        match self.fits(entity) {
            Some(fits) => length = length.min(fits),
            None if choice.guard => length = length.min(self.config.turn_min),
            None => return,
        }
        self.serve(choice, length);
        let now = self.now;
        if let Some(entity) = self.find_mut(choice.index) {
            entity.untracked = None;
            entity.turn = entity.turn.wrapping_add(1);
            entity.granted = now;
            entity.turns += 1;
        }
    }

    /// Gives `choice` the GPU for `length` from now on.
    pub(super) fn serve(&mut self, choice: Choice, length: Duration) {
        let Some(entity) = self.find(choice.index) else {
            return;
        };
        let now = self.now;
        let end = now.plus(length);
        let class = entity.class;
        self.advance_queues(choice.index);
        self.weigh();
        self.fits_before = self.demand.kept.map(|kept| kept.index);
        if let Some(entity) = self.find_mut(choice.index) {
            entity.turn_end = end;
            entity.run = Duration(0);
            entity.guest = false;
        }
        let guard = choice.guard.then_some(GuardTurn { class, began: now });
        self.phase = Phase::Held { index: choice.index, end, guard };
    }

    /// Continues, renews or closes the holder's turn.
    pub(super) fn continue_or_close(
        &mut self,
        index: ContainerIndex,
        guard: Option<GuardTurn>,
        notes: &mut Vec<Note>,
    ) {
        match self.verdict() {
            Verdict::Keep => {}
            Verdict::Renew => {
                self.requeue(index);
                if let Some(length) = self.length_of(index) {
                    self.serve(Choice { index, guard: false }, length);
                }
            }
            Verdict::CloseEarly => {
                self.count_early_close(index);
                self.close(index, guard, notes);
            }
            Verdict::Close => self.close(index, guard, notes),
        }
    }

    pub(super) fn count_early_close(&mut self, index: ContainerIndex) {
        if let Some(entity) = self.find_mut(index) {
            entity.closed_early += 1;
        }
    }

    /// Decides whether the holder's turn goes on.
    pub(super) fn verdict(&mut self) -> Verdict {
        let Phase::Held { index, end, guard } = self.phase else {
            return Verdict::Keep;
        };
        let Some(entity) = self.find(index) else {
            return Verdict::Close;
        };
        let (now, class) = (self.now, entity.class);
        let late = entity.overrun.is_some() || entity.gang.is_some_and(|member| member.again());
        let spent = !entity.bucket.funded() && !late;
        let runnable = entity.reported.runnable;
        if !self.policy.rules().turns {
            return Verdict::Close;
        }
        if runnable && guard.is_none() && self.others_wait(|other| other < class) {
            return Verdict::CloseEarly;
        }
        if !runnable || spent || guard.is_none() && self.guard_waits(class) {
            return Verdict::Close;
        }
        if now < self.renewal(end) {
            return Verdict::Keep;
        }
        // Its use counts from here on, as at the end of any turn.
        let (start, queued) = (entity.start, entity.queued);
        let pool = self.queues(class).pool;
        self.requeue(index);
        let choice = self.choose();
        self.queues[class as usize].pool = pool;
        if let Some(entity) = self.find_mut(index) {
            (entity.start, entity.queued) = (start, queued);
        }
        let again = Some(Choice { index, guard: false });
        if choice == again && guard.is_none() && self.demand.kept.is_none() {
            Verdict::Renew
        } else if now >= end {
            Verdict::Close
        } else {
            Verdict::Keep
        }
    }

    /// Whether a container of a class that `such` accepts could have the GPU.
    pub(super) fn others_wait(&self, such: impl Fn(Class) -> bool) -> bool {
        let mut single = self.entities.iter().filter(|entity| entity.gang.is_none());
        single.any(|entity| such(entity.class) && entity.eligible())
            || self.demand.pressed.is_some_and(such)
    }

    /// A turn is extended one window before its end, so that a container that goes on does not thin out its
    /// work for an end that does not come.
    fn renewal(&self, end: Instant) -> Instant {
        let lead = Duration::from_micros(u64::from(self.window_us()));
        Instant(end.0.saturating_sub(lead.min(self.config.turn_min).0))
    }

    /// When to look at `holder` again, whose turn lasts until `end`.
    pub(super) fn held_until(
        &self,
        holder: &Entity,
        end: Instant,
        guard: Option<GuardTurn>,
    ) -> Instant {
        let renewal = self.renewal(end);
        let early = self.now < renewal && guard.is_none() && self.may_renew(holder, renewal);
        let look = if early { renewal } else { end };
        let lower = Class::ALL.into_iter().filter(|class| *class > holder.class);
        let guards = lower
            .filter(|class| self.others_wait(|other| other == *class))
            .filter_map(|class| self.guards.due(class).filter(|due| *due > self.now));
        guards.fold(look, core::cmp::min)
    }

    /// Whether `holder` will be the first in its queue at `then`, if no event arrives before: if not, there
    /// is no extension to look for. Where several containers take turns it rarely is, which saves one look
    /// of three.
    fn may_renew(&self, holder: &Entity, then: Instant) -> bool {
        self.stays_first(holder, then.since(self.now)) && self.demand.kept.is_none()
    }

    /// Whether a container of the high class is attached.
    fn high_attached(&self) -> bool {
        let mut all = self.entities.iter();
        all.any(|e| e.class == Class::High && e.reported.attached)
    }

    /// Work that may be in flight near a turn's end, µs.
    pub(crate) fn window_us(&self) -> u32 {
        if self.high_attached() { self.config.window_high_us } else { self.config.window_us }
    }

    /// Whether streams of best-effort containers have gates. Gates cost time, so only a class whose turns
    /// may be ended at any moment has them.
    pub(crate) fn gates(&self) -> bool {
        self.config.stream_gates && self.phase != Phase::Open && self.high_attached()
    }
}
