//! Gangs: a container whose GPUs take turns together (gang scheduling).
//!
//! # Problem
//! A container with several GPUs runs *collectives*: a kernel on one GPU spins until its peer on another
//! one runs. If each GPU decided alone, two such containers could each be granted one GPU, keep it busy
//! spinning, and wait for the other's: a deadlock.
//!
//! # Idea
//! The GPUs that a container uses are its gang, and their turns are one turn: granted all or none, in one
//! decision, for the same time; ended together; over when all have drained. A gang that waits holds no GPU,
//! so no circular wait can form.
//!
//! Membership is observed, not requested: a gang has every GPU for which a living process has had work. So
//! a container that uses only one of its two GPUs is no gang, and the second half of a collective finds its
//! GPU granted with the first. A GPU in open mode needs no turn, and is left out.
//!
//! # Order
//! Virtual times of different GPUs cannot be compared. Hence a gang keeps a position in each GPU's queue,
//! is *called* in each when it is first there, and is *ready* once it was called in all. Until then the
//! queues do not wait for it. Ready gangs go by `(class, since when, container index)`, one order for the
//! whole node. A call holds until the gang is enqueued anew, for instance behind untracked work that has
//! drained. While a called gang waits for its other GPUs, containers that begin to be runnable queue behind
//! it, as if it ran: otherwise it would run before them all the same, and pay for that afterwards. A gang
//! that ends has no credit for the time for which it waited.
//!
//! # Waiting without waste
//! The GPUs of a ready gang are *reserved* for it: no turn begins there that would not be over when the
//! gang can begin. That instant is known, since turns have ends. A GPU that is draining has no known end:
//! its drain is taken to last as long again. A turn that fits in before runs: one shortest turn at least,
//! and the time its container has lately taken to drain (twice where the end is a guess). So a GPU idles
//! for a gang no longer than that, and a gang waits for one turn of those it meets, and of each gang before
//! it. A turn that fits in and drains for longer than the last ones keeps the next one like it out:
//! otherwise two GPUs that drain alternately would keep a gang waiting for ever.
//!
//! # Collectives that were cut in two
//! A turn may end between a collective's two launches. Then one GPU spins, another has drained, and neither
//! would change. So after [`EXTEND`] the turn is extended, on all GPUs, without interruption, and charged;
//! and after twice as long each time, if that did not help. A gang that has not drained after `drain_max`
//! nevertheless has overrun, like any container. It stays queued and has its turns beside others, because
//! work it left running may wait for a launch that only a turn allows.

mod member;
mod plan;
#[cfg(test)]
mod tests;

use member::Kept;
pub(crate) use member::{Demand, Member};

use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::gpu::Gpu;
use super::pick::{Choice, Verdict};
use super::{Phase, Turns};
use crate::index::ContainerIndex;

/// A turn whose end may have cut a collective in two is extended after this long.
const EXTEND: Duration = Duration::from_millis(20);

/// GPUs of the engine: bit `i` is GPU `i`.
pub(crate) type GpuSet = u32;

/// A container whose GPUs take turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gang {
    pub(crate) index: ContainerIndex,
    pub(crate) gpus: GpuSet,
    /// One of the container's processes is runnable on one of its GPUs.
    pub(crate) runnable: bool,
    /// Since when it is called in all queues.
    pub(crate) ready: Option<Instant>,
}

/// The GPUs that gangs connect to those of `gpus`, and `gpus` itself.
pub(crate) fn closure(gangs: &[Gang], gpus: GpuSet) -> GpuSet {
    let mut all = gpus;
    loop {
        let tied = gangs.iter().filter(|gang| gang.gpus & all != 0);
        let more = tied.fold(all, |all, gang| all | gang.gpus);
        if more == all {
            return all;
        }
        all = more;
    }
}

/// The indices of a set's GPUs.
pub(crate) fn each(gpus: GpuSet) -> impl Iterator<Item = usize> + Clone {
    (0..GPUS_MAX).filter(move |at| gpus & (1 << at) != 0)
}

