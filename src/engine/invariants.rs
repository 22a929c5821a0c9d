//! Invariants between two steps. Checked after every step in debug builds and tests.

use alloc::vec::Vec;
use gpuslice_wire::ids::ClientId;
use gpuslice_wire::units::Bytes;

use crate::engine::Engine;
use crate::index::ContainerIndex;
use crate::lifecycle::{Container, Stage};
use crate::sched::preempt::Preemption;
use crate::sched::{Phase, Turns};

impl Engine {
    /// Checks that all ledgers agree with each other.
    ///
    /// # Panics
    /// If they do not, with the broken rule; that is a bug of the engine.
    pub fn check(&self) {
        let mut listed: Vec<ClientId> = Vec::new();
        for (index, container) in self.containers.iter() {
            self.check_memory(index, container);
            listed.extend(&container.clients);
            assert_eq!(container.slices.gpus.len(), container.record.lanes.len());
        }
        for (id, client) in self.clients.iter() {
            let home = self.containers.get(client.index);
            assert!(home.is_some_and(|c| c.clients.contains(&id)), "{id:?} is of no container");
        }
        assert_eq!(listed.len(), self.clients.iter().count(), "a process listed and not attached");
        self.gpus.iter().for_each(|gpu| check_turns(&gpu.turns));
        self.check_gangs();
        self.check_shown();
        self.check_loans();
        self.check_deadline();
        assert!(self.knows_unfreed(), "unfreed memory that no deadline ends");
        self.capacities().iter().for_each(|capacity| {
            assert!(
                capacity.shares <= 100,
                "shares of GPU {} are {} %",
                capacity.index.0,
                capacity.shares
            );
        });
    }

    /// What was reported of each gang is what its processes claim, although a claim is reported to one GPU alone.
    fn check_gangs(&self) {
        for gang in &self.gangs {
            let container =
                self.containers.get(gang.index).expect("the end of a slice ends its gang");
            let clients = self.clients_of(gang.index).filter(|client| client.connected);
            let any = clients.flat_map(|it| &it.lanes.gpus).any(|lane| lane.claims.runnable);
            assert_eq!(gang.runnable, any, "{}: its gang", container.record.container);
        }
    }

    /// Conservation: an account is the sum of its grants and measurements. A waiting request has something
    /// to wait for, and a process that owes an answer lives.
    fn check_memory(&self, index: ContainerIndex, container: &Container) {
        for (lane, slice) in container.slices.iter() {
            let (id, account) = (container.record.container, &slice.account);
            let lanes = self.lanes_of(index, lane);
            let unattributed = u128::from(slice.unattributed.charged().0);
            let unfreed = slice.unfreed.sum();
            let beside = unattributed + u128::from(slice.hidden.0) + u128::from(unfreed.0);
            assert_eq!(
                lanes.fold(beside, |sum, lane| sum + lane.reserved()),
                account.exactly(),
                "{id} {lane:?}: reserved is not the sum of what was granted and measured"
            );
            let residual = self.lanes_of(index, lane).map(|it| it.residual.charged().0);
            assert_eq!(
                residual.map(u128::from).sum::<u128>(),
                slice.residual,
                "{id} {lane:?}: the sum of what is beyond grants is not what it was charged"
            );
            let granted = self.lanes_of(index, lane).map(|it| u128::from(it.granted.0));
            assert_eq!(
                granted.sum::<u128>(),
                slice.granted,
                "{id} {lane:?}: the sum of what was granted is not what it was granted"
            );
            let left = account.left();
            assert!(left == Bytes::ZERO || left.0 + account.reserved().0 == account.limit().0);
            assert!(account.cap() <= account.limit(), "{id} {lane:?}: a limit below the cap");
            let turns = slice.gpu.map(|gpu| &self.gpus[gpu].turns);
            assert!(
                turns.is_none_or(|turns| turns.find(index).is_some()),
                "a slice without an entity"
            );
            let on = slice.recall.is_on();
            let waiting = slice.waiting.iter().map(|growth| growth.client);
            let mut concerned = waiting.chain(slice.recall.owing().iter().copied());
            assert!(
                concerned.all(|client| container.clients.contains(&client)),
                "{id} {lane:?}: a process that is gone is waited for, or waits"
            );
            let returning = matches!(container.stage, Stage::Returning { .. });
            let first = slice.waiting.front();
            let claims = first.is_some_and(|growth| self.is_claim(index, lane, self.lacks(growth)));
            let lending = slice.gpu.map(|gpu| self.gpus[gpu].lending);
            assert!(
                !claims || lending.is_some_and(|it| it.due.is_some()),
                "{id} {lane:?}: a claim, and no reclaim"
            );
            let held = self.is_held_back(index, lane) || claims;
            let held = held || self.waits_for_resume(index, lane);
            let waits = on || returning || held || unfreed > Bytes::ZERO;
            assert!(slice.waiting.is_empty() || waits, "{id} {lane:?}: growth waits for nothing");
            let due = self.recalls.iter().filter(|it| (it.1, it.2) == (index, lane));
            assert_eq!(due.count(), usize::from(on), "{id} {lane:?}: a recall without an end");
        }
    }
}

fn check_turns(turns: &Turns) {
    let odd: Vec<ContainerIndex> =
        turns.entities.iter().filter(|e| e.turn % 2 == 1).map(|entity| entity.index).collect();
    match turns.phase {
        Phase::Held { index, .. } => assert_eq!(odd, [index], "the turn is not the holder's alone"),
        _ => assert!(odd.is_empty(), "{odd:?} may launch in {:?}", turns.phase),
    }
    if let Phase::Closing { index, .. } = turns.phase {
        assert!(turns.find(index).is_some(), "a turn without a holder is being closed");
    }
    for entity in &turns.entities {
        let account = &entity.time;
        assert_eq!(
            account.total(),
            turns.accounted_until().since(account.since),
            "a time account does not add up to the wall time"
        );
        let on = match turns.phase {
            Phase::Open => true,
            Phase::Held { index, .. } => index == entity.index,
            Phase::Idle | Phase::Closing { .. } => false,
        };
        assert!(
            !on || entity.preemption != Preemption::Stopped,
            "a container that may launch is stopped and not resumed"
        );
        let others = turns.entities.iter().filter(|other| other.index == entity.index).count();
        assert_eq!(others, 1, "two entities of one container");
    }
}
