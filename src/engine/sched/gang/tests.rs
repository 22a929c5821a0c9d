//! All orders of events for three gangs on three GPUs.
//!
//! The model is of the programs: each gang runs one collective after the other, which ends when all its
//! GPUs have launched their part. The next event is any of: a gang begins or ceases to be runnable, one of
//! its GPUs launches, one of its GPUs reports that it has drained, the engine's next deadline is reached.
//! The search is breadth first and visits each state once. Two states are equal if all their discrete parts
//! are: phases, which gangs are runnable, running, drained and called, and their order. Virtual times and
//! clocks are not compared.
//!
//! In every state the engine's own invariant allows one holder per GPU, and the test checks all or none.
//! From every state, a run in which programs do what they can must end a collective of every gang.

mod calls;
mod node;
mod parts;
mod steps;

use std::collections::{HashSet, VecDeque};
use std::format;
use std::vec::Vec;

use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::units::{GIB, Instant};

use super::super::Phase;
use super::super::entity::{Entity, Report};
use super::{EXTEND, GpuSet};
use crate::tests::{Rig, ask, id};
use crate::{Action, Claims, Config, Event, Late, Mode, SliceRequest, Token};

/// Number of states visited, those with the shortest paths first, unless `GANG_STATES` is set.
const STATES: usize = 8_000;
/// From any state every gang has ended a collective this much later: two may have to overrun, and then wait
/// until the others had as much.
const PATIENCE: u64 = 4 * 2_000_000_000;

fn ms(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Want(usize),
    Launch(usize, usize),
    Quiet(usize, usize),
    Time,
}

/// A program's part on one GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Fraction {
    open: bool,
    turn: u32,
    runs: bool,
    claims: Claims,
}

/// A container, its GPUs, and one process.
#[derive(Clone)]
struct Program {
    client: ClientId,
    gpus: Vec<usize>,
    parts: Vec<Fraction>,
    ended: u32,
}

#[derive(Clone)]
struct Node {
    rig: Rig,
    programs: Vec<Program>,
}

impl Node {
    fn new(sets: &[&[usize]]) -> Node {
        let mut rig = Rig::new(Config::default(), &[16, 16, 16]);
        let mut programs = Vec::new();
        for (n, gpus) in sets.iter().enumerate() {
            let name = format!("{n}");
            let list: Vec<_> = gpus.iter().map(|gpu| format!("{gpu}")).collect();
            rig.admit(ask(&name, &list.join(","), GIB)).expect("fits");
            programs.push(Program {
                client: rig.attach(&name, 0).expect("in"),
                gpus: gpus.to_vec(),
                parts: std::vec![Fraction { open: true, ..Fraction::default() }; gpus.len()],
                ended: 0,
            });
        }
        let mut node = Node { rig, programs };
        // all have been runnable on all their GPUs before
        for want in [true, false] {
            for (who, gpus) in sets.iter().enumerate() {
                for part in 0..gpus.len() {
                    node.programs[who].parts[part].claims.runnable = want;
                    node.read(who, part);
                }
            }
        }
        (0..sets.len()).for_each(|who| node.drain_all(who));
        node
    }

    /// Gives the engine the content of a page, and performs its actions.
    fn read(&mut self, who: usize, part: usize) {
        let claims = self.programs[who].parts[part].claims;
        let client = self.programs[who].client;
        let lane = Lane(part as u8);
        self.step(Event::Claims { client, lane, claims });
    }

    fn step(&mut self, event: Event) {
        let mut read = Vec::new();
        for action in self.rig.step(event) {
            match action {
                Action::SetLane { container, lane, view } if lane != Lane::HOST => {
                    let who: usize = container.as_str().parse().expect("a number");
                    let part = &mut self.programs[who].parts[usize::from(lane.0)];
                    (part.open, part.turn) = (view.mode == Mode::Open, view.turn);
                }
                Action::ReadClaims { client, lane } => {
                    let who = self.programs.iter().position(|it| it.client == client);
                    read.push((who.expect("a process"), usize::from(lane.0)));
                }
                _ => {}
            }
        }
        self.all_or_none();
        read.into_iter().for_each(|(who, part)| self.read(who, part));
    }

