//! One GPU's part in it: what its turns do for gangs.

use alloc::vec::Vec;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::super::entity::Entity;
use super::super::pick::Choice;
use super::super::starvation::GuardTurn;
use super::super::{Note, Phase, Turns};
use crate::action::Late;
use crate::config::Config;
use crate::lifecycle::ContainerIndex;

/// What a member keeps of its gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its place has come in this line.
    pub(super) called: bool,
    /// Its turn was extended: when it was first closed, whether it was reported, and how often.
    pub(super) extended: Option<(Instant, bool, u32)>,
}

impl Member {
    /// This turn is one more because the last one cut work in two.
    pub(in crate::sched) fn again(&self) -> bool {
        self.extended.is_some()
    }
}

/// A GPU is kept for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sched) struct Kept {
    /// When the gang can begin.
    pub(super) until: Instant,
    /// ... but that depends on how long something drains, which is not known.
    pub(super) guessed: bool,
    /// The gang's class.
    pub(in crate::sched) class: Class,
}

/// When a gang could have a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) at: Instant,
    /// That is now, or as soon as the one that has it gives way.
    pub(super) gives_way: bool,
    /// It is not known: what drains is taken to last as long again.
    pub(super) guessed: bool,
}

/// What the gangs want of one GPU at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// A turn that begins now is to be over for a gang.
    pub(in crate::sched) kept: Option<Kept>,
    /// A gang of this class could begin if those who must give way to it did.
    pub(in crate::sched) pressed: Option<Class>,
    /// Slots of these classes are a gang's, and wait for its other slots.
    pub(in crate::sched) guards: [bool; 3],
    /// Something may be due then.
    pub(in crate::sched) look: Option<Instant>,
}

/// What a GPU does for gangs.
impl Turns {
    /// Until when `seat` has its turn.
    pub(super) fn held_by(&self, index: ContainerIndex) -> Option<Instant> {
        match self.phase {
            Phase::Held { index: on, end, .. } if on == index => Some(end),
            _ => None,
        }
    }

    /// Since when the turn of `seat` is being closed.
    pub(super) fn closing_of(&self, index: ContainerIndex) -> Option<Instant> {
        match self.phase {
            Phase::Closing {
                index: on, closed, ..
            } if on == index => Some(closed),
            _ => None,
        }
    }

    /// The same, not counting extensions.
    pub(super) fn closed_first(&self, index: ContainerIndex) -> Option<Instant> {
        let closed = self.closing_of(index)?;
        let extended = self.find(index)?.gang.and_then(|gang| gang.extended);
        Some(extended.map_or(closed, |it| it.0))
    }

    /// Whether the processes of `seat` had time to say that they are quiet since the last close: of a turn that was
    /// extended that may be much later than the first one.
    pub(super) fn answered(&self, index: ContainerIndex) -> bool {
        let due = self.answered_at(index);
        due.is_none_or(|due| self.now >= due)
    }

    fn answered_at(&self, index: ContainerIndex) -> Option<Instant> {
        Some(self.closing_of(index)?.plus(self.config.turn_min))
    }

    /// When a turn that is being closed needs a look: never here, if it is quiet here.
    pub(in crate::sched) fn drained_until(
        &self,
        index: ContainerIndex,
        reported: bool,
    ) -> Option<Instant> {
        let busy = self.find(index).is_some_and(|entity| !entity.is_off());
        let since = self.closed_first(index).filter(|_| busy)?;
        let Config {
            drain, drain_max, ..
        } = self.config;
        match reported {
            true => Some(since.plus(drain_max).max(self.answered_at(index)?)),
            false => Some(since.plus(drain)),
        }
    }

    /// `seat` takes turns with others of its container, or alone from now on.
    pub(crate) fn join_gang(&mut self, index: ContainerIndex, joins: bool) {
        if let Some(entity) = self.find_mut(index) {
            entity.gang = joins.then(|| entity.gang.unwrap_or_default());
        }
    }

    pub(super) fn called(&mut self, index: ContainerIndex, called: bool) {
        let member = self.find_mut(index).and_then(|entity| entity.gang.as_mut());
        if let Some(member) = member {
            member.called = called;
        }
    }

    /// Whether the place of `seat` has come here: nobody of its class who can go goes before it.
    pub(in crate::sched) fn nobody_before(
        &self,
        index: ContainerIndex,
        ready: impl Fn(ContainerIndex) -> bool,
    ) -> bool {
        let Some(me) = self.find(index) else {
            return false;
        };
        if me.untracked.is_some() && !self.owes(me) {
            return true; // nobody else may go
        }
        let mine = self.position_now(me);
        let mut others = self.entities.iter().filter(|other| {
            let can = other.gang.is_none() || ready(other.index);
            let can = can || self.on_gpu() == Some(other.index);
            can && other.index != index && other.class == me.class && other.eligible()
        });
        others.all(|other| self.position_now(other) > mine)
    }

    /// Whether a class above waits for this GPU or has it.
    pub(super) fn above(&self, class: Class) -> bool {
        let holder = match self.phase {
            Phase::Held { index, .. } => self.find(index).is_some_and(|on| on.class < class),
            _ => false,
        };
        holder || self.others_wait(|other| other < class)
    }

