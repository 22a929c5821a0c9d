//! Attaching processes, with the memory they hold if they were attached before.
//!
//! A process that lost its connection claims in its next one how much it holds. It is believed as far as
//! its account goes, which it takes over. If it claims less, the rest is released: it would have given that
//! back. A claim beyond the account was never granted: the process is rejected, and its account stays.
//!
//! Only a daemon that restarted without knowing all grants believes more, as it has nothing else to rebuild the
//! ledger from: as far as all grants of the container together stay within the cap. After the time in which
//! processes attach again, such a claim must fit below the cap beside what was measured, as any growth must.
//!
//! The account follows from the process that the kernel names, never from a claim of its own. A process
//! that claims to hold nothing begins anew, as a program does that replaced another in its process. Its old
//! connection may still seem open, because a child process inherited it.
//!
//! A process can have several accounts: a driver that is loaded twice loads our library twice, each with a
//! connection and a ledger of its own. So it takes over one account only, the smallest that covers its
//! claim. Its own covers that, so the rest covers what the other copies have, in whatever order they attach
//! again. Only where none covers the claim, it takes over all. While processes attach again after a restart of the
//! daemon, a connection that holds nothing takes over no account that holds something: it may be another copy's. At the
//! end of that time such an account ends: its program was replaced, or its memory was given back just before. Where no
//! connection began anew, the account stays: its copy may only be late.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, CLIENTS_MAX, LANES_MAX};
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions, Cut};
use crate::engine::Engine;
use crate::event::{Process, Token};
use crate::index::ContainerIndex;
use crate::lifecycle::{Client, ClientLane, Stage};
use crate::quota::Quota;

/// Bytes a process claims to hold.
type Held = [Bytes; ACCOUNTS_MAX];

impl Engine {
    pub(crate) fn attach(
        &mut self,
        token: Token,
        id: ContainerId,
        process: Option<Process>,
        held: &Held,
        actions: &mut Actions,
    ) {
        match self.try_attach(id, process, held, actions) {
            Ok((client, index, lanes)) => {
                actions.push(Action::Attached { token, client, container: id, lanes });
                self.serve_all(index, actions);
            }
            Err(why) => actions.push(Action::Rejected { token, why }),
        }
    }

    fn try_attach(
        &mut self,
        id: ContainerId,
        process: Option<Process>,
        held: &Held,
        actions: &mut Actions,
    ) -> Result<(ClientId, ContainerIndex, u8), Rejection> {
        let index = self.containers.find(id).ok_or(Rejection::NotYours)?;
        let former = self.former(index, process, held);
        if former.is_empty() && !self.has_place(index) {
            return Err(Rejection::TooManyClients);
        }
        let container = self.containers.get(index).ok_or(Rejection::NotYours)?;
        let gpus = container.slices.gpus.len();
        if held[gpus..LANES_MAX].iter().any(|&it| it > Bytes::ZERO) {
            return Err(Rejection::NoSuchLane);
        }
        let rebuilding = self.must_wait(index);
        let believed = container.slices.iter().all(|(lane, slice)| {
            let more = held[usize::from(lane.0)].saturating_sub(self.granted(&former, lane));
            // What was given back while it is suspended still counts, and may not be claimed again.
            let given_back = self.kept(index, lane).saturating_sub(slice.account.reserved());
            let left = slice.left_to_claims(rebuilding).saturating_sub(given_back);
            more == Bytes::ZERO || !container.complete && more <= left
        });
        if !believed {
            return Err(Rejection::Overdrawn);
        }
        let client = self.enter(index, process, &former, held, actions);
        let client = client.ok_or(Rejection::TooManyClients)?;
        Ok((client, index, gpus as u8))
    }

    /// The accounts that a process takes over with its claim.
    fn former(
        &self,
        index: ContainerIndex,
        process: Option<Process>,
        held: &Held,
    ) -> Vec<ClientId> {
        let Some(container) = self.containers.get(index) else {
            return Vec::new();
        };
        let of = |connected| {
            let its = container.clients.iter().copied();
            its.filter(move |id: &ClientId| {
                let client = self.clients.get(*id).filter(|_| process.is_some());
                client.is_some_and(|it| it.process == process && it.connected == connected)
            })
        };
        let mut all: Vec<ClientId> = of(false).collect();
        if held.iter().all(|&bytes| bytes == Bytes::ZERO) {
            // The other copy of the library may be the one that holds it, and has yet to attach again.
            if container.stage != Stage::Settled {
                all.retain(|id| self.clients.get(*id).is_some_and(|it| !it.holds()));
            }
            return all;
        }
        // An account that may be incomplete may belong to another copy.
        all.extend(of(true).filter(|_| container.complete));
        let lanes = || (0..ACCOUNTS_MAX as u8).map(Lane);
        let granted = |id: ClientId, lane| self.granted(&[id], lane);
        let covers =
            |id: &ClientId| lanes().all(|lane| held[usize::from(lane.0)] <= granted(*id, lane));
        let sum =
            |id: &ClientId| -> u128 { lanes().map(|lane| u128::from(granted(*id, lane).0)).sum() };
        let least = all.iter().copied().filter(covers).min_by_key(sum);
        least.map_or(all, |one| Vec::from([one]))
    }

