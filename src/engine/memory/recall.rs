//! Recall: siblings of a process that is short of memory are asked for memory they do not use.
//!
//! # Problem
//! Unused credit of a process looks taken. A sibling would be refused although there is memory, and only
//! the processes themselves know which of them has it.
//!
//! # Idea
//! The account's *recall* number grows, and every other process with grants owes one answer. The answer is
//! `Yield`, with all it does not use, or a request of its own, now or waiting, which tells that it uses all
//! it has. The recall is over when all have answered or [`RECALL_WAIT_NS`] has passed; the memory left then
//! is all there is. No process can prolong it, by silence or otherwise: an answer counts once, an answer to
//! another number does not count, and a process that attaches later owes nothing. A process without a
//! connection cannot be asked.
//!
//! No recall starts if the request would not fit even with all the memory of the siblings, used or not.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::RECALL_WAIT_NS;
use gpuslice_wire::units::{Bytes, Duration, Instant};

use crate::action::Actions;
use crate::engine::Engine;
use crate::index::ContainerIndex;
use crate::lifecycle::Growth;

impl Engine {
    /// Recalls credit from the siblings of a process that is short. Returns whether that can help.
    pub(crate) fn recall(&mut self, index: ContainerIndex, lane: Lane, growth: &Growth) -> bool {
        let need = self.lacks(growth);
        let Some(container) = self.containers.get_mut(index) else {
            return false;
        };
        let granted = |id: ClientId| {
            let mine = self.clients.get(id).and_then(|it| it.lanes.get(lane));
            mine.map_or(Bytes::ZERO, |mine| mine.granted)
        };
        let Some(slice) = container.slices.get_mut(lane) else {
            return false;
        };
        let waits = |id: ClientId| slice.waiting.iter().any(|other| other.client == id);
        let clients = &self.clients;
        let connected = |id: &ClientId| clients.get(*id).is_some_and(|it| it.connected);
        let siblings = container.clients.iter().copied().filter(connected);
        let owing: Vec<ClientId> = siblings
            .filter(|&id| id != growth.client && granted(id) > Bytes::ZERO && !waits(id))
            .collect();
        let theirs: u128 = owing.iter().map(|&id| u128::from(granted(id).0)).sum();
        let unfreed = u128::from(slice.unfreed.sum().0);
        if owing.is_empty() || !slice.account.would_fit(need, theirs + unfreed) {
            return false;
        }
        slice.recall.begin(owing);
        self.recalls.retain(|&(_, s, l)| (s, l) != (index, lane));
        let until = self.now.plus(Duration(RECALL_WAIT_NS));
        self.recalls.push((until, index, lane));
        true
    }

    /// Recalls all unused credit of an account: for other containers, or since it has more than a lowered cap.
    pub(crate) fn recall_all(&mut self, index: ContainerIndex, lane: Lane) {
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        let clients = &self.clients;
        let has_credit = |id: &ClientId| {
            let client = clients.get(*id).filter(|it| it.connected);
            let mine = client.and_then(|it| it.lanes.get(lane));
            mine.is_some_and(|mine| mine.granted > Bytes::ZERO)
        };
        let Some(slice) = container.slices.get_mut(lane) else {
            return;
        };
        let waits = |id: &ClientId| slice.waiting.iter().any(|other| other.client == *id);
        let owing = container.clients.iter().copied().filter(|id| has_credit(id) && !waits(id));
        let owing: Vec<ClientId> = owing.collect();
        if owing.is_empty() || slice.recall.is_on() {
            return;
        }
        slice.recall.begin(owing);
        self.changed.push((index, lane));
        self.recalls.push((self.now.plus(Duration(RECALL_WAIT_NS)), index, lane));
    }

    /// Recalls the unused credit of an account that has more than its limit, which was lowered.
    pub(crate) fn recall_excess(&mut self, index: ContainerIndex, lane: Lane) {
        let slice = self.containers.get(index).and_then(|it| it.slices.get(lane));
        if slice.is_some_and(|it| it.account.reserved() > it.account.limit()) {
            self.recall_all(index, lane);
        }
    }

    /// Ends the wait for answers.
    pub(crate) fn end_recall(&mut self, index: ContainerIndex, lane: Lane) {
        if let Some(slice) = self.account(index, lane) {
            slice.recall.end();
        }
        self.recalls.retain(|&(_, s, l)| (s, l) != (index, lane));
    }

    /// Ends a recall that all have answered, also while its growth waits for something else.
    pub(crate) fn end_answered_recall(&mut self, index: ContainerIndex, lane: Lane) {
        if self.account(index, lane).is_some_and(|slice| !slice.recall.is_on()) {
            self.end_recall(index, lane);
        }
    }

    /// Ends recalls whose time is over, and decides on the growth that waited for them.
    pub(crate) fn end_recalls(&mut self, actions: &mut Actions) {
        let over = |&&(until, ..): &&(Instant, ContainerIndex, Lane)| until <= self.now;
        let over: Vec<(Instant, ContainerIndex, Lane)> =
            self.recalls.iter().filter(over).copied().collect();
        for (_, index, lane) in over {
            self.end_recall(index, lane);
            self.serve(index, lane, actions);
        }
    }

    /// The deadline of the first recall.
    pub(crate) fn recalled_until(&self) -> Option<Instant> {
        self.recalls.iter().map(|&(until, ..)| until).min()
    }
}