    fn all_or_none(&self) {
        for program in &self.programs {
            let gated = program.parts.iter().filter(|part| !part.open);
            let (mut odd, mut even) = (0, 0);
            gated.for_each(|part| *(if part.turn % 2 == 1 { &mut odd } else { &mut even }) += 1);
            assert!(odd == 0 || even == 0, "{:?} has a part of its turn", program.gpus);
        }
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.rig.engine.next_deadline().is_some() {
            moves.push(Move::Time);
        }
        for (who, program) in self.programs.iter().enumerate() {
            if program.parts.iter().all(|part| !part.runs) {
                moves.push(Move::Want(who));
            }
            for part in 0..program.parts.len() {
                if self.may_launch(who, part) {
                    moves.push(Move::Launch(who, part));
                }
                if self.owes(who, part) {
                    moves.push(Move::Quiet(who, part));
                }
            }
        }
        moves
    }

    fn may_launch(&self, who: usize, part: usize) -> bool {
        let runnable = self.programs[who].parts[0].claims.runnable;
        let part = &self.programs[who].parts[part];
        runnable && !part.runs && (part.open || part.turn % 2 == 1)
    }

    /// Not reported to have drained, although it has, and its turn is over.
    fn owes(&self, who: usize, part: usize) -> bool {
        let part = &self.programs[who].parts[part];
        let over = part.claims.active != part.turn;
        !part.runs && over && part.claims.active != part.claims.drained
    }

    fn make(&mut self, which: Move) {
        match which {
            Move::Time => {
                let due = self.rig.engine.next_deadline().expect("one");
                self.rig.now = self.rig.now.max(due.0);
                self.step(Event::Tick);
            }
            Move::Want(who) => {
                let want = &mut self.programs[who].parts[0].claims.runnable;
                *want = !*want;
                self.read(who, 0);
            }
            Move::Quiet(who, part) => {
                let claims = &mut self.programs[who].parts[part].claims;
                claims.drained = claims.active;
                self.read(who, part);
            }
            Move::Launch(who, part) => self.launch(who, part),
        }
    }

    fn launch(&mut self, who: usize, part: usize) {
        let program = &mut self.programs[who];
        let part = &mut program.parts[part];
        part.runs = true;
        if !part.open {
            part.claims.active = part.turn;
            part.claims.drained = part.claims.drained.min(part.turn.wrapping_sub(1));
        } else {
            // launched without turns: counts as in flight
            part.claims.drained = part.claims.active.wrapping_sub(1);
        }
        if program.parts.iter().all(|part| part.runs) {
            program.parts.iter_mut().for_each(|part| part.runs = false);
            program.ended += 1;
        }
    }

    fn drain_all(&mut self, who: usize) {
        for part in 0..self.programs[who].parts.len() {
            if self.owes(who, part) {
                self.make(Move::Quiet(who, part));
            }
        }
    }

    /// The discrete part of a state.
    fn key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        let engine = &self.rig.engine;
        for gpu in &engine.gpus {
            let turns = &gpu.turns;
            let (phase, on) = match turns.phase {
                Phase::Open => (0, 9),
                Phase::Idle => (1, 9),
                Phase::Held { index, guard, .. } => (2 + u8::from(guard.is_some()), index.0 as u8),
                Phase::Closing { index, reported, .. } => (4 + u8::from(reported), index.0 as u8),
            };
            key.extend([phase, on]);
            for entity in &turns.entities {
                let reported = entity.reported;
                let flags = [
                    reported.runnable,
                    reported.drained,
                    entity.overrun.is_some(),
                    entity.untracked.is_some(),
                    entity.gang.is_some_and(|it| it.called),
                    entity.gang.is_some_and(|it| it.extended.is_some()),
                ];
                key.push(flags.iter().fold(0, |all, flag| all << 1 | u8::from(*flag)));
                let before =
                    turns.entities.iter().filter(|it| turns.position(it) < turns.position(entity));
                key.push(before.count() as u8);
            }
        }
        for gang in &engine.gangs {
            let before = engine.gangs.iter().filter(|other| other.ready < gang.ready);
            key.extend([u8::from(gang.ready.is_some()), before.count() as u8]);
        }
        for part in self.programs.iter().flat_map(|program| &program.parts) {
            key.push(u8::from(part.runs) | u8::from(part.claims.active == part.turn) << 1);
        }
        key
    }

    /// All programs are runnable and do what they can: every gang ends a collective.
    fn goes_on(mut self, trail: &[Move]) {
        let end = self.rig.now + PATIENCE;
        for who in 0..self.programs.len() {
            self.programs[who].ended = 0;
            if !self.programs[who].parts[0].claims.runnable {
                self.make(Move::Want(who));
            }
        }
        while self.programs.iter().any(|program| program.ended == 0) {
            // twice: the drain of one may begin the turn of one before it
            for who in (0..self.programs.len()).chain(0..self.programs.len()) {
                for part in 0..self.programs[who].parts.len() {
                    if self.may_launch(who, part) {
                        self.make(Move::Launch(who, part));
                    }
                }
                self.drain_all(who);
            }
            let stuck = self.rig.engine.next_deadline().is_none() || self.rig.now > end;
            let ended: Vec<u32> = self.programs.iter().map(|program| program.ended).collect();
            assert!(!stuck, "no progress, ended {ended:?} after {trail:?}");
            self.make(Move::Time);
        }
    }
}

