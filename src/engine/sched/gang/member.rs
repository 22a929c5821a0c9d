//! One GPU's part in it: what its turns do for gangs.

use alloc::vec::Vec;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::super::entity::{Entity, Virtual};
use super::super::pick::Choice;
use super::super::slots::Slot;
use super::super::{Note, Phase, Turns};
use crate::action::Late;
use crate::config::Config;
use crate::lifecycle::Seat;

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

/// What the gangs want of one GPU at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// A turn that begins now is to be over then, for a gang of this class.
    pub(in crate::sched) kept: Option<(Instant, Class)>,
    /// A gang of this class could begin if those who must give way to it did.
    pub(in crate::sched) pressed: Option<Class>,
    /// Slots of these classes are a gang's, and wait for its other slots.
    pub(in crate::sched) slots: [bool; 3],
    /// Something may be due then.
    pub(in crate::sched) look: Option<Instant>,
}

/// What a GPU does for gangs.
impl Turns {
    /// Until when `seat` has its turn.
    pub(super) fn held_by(&self, seat: Seat) -> Option<Instant> {
        match self.phase {
            Phase::Held { seat: on, end, .. } if on == seat => Some(end),
            _ => None,
        }
    }

    /// Since when the turn of `seat` is being closed.
    pub(super) fn closing_of(&self, seat: Seat) -> Option<Instant> {
        match self.phase {
            Phase::Closing {
                seat: on, closed, ..
            } if on == seat => Some(closed),
            _ => None,
        }
    }

    /// The same, not counting extensions.
    pub(super) fn closed_first(&self, seat: Seat) -> Option<Instant> {
        let closed = self.closing_of(seat)?;
        let extended = self.find(seat)?.gang.and_then(|gang| gang.extended);
        Some(extended.map_or(closed, |it| it.0))
    }

    /// When a turn that is being closed needs a look: never here, if it is quiet here.
    pub(in crate::sched) fn drained_until(&self, seat: Seat, reported: bool) -> Option<Instant> {
        let busy = self.find(seat).is_some_and(|entity| !entity.is_off());
        let since = self.closed_first(seat).filter(|_| busy)?;
        let Config {
            drain, drain_max, ..
        } = self.config;
        Some(since.plus(if reported { drain_max } else { drain }))
    }

    /// Virtual time of the line, when one who starts at `start` is served: a gang that was called may come
    /// before others who have waited there for longer, and these are owed no less for it.
    pub(in crate::sched) fn line_at(&self, class: Class, start: Virtual) -> Virtual {
        let waiting = self.entities.iter().filter(|e| e.gang.is_none());
        let waiting = waiting.filter(|e| e.class == class && e.eligible());
        waiting.fold(start, |least, entity| least.min(entity.start))
    }

    /// `seat` takes turns with others of its container, or alone from now on.
    pub(crate) fn join_gang(&mut self, seat: Seat, joins: bool) {
        if let Some(entity) = self.find_mut(seat) {
            entity.gang = joins.then(|| entity.gang.unwrap_or_default());
        }
    }

    pub(super) fn called(&mut self, seat: Seat, called: bool) {
        let member = self.find_mut(seat).and_then(|entity| entity.gang.as_mut());
        if let Some(member) = member {
            member.called = called;
        }
    }

    /// Where one would be in line who got in now.
    fn place_now(&self, entity: &Entity) -> (Virtual, Instant, Seat) {
        if self.on_gpu() == Some(entity.seat) || entity.loose.is_some() {
            let line = self.line[entity.class as usize];
            (line.max(entity.finish), self.now, entity.seat)
        } else {
            entity.place()
        }
    }

    /// Whether the place of `seat` has come here: nobody of its class who can go goes before it.
    pub(in crate::sched) fn nobody_before(&self, seat: Seat, ready: impl Fn(Seat) -> bool) -> bool {
        let Some(me) = self.find(seat) else {
            return false;
        };
        if me.loose.is_some() && !self.owes(me) {
            return true; // nobody else may go
        }
        let mine = self.place_now(me);
        let mut others = self.entities.iter().filter(|other| {
            let can = other.gang.is_none() || ready(other.seat);
            let can = can || self.on_gpu() == Some(other.seat);
            can && other.seat != seat && other.class == me.class && other.eligible()
        });
        others.all(|other| self.place_now(other) > mine)
    }

