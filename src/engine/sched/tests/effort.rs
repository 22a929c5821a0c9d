//! The cost of a switch does not depend on the number of other containers on the node.
//!
//! The test counts the daemon's work: steps of the engine, GPUs it looks at in them, pages it writes and
//! reads.

use std::collections::VecDeque;
use std::format;
use std::vec::Vec;

use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::units::{GIB, Instant};

use crate::tests::{MS, Rig, ask};
use crate::{Action, Claims, Config, Event};

/// The counts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effort {
    turns: u64,
    steps: u64,
    looks: u64,
    written: u64,
    read: u64,
}

/// Containers that are always runnable on their one GPU, with kernels so short that they drain at once.
struct Busy {
    rig: Rig,
    each: usize,
    clients: Vec<ClientId>,
    claims: Vec<Claims>,
    to_read: VecDeque<usize>,
    seen: Effort,
}

impl Busy {
    fn new(gpus: usize, each: usize) -> Busy {
        let mut busy = Busy {
            rig: Rig::new(Config::default(), &std::vec![64; gpus]),
            each,
            clients: Vec::new(),
            claims: Vec::new(),
            to_read: VecDeque::new(),
            seen: Effort::default(),
        };
        for who in 0..gpus * each {
            let (name, gpu) = (format!("{who}"), format!("{}", who / each));
            busy.rig.admit(ask(&name, &gpu, GIB)).expect("fits");
            busy.clients.push(busy.rig.attach(&name, 0).expect("in"));
            busy.claims.push(Claims::default());
        }
        for who in 0..gpus * each {
            // GPUs that begin at different times stay apart
            busy.run(137_000);
            busy.claims[who].runnable = true;
            busy.to_read.push_back(who);
            busy.read();
        }
        busy
    }

    fn tell(&mut self, who: usize) {
        let (client, claims) = (self.clients[who], self.claims[who]);
        let lane = Lane(0);
        let looked = self.step(Event::Claims { client, lane, claims });
        assert_eq!(looked, 1 << (who / self.each), "GPUs of others were looked at");
    }

    /// The GPUs that the step looked at.
    fn step(&mut self, event: Event) -> u32 {
        self.rig.now += 1; // every instant is that of one step
        self.seen.steps += 1;
        for action in self.rig.step(event) {
            match action {
                Action::SetLane { container, view, .. } => {
                    let who: usize = container.as_str().parse().expect("a number");
                    self.seen.written += 1;
                    if view.turn % 2 == 1 && self.claims[who].active != view.turn {
                        self.seen.turns += 1;
                        (self.claims[who].active, self.claims[who].drained) =
                            (view.turn, view.turn);
                    }
                }
                Action::ReadClaims { client, .. } => {
                    self.seen.read += 1;
                    let who = self.clients.iter().position(|it| *it == client);
                    self.to_read.push_back(who.expect("a process"));
                }
                other => panic!("{other:?} was not ordered"),
            }
        }
        let gpus = self.rig.engine.gpus.iter().enumerate();
        let looked = gpus.filter(|(_, gpu)| gpu.turns.now == Instant(self.rig.now));
        let looked = looked.fold(0u32, |all, (at, _)| all | 1 << at);
        self.seen.looks += u64::from(looked.count_ones());
        looked
    }

    fn run(&mut self, length: u64) {
        let end = self.rig.now + length;
        while let Some(due) = self.rig.engine.next_deadline().filter(|due| due.0 < end) {
            self.rig.now = self.rig.now.max(due.0);
            self.step(Event::Tick);
            self.read();
        }
        self.rig.now = self.rig.now.max(end);
    }

    fn read(&mut self) {
        while let Some(who) = self.to_read.pop_front() {
            self.tell(who);
        }
    }
}

#[test]
fn a_switch_costs_the_same_for_any_number_of_containers() {
    for (gpus, each) in [(1, 2), (1, 8), (8, 8), (16, 16)] {
        let mut busy = Busy::new(gpus, each);
        busy.run(100 * MS);
        busy.seen = Effort::default();
        busy.run(400 * MS);
        let Effort { turns, .. } = busy.seen;
        // each turn is closed by the clock and read, which grants the next one
        let due =
            Effort { turns, steps: 2 * turns, looks: 2 * turns, written: 2 * turns, read: turns };
        let seen = &busy.seen;
        assert!(turns >= 90 * gpus as u64 / 2, "{gpus} x {each}: {seen:?}");
        let off = [
            seen.steps.abs_diff(due.steps),
            seen.looks.abs_diff(due.looks),
            seen.written.abs_diff(due.written),
            seen.read.abs_diff(due.read),
        ];
        // turns under way at either end
        let ends = 4 * gpus as u64;
        assert!(off.iter().all(|off| *off <= ends), "{gpus} x {each}: {seen:?}");
    }
}
