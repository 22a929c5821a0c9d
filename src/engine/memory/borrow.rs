//! Borrowed memory: a container with a limit above its cap grows into what other containers leave unused.
//!
//! # Problem
//! A cap is promised, so the sum of caps stays within the GPU, and much of it is unused at any time. A container that
//! uses it must give it back when the container to which it is promised wants it.
//!
//! # Idea
//! A request within the cap is a *claim*, any other one *borrows*. A request that borrows is granted what is free on
//! the GPU, and refused at once beyond that: its program has to do without. A claim is granted if it fits in what is
//! free, or if no other container has borrowed anything; then the free memory is in doubt, and the driver decides as it
//! does without limits. Otherwise the claim waits, and a *reclaim* is on:
//! * nothing is lent on this GPU;
//! * unused credit of the borrowers is recalled, again and again;
//! * the lowest class first, then the largest loan, borrowers are asked for as much as is missing
//!   ([`Action::Wanted`]);
//! * after `reclaim_grace` they are suspended in this order ([`Reclaim::Suspend`]), or the claim is refused. Before
//!   that, a recall of unused credit in the claim's own container is over.
//!
//! Requests of one account wait behind each other, and are one claim as far as the cap has room for all of them: each
//! has its own grace, which begins when borrowers are asked for it, and they are asked for the sum. A request may have
//! waited for something else before that.
//!
//! The resume of a suspended container is a claim, too, if all of its memory is promised to it.
//!
//! A claim waits for the grace and [`RECLAIM_MOVE_MAX`] at most, then it is refused too. The caps fit on the GPU
//! together, so what is missing for claims is never more than what is borrowed, but for memory of processes outside of
//! all slices, which no cap counts.
//!
//! What an ended container had borrowed counts as borrowed until the driver has freed it, and so does what an ended
//! process of a suspended one had on the GPU: a claim waits, and no borrower is asked for that.
//!
//! A container that was suspended so is resumed as soon as there is room for all of its memory: the driver moves
//! whole processes.
//!
//! A container that borrows sees its limit as the GPU's total. What it cannot have now counts as used there
//! ([`Slice::withheld`]), as on a GPU that it shares without gpuslice.
//!
//! GPUs on which no limit is above its cap have none of this. [`settle`] says which other ones a step settles.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::limits::NAME_BYTES_MAX;
use gpuslice_wire::policy::Class;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, Duration, Instant};

use crate::action::{Action, Actions, CapChange};
use crate::admission::beginning;
use crate::config::{RECLAIM_MOVE_MAX, Reclaim};
use crate::engine::Engine;
use crate::event::Token;
use crate::index::ContainerIndex;
use crate::lifecycle::{Growth, Slice, Suspension};
use crate::refusal::Refusal;

mod settle;

/// Unused credit of borrowers is recalled this often.
const RECALL_EVERY: Duration = Duration::from_millis(100);
/// A container whose memory the driver did not move is left alone for this long.
const MOVE_AGAIN: Duration = Duration::from_millis(60_000);

/// What a GPU has for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// At most so much.
    AtMost(Bytes),
    /// The memory is promised, and others have borrowed it.
    Lent,
}

/// A claim that waits for what others borrowed: requests of an account, or a resume.
#[derive(Clone, Copy, Debug)]
struct Claim {
    index: ContainerIndex,
    lane: Lane,
    need: Bytes,
    /// Since when borrowers are asked for it.
    since: Instant,
    /// None: a resume.
    requests: Option<Requests>,
}

/// The requests of a claim: those for which the cap has room together.
#[derive(Clone, Copy, Debug)]
struct Requests {
    first: Growth,
    count: usize,
}

/// What came of the suspension of a borrower.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one at a time
enum Suspends {
    Begun,
    /// The host has no room; the action tells so.
    HostFull(Action),
    Not,
}

/// A container that has borrowed, by what decides which one gives back first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Borrower {
    class: u8,
    borrowed: Reverse<Bytes>,
    index: ContainerIndex,
    lane: Lane,
}

