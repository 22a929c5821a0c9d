//! Requests for memory: each is granted, or waits until the memory is known not to suffice, and is refused
//! then.
//!
//! Requests of one account are decided in order of arrival; none overtakes a waiting one. A request waits
//! * after a restart of the daemon, until the processes that hold memory have attached again. Where their
//!   grants are unknown, they are counted before any growth; where they are known, only a request that does
//!   not fit waits, because the processes may give something back;
//! * while NVML is asked, if the container is in doubt ([`super::look`]);
//! * while the container is suspended, or on the way to or from it ([`crate::suspend`]);
//! * while the driver has not freed the memory of ended processes, if the request fits then ([`super::unfreed`]);
//! * while other containers have the memory that is promised to its own ([`super::borrow`]);
//! * while siblings are asked for memory they do not use. It is granted as soon as there is enough, and
//!   refused only when a recall that began after its arrival is over.
//!
//! A request that waited is granted its need and no more: others may need the memory that would save it
//! round trips.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::CLIENTS_PER_CONTAINER_MAX;
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions, Credit, Cut};
use crate::engine::Engine;
use crate::index::ContainerIndex;
use crate::lifecycle::{ClientLane, Growth, LastDenied, Stage};
use crate::memory::borrow::Room;

/// Requests of one account that wait at a time; a shim's threads each have one.
const WAITING_MAX: usize = 4 * CLIENTS_PER_CONTAINER_MAX;

impl Engine {
    pub(crate) fn reserve(&mut self, growth: Growth, actions: &mut Actions) {
        let (client, lane) = (growth.client, growth.lane);
        let Some(index) = self.clients.get(client).map(|it| it.index) else {
            return;
        };
        let returning = self.returns(index);
        let Some(slice) = self.account(index, lane) else {
            return self.cut(client, Rejection::NoSuchLane, actions);
        };
        // a process that asks for more has used up its credit
        slice.recall.answered(client);
        if slice.waiting.len() >= WAITING_MAX {
            let left = slice.account.left();
            self.refuse(growth, left, false, actions);
        } else {
            slice.waiting.push_back(Growth {
                after: slice.recall.number(),
                waited: returning || slice.recall.is_on(),
                ..growth
            });
        }
        self.serve(index, lane, actions);
    }

    /// Whether a request of this size is more than its account has left.
    #[must_use]
    pub fn is_short(&self, client: ClientId, lane: Lane, need: Bytes) -> bool {
        let container = self.clients.get(client).and_then(|it| self.containers.get(it.index));
        let slice = container.and_then(|it| it.slices.get(lane));
        slice.is_some_and(|slice| slice.account.left() < need)
    }

    /// Whether processes of the container may still attach again with memory.
    pub(crate) fn returns(&self, index: ContainerIndex) -> bool {
        let container = self.containers.get(index);
        container.is_some_and(|it| it.stage != Stage::Settled)
    }

    /// An account's ledger changed: decides the requests that can be decided now.
    pub(crate) fn serve(&mut self, index: ContainerIndex, lane: Lane, actions: &mut Actions) {
        self.changed.push((index, lane));
        if self.must_wait(index)
            || self.is_held_back(index, lane)
            || self.waits_for_resume(index, lane)
        {
            return self.end_answered_recall(index, lane);
        }
        let returning = self.returns(index);
        while let Some(slice) = self.account(index, lane)
            && let Some(&growth) = slice.waiting.front()
        {
            let fresh = growth.after == slice.recall.number();
            let alone = slice.waiting.len() == 1 && fresh && !growth.waited;
            let wish = if alone { growth.wish } else { growth.need };
            let need = self.lacks(&growth);
            let covers = growth.need.saturating_sub(need);
            let Room::AtMost(most) = self.room(index, lane, need) else {
                if fresh {
                    self.recall(index, lane, &growth);
                }
                return self.end_answered_recall(index, lane);
            };
            let Some(slice) = self.account(index, lane) else { return };
            match slice.account.reserve(need, wish.saturating_sub(covers), most) {
                Ok(bytes) => {
                    slice.account.hold(covers);
                    slice.waiting.pop_front();
                    self.grant(growth, bytes.saturating_add(covers), actions);
                }
                Err(_) if slice.recall.is_on() || returning => {
                    return self.end_answered_recall(index, lane);
                }
                Err(_) if fresh && self.recall(index, lane, &growth) => return,
                Err(_) if self.fits_when_freed(index, lane, (&growth, most)) => {
                    return self.end_answered_recall(index, lane);
                }
                Err(left) => {
                    let slice = self.account(index, lane);
                    slice.map(|slice| slice.waiting.pop_front());
                    self.refuse(growth, left, false, actions);
                }
            }
        }
        self.end_recall(index, lane);
    }