fn explore(sets: &[&[usize]]) {
    let most = std::env::var("GANG_STATES").ok();
    let most = most.map_or(STATES, |text| text.parse().expect("a number"));
    let start = Node::new(sets);
    let mut seen = HashSet::from([start.key()]);
    let mut queue = VecDeque::from([(start, Vec::new())]);
    while let Some((node, trail)) = queue.pop_front() {
        node.clone().goes_on(&trail);
        for which in node.moves() {
            let mut next = node.clone();
            next.make(which);
            if seen.len() < most && seen.insert(next.key()) {
                let mut trail = trail.clone();
                trail.push(which);
                queue.push_back((next, trail));
            }
        }
    }
    std::eprintln!("{sets:?}: {} states", seen.len());
    assert!(seen.len() >= most.min(STATES), "the states are fewer: {}", seen.len());
}

#[test]
fn three_gangs_of_two_gpus_each_always_go_on() {
    explore(&[&[0, 1], &[1, 2], &[0, 2]]);
}

#[test]
fn two_gangs_within_a_larger_one_always_go_on() {
    explore(&[&[0, 1, 2], &[0, 1], &[1, 2]]);
}

#[test]
fn a_gang_and_two_of_one_gpu_always_go_on() {
    explore(&[&[0, 1, 2], &[0], &[2]]);
}

/// Half of a collective runs, and its other half never comes: the turn is extended after 20 ms, then after twice as
/// long each time, and 2 s after the first close others go on.
#[test]
fn half_a_collective_extends_its_turn_ever_later_and_overruns() {
    let mut node = Node::new(&[&[0, 1], &[0], &[1]]);
    (0..3).for_each(|who| node.make(Move::Want(who)));
    let holds = |node: &Node| node.may_launch(0, 0) && node.may_launch(0, 1);
    while !holds(&node) {
        (1..3).for_each(|who| node.drain_all(who));
        node.make(Move::Time);
    }
    node.launch(0, 0);
    let (mut closes, mut extensions) = (Vec::new(), Vec::new());
    while !node.may_launch(1, 0) {
        let (now, open) = (node.rig.now, node.may_launch(0, 1));
        match (open, closes.len() > extensions.len()) {
            (false, false) => closes.push(now),
            (true, true) => extensions.push(now - closes[extensions.len()]),
            _ => {}
        }
        node.make(Move::Time);
    }
    let ms: Vec<u64> = extensions.iter().map(|ns| ns / 1_000_000).collect();
    assert_eq!(ms, [20, 40, 80, 160, 320, 640]);
    assert_eq!(node.rig.now - closes[0], 2_000_000_000, "others go on");
}

/// How long after its end a gang's turn is extended, while the gang has work in flight on the GPUs of `busy` and no
/// decision has been taken since the reports of the others.
fn extended_after(busy: GpuSet) -> Option<u64> {
    let mut node = Node::new(&[&[0, 1], &[0], &[1]]);
    (0..3).for_each(|who| node.make(Move::Want(who)));
    while !node.may_launch(0, 0) {
        (1..3).for_each(|who| node.drain_all(who));
        node.make(Move::Time);
    }
    (0..2).for_each(|part| node.launch(0, part));
    while node.may_launch(0, 0) {
        node.make(Move::Time);
    }
    let (engine, closed) = (&mut node.rig.engine, node.rig.now);
    for at in (0..2).filter(|at| busy & (1 << at) == 0) {
        let turns = &mut engine.gpus[at].turns;
        let Entity { index, reported, .. } = turns.entities[0];
        turns.report(index, Report { drained: true, ..reported });
    }
    let tied = super::Node { gpus: &mut engine.gpus, gangs: &mut engine.gangs, tied: 0b11 };
    tied.extend_at(0).map(|at| at.0 - closed)
}

