//! The order of turns among gangs, and the GPUs reserved for them.

use alloc::vec::Vec;
use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::super::Phase;
use super::super::entity::Entity;
use super::super::starvation::GuardTurn;
use super::{Demand, Gang, Kept, Node, each};
use crate::index::ContainerIndex;

/// Why a gang may have a turn; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Its last turn cut a collective in two.
    Again,
    /// It has a guard turn where higher classes are runnable on its GPUs.
    Guard,
    /// It is first in its queues.
    Queue,
}

impl Node<'_> {
    /// Marks the queues in which the gang is first.
    pub(super) fn call(&mut self, gang: usize) {
        let Gang { index, gpus, .. } = self.gangs[gang];
        if gpus & self.tied == 0 {
            return;
        }
        let gated = self.gated(gang);
        if !self.waits(gang) {
            self.gangs[gang].ready = None;
            each(gpus & self.tied).for_each(|at| self.turns_mut(at).called(index, false));
            return;
        }
        for at in each(gated) {
            let ready = |other: ContainerIndex| {
                let other = self.gangs.iter().find(|gang| gang.index == other);
                other.is_some_and(|gang| gang.ready.is_some())
            };
            if self.turns(at).none_before(index, ready) {
                self.turns_mut(at).called(index, true);
            }
        }
        let now = each(gated).next().map(|at| self.turns(at).now);
        let called = |at| {
            let member = self.member(gang, at).and_then(|entity| entity.gang);
            member.is_some_and(|member| member.called)
        };
        let ready = each(gated).all(called);
        let since = &mut self.gangs[gang].ready;
        *since = since.or(now).filter(|_| ready);
    }

    /// Whether the gang could have a turn, if its GPUs were free.
    fn waits(&self, gang: usize) -> bool {
        let index = self.gangs[gang].index;
        let gated = self.gated(gang);
        gated != 0
            && each(gated).all(|at| {
                let turns = self.turns(at);
                let free = turns.on_gpu() != Some(index);
                free && turns.find(index).is_some_and(Entity::eligible)
            })
    }

    /// Goes through the gangs that may have a turn, in their order. Grants turns to those that can begin,
    /// if `grant`, and reserves GPUs for those that cannot.
    pub(super) fn plan(&mut self, grant: bool) {
        each(self.tied).for_each(|at| self.turns_mut(at).demand = Demand::default());
        (0..self.gangs.len()).for_each(|gang| self.call(gang));
        let mut order: Vec<(Rank, Class, Instant, ContainerIndex, usize)> = Vec::new();
        for at in 0..self.gangs.len() {
            let Gang { index, gpus, ready, .. } = self.gangs[at];
            let Some(first) = each(gpus & self.tied).next() else {
                continue;
            };
            let class = self.class(at);
            let extend = self.extend_at(at);
            match (extend, ready) {
                (Some(due), _) if due <= self.turns(first).now => {
                    order.push((Rank::Again, class, due, index, at));
                }
                (Some(due), _) => self.look_at(first, due),
                (None, Some(since)) => {
                    let rank = self.rank(at, class);
                    order.extend(rank.map(|rank| (rank, class, since, index, at)));
                }
                (None, None) => {}
            }
        }
        order.sort_unstable();
        // when the turns planned before are over, and whether that is a guess
        let mut taken = [(Instant(0), false); GPUS_MAX];
        for (rank, class, _, _, gang) in order {
            if !(grant && self.begin(gang, class, rank)) {
                self.keep(gang, class, &mut taken);
            }
        }
    }

    fn look_at(&mut self, at: usize, due: Instant) {
        let look = &mut self.turns_mut(at).demand.look;
        *look = Some(look.map_or(due, |look| look.min(due)));
    }

    /// Whether the classes above a ready gang's own leave it a turn. Where they are runnable on one of its
    /// GPUs, it needs a guard turn there; guard turns of its class are reserved until it has all that it
    /// needs.
    pub(super) fn rank(&mut self, gang: usize, class: Class) -> Option<Rank> {
        let gated = self.gated(gang);
        // also those that are not called yet: a turn that is granted in this step may call them, and would be
        // closed in this step if that changed the order
        let others = (0..self.gangs.len()).filter(|other| self.waits(*other));
        let above = others.filter(|other| self.class(*other) < class);
        let gangs = above.fold(0, |all, other| all | self.gangs[other].gpus & gated);
        let singles = self.of(gang, |turns| turns.above(class)) & gated;
        let mut open = true;
        for at in each(singles | gangs) {
            let turns = self.turns_mut(at);
            turns.demand.guards[class as usize] = true;
            if !turns.guard_open(class) {
                open = false;
                if let Some(due) = turns.guard_due(class) {
                    self.look_at(at, due);
                }
            }
        }
        match (singles, gangs) {
            (0, 0) => Some(Rank::Queue),
            _ if open => Some(Rank::Guard),
            (0, _) => Some(Rank::Queue),
            _ => None,
        }
    }

    /// Grants a gang its turn, if all its GPUs are free for long enough.
    pub(super) fn begin(&mut self, gang: usize, class: Class, rank: Rank) -> bool {
        let again = rank == Rank::Again;
        let index = self.gangs[gang].index;
        let gated = self.gated(gang);
        let Some(first) = each(gated).next() else {
            return false;
        };
        let (now, shortest) = (self.turns(first).now, self.turns(first).config.turn_min);
        let free = |at: usize| {
            let turns = self.turns(at);
            let own = again && turns.closing_of(index).is_some();
            let kept = turns.demand.kept;
            // a guard turn that is due there goes first
            let idle = turns.phase == Phase::Idle && turns.allows(index);
            // untracked work of the gang delays a gang that goes before it
            let untracked = turns.find(index).is_some_and(|it| it.untracked.is_some());
            let idle = idle && !(untracked && kept.is_some());
            let idle = idle && (again || untracked || !turns.guard_waits(class));
            let fits = || turns.find(index).is_some_and(|it| turns.fits(it).is_some());
            (own || idle) && fits()
        };
        if !each(gated).all(free) {
            return false;
        }
        let mut length = Duration(u64::MAX);
        for at in each(gated) {
            let turns = self.turns(at);
            let own = match rank {
                Rank::Guard => shortest,
                _ => turns.length_of(index).unwrap_or(shortest),
            };
            let fits = turns.find(index).and_then(|entity| turns.fits(entity));
            length = length.min(own).min(fits.unwrap_or(own));
        }
        // no other container may go where the gang has untracked work: its turn is not interrupted for them
        let untracked = each(gated).filter_map(|at| self.member(gang, at)?.untracked);
        let guard = rank != Rank::Queue || untracked.count() > 0;
        let guard = guard.then_some(GuardTurn { class, began: now });
        each(gated).for_each(|at| self.turns_mut(at).give(index, length, guard));
        self.gangs[gang].ready = None;
        true
    }

    /// Reserves a gang's GPUs for it.
    pub(super) fn keep(
        &mut self,
        gang: usize,
        class: Class,
        taken: &mut [(Instant, bool); GPUS_MAX],
    ) {
        let index = self.gangs[gang].index;
        let gated = self.gated(gang);
        let mut kept = Kept { until: Instant(0), guessed: false, class, index };
        let mut begins = true;
        for at in each(gated) {
            let turns = self.turns(at);
            let free = turns.free_for(index, class);
            kept.until = kept.until.max(free.at).max(taken[at].0);
            kept.guessed |= free.guessed || taken[at].1;
            begins &= free.gives_way && turns.demand.kept.is_none();
        }
        let drained = each(gated).filter_map(|at| self.turns(at).drained_since());
        let drained = drained.min();
        for at in each(gated) {
            let turns = self.turns_mut(at);
            let shortest = turns.config.turn_min;
            turns.demand.kept = turns.demand.kept.or(Some(kept));
            if begins {
                turns.demand.pressed = Some(class);
            }
            taken[at] = (kept.until.plus(shortest), kept.guessed);
            let due = drained.map(|since| turns.fits_after(since));
            if let Some(due) = due.filter(|due| *due > turns.now) {
                self.look_at(at, due);
            }
        }
    }
}
