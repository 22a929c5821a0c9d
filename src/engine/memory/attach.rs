//! Processes come with what they hold and go with all they had.

use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, CLIENTS_MAX, LANES_MAX};
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions};
use crate::engine::{Engine, NO_CAP};
use crate::event::Token;
use crate::lifecycle::{Client, ClientLane, Seat, Slice};
use crate::quota::Quota;

impl Engine {
    pub(crate) fn attach(
        &mut self,
        token: Token,
        id: ContainerId,
        held: &[Bytes; ACCOUNTS_MAX],
        actions: &mut Actions,
    ) {
        match self.try_attach(id, held) {
            Ok((client, lanes)) => {
                actions.push(Action::Attached {
                    token,
                    client,
                    container: id,
                    lanes,
                });
            }
            Err(why) => actions.push(Action::Rejected { token, why }),
        }
    }

    fn try_attach(
        &mut self,
        id: ContainerId,
        held: &[Bytes; ACCOUNTS_MAX],
    ) -> Result<(ClientId, u8), Rejection> {
        let seat = self.containers.find(id).ok_or(Rejection::NotYours)?;
        if !self.has_place(seat) {
            return Err(Rejection::TooManyClients);
        }
        let container = self.containers.get_mut(seat).ok_or(Rejection::NotYours)?;
        let gpus = container.slices.gpus.len();
        if held[gpus..LANES_MAX].iter().any(|&it| it > Bytes::ZERO) {
            return Err(Rejection::NoSuchLane);
        }
        let known = |lane: Lane, slice: &Slice| {
            let gpu = slice.gpu.map(|gpu| &self.gpus[gpu]);
            let entity = gpu.and_then(|gpu| gpu.turns.find(seat));
            // Nobody holds more than a GPU has: what a process says beyond that is not even a
            // lie that could hurt its own container for ever.
            let most = gpu.map_or(NO_CAP, |gpu| gpu.total);
            let mut mine = ClientLane {
                read_at: entity.map_or(0, |entity| entity.turn),
                ..ClientLane::default()
            };
            mine.grant(held[usize::from(lane.0)].min(most));
            mine
        };
        let lanes = container.slices.map(known);
        let client = self.clients.attach(Client {
            seat,
            lanes: lanes.clone(),
        });
        let client = client.ok_or(Rejection::TooManyClients)?;
        container.clients.push(client);
        for ((lane, slice), (_, mine)) in container.slices.iter_mut().zip(lanes.iter()) {
            slice.account.hold(mine.granted);
            slice.note_grant(mine.granted);
            self.changed.push((seat, lane));
        }
        self.report_all(seat);
        Ok((client, gpus as u8))
    }

    /// Whether there is a place for one more process of a container.
    fn has_place(&self, seat: Seat) -> bool {
        let counts = || self.containers.iter().map(|(_, it)| it.clients.len());
        let containers = self.config.containers.max(counts().count());
        let own = self.containers.get(seat).map_or(0, |it| it.clients.len());
        Quota::new(CLIENTS_MAX, containers).admits(own, counts())
    }

    /// Refunds all that a process had and forgets it.
    pub(crate) fn forget(&mut self, client: ClientId, actions: &mut Actions) {
        let Some(it) = self.clients.detach(client) else {
            return;
        };
        let Some(container) = self.containers.get_mut(it.seat) else {
            return;
        };
        container.clients.retain(|&other| other != client);
        for ((_, slice), (_, mine)) in container.slices.iter_mut().zip(it.lanes.iter()) {
            slice.waiting.retain(|growth| growth.client != client);
            slice.recall.answered(client);
            slice.give_back(mine.granted);
            slice.forget_residual(mine.residual, container.clients.is_empty());
            slice.past_launches = slice.past_launches.saturating_add(mine.claims.launches);
            slice.past_denied = slice.past_denied.saturating_add(mine.denied());
        }
        self.report_all(it.seat);
        for lane in it.lanes.lanes() {
            self.serve(it.seat, lane, actions);
        }
    }

    /// The container is about to go: nobody waits for anything any more.
    pub(crate) fn drop_waiting(&mut self, seat: Seat) {
        let Some(container) = self.containers.get_mut(seat) else {
            return;
        };
        let lanes = container.slices.lanes();
        for (_, slice) in container.slices.iter_mut() {
            slice.waiting.clear();
        }
        lanes.for_each(|lane| self.end_recall(seat, lane));
    }
}
