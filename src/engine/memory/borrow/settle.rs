//! What a step settles: the claims on a GPU, what borrowers are asked for, and what containers see as free.
//!
//! # Problem
//! All of that follows from the accounts of a GPU, so to settle it is to walk them. Each frame of each process is a
//! step, and most change one account, or none.
//!
//! # Idea
//! A step settles the GPUs on which something can have changed: those of accounts that it changed, which it has listed
//! for their pages, and those that its event concerns otherwise ([`Engine::unsettled`]). Where a reclaim is due, or a
//! container begins to move, all are settled: a container that is suspended for one GPU gives back memory of all.
//! `check` finds what a step has missed.

use alloc::vec::Vec;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::units::Bytes;

use super::{Borrower, Claim, RECALL_EVERY, Room};
use crate::action::{Action, Actions};
use crate::engine::Engine;
use crate::event::{Event, Token};
use crate::index::ContainerIndex;
use crate::lending::Lending;
use crate::lifecycle::Slice;
use crate::sched::gang::GpuSet;

impl Engine {
    /// GPUs on which `event` changes more than accounts that its step lists as changed.
    pub(crate) fn unsettled(&self, event: &Event) -> GpuSet {
        let none = 0;
        match event {
            Event::Attach { .. }
            | Event::RestoreProcess { .. }
            | Event::Complete { .. }
            | Event::Opened { .. }
            | Event::Left { .. }
            | Event::Gone { .. }
            | Event::Reserve { .. }
            | Event::Release { .. }
            | Event::Yield { .. }
            | Event::Measured { .. }
            | Event::Looked { .. }
            | Event::Unattributed { .. } => none,
            Event::Claims { .. }
            | Event::Stopped { .. }
            | Event::Resumed { .. }
            | Event::SetPolicy { .. }
            | Event::Record { .. } => none, // they are about turns
            // a request that waits for NVML claims nothing
            Event::Looking { container, lane } => {
                let index = self.containers.find(*container);
                let slices =
                    index.and_then(|index| self.containers.get(index)).map(|it| &it.slices);
                let gpu = slices.and_then(|slices| slices.get(*lane)?.gpu);
                gpu.map_or(none, |gpu| 1 << gpu)
            }
            Event::DeviceLooked { gpu, .. } | Event::Outside { gpu, .. } => {
                let at = self.gpus.iter().position(|it| it.uuid == *gpu);
                at.map_or(none, |at| 1 << at)
            }
            Event::Tick if self.unfreed_until().is_none_or(|until| until > self.now) => none,
            _ => GpuSet::MAX,
        }
    }

    /// The GPUs of accounts that this step has changed.
    fn changed_on(&self) -> GpuSet {
        let gpu = |&(index, lane): &(ContainerIndex, Lane)| {
            self.containers.get(index)?.slices.get(lane)?.gpu
        };
        self.changed.iter().filter_map(gpu).fold(0, |all, gpu| all | 1 << gpu)
    }

    /// Takes the steps of reclaims that are due, on these GPUs and those of changed accounts; `all` if each GPU may
    /// decide on turns in this step.
    pub(crate) fn settle_loans(&mut self, unsettled: GpuSet, all: bool, actions: &mut Actions) {
        let returns = all && self.begin_returns(actions);
        let on = if returns { GpuSet::MAX } else { unsettled | self.changed_on() };
        if on == 0 {
            return;
        }
        let lends = |lending: &Lending| lending.elastic || lending.due.is_some();
        let gpus = (0..self.gpus.len()).filter(|gpu| on & 1 << gpu != 0);
        let gpus: Vec<usize> = gpus.filter(|gpu| lends(&self.gpus[*gpu].lending)).collect();
        #[cfg(test)]
        gpus.iter().for_each(|gpu| self.gpus[*gpu].lending.settled += 1);
        gpus.iter().for_each(|gpu| self.serve_claims(*gpu, all, actions));
        // A container that is suspended for one of its GPUs gives back memory of all.
        gpus.iter().for_each(|gpu| self.ask_borrowers(*gpu, actions));
        // The last of them may have been resumed by an administrator, or ended.
        if on == GpuSet::MAX || on & self.reclaimed_on() != 0 {
            self.resume_reclaimed(all, actions);
        }
        self.reclaims_at = self.first_reclaim();
    }