impl Engine {
    /// What the GPU has for a request of an account.
    pub(crate) fn room(&self, index: ContainerIndex, lane: Lane, need: Bytes) -> Room {
        let slice = self.containers.get(index).and_then(|it| it.slices.get(lane));
        let gpu = slice.and_then(|slice| slice.gpu).filter(|gpu| self.gpus[*gpu].lending.elastic);
        let Some((slice, gpu)) = slice.zip(gpu) else {
            return Room::AtMost(Bytes(u64::MAX));
        };
        let (free, promised) = (self.free_on(gpu), slice.account.promised());
        if need > promised {
            let reclaims = self.gpus[gpu].lending.due.is_some();
            return Room::AtMost(if reclaims { promised } else { free });
        }
        match need <= free {
            true => Room::AtMost(free.min(promised)),
            false if self.is_lent(gpu, index) => Room::Lent,
            false => Room::AtMost(promised),
        }
    }

    /// Whether containers other than this one have borrowed memory of a GPU.
    pub(crate) fn is_lent(&self, gpu: usize, index: ContainerIndex) -> bool {
        let mut others = self.slices_on(gpu).filter(|(of, ..)| *of != index);
        self.was_lent(gpu)
            || others.any(|(of, lane, other)| {
                let lent = other.lent(self.kept(of, lane));
                // The part of the loan still on the GPU while the container is suspended.
                let behind = other.stays().saturating_sub(other.account.cap());
                let there = if self.is_away(of) { lent.min(behind) } else { lent };
                there > Bytes::ZERO
            })
    }

    /// Whether what ended containers left on a GPU does not fit there beside all promises: it was borrowed.
    fn was_lent(&self, gpu: usize) -> bool {
        let left = self.gpus[gpu].beside.unfreed.sum();
        let fits = || left <= self.capacities()[gpu].left();
        left > Bytes::ZERO && !self.config.oversubscribe && !fits()
    }

    /// The slices on a GPU. Each has an entity there, so those of other GPUs are not walked.
    pub(crate) fn slices_on(
        &self,
        gpu: usize,
    ) -> impl Iterator<Item = (ContainerIndex, Lane, &Slice)> {
        self.gpus[gpu].turns.entities.iter().filter_map(|entity| {
            let slices = &self.containers.get(entity.index)?.slices;
            Some((entity.index, entity.lane, slices.get(entity.lane)?))
        })
    }

    /// Those whose memory is there.
    fn present(&self, gpu: usize) -> impl Iterator<Item = (ContainerIndex, Lane, &Slice)> {
        self.slices_on(gpu).filter(|(index, ..)| !self.is_away(*index))
    }

    /// Memory of a GPU that neither containers, nor ended ones, nor the driver, nor processes outside of slices have.
    pub(crate) fn free_on(&self, gpu: usize) -> Bytes {
        let [last, before] = self.gpus[gpu].beside.outside;
        let taken = self.taken_beside(gpu).saturating_add(self.present_on(gpu));
        self.gpus[gpu].total.saturating_sub(taken.saturating_add(last.min(before)))
    }

    /// A sample shows so much memory of processes outside of all slices. None of it is lent.
    pub(crate) fn outside(&mut self, gpu: GpuUuid, used: Bytes) {
        if let Some(gpu) = self.gpus.iter_mut().find(|it| it.uuid == gpu) {
            gpu.beside.outside = [used, gpu.beside.outside[0]];
        }
    }

    /// Memory of a GPU that ended containers or the driver have.
    pub(crate) fn taken_beside(&self, gpu: usize) -> Bytes {
        let beside = &self.gpus[gpu].beside;
        let ended = beside.unfreed.sum();
        let unfreed = self.slices_on(gpu).map(|(.., slice)| slice.unfreed.sum());
        let unfreed = unfreed.fold(ended, Bytes::saturating_add);
        let own = beside.own[0].max(beside.own[1]).max(beside.least.saturating_sub(unfreed));
        ended.saturating_add(own)
    }

    /// Whether a step of a reclaim is due.
    pub(crate) fn reclaim_due(&self) -> bool {
        self.reclaims_at.is_some_and(|at| at <= self.now)
    }

    /// When the next step of a reclaim is due, by the state of all GPUs.
    pub(crate) fn first_reclaim(&self) -> Option<Instant> {
        self.gpus.iter().filter_map(|gpu| gpu.lending.due).chain(self.resumes_at).min()
    }

