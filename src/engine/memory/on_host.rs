//! Memory of suspended containers, wherever it is.
//!
//! # Problem
//! A process may give back grants at any time, and NVML shows later whether it still has the memory. It shows nothing
//! of memory on the host. So a process could give back all that it was granted, keep the memory, and so let others have
//! the host's room for it, or the GPU's room for its return.
//!
//! # Idea
//! From the moment that a container begins to be suspended until it is back, it is granted nothing, and what was
//! charged to each of its processes then counts wherever its memory is: on the GPU, on the way, and on the host. It
//! decides whether the host has room, what a resume needs, and how long a move may take. Only the end of the process
//! ends that; its next connection takes it over. When the container is back, its ledger alone counts, and NVML judges
//! it.
//!
//! Were it granted more meanwhile, one process could give back what the next one takes, and each would count.
//!
//! Unused credit that a process gives back meanwhile counts until the resume, too: it cannot be told apart. After a
//! restart of the daemon the grants on disk are what counts.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions, Cut};
use crate::engine::Engine;
use crate::index::ContainerIndex;

impl Engine {
    /// The memory of one slice: its account, and what processes of a suspended container gave back in it.
    pub(crate) fn kept(&self, index: ContainerIndex, lane: Lane) -> Bytes {
        let slice = self.containers.get(index).and_then(|it| it.slices.get(lane));
        let reserved = slice.map_or(0, |slice| slice.account.exactly());
        let given_back = match self.is_suspended(index) {
            true => self.lanes_of(index, lane).map(|mine| mine.kept() - mine.reserved()).sum(),
            false => 0,
        };
        Bytes(u64::try_from(reserved + given_back).unwrap_or(u64::MAX))
    }

    /// The memory of a container on all its GPUs.
    pub(crate) fn kept_by(&self, index: ContainerIndex) -> Bytes {
        let gpus = self.containers.get(index).map_or(0, |it| it.slices.gpus.len());
        let all = (0..gpus as u8).map(|lane| self.kept(index, Lane(lane)));
        all.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// A container is back. A process without a connection, and with nothing in the ledger, is not kept any longer.
    pub(crate) fn forget_kept(&mut self, index: ContainerIndex, actions: &mut Actions) {
        let clients = self.containers.get(index).map_or(&[][..], |it| &it.clients);
        let clients: Vec<ClientId> = clients.to_vec();
        for client in clients {
            let Some(it) = self.clients.get_mut(client) else { continue };
            it.lanes.iter_mut().for_each(|(_, mine)| mine.moved = 0);
            if !it.connected && !it.holds() {
                self.forget(client, actions);
                actions.push(Action::Disconnect { client, why: Cut::Over });
            }
        }
    }
}

#[cfg(test)]
mod tests;
