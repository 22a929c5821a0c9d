//! One GPU's part in a gang: what its turns do for gangs.

use alloc::vec::Vec;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::super::entity::Entity;
use super::super::pick::Choice;
use super::super::starvation::GuardTurn;
use super::super::{Note, Phase, Turns};
use crate::action::Late;
use crate::config::Config;
use crate::index::ContainerIndex;

/// A gang's state on one of its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// It was first in this GPU's queue since it was enqueued.
    pub(in crate::sched) called: bool,
    /// Its turn was extended: when it was first closed, whether it was reported, and how often.
    pub(super) extended: Option<(Instant, bool, u32)>,
}

impl Member {
    /// Whether this turn extends the last one, which cut a collective in two.
    pub(in crate::sched) fn again(&self) -> bool {
        self.extended.is_some()
    }
}

/// A reservation of a GPU for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sched) struct Kept {
    /// When the gang can begin.
    pub(super) until: Instant,
    /// `until` is a guess: it depends on how long a drain takes.
    pub(super) guessed: bool,
    /// The gang's class.
    pub(in crate::sched) class: Class,
    /// The gang's container.
    pub(in crate::sched) index: ContainerIndex,
}

/// When a gang could have a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) at: Instant,
    /// `at` is now, or as soon as the holder gives way.
    pub(super) gives_way: bool,
    /// `at` is a guess: a drain is taken to last as long again.
    pub(super) guessed: bool,
}

/// Requests of gangs for one GPU at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// A turn that begins now must be over for a gang.
    pub(in crate::sched) kept: Option<Kept>,
    /// A gang of this class could begin if the containers that must give way to it did.
    pub(in crate::sched) pressed: Option<Class>,
    /// Guard turns of these classes belong to a gang, and wait for its other GPUs.
    pub(in crate::sched) guards: [bool; 3],
    /// The next instant at which something may be due.
    pub(in crate::sched) look: Option<Instant>,
}

/// The part of a GPU's turns that serves gangs.
impl Turns {
    /// The end of the turn that `index` holds.
    pub(super) fn held_by(&self, index: ContainerIndex) -> Option<Instant> {
        match self.phase {
            Phase::Held { index: on, end, .. } if on == index => Some(end),
            _ => None,
        }
    }

    /// Since when the turn of `index` is being closed.
    pub(super) fn closing_of(&self, index: ContainerIndex) -> Option<Instant> {
        match self.phase {
            Phase::Closing { index: on, closed, .. } if on == index => Some(closed),
            _ => None,
        }
    }

    /// The same, not counting extensions.
    pub(in crate::sched) fn closed_first(&self, index: ContainerIndex) -> Option<Instant> {
        let closed = self.closing_of(index)?;
        let extended = self.find(index)?.gang.and_then(|gang| gang.extended);
        Some(extended.map_or(closed, |it| it.0))
    }

    /// Whether the processes of `index` had time to report that they have drained since the last close:
    /// after an extension, that may be much later than the first close.
    pub(super) fn answered(&self, index: ContainerIndex) -> bool {
        let due = self.answered_at(index);
        due.is_none_or(|due| self.now >= due)
    }

    fn answered_at(&self, index: ContainerIndex) -> Option<Instant> {
        Some(self.closing_of(index)?.plus(self.config.turn_min))
    }

    /// When a turn that is being closed needs a look; `None` if it has drained here.
    pub(in crate::sched) fn drained_until(
        &self,
        index: ContainerIndex,
        reported: bool,
    ) -> Option<Instant> {
        let busy = self.find(index).is_some_and(|entity| !entity.is_off());
        let since = self.closed_first(index).filter(|_| busy)?;
        let Config { drain, drain_max, .. } = self.config;
        match reported {
            true => Some(since.plus(drain_max).max(self.answered_at(index)?)),
            false => Some(since.plus(drain)),
        }
    }

    /// `index` takes turns together with its container's other GPUs from now on, or alone. While a gang
    /// waits for other GPUs, the virtual times go past it: alone, it begins at these, without credit.
    pub(crate) fn join_gang(&mut self, index: ContainerIndex, joins: bool) {
        let Some(entity) = self.find_mut(index) else {
            return;
        };
        let was = core::mem::take(&mut entity.gang);
        entity.gang = joins.then(|| was.unwrap_or_default());
        if was.is_some() && !joins {
            self.forgo(index);
        }
    }