    /// Decides the waiting requests on a GPU, in order of arrival.
    fn serve_gpu(&mut self, gpu: usize, actions: &mut Actions) {
        let first = |(index, lane, slice): (ContainerIndex, Lane, &Slice)| {
            slice.waiting.front().map(|growth| (growth.at, index, lane))
        };
        let mut queues: Vec<_> = self.present(gpu).filter_map(first).collect();
        queues.sort_unstable();
        queues.into_iter().for_each(|(_, index, lane)| self.serve(index, lane, actions));
    }

    /// The claims that wait for borrowed memory of a GPU.
    fn claims_on(&self, gpu: usize) -> Vec<Claim> {
        let claim = |(index, lane, slice): (ContainerIndex, Lane, &Slice)| {
            let first = *slice.waiting.front()?;
            let claims = self.is_claim(index, lane, self.lacks(&first));
            let (mut need, mut asked) = (Bytes::ZERO, BTreeMap::new());
            let together = slice.waiting.iter().map_while(|growth| {
                let before: &mut Bytes = asked.entry(growth.client).or_default();
                need = need.saturating_add(self.lacks_after(growth, *before));
                *before = before.saturating_add(growth.need);
                (need <= slice.account.promised()).then_some(need)
            });
            let (count, need) = (1..).zip(together).last().filter(|_| claims)?;
            let since = first.claims_since.unwrap_or(self.now);
            Some(Claim { index, lane, need, since, requests: Some(Requests { first, count }) })
        };
        self.present(gpu).filter_map(claim).chain(self.returns_to(gpu)).collect()
    }