/// Makes all transitions that are due on `tied`, the GPUs that gangs connect.
pub(crate) fn decide(gpus: &mut [Gpu], gangs: &mut [Gang], tied: GpuSet) {
    let mut node = Node { gpus, gangs, tied };
    each(tied).for_each(|at| node.gpus[at].turns.look(&mut node.gpus[at].notes));
    // far more rounds than GPUs wait for each other within one step; one that changes nothing is the last
    for _ in 0..40 {
        let before = node.phases();
        node.plan(false);
        for at in each(tied) {
            let Gpu { turns, notes, .. } = &mut node.gpus[at];
            turns.settle(notes);
        }
        (0..node.gangs.len()).for_each(|gang| node.settle(gang));
        node.plan(true);
        each(tied).for_each(|at| node.gpus[at].turns.grant());
        if node.phases() == before {
            break;
        }
    }
    for at in each(tied) {
        let Gpu { turns, notes, .. } = &mut node.gpus[at];
        turns.stop_and_resume(notes);
    }
}

/// GPUs that gangs connect, and these gangs.
struct Node<'a> {
    gpus: &'a mut [Gpu],
    gangs: &'a mut [Gang],
    tied: GpuSet,
}

impl Node<'_> {
    fn phases(&self) -> [Phase; GPUS_MAX] {
        let mut phases = [Phase::Open; GPUS_MAX];
        each(self.tied).for_each(|at| phases[at] = self.gpus[at].turns.phase);
        phases
    }

    fn turns(&self, at: usize) -> &Turns {
        &self.gpus[at].turns
    }

    fn turns_mut(&mut self, at: usize) -> &mut Turns {
        &mut self.gpus[at].turns
    }

    /// A gang's GPUs for which `such` holds.
    fn of(&self, gang: usize, such: impl Fn(&Turns) -> bool) -> GpuSet {
        let all = each(self.gangs[gang].gpus & self.tied);
        all.filter(|at| such(self.turns(*at))).fold(0, |set, at| set | 1 << at)
    }

    /// Its GPUs on which turns are taken.
    fn gated(&self, gang: usize) -> GpuSet {
        let opens = |turns: &Turns| turns.phase == Phase::Idle && !turns.policy.rules().turns;
        self.of(gang, |turns| turns.phase != Phase::Open && !opens(turns))
    }

    /// Its state on one of its GPUs.
    fn member(&self, gang: usize, at: usize) -> Option<&Entity> {
        self.turns(at).find(self.gangs[gang].index)
    }

    /// Ends, extends or drains the turn a gang has.
    fn settle(&mut self, gang: usize) {
        let index = self.gangs[gang].index;
        let held = self.of(gang, |turns| turns.held_by(index).is_some());
        if held == 0 {
            return self.drain(gang);
        }
        let missing = self.gated(gang) & !held;
        match self.verdict(index, held) {
            Verdict::Close | Verdict::CloseEarly => return self.close(index, held),
            Verdict::Keep => {}
            Verdict::Renew => self.renew(index, held),
        }
        if missing != 0 {
            self.complete(gang, held, missing);
        }
    }

    /// The decision on a gang's turn: the same on all its GPUs.
    fn verdict(&mut self, index: ContainerIndex, held: GpuSet) -> Verdict {
        let mut all = Verdict::Renew;
        for at in each(held) {
            let verdict = self.turns_mut(at).verdict();
            if verdict == Verdict::CloseEarly {
                self.turns_mut(at).count_early_close(index);
            }
            all = all.max(verdict);
        }
        all
    }

    fn renew(&mut self, index: ContainerIndex, held: GpuSet) {
        each(held).for_each(|at| self.turns_mut(at).requeue(index));
        let lengths = each(held).filter_map(|at| self.turns(at).length_of(index));
        if let Some(length) = lengths.min() {
            let choice = Choice { index, guard: false };
            each(held).for_each(|at| self.turns_mut(at).serve(choice, length));
        }
    }

    /// A gang has its turn, but not on all its GPUs: one was in open mode, or was not part of the gang.
    /// That GPU is granted too, or the turn is closed.
    fn complete(&mut self, gang: usize, held: GpuSet, missing: GpuSet) {
        let (index, class) = (self.gangs[gang].index, self.class(gang));
        let free = |at: usize| {
            let turns = self.turns(at);
            let others = turns.above(class) || turns.guard_waits(class);
            let may = turns.find(index).is_some_and(Entity::eligible);
            turns.phase == Phase::Idle && turns.allows(index) && may && !others
        };
        let end = each(held).find_map(|at| self.turns(at).held_by(index));
        let Some(end) = end.filter(|_| each(missing).all(free)) else {
            return self.close(index, held);
        };
        for at in each(missing) {
            let turns = self.turns_mut(at);
            turns.give(index, end.since(turns.now), None);
        }
    }

    fn class(&self, gang: usize) -> Class {
        let first = each(self.gangs[gang].gpus & self.tied).next();
        let entity = first.and_then(|at| self.member(gang, at));
        entity.map_or(Class::Normal, |entity| entity.class)
    }

    fn close(&mut self, index: ContainerIndex, held: GpuSet) {
        for at in each(held) {
            let Gpu { turns, notes, .. } = &mut self.gpus[at];
            turns.close_held(index, notes);
        }
    }

    /// Frees a gang's GPUs when all have drained, or the wait was too long.
    fn drain(&mut self, gang: usize) {
        let index = self.gangs[gang].index;
        let closing = self.of(gang, |turns| turns.closing_of(index).is_some());
        let Some(first) = each(closing).next() else {
            return;
        };
        let now = self.turns(first).now;
        let config = self.turns(first).config;
        let drained = self.of(gang, |turns| turns.find(index).is_some_and(Entity::is_off));
        let since = each(closing & !drained).filter_map(|at| self.turns(at).closed_first(index));
        let waited = since.min().map_or(Duration(0), |since| now.since(since));
        if closing & !drained == 0 {
            each(closing).for_each(|at| self.turns_mut(at).release(index));
        } else if waited >= config.drain_max
            && each(closing).all(|at| self.turns(at).answered(index))
        {
            for at in each(closing) {
                let Gpu { turns, notes, .. } = &mut self.gpus[at];
                turns.pass(index, waited, notes);
            }
        } else if waited >= config.drain {
            for at in each(closing & !drained) {
                let Gpu { turns, notes, .. } = &mut self.gpus[at];
                turns.report_late(index, waited, notes);
            }
        }
    }

    /// When to extend a gang's turn: it has not drained on one of its GPUs, and on another it has no work
    /// or no turn.
    fn extend_at(&self, gang: usize) -> Option<Instant> {
        let index = self.gangs[gang].index;
        let closing = self.of(gang, |turns| turns.closing_of(index).is_some());
        let busy = self.of(gang, |turns| {
            let entity = turns.find(index).filter(|_| turns.closing_of(index).is_some());
            entity.is_some_and(|entity| !entity.is_off() && entity.reported.runnable)
        });
        // where turns end for good, no process wants one or no cap pays for one, an extension would be over
        // in the same instant
        let native = self.of(gang, |turns| !turns.policy.rules().turns);
        let may = self.of(gang, |turns| turns.find(index).is_some_and(Entity::eligible));
        let unwanted = self.of(gang, |turns| {
            let entity = turns.find(index);
            entity.is_some_and(|entity| !entity.reported.runnable)
        });
        let vain = closing & (native | unwanted) | self.gated(gang) & !closing & !may;
        if busy == 0 || self.gated(gang) & !busy == 0 || vain != 0 {
            return None;
        }
        let due = each(closing).filter_map(|at| {
            let turns = self.turns(at);
            let times = turns.find(index)?.gang?.extended.map_or(0, |it| it.2);
            Some(turns.closing_of(index)?.plus(Duration(EXTEND.0 << times.min(16))))
        });
        due.max()
    }
}