    /// The GPUs of the containers that the engine has suspended.
    fn reclaimed_on(&self) -> GpuSet {
        let containers = self.reclaimed.iter().filter_map(|(_, index)| self.containers.get(*index));
        let gpus = containers.flat_map(|it| &it.slices.gpus).filter_map(|slice| slice.gpu);
        gpus.fold(0, |all, gpu| all | 1 << gpu)
    }

    /// Decides the requests that wait on a GPU, and ends the grace of those that have waited for it.
    fn serve_claims(&mut self, gpu: usize, all: bool, actions: &mut Actions) {
        let Some(due) = self.gpus[gpu].lending.due else {
            return;
        };
        self.serve_gpu(gpu, actions);
        let claims = self.claims_on(gpu);
        if !claims.is_empty() && all && due <= self.now {
            self.enforce(gpu, &claims, actions);
        }
    }

    /// Asks the borrowers of a GPU for the memory that claims lack, and shows the rest as free.
    fn ask_borrowers(&mut self, gpu: usize, actions: &mut Actions) {
        let claims = self.claims_on(gpu);
        let missing = self.missing(gpu, &claims);
        let next = claims.iter().map(|claim| self.next_step(gpu, claim)).min();
        self.gpus[gpu].lending.due = next;
        self.ask_back(gpu, missing, actions);
        claims.iter().for_each(|claim| self.begin_grace(claim));
        self.withhold(gpu);
    }

    /// Borrowers are asked for these requests now. Later ones of the account exceed the cap together with them.
    fn begin_grace(&mut self, claim: &Claim) {
        let (now, Some(requests)) = (self.now, claim.requests) else { return };
        let slice = self.account(claim.index, claim.lane);
        let asked = slice.map(|slice| slice.waiting.iter_mut().take(requests.count));
        let asked = asked.into_iter().flatten();
        asked.for_each(|growth| growth.claims_since = growth.claims_since.or(Some(now)));
    }

    /// Asks borrowers for what is missing.
    fn ask_back(&mut self, gpu: usize, missing: Bytes, actions: &mut Actions) {
        let recalls = self.gpus[gpu].lending.recalls(self.now, RECALL_EVERY, missing);
        let parts = self.parts(gpu, missing);
        for (index, lane) in self.accounts_on(gpu) {
            let part = parts.iter().find(|(of, at, _)| (*of, *at) == (index, lane));
            if recalls && part.is_some() {
                self.recall_all(index, lane);
            }
            let bytes = part.map_or(Bytes::ZERO, |part| part.2);
            let container = self.containers.get_mut(index);
            let Some((container, slice)) =
                container.and_then(|it| Some((it.record.container, it.slices.get_mut(lane)?)))
            else {
                continue;
            };
            if slice.wanted != bytes {
                slice.wanted = bytes;
                actions.push(Action::Wanted { container, lane, bytes });
            }
        }
    }

    /// What each borrower is asked for.
    fn parts(&self, gpu: usize, missing: Bytes) -> Vec<(ContainerIndex, Lane, Bytes)> {
        let mut rest = missing;
        if rest == Bytes::ZERO {
            return Vec::new();
        }
        let part = |it: Borrower| {
            let part = it.borrowed.0.min(rest);
            rest = rest.saturating_sub(part);
            (part > Bytes::ZERO).then_some((it.index, it.lane, part))
        };
        self.borrowers(gpu).into_iter().filter_map(part).collect()
    }

    fn accounts_on(&self, gpu: usize) -> Vec<(ContainerIndex, Lane)> {
        self.slices_on(gpu).map(|(index, lane, _)| (index, lane)).collect()
    }

    /// Notes what each container with a larger limit cannot have of it now.
    fn withhold(&mut self, gpu: usize) {
        let free = self.lendable(gpu);
        for (index, lane) in self.accounts_on(gpu) {
            let container = self.containers.get_mut(index);
            let slice = container.and_then(|it| it.slices.get_mut(lane));
            let Some(slice) = slice.filter(|slice| slice.elastic) else { continue };
            let withheld = withheld(slice, free);
            if slice.withheld != withheld {
                slice.withheld = withheld;
                self.changed.push((index, lane));
            }
        }
    }