    /// The resumes that wait for borrowed memory of a GPU.
    fn returns_to(&self, gpu: usize) -> impl Iterator<Item = Claim> + '_ {
        self.slices_on(gpu).filter_map(|(index, lane, _)| {
            let (_, since) = self.containers.get(index)?.resume?;
            let need = self.kept(index, lane).saturating_sub(self.unmoved(index, lane));
            Some(Claim { index, lane, need, since, requests: None })
        })
    }

    /// Whether a waiting request waits for borrowed memory.
    pub(crate) fn is_claim(&self, index: ContainerIndex, lane: Lane, need: Bytes) -> bool {
        let other = self.must_wait(index) || self.is_held_back(index, lane);
        !other && !self.waits_for_resume(index, lane) && self.room(index, lane, need) == Room::Lent
    }

    /// When the grace of a claim is over. Its container's processes may still have unused credit while it is recalled,
    /// and a recall has a deadline of its own.
    fn grace_of(&self, claim: &Claim) -> Instant {
        let grace = claim.since.plus(self.config.reclaim_grace);
        let its = |it: &&(Instant, ContainerIndex, Lane)| (it.1, it.2) == (claim.index, claim.lane);
        let recall = self.recalls.iter().find(its).filter(|_| claim.requests.is_some());
        recall.map_or(grace, |(until, ..)| grace.max(*until).min(self.last_of(claim)))
    }

    /// When a claim is refused, if it still waits.
    fn last_of(&self, claim: &Claim) -> Instant {
        claim.since.plus(self.config.reclaim_grace).plus(RECLAIM_MOVE_MAX)
    }

    /// When a claim's wait goes on to its next step.
    fn next_step(&self, gpu: usize, claim: &Claim) -> Instant {
        let grace = self.grace_of(claim);
        let step = match self.now < grace {
            true => grace,
            false if self.is_moving(gpu) || self.has_room(gpu, claim) => self.last_of(claim),
            false => self.now,
        };
        step.min(self.now.plus(RECALL_EVERY)).max(self.now)
    }

    /// Whether a resume waits for another one of its container's GPUs.
    fn has_room(&self, gpu: usize, claim: &Claim) -> bool {
        claim.requests.is_none() && claim.need <= self.free_on(gpu)
    }

    /// What claims lack, without the memory that suspensions under way will free.
    fn missing(&self, gpu: usize, claims: &[Claim]) -> Bytes {
        if claims.is_empty() {
            return Bytes::ZERO;
        }
        let claimed = claims.iter().map(|claim| claim.need);
        let claimed = claimed.fold(Bytes::ZERO, Bytes::saturating_add);
        let there = self.free_on(gpu).saturating_add(self.leaving(gpu));
        claimed.saturating_sub(there)
    }

    /// Memory on a GPU that is about to leave it for the host, or may have left it, and what ended containers left, and
    /// ended processes of suspended ones: NVML will tell.
    fn leaving(&self, gpu: usize) -> Bytes {
        let leaves = |index: ContainerIndex| {
            let container = self.containers.get(index);
            container.is_some_and(|it| {
                matches!(it.suspension, Suspension::Draining { .. } | Suspension::Leaving { .. })
            })
        };
        let leaving = self.slices_on(gpu).map(|(index, lane, slice)| match self.is_away(index) {
            true if slice.assumed => slice.stays(),
            true => slice.unfreed.sum(),
            false if leaves(index) => self.kept(index, lane),
            _ => Bytes::ZERO,
        });
        leaving.fold(self.gpus[gpu].beside.unfreed.sum(), Bytes::saturating_add)
    }

    /// Whether memory leaves a GPU, or returns to it: a borrower that returns can be asked only then.
    fn is_moving(&self, gpu: usize) -> bool {
        let returns = |index: ContainerIndex| {
            let container = self.containers.get(index);
            container.is_some_and(|it| matches!(it.suspension, Suspension::Returning { .. }))
        };
        self.leaving(gpu) > Bytes::ZERO || self.present(gpu).any(|(index, ..)| returns(index))
    }

    /// Those that may give something back, in the order in which they are asked for it.
    fn borrowers(&self, gpu: usize) -> Vec<Borrower> {
        let borrower = |(index, lane, slice): (ContainerIndex, Lane, &Slice)| {
            let container = self.containers.get(index)?;
            let borrowed = slice.lent(slice.account.reserved());
            let stays = container.suspension == Suspension::None;
            let class = match container.record.class {
                Class::BestEffort => 0,
                Class::Normal => 1,
                Class::High => 2,
            };
            let borrowed = (stays && borrowed > Bytes::ZERO).then_some(Reverse(borrowed))?;
            Some(Borrower { class, borrowed, index, lane })
        };
        let mut all: Vec<Borrower> = self.present(gpu).filter_map(borrower).collect();
        all.sort_unstable();
        all
    }

    /// The grace of a claim is over: suspends borrowers, or refuses the claims that can wait no longer.
    fn enforce(&mut self, gpu: usize, claims: &[Claim], actions: &mut Actions) {
        let is_over = |claim: &&Claim| self.grace_of(claim) <= self.now;
        let over: Vec<Claim> = claims.iter().filter(is_over).copied().collect();
        if over.is_empty() {
            return;
        }
        let mut full = Vec::new();
        if self.config.reclaim == Reclaim::Suspend {
            let mut missing = self.missing(gpu, claims);
            for borrower in self.borrowers(gpu) {
                if missing == Bytes::ZERO {
                    break;
                }
                match self.suspend_borrower(borrower.index) {
                    Suspends::Begun => missing = self.missing(gpu, claims),
                    Suspends::HostFull(action) => full.push(action),
                    Suspends::Not => {}
                }
            }
        }
        let comes = self.is_moving(gpu);
        for claim in over {
            let Claim { index, lane, need, requests, .. } = claim;
            if comes && self.now < self.last_of(&claim) || self.has_room(gpu, &claim) {
                continue;
            }
            // Once for the claims that are refused for it.
            actions.append(&mut full);
            let left = self.free_on(gpu);
            let Some(Requests { first, .. }) = requests else {
                self.end_resume(index, (gpu, need, left), actions);
                continue;
            };
            let slice = self.account(index, lane);
            slice.map(|slice| slice.waiting.pop_front());
            self.refuse(first, left, true, actions);
            self.serve(index, lane, actions);
        }
    }

    /// Begins to suspend a container, if its memory can be moved.
    fn suspend_borrower(&mut self, index: ContainerIndex) -> Suspends {
        let Some(container) = self.containers.get(index) else {
            return Suspends::Not;
        };
        let failed = container.not_moved.is_some_and(|at| self.now < at.plus(MOVE_AGAIN));
        let (token, container) = (Token::NONE, container.record.container);
        if failed {
            return Suspends::Not;
        }
        match self.begin_suspension(token, container) {
            Ok(()) => Suspends::Begun,
            Err(why @ Refusal::HostFull { .. }) => {
                Suspends::HostFull(Action::NoRoomToMove { token, container, why })
            }
            Err(_) => Suspends::Not,
        }
    }

    /// The rows of slices with a limit above their cap.
    pub(crate) fn limits(&self) -> impl Iterator<Item = Snapshot> + '_ {
        self.containers.iter().flat_map(|(_, it)| {
            let lanes = (0..).map(Lane).zip(&it.slices.gpus);
            lanes.filter(|(_, slice)| slice.elastic).filter_map(|(lane, slice)| {
                Some(Snapshot::MemoryLimit {
                    container: it.record.container,
                    gpu: self.gpus[slice.gpu?].uuid,
                    lane,
                    limit: slice.account.limit(),
                    wanted: slice.wanted,
                })
            })
        })
    }

    /// The rows of slices of which a request waits for borrowed memory.
    pub(crate) fn memory_waits(&self) -> impl Iterator<Item = Snapshot> + '_ {
        let reclaims = self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.lending.due.is_some());
        reclaims.flat_map(|(at, gpu)| {
            self.claims_on(at).into_iter().filter_map(|Claim { index, lane, requests, .. }| {
                let container = self.containers.get(index)?.record.container;
                let first = requests?.first;
                let (need, gpu, since_ns) = (self.lacks(&first), gpu.uuid, first.at.0);
                Some(Snapshot::MemoryWait { container, gpu, lane, need, since_ns })
            })
        })
    }

    /// Determines on which GPUs memory may be lent.
    pub(crate) fn find_lenders(&mut self) {
        for gpu in 0..self.gpus.len() {
            let slices = self.containers.iter().flat_map(|(_, it)| &it.slices.gpus);
            let mut on_it = slices.filter(|slice| slice.gpu == Some(gpu));
            let elastic = on_it.any(|slice| slice.elastic);
            self.gpus[gpu].lending.elastic = elastic || self.was_lent(gpu);
        }
    }

    /// Changes a memory limit.
    pub(crate) fn relimit(
        &mut self,
        token: Token,
        (id, lane): (ContainerId, Lane),
        limit: Option<MemoryAsk>,
        actions: &mut Actions,
    ) {
        match self.new_limit(id, lane, limit) {
            Ok((index, limit)) => {
                self.put_limit(token, (index, lane), limit, actions);
                self.find_lenders();
                self.serve(index, lane, actions);
                self.recall_excess(index, lane);
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    fn new_limit(
        &self,
        id: ContainerId,
        lane: Lane,
        limit: Option<MemoryAsk>,
    ) -> Result<(ContainerIndex, Bytes), Refusal> {
        let name = beginning(id, NAME_BYTES_MAX);
        let index = self.containers.find(id).ok_or(Refusal::NoSlice(name))?;
        let container = self.containers.get(index).ok_or(Refusal::NoSlice(name))?;
        let slice = container.slices.get(lane);
        let gpus = container.slices.gpus.len();
        let slice = slice.ok_or(Refusal::NoSuchLane { lane, gpus })?;
        let whole = container.record.lanes.get(usize::from(lane.0)).is_none_or(|it| it.whole);
        match slice.gpu {
            Some(gpu) if !whole => {
                let capacity = self.capacities()[gpu];
                let cap = slice.account.cap();
                Ok((index, capacity.limit(cap, limit, self.config.oversubscribe)?))
            }
            _ => Err(Refusal::LimitOfWhole),
        }
    }

    fn put_limit(
        &mut self,
        token: Token,
        (index, lane): (ContainerIndex, Lane),
        limit: Bytes,
        actions: &mut Actions,
    ) {
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        let Some(slice) = container.slices.get_mut(lane) else {
            return;
        };
        let (cap, was) = (slice.account.cap(), slice.account.limit());
        slice.account.set_cap(cap, limit);
        slice.elastic |= limit > cap;
        slice.note_grant(Bytes::ZERO); // grants beyond the old limit may be within the new one
        if let Some(promised) = container.record.lanes.get_mut(usize::from(lane.0)) {
            (promised.limit, promised.elastic) = (limit, slice.elastic);
        }
        let reserved = slice.account.reserved();
        let change = CapChange { lane, was, cap: limit, limit: was, reserved };
        actions.push(Action::Relimited { token, record: container.record.clone().into(), change });
    }
}

#[cfg(test)]
mod tests;
