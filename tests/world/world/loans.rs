//! Memory limits in the world: containers grow above their caps, are asked to give back, are suspended and resumed.
//!
//! A driver moves the memory of a container's processes within a moment or within most of a minute, leaves out a
//! process, or moves nothing, as where a kernel runs for too long. Processes whose memory moves, or is on the host,
//! launch nothing. Their shims go on: they ask for memory, and answer recalls. A daemon that dies takes its move with
//! it, done or not. The next one finds a mark of each suspended container.
//!
//! Some containers give back what is wanted soon, some after a while, and some never.

use gpuslice_engine::{Action, Config, Event, Reclaim, Token};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::snapshot::{Snapshot, SuspensionState};
use gpuslice_wire::units::{Bytes, Duration, GIB, MIB};
use std::collections::BTreeMap;

use super::memory::WantedMemory;
use super::{Happening, Letter, MS, US, World};
use crate::rng::Rng;

/// The driver waits for kernels for so long before it moves a process's memory.
const LOCK_WITHIN: u64 = 5_000 * MS;
/// Of the administrator's commands: the engine does not resume what was suspended so.
const COMMAND: Token = Token(u64::MAX);

/// The file of a suspended container, as on disk.
#[derive(Clone, Copy, Debug)]
struct Mark {
    reclaimed: bool,
    moved: bool,
}

/// How a move ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Away,
    /// Away, but for a process that the driver does not know.
    Skipped,
    Back,
}

/// A move of a container's memory.
#[derive(Clone, Debug)]
struct Move {
    begun: u64,
    away: bool,
    done: Done,
    /// The processes that the driver was given.
    reached: Vec<usize>,
}

/// What is suspended, and on the way.
#[derive(Debug, Default)]
pub(super) struct Suspensions {
    moves: BTreeMap<ContainerId, Move>,
    marks: BTreeMap<ContainerId, Mark>,
}

/// The node's settings about limits, of several kinds.
pub fn config(rng: &mut Rng, config: Config) -> Config {
    let gib = |gib: u64| Bytes(gib * GIB);
    Config {
        oversubscribe: false,
        reclaim: if rng.per_mille(250) { Reclaim::Refuse } else { Reclaim::Suspend },
        reclaim_grace: Duration(rng.pick(&[0, 50, 500, 2_000]) * MS),
        suspended_memory: rng.pick(&[Bytes(u64::MAX), Bytes(u64::MAX), gib(16), gib(3)]),
        ..config
    }
}

impl World {
    /// How far a container may grow, if it is one that may.
    pub(super) fn some_limit(&mut self) -> Option<MemoryAsk> {
        let limited = self.mood.limits && self.rng.per_mille(600);
        limited.then(|| MemoryAsk::Exactly(Bytes(self.rng.pick(&[3, 5, 8, 8, 8, 16]) * GIB)))
    }

    /// The administrator changes a limit, or suspends or resumes a container.
    pub(super) fn administer_limits(&mut self) {
        let known: Vec<ContainerId> = self.records.keys().copied().collect();
        if known.is_empty() {
            return;
        }
        let container = self.rng.pick(&known);
        let lanes = self.records.get(&container).map_or(1, |it| it.lanes.len()) as u64;
        let lane = Lane(self.rng.below(lanes) as u8);
        match self.rng.below(100) {
            0..6 => {
                let limit = self.some_limit().map(WantedMemory);
                self.deliver(Letter::Relimit(container, lane, limit));
            }
            6 => self.deliver(Letter::Suspend(container)),
            7..10 => {
                let mut away = self.suspensions.marks.keys().copied();
                let container = away.next().unwrap_or(container);
                self.deliver(Letter::EndSuspension(container));
            }
            _ => {}
        }
    }

    /// The event of such a message.
    pub(super) fn open_limits(&self, letter: Letter) -> Option<Event> {
        let token = COMMAND;
        Some(match letter {
            Letter::Relimit(container, lane, limit) => {
                Event::Relimit { token, container, lane, limit: limit.map(|limit| limit.0) }
            }
            Letter::Suspend(container) => Event::Suspend { token, container },
            Letter::EndSuspension(container) => {
                // each has an answer of its own
                let token = Token(u64::MAX - self.steps);
                Event::EndSuspension { token, container }
            }
            Letter::Moved(container, away, stays) => Event::MemoryMoved { container, away, stays },
            _ => return None,
        })
    }