    /// Whether a waiting request could be granted now.
    fn could_grow(&self, index: ContainerIndex, lane: Lane, need: Bytes) -> bool {
        let waits = self.must_wait(index)
            || self.is_held_back(index, lane)
            || self.waits_for_resume(index, lane);
        let slice = self.containers.get(index).and_then(|it| it.slices.get(lane));
        let left = slice.map_or(Bytes::ZERO, |slice| slice.account.left());
        let room = self.room(index, lane, need);
        !waits && matches!(room, Room::AtMost(most) if need <= most.min(left))
    }

    /// What a GPU has to lend.
    fn lendable(&self, gpu: usize) -> Bytes {
        match self.gpus[gpu].lending.due {
            Some(_) => Bytes::ZERO,
            None => self.free_on(gpu),
        }
    }

    /// # Panics
    /// If something on a GPU is not as if it had been settled now; see `check`.
    pub(crate) fn check_loans(&self) {
        let lends = |gpu: &usize| {
            let lending = self.gpus[*gpu].lending;
            lending.elastic || lending.due.is_some()
        };
        for gpu in (0..self.gpus.len()).filter(lends) {
            let (claims, due) = (self.claims_on(gpu), self.gpus[gpu].lending.due);
            let next = claims.iter().map(|claim| self.next_step(gpu, claim)).min();
            assert_eq!(due.is_some(), next.is_some(), "GPU {gpu}: claims, and no reclaim, or none");
            assert!(due <= next, "GPU {gpu}: a reclaim goes on at {due:?}, not {next:?}");
            let parts = self.parts(gpu, self.missing(gpu, &claims));
            let free = self.lendable(gpu);
            for (index, lane, slice) in self.slices_on(gpu) {
                let part = parts.iter().find(|(of, at, _)| (*of, *at) == (index, lane));
                let wanted = part.map_or(Bytes::ZERO, |part| part.2);
                assert_eq!(
                    slice.wanted, wanted,
                    "GPU {gpu}: {index:?} is asked for another amount"
                );
                let withheld = if slice.elastic { withheld(slice, free) } else { slice.withheld };
                assert_eq!(slice.withheld, withheld, "GPU {gpu}: {index:?} sees what was free");
                // Without a claim, each request is decided when its own account changes.
                let first = slice.waiting.front().filter(|_| due.is_some());
                let first = first.map(|growth| self.lacks(growth));
                let fits = first.is_some_and(|need| self.could_grow(index, lane, need));
                assert!(!fits, "GPU {gpu}: {index:?} waits for {first:?}, which are free");
            }
        }
    }

    /// Resumes suspended borrowers for which there is room again.
    fn resume_reclaimed(&mut self, all: bool, actions: &mut Actions) {
        let fits = |index: ContainerIndex| {
            let slices = self.containers.get(index).map_or(&[][..], |it| &it.slices.gpus);
            (0..).map(Lane).zip(slices).all(|(lane, slice)| {
                let gpu = slice.gpu.filter(|gpu| self.gpus[*gpu].lending.due.is_none());
                let left = |gpu| self.free_on(gpu).saturating_add(self.unmoved(index, lane));
                gpu.is_some_and(|gpu| self.kept(index, lane) <= left(gpu))
            })
        };
        let fitting = self.reclaimed.iter().filter(|(_, index)| fits(*index));
        let next = fitting.min().copied();
        match next {
            Some((at, index)) if all && at <= self.now => {
                self.reclaimed.retain(|(_, of)| *of != index);
                let id = self.containers.get(index).map(|it| it.record.container);
                id.into_iter().for_each(|id| self.end_suspension(Token::NONE, id, actions));
                // its memory is on the GPUs from now on, and the others see that in this step
                (0..self.gpus.len()).for_each(|gpu| self.withhold(gpu));
                // the next one fits beside it, or does not
                self.resumes_at = (!self.reclaimed.is_empty()).then_some(self.now);
            }
            next => self.resumes_at = next.map(|(at, _)| at.max(self.now)),
        }
    }
}

/// What a container with a larger limit cannot have of it.
fn withheld(slice: &Slice, lendable: Bytes) -> Bytes {
    let (left, promised) = (slice.account.left(), slice.account.promised());
    left.saturating_sub(lendable.min(left).max(promised))
}