    /// Whether a process has an account without a connection.
    fn has_apart(&self, index: ContainerIndex, process: Option<Process>) -> bool {
        let mut apart = self.clients_of(index).filter(|it| !it.connected);
        process.is_some() && apart.any(|it| it.process == process)
    }

    /// The sum of processes' grants on one lane.
    fn granted(&self, clients: &[ClientId], lane: Lane) -> Bytes {
        let clients = clients.iter().filter_map(|&id| self.clients.get(id));
        let lanes = clients.filter_map(|client| client.lanes.get(lane));
        lanes.fold(Bytes::ZERO, |sum, mine| sum.saturating_add(mine.granted))
    }

    /// Creates a process's account, in place of the `former` ones.
    fn enter(
        &mut self,
        index: ContainerIndex,
        process: Option<Process>,
        former: &[ClientId],
        held: &Held,
        actions: &mut Actions,
    ) -> Option<ClientId> {
        let former: Vec<Client> = former
            .iter()
            .filter_map(|&client| {
                let why = Cut::Over;
                actions.push(Action::Disconnect { client, why });
                let container = self.containers.get_mut(index)?;
                container.clients.retain(|&other| other != client);
                container.end_requests(client);
                self.clients.detach(client)
            })
            .collect();
        let holds_nothing = held.iter().all(|&bytes| bytes == Bytes::ZERO);
        let anew = self.config.sees_devices && holds_nothing;
        // It goes on with an account that began anew, beside the one that was not taken over.
        let goes_on_anew = former.iter().any(|it| it.began_anew);
        let began_anew = goes_on_anew || holds_nothing && self.has_apart(index, process);
        let is_suspended = self.is_suspended(index);
        let (gpus, now) = (&self.gpus, self.now);
        let container = self.containers.get_mut(index)?;
        let held_of = |lane: Lane| held[usize::from(lane.0)];
        for (lane, slice) in container.slices.iter_mut() {
            let lanes = former.iter().filter_map(|it| it.lanes.get(lane));
            let was: u128 = lanes.clone().map(|mine| u128::from(mine.granted.0)).sum();
            for (n, mine) in lanes.enumerate() {
                slice.count_past(mine);
                slice.uncover(mine);
                if n > 0 {
                    slice.forget_residual(mine.residual, false);
                }
            }
            slice.regrant(was, held_of(lane));
            if anew && slice.gpu.is_some() {
                slice.end(now, was); // of the program that this one replaced
                self.has_unfreed = true;
            }
        }
        let lanes = container.slices.map(|lane, slice| {
            let gpu = slice.gpu.map(|gpu| &gpus[gpu]);
            let entity = gpu.and_then(|gpu| gpu.turns.find(index));
            let before = former.first().and_then(|it| it.lanes.get(lane));
            let mut mine = before.map_or(ClientLane::default(), ClientLane::go_on);
            mine.take_over(held_of(lane));
            if is_suspended && gpu.is_some() {
                let lanes = former.iter().filter_map(|it| it.lanes.get(lane));
                mine.moved = lanes.map(ClientLane::kept).sum();
            }
            mine.read_at = entity.map_or(0, |entity| entity.turn);
            mine.order = entity.map_or(0, |entity| entity.order);
            mine
        });
        let (connected, told) = (true, false);
        let client = Client { index, process, connected, began_anew, told, lanes };
        let client = self.clients.attach(client)?;
        container.clients.push(client);
        Some(client)
    }

    /// Whether one more process of a container can attach.
    fn has_place(&self, index: ContainerIndex) -> bool {
        let counts = || self.containers.iter().map(|(_, it)| it.clients.len());
        let containers = self.config.containers.max(counts().count());
        let own = self.containers.get(index).map_or(0, |it| it.clients.len());
        Quota::new(CLIENTS_MAX, containers).admits(own, counts())
    }
}