    /// When `seat` could have this GPU.
    pub(super) fn free_for(&self, index: ContainerIndex, class: Class) -> Free {
        let free = |at: Instant, gives_way: bool| Free {
            at,
            gives_way,
            guessed: false,
        };
        let drains = |since: Instant| Free {
            at: self.now.plus(self.now.since(since)),
            gives_way: false,
            guessed: true,
        };
        match self.phase {
            Phase::Idle if !self.allows(index) => drains(self.revoked_at().unwrap_or(self.now)),
            Phase::Open | Phase::Idle => free(self.now, true),
            Phase::Held { index: on, .. } | Phase::Closing { index: on, .. } if on == index => {
                free(self.now, true)
            }
            Phase::Held { index, end, guard } => {
                let on = self.find(index).map_or(class, |entity| entity.class);
                let above = class < on || class > on && self.guard_open(class);
                match above && guard.is_none() {
                    true => free(self.now, true),
                    false => free(end, false),
                }
            }
            Phase::Closing { closed, .. } => drains(closed),
        }
    }

    /// Since when something is drained here.
    pub(super) fn drained_since(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closing { closed, .. } => Some(closed),
            _ => self.revoked_at(),
        }
    }

    /// How long before a gang has this GPU a turn of `entity` must be over so that it is quiet by then: as long
    /// as it has lately taken to drain, and twice as long where the end is a guess. Without that, turns
    /// that fit in on one GPU and drain for long would keep a gang waiting for ever, each while
    /// another one of its GPUs drains.
    fn margin(&self, entity: &Entity, guessed: bool) -> Duration {
        let tail = match entity.overrun {
            Some(_) => Duration(0), // nobody waits for that again
            None => entity.tail,
        };
        Duration(tail.0.saturating_mul(if guessed { 2 } else { 1 }))
    }

    /// How long a turn of `entity` may be so that a gang that this GPU is kept for need not wait; `None` if any
    /// would be too long.
    pub(in crate::sched) fn fits(&self, entity: &Entity) -> Option<Duration> {
        let Some(kept) = self.demand.kept else {
            return Some(Duration(u64::MAX));
        };
        let margin = self.margin(entity, kept.guessed).0;
        let left = kept.until.since(self.now).0.checked_sub(margin)?;
        (left >= self.config.turn_min.0).then_some(Duration(left))
    }

    /// When a turn of the first in line fits in here, if that depends on how long something has been drained
    /// that is drained `since` then.
    pub(super) fn fits_after(&self, since: Instant) -> Instant {
        let first = self.choose().and_then(|choice| self.find(choice.index));
        let margin = first.map_or(Duration(0), |entity| self.margin(entity, true));
        since.plus(margin).plus(self.config.turn_min)
    }

    /// `seat` has the GPU for `length` from now on.
    pub(super) fn give(
        &mut self,
        index: ContainerIndex,
        length: Duration,
        guard: Option<GuardTurn>,
    ) {
        let again = match self.phase {
            Phase::Closing {
                index: on,
                closed,
                reported,
                ..
            } if on == index => Some((closed, reported)),
            _ => None,
        };
        self.serve(
            Choice {
                index,
                guard: false,
            },
            length,
        );
        if let Phase::Held { guard: which, .. } = &mut self.phase {
            *which = guard;
        }
        if let Some(entity) = self.find_mut(index) {
            entity.untracked = None;
            entity.turn = entity.turn.wrapping_add(1);
            entity.turns += u64::from(again.is_none());
            let member = entity.gang.unwrap_or_default();
            let extended = again.map(|(closed, reported)| {
                let (first, was, times) = member.extended.unwrap_or((closed, false, 0));
                (first, reported || was, times + 1)
            });
            entity.gang = Some(Member {
                called: false,
                extended,
            });
        }
    }

    /// The turn of `seat` is over. Of one that was passed nobody waits for quiet again.
    pub(super) fn close_held(&mut self, index: ContainerIndex, notes: &mut Vec<Note>) {
        let Phase::Held { guard, .. } = self.phase else {
            return;
        };
        self.close(index, guard, notes);
        let extended = self.find(index).and_then(|it| it.gang?.extended);
        if let (Some((_, was, _)), Phase::Closing { reported, .. }) = (extended, &mut self.phase) {
            *reported = was;
        }
        if self.find(index).is_some_and(|it| it.overrun.is_some()) {
            self.release(index);
        }
    }

    /// The GPU is free again.
    pub(super) fn release(&mut self, index: ContainerIndex) {
        let since = self.closed_first(index);
        let Phase::Closing { guard, .. } = self.phase else {
            return;
        };
        self.requeue(index);
        let drained = since.map_or(Duration(0), |since| self.now.since(since));
        let most = self.config.drain_max;
        if let Some(entity) = self.find_mut(index) {
            entity.drained_in(drained, most);
            entity.gang = Some(Member::default());
        }
        self.free(index, guard);
    }

    /// Nobody waits for `seat` any more, if it is not quiet. Its place stays where it was before the
    /// turn: what it left running may need the next one to end, and is paid for after that.
    pub(super) fn pass(&mut self, index: ContainerIndex, waited: Duration, notes: &mut Vec<Note>) {
        let closed = self.closed_first(index);
        let Phase::Closing { guard, .. } = self.phase else {
            return;
        };
        if let Some(entity) = self.find_mut(index).filter(|entity| !entity.is_off()) {
            entity.overrun = closed;
            entity.gang = Some(Member::default());
            notes.push(Note::Late(index, Late::Overrun, waited));
            self.free(index, guard);
        } else {
            self.release(index);
        }
    }

    pub(super) fn report_late(
        &mut self,
        index: ContainerIndex,
        waited: Duration,
        notes: &mut Vec<Note>,
    ) {
        let Phase::Closing { reported, .. } = &mut self.phase else {
            return;
        };
        if !core::mem::replace(reported, true) {
            if let Some(entity) = self.find_mut(index) {
                entity.late_turns += 1;
            }
            notes.push(Note::Late(index, Late::Waiting, waited));
        }
    }
}