    /// Whether a class above waits for this GPU or has it.
    pub(super) fn above(&self, class: Class) -> bool {
        let holder = match self.phase {
            Phase::Held { seat, .. } => self.find(seat).is_some_and(|on| on.class < class),
            _ => false,
        };
        holder || self.others_wait(|other| other < class)
    }

    /// When `seat` could have this GPU, and whether that is now or as soon as who has it gives way.
    pub(super) fn free_for(&self, seat: Seat, class: Class) -> (Instant, bool) {
        match self.phase {
            Phase::Idle if !self.lets(seat) => {
                let bound = self.bound().unwrap_or(self.now);
                (self.now.plus(self.now.since(bound)), false)
            }
            Phase::Open | Phase::Idle => (self.now, true),
            Phase::Held { seat: on, .. } | Phase::Closing { seat: on, .. } if on == seat => {
                (self.now, true)
            }
            Phase::Held { seat, end, slot } => {
                let on = self.find(seat).map_or(class, |entity| entity.class);
                let above = class < on || class > on && self.slot_open(class);
                match above && slot.is_none() {
                    true => (self.now, true),
                    false => (end, false),
                }
            }
            Phase::Closing { closed, .. } => (self.now.plus(self.now.since(closed)), false),
        }
    }

    /// `seat` has the GPU for `length` from now on.
    pub(super) fn give(&mut self, seat: Seat, length: Duration, slot: Option<Slot>) {
        let again = match self.phase {
            Phase::Closing {
                seat: on,
                closed,
                reported,
                ..
            } if on == seat => Some((closed, reported)),
            _ => None,
        };
        self.serve(Choice { seat, slot: false }, length);
        if let Phase::Held { slot: which, .. } = &mut self.phase {
            *which = slot;
        }
        if let Some(entity) = self.find_mut(seat) {
            entity.loose = None;
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
    pub(super) fn close_held(&mut self, seat: Seat, notes: &mut Vec<Note>) {
        let Phase::Held { slot, .. } = self.phase else {
            return;
        };
        self.close(seat, slot, notes);
        let extended = self.find(seat).and_then(|it| it.gang?.extended);
        if let (Some((_, was, _)), Phase::Closing { reported, .. }) = (extended, &mut self.phase) {
            *reported = was;
        }
        if self.find(seat).is_some_and(|it| it.overrun.is_some()) {
            self.release(seat);
        }
    }

    /// The GPU is free again.
    pub(super) fn release(&mut self, seat: Seat) {
        let Phase::Closing { slot, .. } = self.phase else {
            return;
        };
        self.requeue(seat);
        if let Some(entity) = self.find_mut(seat) {
            entity.gang = Some(Member::default());
        }
        self.free(seat, slot);
    }

    /// Nobody waits for `seat` any more, if it is not quiet. Its place stays where it was before the
    /// turn: what it left running may need the next one to end, and is paid for after that.
    pub(super) fn pass(&mut self, seat: Seat, waited: Duration, notes: &mut Vec<Note>) {
        let closed = self.closed_first(seat);
        let Phase::Closing { slot, .. } = self.phase else {
            return;
        };
        if let Some(entity) = self.find_mut(seat).filter(|entity| !entity.is_off()) {
            entity.overrun = closed;
            entity.gang = Some(Member::default());
            notes.push(Note::Late(seat, Late::Passed, waited));
            self.free(seat, slot);
        } else {
            self.release(seat);
        }
    }

    pub(super) fn report_late(&mut self, seat: Seat, waited: Duration, notes: &mut Vec<Note>) {
        let Phase::Closing { reported, .. } = &mut self.phase else {
            return;
        };
        if !core::mem::replace(reported, true) {
            if let Some(entity) = self.find_mut(seat) {
                entity.overruns += 1;
            }
            notes.push(Note::Late(seat, Late::Waiting, waited));
        }
    }
}