    /// Performs an action about limits.
    pub(super) fn act_on_limits(&mut self, action: Action) {
        match action {
            Action::Relimited { record, .. } => {
                self.records.insert(record.container, *record);
            }
            Action::Wanted { container, lane, bytes } if bytes > Bytes::ZERO => {
                self.want(container, lane, bytes.0);
            }
            Action::MoveMemory { token, container, away, .. } => {
                self.begin_move(token, container, away);
            }
            Action::SuspensionSettled { token, container, away, left, .. } => {
                let reclaimed = token == Token::NONE;
                match (away, left) {
                    (true, Bytes::ZERO) => {
                        let mark = Mark { reclaimed, moved: true };
                        self.suspensions.marks.insert(container, mark);
                    }
                    (true, _) => {}
                    (false, _) => self.thaw(container),
                }
            }
            _ => {}
        }
    }

    /// A container is told what it should give back.
    fn want(&mut self, container: ContainerId, lane: Lane, bytes: u64) {
        let text = container.as_str().as_bytes();
        let delay = match text.last().map_or(0, |last| last % 4) {
            0 | 1 => self.rng.below(20 * MS),
            2 => self.rng.range(300 * MS, 8_000 * MS),
            _ => return,
        };
        self.after(delay, Happening::GiveBack(container, lane, bytes));
    }

    /// A container's processes free memory that is wanted back.
    pub(super) fn give_back(&mut self, container: ContainerId, lane: Lane, bytes: u64) {
        let mut rest = bytes;
        for who in 0..self.processes.len() {
            let process = &mut self.processes[who];
            let acts = process.alive && process.client.is_some() && process.stalled <= self.now;
            let at = usize::from(lane.0);
            if !acts || process.container != container || at >= process.work.len() {
                continue;
            }
            if self.suspensions.marks.contains_key(&container) {
                return; // the driver holds up its calls
            }
            let purse = &mut self.processes[who].purses[at];
            let part = purse.used.min(rest);
            (purse.used, purse.granted) = (purse.used - part, purse.granted - part);
            purse.unseen = purse.unseen.min(purse.used);
            rest -= part;
            if part > 0 {
                self.post(who, Letter::Release(who, lane, part, None));
            }
        }
    }

    /// Whether a container's processes can launch nothing.
    pub(super) fn is_frozen(&self, container: &ContainerId) -> bool {
        self.suspensions.marks.contains_key(container)
    }

    fn begin_move(&mut self, token: Token, container: ContainerId, away: bool) {
        let done = match (self.rng.below(20), away) {
            (0..3, true) | (3.., false) => Done::Back,
            (18.., true) => Done::Skipped,
            _ => Done::Away,
        };
        let delay = self.rng.pick(&[0, 0, 20, 20, 300, 300, 3_000, 40_000]) * MS;
        let delay = delay + self.rng.below(MS);
        let reclaimed = match self.suspensions.marks.get(&container) {
            Some(mark) if !away => mark.reclaimed,
            _ => token == Token::NONE,
        };
        self.suspensions.marks.insert(container, Mark { reclaimed, moved: false });
        let known = |it: &&usize| {
            let process = &self.processes[**it];
            process.alive && process.container == container && process.account.is_some()
        };
        let all: Vec<usize> = (0..self.processes.len()).collect();
        let reached = all.iter().filter(known).copied().collect();
        let begun = self.now;
        self.suspensions.moves.insert(container, Move { begun, away, done, reached });
        self.after(delay, Happening::Move(self.daemon.life, container, begun));
    }