    /// Whether a request fits as soon as the driver has freed the memory of ended processes.
    fn fits_when_freed(
        &self,
        index: ContainerIndex,
        lane: Lane,
        (growth, most): (&Growth, Bytes),
    ) -> bool {
        let slice = self.containers.get(index).and_then(|it| it.slices.get(lane));
        slice.is_some_and(|slice| {
            let unfreed = slice.unfreed.sum();
            let need = self.lacks_without(growth, unfreed);
            // Within the cap then, it claims what others may have borrowed.
            let most = most.max(slice.account.promised());
            let has_room = need <= most.saturating_add(unfreed);
            has_room && slice.account.would_fit(need, unfreed.0.into())
        })
    }

    fn grant(&mut self, growth: Growth, bytes: Bytes, actions: &mut Actions) {
        let Growth { client, token, lane, .. } = growth;
        if let Some((mine, slice)) = self.share(client, lane) {
            mine.grant(bytes);
            slice.note_grant(bytes);
            slice.cover(mine);
        }
        actions.push(Action::Reserved { client, token, lane, bytes });
    }

    /// Refuses a request; `overdue` if the memory is promised to its container. A process asks for what its own unused
    /// credit lacks, so that credit is added to both amounts: they are those of the allocation that its program made.
    pub(crate) fn refuse(
        &mut self,
        growth: Growth,
        left: Bytes,
        overdue: bool,
        actions: &mut Actions,
    ) {
        let Growth { client, token, lane, need, .. } = growth;
        let at = self.now;
        let index = self.clients.get(client).map(|it| it.index);
        let lanes = index.into_iter().flat_map(|index| self.lanes_of(index, lane));
        let all = lanes.map(ClientLane::credit).fold(Bytes::ZERO, Bytes::saturating_add);
        let mut credit = Credit::default();
        if let Some((mine, slice)) = self.share(client, lane) {
            mine.refused = mine.refused.saturating_add(1);
            let own = mine.credit();
            credit = Credit { own, others: all.saturating_sub(own) };
            let [need, left] = [need, left].map(|bytes| bytes.saturating_add(own));
            slice.last_denied = LastDenied { need, left, others: credit.others, at };
        }
        actions.push(Action::Refused { client, token, lane, need, left, credit, overdue });
    }

    /// Decides on growth that waited for returning processes, where that wait is over.
    pub(crate) fn end_grace(&mut self, actions: &mut Actions) {
        let now = self.now;
        if self.grace.is_none_or(|until| now < until) {
            return;
        }
        let mut settled: Vec<(ContainerIndex, Lane)> = Vec::new();
        let mut over: Vec<ContainerIndex> = Vec::new();
        self.grace = None;
        for (index, container) in self.containers.iter_mut() {
            let Stage::Returning { until } = container.stage else {
                continue;
            };
            container.stage = container.stage.at(now);
            if container.stage == Stage::Settled {
                over.push(index);
                settled.extend(container.slices.lanes().map(|lane| (index, lane)));
            } else {
                self.grace = Some(self.grace.map_or(until, |other| other.min(until)));
            }
        }
        over.into_iter().for_each(|index| self.forget_unclaimed(index, actions));
        for (index, lane) in settled {
            self.serve(index, lane, actions);
        }
    }

    /// Ends the accounts without a connection that a connection of the same process would have taken over at any other
    /// time, because it began anew. A process that said what it holds has other copies, which may attach a little late.
    fn forget_unclaimed(&mut self, index: ContainerIndex, actions: &mut Actions) {
        let all = || self.clients_of(index).filter(|it| it.process.is_some());
        let began_anew = |process| all().any(|it| it.began_anew && it.process == process);
        let ids = self.containers.get(index).map(|it| it.clients.as_slice());
        let unclaimed = ids.into_iter().flatten().copied().filter(|id| {
            let client = self.clients.get(*id).filter(|it| !it.connected && !it.began_anew);
            client.is_some_and(|it| began_anew(it.process))
        });
        let unclaimed: Vec<ClientId> = unclaimed.collect();
        for client in unclaimed {
            let why = Cut::Over;
            actions.push(Action::Disconnect { client, why });
            self.forget(client, actions);
        }
    }
}