    pub(super) fn called(&mut self, index: ContainerIndex, called: bool) {
        let member = self.find_mut(index).and_then(|entity| entity.gang.as_mut());
        if let Some(member) = member {
            member.called = called;
        }
    }

    /// Whether `index` is first in this GPU's queue: no eligible container of its class goes before it.
    pub(in crate::sched) fn none_before(
        &self,
        index: ContainerIndex,
        ready: impl Fn(ContainerIndex) -> bool,
    ) -> bool {
        let Some(me) = self.find(index) else {
            return false;
        };
        if me.untracked.is_some() && !self.owes(me) {
            return true; // no other container may go
        }
        let mine = self.position_now(me);
        let mut others = self.entities.iter().filter(|other| {
            let can = other.gang.is_none() || ready(other.index);
            let can = can || self.on_gpu() == Some(other.index);
            can && other.index != index && other.class == me.class && other.eligible()
        });
        others.all(|other| self.position_now(other) > mine)
    }

    /// Whether a container of a higher class is runnable on this GPU or has it.
    pub(super) fn above(&self, class: Class) -> bool {
        let holder = match self.phase {
            Phase::Held { index, .. } => self.find(index).is_some_and(|on| on.class < class),
            _ => false,
        };
        holder || self.others_wait(|other| other < class)
    }

    /// When `index` could have this GPU.
    pub(super) fn free_for(&self, index: ContainerIndex, class: Class) -> Free {
        let free = |at: Instant, gives_way: bool| Free { at, gives_way, guessed: false };
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

    /// Since when this GPU is draining.
    pub(super) fn drained_since(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closing { closed, .. } => Some(closed),
            _ => self.revoked_at(),
        }
    }

    /// How long before a gang has this GPU a turn of `entity` must be over, so that it has drained by then:
    /// as long as its last drains took, and twice as long where the end is a guess. Otherwise turns that
    /// fit in on one GPU and drain for long would keep a gang waiting for ever, each while another of its
    /// GPUs drains.
    fn margin(&self, entity: &Entity, guessed: bool) -> Duration {
        let tail = match entity.overrun {
            Some(_) => Duration(0), // it is not waited for again
            None => entity.tail,
        };
        Duration(tail.0.saturating_mul(if guessed { 2 } else { 1 }))
    }

    /// How long a turn of `entity` may be without delaying the gang that this GPU is reserved for; `None`
    /// if every length is too long.
    pub(in crate::sched) fn fits(&self, entity: &Entity) -> Option<Duration> {
        let Some(kept) = self.demand.kept else {
            return Some(Duration(u64::MAX));
        };
        let margin = self.margin(entity, kept.guessed).0;
        let left = kept.until.since(self.now).0.checked_sub(margin)?;
        (left >= self.config.turn_min.0).then_some(Duration(left))
    }

    /// When a turn of the first container in the queue fits in here, if that depends on the length of a
    /// drain that has lasted since `since`.
    pub(super) fn fits_after(&self, since: Instant) -> Instant {
        let first = self.choose().and_then(|choice| self.find(choice.index));
        let margin = first.map_or(Duration(0), |entity| self.margin(entity, true));
        since.plus(margin).plus(self.config.turn_min)
    }

    /// Gives `index` the GPU for `length` from now on.
    pub(super) fn give(
        &mut self,
        index: ContainerIndex,
        length: Duration,
        guard: Option<GuardTurn>,
    ) {
        let again = match self.phase {
            Phase::Closing { index: on, closed, reported, .. } if on == index => {
                Some((closed, reported))
            }
            _ => None,
        };
        self.serve(Choice { index, guard: false }, length);
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
            entity.gang = Some(Member { called: false, extended });
        }
    }

    /// Ends the turn of `index`. An overrun container is not waited for again.
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

    /// Frees the GPU.
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

    /// Ends the wait for `index`, if it has not drained. Its queue position stays where it was before the
    /// turn: work it left running may need the next turn to end, and is paid for after that.
    pub(super) fn pass(&mut self, index: ContainerIndex, waited: Duration, notes: &mut Vec<Note>) {
        let closed = self.closed_first(index);
        let Phase::Closing { guard, .. } = self.phase else {
            return;
        };
        if let Some(entity) = self.find_mut(index).filter(|entity| !entity.is_off()) {
            entity.gang = Some(Member::default());
            self.overran(index, closed);
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
