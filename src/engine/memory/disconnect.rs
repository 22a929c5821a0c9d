//! Processes lose their connections, and end.
//!
//! A connection that ended proves nothing about memory: the process may have closed the descriptor, or
//! broken a rule, and still hold its grants on the device. So it is *apart*: its account stays, its reports
//! are dropped, and it is asked for nothing. Only its end ends the account, or its next connection takes it over.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, Lane};

use crate::action::{Action, Actions, Cut};
use crate::engine::Engine;
use crate::event::Claims;
use crate::index::ContainerIndex;
use crate::lifecycle::{Client, Container};

impl Client {
    /// Whether any memory counts for it.
    pub(crate) fn holds(&self) -> bool {
        self.lanes.iter().any(|(_, mine)| mine.kept() > 0)
    }

    /// It loses its connection.
    fn disconnect(&mut self) {
        self.connected = false;
        for (_, mine) in self.lanes.iter_mut() {
            mine.was_runnable = false;
            mine.claims = Claims {
                held: mine.claims.held,
                unseen: mine.claims.unseen,
                contexts: mine.claims.contexts,
                launches: mine.claims.launches,
                denied: mine.claims.denied,
                ..Claims::default()
            };
        }
    }
}

impl Container {
    /// Drops a process's requests and the answers it owes.
    pub(crate) fn end_requests(&mut self, client: ClientId) {
        for (_, slice) in self.slices.iter_mut() {
            slice.waiting.retain(|growth| growth.client != client);
            slice.recall.answered(client);
        }
    }
}

impl Engine {
    /// A process's connection ended.
    pub(crate) fn left(&mut self, client: ClientId, actions: &mut Actions) {
        self.disconnect(client, actions);
        if self.clients.get(client).is_none() {
            let why = Cut::Over;
            actions.push(Action::Disconnect { client, why });
        }
    }

    /// Keeps the memory of a process without a connection, and forgets the process if it has none.
    pub(crate) fn disconnect(&mut self, client: ClientId, actions: &mut Actions) {
        let Some(it) = self.clients.get_mut(client) else {
            return;
        };
        if !it.holds() {
            return self.forget(client, actions);
        }
        it.disconnect();
        let index = it.index;
        let container = self.containers.get_mut(index);
        container.into_iter().for_each(|it| it.end_requests(client));
        self.serve_all(index, actions);
    }

    /// Forgets a process that has ended. Its memory counts until the driver has freed it.
    pub(crate) fn forget(&mut self, client: ClientId, actions: &mut Actions) {
        let Some(it) = self.clients.detach(client) else {
            return;
        };
        let Some(container) = self.containers.get_mut(it.index) else {
            return;
        };
        container.clients.retain(|&other| other != client);
        container.end_requests(client);
        let last = container.clients.is_empty();
        let (now, late) = (self.now, self.config.sees_devices);
        for ((_, slice), (_, mine)) in container.slices.iter_mut().zip(it.lanes.iter()) {
            let leaves = mine.leaves(slice);
            slice.give_back(mine.granted);
            slice.uncover(mine);
            slice.forget_residual(mine.residual, last);
            slice.count_past(mine);
            slice.left_behind.reduce(mine.left_behind); // `leaves` has it, too
            if let Some(gpu) = slice.gpu.filter(|_| late) {
                slice.end(now, leaves);
                self.has_unfreed = true;
                self.gpus[gpu].beside.ended(now);
            }
        }
        self.serve_all(it.index, actions);
    }

    /// The connected processes of a container or their accounts changed.
    pub(crate) fn serve_all(&mut self, index: ContainerIndex, actions: &mut Actions) {
        self.settle_early(index);
        self.report_all(index);
        let lanes = self.containers.get(index).map(|it| it.slices.lanes());
        let lanes: Vec<Lane> = lanes.into_iter().flatten().collect();
        for lane in lanes {
            self.serve(index, lane, actions);
        }
    }

    /// The container is about to go: drops the requests of all its processes.
    pub(crate) fn drop_waiting(&mut self, index: ContainerIndex) {
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        let lanes = container.slices.lanes();
        for (_, slice) in container.slices.iter_mut() {
            slice.waiting.clear();
        }
        lanes.for_each(|lane| self.end_recall(index, lane));
    }
}
