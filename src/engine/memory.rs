//! Processes and their memory: attach, reserve, release, gone.
//!
//! A process asks for credit and gets it at once or not at all. After a restart of the daemon it
//! waits, for a moment: processes that live on hold memory the daemon does not know of yet, and
//! they are counted before anybody's growth.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, CLIENTS_PER_CONTAINER_MAX};
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions, Cut};
use crate::engine::Engine;
use crate::event::Token;
use crate::lifecycle::{Client, ClientLane, Growth, Slice, Stage};

/// Requests of one container that wait at a time; a shim's threads each have one.
const WAITING_MAX: usize = 4 * CLIENTS_PER_CONTAINER_MAX;

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
        let container = self.containers.get_mut(seat).ok_or(Rejection::NotYours)?;
        let lanes = container.slices.len();
        if container.clients.len() >= CLIENTS_PER_CONTAINER_MAX {
            return Err(Rejection::TooManyClients);
        }
        if held[lanes..].iter().any(|&bytes| bytes > Bytes::ZERO) {
            return Err(Rejection::NoSuchLane);
        }
        // Nobody holds more than a GPU has: what a process says beyond that is not even a lie
        // that could hurt its own container for ever.
        let known = |(slice, &held): (&Slice, &Bytes)| ClientLane {
            granted: held.min(self.gpus[slice.gpu].total),
            read_at: self.gpus[slice.gpu]
                .turns
                .find(seat)
                .map_or(0, |entity| entity.turn),
            ..ClientLane::default()
        };
        let lanes_now: Vec<ClientLane> = container.slices.iter().zip(held).map(known).collect();
        let granted: Vec<Bytes> = lanes_now.iter().map(|lane| lane.granted).collect();
        let client = self.clients.attach(Client {
            seat,
            lanes: lanes_now,
        });
        let client = client.ok_or(Rejection::TooManyClients)?;
        container.clients.push(client);
        for (slice, granted) in container.slices.iter_mut().zip(granted) {
            slice.account.hold(granted);
        }
        for lane in 0..lanes {
            self.report(seat, Lane(lane as u8));
        }
        Ok((client, lanes as u8))
    }

    pub(crate) fn reserve(
        &mut self,
        client: ClientId,
        token: Token,
        lane: Lane,
        need: Bytes,
        wish: Bytes,
        actions: &mut Actions,
    ) {
        let Some(it) = self.clients.get(client) else {
            return;
        };
        if usize::from(lane.0) >= it.lanes.len() {
            return self.cut(client, Rejection::NoSuchLane, actions);
        }
        let growth = Growth {
            client,
            token,
            lane,
            need,
            wish,
        };
        let now = self.now;
        if let Some(container) = self.containers.get_mut(it.seat)
            && container.stage.at(now) != Stage::Settled
            && container.waiting.len() < WAITING_MAX
        {
            return container.waiting.push(growth);
        }
        self.grow(growth, actions);
    }

    fn grow(&mut self, growth: Growth, actions: &mut Actions) {
        let Growth {
            client,
            token,
            lane,
            need,
            wish,
        } = growth;
        let at = usize::from(lane.0);
        let Some(it) = self.clients.get_mut(client) else {
            return;
        };
        let container = self.containers.get_mut(it.seat);
        let slice = container.and_then(|container| container.slices.get_mut(at));
        let (Some(mine), Some(slice)) = (it.lanes.get_mut(at), slice) else {
            return;
        };
        match slice.account.reserve(need, wish) {
            Ok(bytes) => {
                mine.granted = mine.granted.saturating_add(bytes);
                actions.push(Action::Reserved {
                    client,
                    token,
                    lane,
                    bytes,
                });
            }
            Err(left) => {
                mine.refused = mine.refused.saturating_add(1);
                slice.last_denied = (need, left);
                actions.push(Action::Refused {
                    client,
                    token,
                    lane,
                    need,
                    left,
                });
            }
        }
    }

    pub(crate) fn release(
        &mut self,
        client: ClientId,
        lane: Lane,
        bytes: Bytes,
        actions: &mut Actions,
    ) {
        let at = usize::from(lane.0);
        let Some(it) = self.clients.get_mut(client) else {
            return;
        };
        let container = self.containers.get_mut(it.seat);
        let slice = container.and_then(|container| container.slices.get_mut(at));
        match (it.lanes.get_mut(at), slice) {
            (Some(mine), Some(slice)) if bytes <= mine.granted => {
                mine.granted = mine.granted.saturating_sub(bytes);
                slice.account.release(bytes);
            }
            (Some(_), Some(_)) => self.cut(client, Rejection::Overdrawn, actions),
            _ => self.cut(client, Rejection::NoSuchLane, actions),
        }
    }

    /// Ends the connection of a process that broke a rule.
    fn cut(&mut self, client: ClientId, why: Rejection, actions: &mut Actions) {
        actions.push(Action::Disconnect {
            client,
            why: Cut::Broke(why),
        });
        self.forget(client);
    }

    /// Refunds all that a process had and forgets it.
    pub(crate) fn forget(&mut self, client: ClientId) {
        let Some(it) = self.clients.detach(client) else {
            return;
        };
        let Some(container) = self.containers.get_mut(it.seat) else {
            return;
        };
        container.clients.retain(|&other| other != client);
        container.waiting.retain(|growth| growth.client != client);
        for (slice, mine) in container.slices.iter_mut().zip(&it.lanes) {
            slice.account.release(mine.granted);
            slice.past_launches = slice.past_launches.saturating_add(mine.claims.launches);
            slice.past_denied = slice.past_denied.saturating_add(mine.denied());
        }
        for lane in 0..it.lanes.len() {
            self.report(it.seat, Lane(lane as u8));
        }
    }

    /// Answers growth that waited, where the wait is over. Whether any was.
    pub(crate) fn end_grace(&mut self, actions: &mut Actions) -> bool {
        let now = self.now;
        if self.grace.is_none_or(|until| now < until) {
            return false;
        }
        let mut due: Vec<Growth> = Vec::new();
        self.grace = None;
        for container in self.containers.iter_mut() {
            container.stage = container.stage.at(now);
            match container.stage {
                Stage::Settled => due.append(&mut container.waiting),
                Stage::Returning { until } => {
                    self.grace = Some(self.grace.map_or(until, |other| other.min(until)));
                }
            }
        }
        for growth in due {
            self.grow(growth, actions);
        }
        true
    }
}
