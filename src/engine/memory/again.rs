//! A daemon that came back knows what its processes were granted, from what was written down.
//!
//! Those that live are counted at once, each with all that it was granted, before any of them has come back:
//! one that is stopped may never do so and hold its memory all the same. Then no process need be waited for
//! before what is left is granted. Only what does not fit waits a little: the processes that come back may
//! have used less than they were granted, and the daemon cannot ask them yet.

use gpuslice_wire::ids::{ClientId, ContainerId};
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions};
use crate::engine::Engine;
use crate::event::{Process, Token};
use crate::grants::Granted;
use crate::lifecycle::{Client, ClientLane, ContainerIndex, Stage};

impl Engine {
    /// What a process was granted; `None` if it is not known.
    #[must_use]
    pub fn granted_to(&self, client: ClientId) -> Option<Granted> {
        let client = self.clients.get(client)?;
        let mut granted = [Bytes::ZERO; ACCOUNTS_MAX];
        for (lane, mine) in client.lanes.iter() {
            granted[usize::from(lane.0)] = mine.granted;
        }
        Some(granted)
    }

    /// A process of an earlier life, without a connection.
    pub(crate) fn account_again(
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
            mine.grant(granted[usize::from(lane.0)]);
            mine.claims.held = mine.granted;
            mine
        });
        let client = self.clients.attach(Client {
            index,
            process: Some(process),
            connected: false,
            lanes,
        });
        let Some(client) = client else {
            return;
        };
        container.clients.push(client);
        for (lane, slice) in container.slices.iter_mut() {
            slice.regrant(0, granted[usize::from(lane.0)]);
            self.changed.push((index, lane));
        }
        actions.push(Action::ProcessRestored { token, client });
    }

    /// Everything that was granted is known.
    pub(crate) fn complete(&mut self, id: ContainerId, actions: &mut Actions) {
        let Some(index) = self.containers.find(id) else {
            return;
        };
        if let Some(container) = self.containers.get_mut(index) {
            container.complete = true;
        }
        self.serve_all(index, actions);
    }

    /// Where everything is known and all have come back or are gone, nothing is waited for any more.
    pub(crate) fn settle_early(&mut self, index: ContainerIndex) {
        let apart = self.clients_of(index).any(|client| !client.connected);
        let container = self.containers.get_mut(index);
        if let Some(container) = container.filter(|it| it.complete && !apart) {
            container.stage = Stage::Settled;
        }
    }

    /// Whether nothing at all may be granted to a container's processes yet.
    pub(crate) fn must_wait(&self, index: ContainerIndex) -> bool {
        let container = self.containers.get(index);
        container.is_some_and(|it| it.stage != Stage::Settled && !it.complete)
    }
}
