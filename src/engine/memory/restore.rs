//! A restarted daemon knows its processes' grants from the file.
//!
//! Every living process is counted at once with all its grants, before any of them attaches again: a
//! stopped process may never do so and hold its memory all the same. Then the rest can be granted without
//! waiting for any process. Only a request that does not fit waits a little: the processes that attach
//! again may have used less than their grants, and the daemon cannot ask them yet.
//!
//! Memory beyond grants is charged when two samples of NVML agree, a second or two after the restart. What the earlier
//! daemon had charged so counts at once, or it would be granted again meanwhile. The first sample corrects it: which
//! process has it is not known until then.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions};
use crate::engine::Engine;
use crate::event::{Process, Token, Untracked};
use crate::grants::Granted;
use crate::index::ContainerIndex;
use crate::ledger::Measured;
use crate::lifecycle::{Client, ClientLane, Stage, Suspension};

impl Engine {
    /// A process's grants; `None` if they are unknown.
    #[must_use]
    pub fn granted_to(&self, client: ClientId) -> Option<Granted> {
        let client = self.clients.get(client)?;
        let mut granted = [Bytes::ZERO; ACCOUNTS_MAX];
        for (lane, mine) in client.lanes.iter() {
            granted[usize::from(lane.0)] = mine.granted;
        }
        Some(granted)
    }

    /// Restores a process from before the restart, without a connection.
    pub(crate) fn restore_process(
        &mut self,
        token: Token,
        id: ContainerId,
        process: Process,
        granted: &Granted,
        actions: &mut Actions,
    ) {
        let Some(index) = self.containers.find(id) else {
            return;
        };
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        let lanes = container.slices.map(|lane, _| {
            let mut mine = ClientLane::default();
            mine.take_over(granted[usize::from(lane.0)]);
            mine.claims.held = mine.granted;
            mine
        });
        let (process, connected, began_anew, told) = (Some(process), false, false, false);
        let client = Client { index, process, connected, began_anew, told, lanes };
        let Some(client) = self.clients.attach(client) else {
            return;
        };
        container.clients.push(client);
        for (lane, slice) in container.slices.iter_mut() {
            slice.regrant(0, granted[usize::from(lane.0)]);
            self.changed.push((index, lane));
        }
        actions.push(Action::ProcessRestored { token, client });
    }

    /// All grants are known.
    pub(crate) fn complete(&mut self, id: ContainerId, actions: &mut Actions) {
        let Some(index) = self.containers.find(id) else {
            return;
        };
        if let Some(container) = self.containers.get_mut(index) {
            container.complete = true;
            container.slices.iter_mut().for_each(|(_, slice)| slice.account.restored());
        }
        self.serve_all(index, actions);
    }

    /// What is charged to a container beyond the grants of its processes, for each GPU.
    #[must_use]
    pub fn untracked_of(&self, id: ContainerId) -> Vec<Untracked> {
        let index = self.containers.find(id);
        let container = index.and_then(|index| self.containers.get(index));
        let slices = container.into_iter().flat_map(|it| &it.slices.gpus);
        let untracked = slices.map(|slice| {
            let unattributed = slice.unattributed.charged();
            Untracked { attached: slice.untracked().saturating_sub(unattributed), unattributed }
        });
        untracked.collect()
    }

    /// So much was charged before the restart. Without NVML nothing would show that it is less.
    pub(crate) fn restore_untracked(&mut self, id: ContainerId, untracked: &[Untracked]) {
        let Some(index) = self.containers.find(id).filter(|_| self.config.sees_devices) else {
            return;
        };
        let slices = self.containers.get_mut(index).map(|it| it.slices.gpus.iter_mut());
        for ((lane, slice), was) in (0..).map(Lane).zip(slices.into_iter().flatten()).zip(untracked)
        {
            slice.beyond = Measured::assumed(was.attached);
            slice.settle_hidden();
            slice.unattributed = Measured::assumed(was.unattributed);
            slice.account.hold(was.unattributed);
            self.changed.push((index, lane));
        }
    }

    /// The processes of a restored container can attach from now on. They have all of the time for it, however long the
    /// daemon's start took: otherwise one could be granted what another one holds.
    pub(crate) fn opened(&mut self, id: ContainerId, actions: &mut Actions) {
        let Some(index) = self.containers.find(id) else {
            return;
        };
        let until = self.now.plus(self.config.restore_grace);
        if let Some(container) = self.containers.get_mut(index) {
            container.stage = Stage::Returning { until };
            if let Suspension::Draining { until: by, again: true, .. } = &mut container.suspension {
                *by = until;
            }
            for gpu in container.slices.gpus.iter().filter_map(|slice| slice.gpu) {
                self.gpus[gpu].turns.returns(index, until);
            }
            self.grace = Some(self.grace.map_or(until, |other| other.min(until)));
        }
        self.serve_all(index, actions);
    }

    /// Ends the wait where all grants are known and all processes have attached again or ended.
    pub(crate) fn settle_early(&mut self, index: ContainerIndex) {
        let apart = self.clients_of(index).any(|client| !client.connected);
        let container = self.containers.get_mut(index);
        if let Some(container) = container.filter(|it| it.complete && !apart) {
            container.stage = Stage::Settled;
        }
    }

    /// Whether processes of a container may still attach again after a restart.
    #[must_use]
    pub fn is_returning(&self, id: ContainerId) -> bool {
        self.containers.find(id).is_some_and(|index| self.returns(index))
    }

    /// Whether no growth may be granted to a container's processes yet.
    pub(crate) fn must_wait(&self, index: ContainerIndex) -> bool {
        let container = self.containers.get(index);
        container.is_some_and(|it| it.stage != Stage::Settled && !it.complete)
    }
}