/// Work that runs on all GPUs of a gang waits for no launch, and where none runs any more, there is nothing to end.
#[test]
fn a_turn_is_extended_where_one_gpu_has_work_and_another_has_none() {
    let extended = [0b11, 0b01, 0b10, 0b00].map(extended_after);
    assert_eq!(extended, [None, Some(EXTEND.0), Some(EXTEND.0), None]);
}

/// The turn of a gang whose collective was cut in two was extended, and the clock jumps over its end: its
/// processes are read before others run beside it.
#[test]
fn a_clock_that_jumps_passes_no_gang_unread() {
    let mut node = Node::new(&[&[0, 1], &[0], &[1]]);
    (0..3).for_each(|who| node.make(Move::Want(who)));
    let holds = |node: &Node| node.may_launch(0, 0) && node.may_launch(0, 1);
    let until = |node: &mut Node, what: &dyn Fn(&Node) -> bool| {
        for _ in 0..1_000 {
            if what(node) {
                return;
            }
            (1..3).for_each(|who| node.drain_all(who));
            node.make(Move::Time);
        }
        panic!("it never comes");
    };
    until(&mut node, &holds);
    node.launch(0, 0);
    node.drain_all(0);
    let extended = |node: &Node| {
        let turns = &node.rig.engine.gpus[0].turns;
        let gang = turns.entities.iter().find_map(|entity| entity.gang);
        gang.is_some_and(|gang| gang.extended.is_some()) && node.may_launch(0, 1)
    };
    until(&mut node, &extended);
    node.launch(0, 1);
    assert_eq!(node.programs[0].ended, 1);
    for part in 0..2 {
        let claims = &mut node.programs[0].parts[part].claims;
        claims.drained = claims.active; // and the daemon does not know yet
    }
    node.rig.now += 3_000_000_000;
    let overran = |actions: &[Action]| {
        let overran_now =
            |action: &Action| matches!(action, Action::Late { stage: Late::Overrun, .. });
        actions.iter().any(overran_now)
    };
    let actions = node.rig.step(Event::Tick);
    assert!(!overran(&actions), "{actions:?}");
    for part in 0..2u8 {
        let (client, lane) = (node.programs[0].client, Lane(part));
        let claims = node.programs[0].parts[usize::from(part)].claims;
        let actions = node.rig.step(Event::Claims { client, lane, claims });
        assert!(!overran(&actions), "{actions:?}");
    }
}

/// A process reports that it is runnable on a lane, or not, and that turn 0 has drained, if `drained` is 0.
fn claim(rig: &mut Rig, client: ClientId, lane: u8, runnable: bool, drained: u32) -> Vec<Action> {
    let claims = Claims { runnable, drained, ..Claims::default() };
    let lane = Lane(lane);
    rig.step(Event::Claims { client, lane, claims })
}

/// A high-priority container has untracked work and becomes runnable. A gang below it waits with a guard
/// turn that is due, which would end a turn of the container at once: the container gets no turn, and
/// drains.
#[test]
fn no_turn_ends_for_a_gangs_guard_turn_in_the_step_that_grants_it() {
    let mut rig = Rig::new(Config::default(), &[16, 16]);
    let policy = |rig: &mut Rig, policy| {
        let (token, gpus) = (Token(9), GpuSelector::All);
        rig.step(Event::SetPolicy { token, gpus: gpus.into(), policy });
    };
    policy(&mut rig, Policy::Native);
    rig.admit(ask("a", "0,1", GIB)).expect("fits");
    let high = ask("b", "0", GIB);
    let class = Class::High;
    rig.admit(SliceRequest { class, ..high }).expect("fits");
    let [gang, high] = ["a", "b"].map(|name| rig.attach(name, 0).expect("in"));
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, true, 0));
    policy(&mut rig, Policy::Soft);
    let busy = u32::MAX;
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, true, 0));
    claim(&mut rig, high, 0, false, busy);
    let words = |rig: &Rig| {
        let entities = &rig.engine.gpus[0].turns.entities;
        [entities[0].turn, entities[1].turn]
    };
    let before = words(&rig);
    assert_eq!(before.map(|word| word % 2), [0, 0]);
    rig.now += 30_000_000;
    claim(&mut rig, high, 0, true, busy);
    assert_eq!(words(&rig), before);
    claim(&mut rig, high, 0, true, 0);
    assert_eq!(words(&rig), [before[0] + 1, before[1]]);
}

