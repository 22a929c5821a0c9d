//! What always holds between two steps. Checked after every step in debug builds and tests.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::units::Bytes;

use crate::engine::Engine;
use crate::lifecycle::{Container, Seat};
use crate::sched::{Phase, Turns};

impl Engine {
    /// Checks that all books agree with each other.
    ///
    /// # Panics
    /// If they do not, with the rule that is broken; that is a bug of the engine.
    pub fn check(&self) {
        let mut listed: Vec<ClientId> = Vec::new();
        for (seat, container) in self.containers.iter() {
            self.check_memory(seat, container);
            listed.extend(&container.clients);
            assert_eq!(container.slices.len(), container.record.lanes.len());
            let waiting = container.waiting.iter();
            assert!(
                waiting
                    .clone()
                    .all(|growth| container.clients.contains(&growth.client)),
                "growth waits for a process that is gone"
            );
        }
        for (id, client) in self.clients.iter() {
            let home = self.containers.get(client.seat);
            assert!(
                home.is_some_and(|c| c.clients.contains(&id)),
                "{id:?} is of no container"
            );
        }
        assert_eq!(
            listed.len(),
            self.clients.iter().count(),
            "a process listed and not attached"
        );
        self.gpus.iter().for_each(|gpu| check_turns(&gpu.turns));
        self.rooms().iter().for_each(|room| {
            assert!(
                room.shares <= 100,
                "hard shares of GPU {} are {} %",
                room.index.0,
                room.shares
            );
        });
    }

    /// Conservation: what a slice's books say is the sum of what its processes have.
    fn check_memory(&self, seat: Seat, container: &Container) {
        for (lane, slice) in container.slices.iter().enumerate() {
            let lanes = self.lanes_of(seat, Lane(lane as u8));
            let granted = lanes.fold(0u128, |sum, lane| sum + u128::from(lane.granted.0));
            assert_eq!(
                granted,
                u128::from(slice.account.reserved().0),
                "{} lane {lane}: reserved is not the sum of what was granted",
                container.record.container
            );
            let left = slice.account.left();
            assert!(
                left == Bytes::ZERO || left.0 + slice.account.reserved().0 == slice.account.cap().0
            );
            assert!(
                self.gpus[slice.gpu].turns.find(seat).is_some(),
                "a slice without an entity"
            );
        }
    }
}

fn check_turns(turns: &Turns) {
    let odd: Vec<Seat> = turns
        .entities
        .iter()
        .filter(|e| e.turn % 2 == 1)
        .map(|entity| entity.seat)
        .collect();
    match turns.phase {
        Phase::Held { seat, .. } => assert_eq!(odd, [seat], "the turn is not the holder's alone"),
        _ => assert!(odd.is_empty(), "{odd:?} may launch in {:?}", turns.phase),
    }
    if let Phase::Closing { seat, .. } = turns.phase {
        assert!(
            turns.find(seat).is_some(),
            "a turn of nobody is being closed"
        );
    }
    for entity in &turns.entities {
        let others = turns
            .entities
            .iter()
            .filter(|other| other.seat == entity.seat)
            .count();
        assert_eq!(others, 1, "two entities of one container");
    }
}