    /// The driver has moved a container's memory, or has not.
    pub(super) fn end_move(&mut self, container: ContainerId, begun: u64) {
        let Some(it) = self.suspensions.moves.get(&container).filter(|it| it.begun == begun) else {
            return;
        };
        let its = self.processes.iter().filter(|it| it.alive && it.container == container);
        let runs = its.flat_map(|it| &it.work).any(|work| work.until.is_some());
        if it.away && runs && self.now < begun + LOCK_WITHIN {
            return self.after(20 * MS, Happening::Move(self.daemon.life, container, begun));
        }
        let mut it = it.clone();
        self.suspensions.moves.remove(&container);
        if it.away && runs {
            it.done = Done::Back;
        }
        let mut its = self.processes.iter().filter(|it| it.alive && it.container == container);
        // an earlier daemon's move
        let was_away = it.away && its.any(|it| it.on_host);
        self.put(&it, &container);
        let known = self.processes.iter().filter(|it| it.alive && it.container == container);
        let stays: Vec<ClientId> =
            known.filter(|it| !it.on_host).filter_map(|it| it.account).collect();
        // of a move back that failed, the driver tells again, or the daemon does not ask
        let told = it.away || self.rng.per_mille(500);
        let away = was_away || it.done != Done::Back;
        self.deliver(Letter::Moved(container, away, told.then_some(stays)));
    }

    /// Puts the memory of a container's processes where the move has left it. A refused move to the host leaves each
    /// process's where it was.
    fn put(&mut self, it: &Move, container: &ContainerId) {
        let skipped = if it.done == Done::Skipped { it.reached.first() } else { None };
        for (who, process) in self.processes.iter_mut().enumerate() {
            if process.container != *container || !process.alive {
                continue;
            }
            match (it.away, it.done) {
                (false, Done::Back) => process.on_host = false,
                (true, Done::Back) | (false, _) => {}
                (true, _) => process.on_host |= it.reached.contains(&who) && Some(&who) != skipped,
            }
        }
    }

    /// A daemon dies in the middle of its moves: each is done, or is not.
    pub(super) fn cut_moves(&mut self) {
        for (container, it) in std::mem::take(&mut self.suspensions.moves) {
            let its = self.processes.iter().filter(|it| it.alive && it.container == container);
            let runs = its.flat_map(|it| &it.work).any(|work| work.until.is_some());
            if self.rng.per_mille(500) && !(it.away && runs) {
                self.put(&it, &container);
            }
        }
    }

    /// A container is restored: its mark says whether it was suspended.
    pub(super) fn suspend_again(&mut self, container: ContainerId) {
        let Some(Mark { reclaimed, moved }) = self.suspensions.marks.get(&container).copied()
        else {
            return;
        };
        let token = if reclaimed { Token::NONE } else { COMMAND };
        self.step(Event::WasSuspended { container, token, moved });
    }

    /// A container goes on.
    fn thaw(&mut self, container: ContainerId) {
        self.suspensions.marks.remove(&container);
        for who in 0..self.processes.len() {
            let process = &mut self.processes[who];
            if !process.alive || process.container != container {
                continue;
            }
            process.on_host = false;
            // No process could launch the rest of a collective meanwhile.
            process.collective = process.collective.map(|begun| begun.map(|_| self.now));
            for lane in 0..process.work.len() {
                let delay = self.rng.below(200 * US);
                self.after(delay, Happening::Pump(who, lane));
            }
        }
    }

    /// A container has ended.
    pub(super) fn forget_suspension(&mut self, container: &ContainerId) {
        self.suspensions.marks.remove(container);
        self.suspensions.moves.remove(container);
    }

    /// Which containers are suspended, as `ps` shows them.
    pub(super) fn suspended(&self) -> BTreeMap<ContainerId, SuspensionState> {
        let state = |row| match row {
            Snapshot::Suspension { container, state, .. } => Some((container, state)),
            _ => None,
        };
        self.daemon.engine.suspensions().filter_map(state).collect()
    }

    /// The size of a process's next allocation, if it is one of those that want much.
    pub(super) fn appetite(&mut self) -> Option<u64> {
        (self.mood.limits && self.rng.per_mille(400)).then(|| self.rng.magnitude(64 * MIB, 2 * GIB))
    }
}