/// Work that was stopped before its container became a gang resumes in the gang's turn. While it does, the
/// processes of the gang stop being runnable: an extended turn would be closed in the step that grants it.
#[test]
fn no_turn_is_extended_that_no_process_wants() {
    let config = Config { stop: true, ..Config::default() };
    let mut rig = Rig::new(config, &[16, 16]);
    rig.admit(ask("a", "0,1", GIB)).expect("fits");
    rig.admit(ask("b", "1", GIB)).expect("fits");
    rig.admit(ask("c", "0", GIB)).expect("fits");
    let [gang, single, other] = ["a", "b", "c"].map(|name| rig.attach(name, 0).expect("in"));
    let (container, lane, busy) = (id("a"), Lane(1), u32::MAX);
    claim(&mut rig, gang, 1, true, busy);
    claim(&mut rig, single, 0, true, 0);
    let stops = |actions: Vec<Action>| {
        let stop = |it: &Action| matches!(it, Action::Stop { .. });
        actions.iter().any(stop)
    };
    let stopped = (0..100).any(|_| {
        rig.now += 10_000_000;
        stops(claim(&mut rig, gang, 1, true, busy)) || stops(rig.step(Event::Tick))
    });
    assert!(stopped, "its late work is stopped");
    let ok = true;
    rig.step(Event::Stopped { container, lane, order: 1, ok });
    claim(&mut rig, single, 0, false, 0);
    claim(&mut rig, other, 0, true, 0);
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, true, busy));
    claim(&mut rig, gang, 0, true, 0);
    claim(&mut rig, other, 0, true, 0);
    rig.now += 50_000_000;
    claim(&mut rig, other, 0, true, 0);
    rig.step(Event::Tick);
    claim(&mut rig, other, 0, true, 0);
    let words = |rig: &Rig| [0, 1].map(|gpu| rig.engine.gpus[gpu].turns.entities[0].turn);
    let granted = words(&rig);
    assert_eq!(granted[1] % 2, 1, "it has its turn, in which its work resumes");
    claim(&mut rig, single, 0, true, 0);
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, false, busy));
    let closed = words(&rig);
    assert_eq!(closed[1] % 2, 0);
    for _ in 0..20 {
        rig.now += 5_000_000;
        rig.step(Event::Tick);
    }
    assert_eq!(words(&rig), closed, "no turn of no time");
}

/// A process that rings reports on all of its GPUs. If each of these reports touched all of them, a ring would cost as
/// much as the square of their number.
#[test]
fn a_report_touches_its_gpu_alone_unless_it_makes_a_gang() {
    let mut rig = Rig::new(Config::default(), &[16, 16, 16]);
    rig.admit(ask("a", "0,1,2", GIB)).expect("fits");
    let client = rig.attach("a", 0).expect("attached");
    let concerned = |rig: &Rig, lane, runnable| {
        let claims = Claims { runnable, ..Claims::default() };
        rig.engine.concerned(&Event::Claims { client, lane: Lane(lane), claims })
    };
    assert_eq!(concerned(&rig, 1, false), 0b010);
    assert_eq!(concerned(&rig, 1, true), 0b111, "it may become a gang");
    claim(&mut rig, client, 1, true, 0);
    assert_eq!(concerned(&rig, 1, true), 0b010);
    assert!(rig.engine.gangs.is_empty());
    claim(&mut rig, client, 2, true, 0);
    assert_eq!(concerned(&rig, 2, true), 0b100);
    assert_eq!(rig.engine.gangs[0].gpus, 0b110);
    for (lane, runnable, any) in
        [(1, false, true), (2, false, false), (0, false, false), (2, true, true)]
    {
        claim(&mut rig, client, lane, runnable, 0);
        assert_eq!(rig.engine.gangs[0].runnable, any, "{lane} {runnable}");
        let reported = rig.engine.gpus[1].turns.entities[0].reported;
        assert_eq!(reported.runnable, any, "the other one of the gang, {lane} {runnable}");
    }
}
