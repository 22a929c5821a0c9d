//! Promises beside loans, in every schedule that random walks meet.
//!
//! Containers with caps that fit together, and some with limits above them, take and free memory at random. Borrowers
//! answer recalls, or do not; processes of suspended containers go on asking. The driver moves memory at once, late, or
//! not at all, or without a process that it does not know, and an administrator changes caps and limits, suspends and
//! resumes. The daemon is killed at any moment, also in the middle of a move, and the next one knows what is on disk.
//! An account of their own, from the answers alone, judges four promises:
//! * what is granted, and is not on the host, fits on the GPU;
//! * a request within a cap is granted or refused within the bound, and never refused before the grace;
//! * nothing is lent while one waits;
//! * a suspended container is granted nothing.

use std::collections::BTreeMap;

use super::*;
use crate::tests::{Random, attached, holds};
use crate::{Process, Record};

/// Containers by name: cap, limit and class, GiB. The caps are 15 of 16 GiB.
const CONTAINERS: [(&str, u64, u64, Class); 4] = [
    ("a", 3, 16, Class::BestEffort),
    ("b", 4, 10, Class::High),
    ("c", 4, 4, Class::Normal),
    ("d", 4, 12, Class::Normal),
];
const GPU: u64 = 16 * GIB;
/// Bytes are asked for in such parts.
const PART: u64 = GIB / 4;

/// A request without an answer yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    need: u64,
    since: u64,
    /// It was within the cap when it was made.
    is_claim: bool,
    /// Its container's memory was moved meanwhile, or its cap was changed: no promise is made of it.
    moved: bool,
}

/// The words of the file of a suspended container.
#[derive(Clone, Copy, Debug)]
struct Mark {
    reclaimed: bool,
    moved: bool,
}

/// One container and its only process.
#[derive(Debug)]
struct Tenant {
    name: &'static str,
    cap: u64,
    limit: u64,
    client: ClientId,
    granted: u64,
    pending: Option<Pending>,
    /// Its memory is on the host.
    away: bool,
    /// Its processes are stopped, since its memory moves or is on the host.
    frozen: bool,
    recall: u32,
    /// What the daemon has on disk: its record, and of its suspension.
    record: Record,
    mark: Option<Mark>,
}

/// How a move ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Away,
    /// Away, but for a process that the driver did not move.
    Skipped,
    Back,
}

struct Walk {
    rig: Rig,
    random: Random,
    config: Config,
    tenants: Vec<Tenant>,
    /// Moves of memory that the driver has not done: when it answers, whose, and how they end.
    moves: Vec<(u64, &'static str, Done)>,
    /// How often each kind of answer and of move was met: walks that meet none show nothing.
    met: BTreeMap<&'static str, u32>,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut random = Random(seed);
        let reclaim = if random.below(4) == 0 { Reclaim::Refuse } else { Reclaim::Suspend };
        let reclaim_grace = Duration([0, 1_000, 5_000][random.below(3) as usize] * MS);
        let config = Config { reclaim, reclaim_grace, ..Config::default() };
        let mut rig = Rig::new(config, &[16]);
        let mut tenant = |(name, cap, limit, class)| {
            let ask = SliceRequest { class, ..limited(name, cap, limit) };
            let record = rig.admit(ask).expect("fits");
            let client = rig.attach(name, 0).expect("attaches");
            Tenant {
                name,
                cap: cap * GIB,
                limit: limit * GIB,
                client,
                granted: 0,
                pending: None,
                away: false,
                frozen: false,
                recall: 0,
                record,
                mark: None,
            }
        };
        let tenants = CONTAINERS.map(&mut tenant).into();
        Walk { rig, random, config, tenants, moves: Vec::new(), met: BTreeMap::new() }
    }

    fn step(&mut self, event: Event) {
        let mut actions = std::collections::VecDeque::from(self.rig.step(event));
        for it in &mut self.tenants {
            let index = self.rig.engine.containers.find(id(it.name));
            if index.is_some_and(|index| self.rig.engine.is_suspended(index)) {
                // It waits for the resume from now on.
                it.pending.iter_mut().for_each(|asked| asked.moved = true);
            }
        }
        while let Some(action) = actions.pop_front() {
            if let Some(answer) = self.action(&action) {
                actions.extend(self.rig.step(answer));
            }
        }
        let held = self.tenants.iter().filter(|it| !it.away).map(|it| it.granted);
        assert!(held.clone().sum::<u64>() <= GPU, "{:?}", held.collect::<Vec<_>>());
        let bound = self.config.reclaim_grace.0 + 30_000 * MS;
        for it in &self.tenants {
            let waits = it.pending.filter(|it| it.is_claim && !it.moved);
            let late = waits.filter(|waits| self.rig.now > waits.since + bound);
            assert!(late.is_none(), "at {}: {it:?} waits", self.rig.now);
        }
    }

    /// Takes an action in; returns what the container answers at once.
    fn action(&mut self, action: &Action) -> Option<Event> {
        let now = self.rig.now;
        match *action {
            Action::Reserved { client, bytes, .. } => self.granted(client, bytes.0),
            Action::Refused { client, .. } => {
                let grace = self.config.reclaim_grace.0;
                let it = self.of(client);
                let asked = it.pending.take().expect("it asked");
                let early = asked.is_claim && !asked.moved && now < asked.since + grace;
                assert!(!early, "at {now}: {it:?} was refused {asked:?}");
                *self.met.entry("refused").or_default() += 1;
            }
            Action::MoveMemory { token, container, away, .. } => {
                let done = match (self.random.below(20), away) {
                    (0..3, true) | (3.., false) => Done::Back,
                    (17.., true) => Done::Skipped,
                    _ => Done::Away,
                };
                let delay = [0, 20, 300, 3_000, 40_000][self.random.below(5) as usize] * MS;
                let it = self.tenants.iter_mut().find(|it| id(it.name) == container);
                let it = it.expect("a container");
                (it.frozen, it.away) = (true, false);
                let reclaimed = match it.mark {
                    Some(mark) if !away => mark.reclaimed,
                    _ => token == Token::NONE,
                };
                it.mark = Some(Mark { reclaimed, moved: false });
                it.pending.iter_mut().for_each(|asked| asked.moved = true);
                self.moves.push((now + delay, it.name, done));
                *self.met.entry(if away { "suspended" } else { "resumed" }).or_default() += 1;
            }
            Action::SuspensionSettled { token, container, away, left, .. } => {
                let it = self.tenants.iter_mut().find(|it| id(it.name) == container);
                let it = it.expect("a container");
                it.frozen = away;
                let mark = Mark { reclaimed: token == Token::NONE, moved: true };
                it.mark = match (away, left) {
                    (true, Bytes::ZERO) => Some(mark),
                    (true, _) => it.mark,
                    (false, _) => None,
                };
            }
            Action::Resized { ref record, .. } | Action::Relimited { ref record, .. } => {
                let it = self.tenants.iter_mut().find(|it| id(it.name) == record.container);
                let (it, lane) = (it.expect("a container"), &record.lanes[0]);
                if it.cap != lane.cap.0 {
                    it.pending.iter_mut().for_each(|asked| asked.moved = true);
                }
                (it.cap, it.limit) = (lane.cap.0, lane.limit.0);
                it.record = (**record).clone();
                *self.met.entry("changed").or_default() += 1;
            }
            Action::SetLane { container, lane: Lane(0), view } => {
                let answers = self.random.below(4) > 0;
                let it = self.tenants.iter_mut().find(|it| id(it.name) == container)?;
                let is_new = std::mem::replace(&mut it.recall, view.recall) != view.recall;
                let (client, recall) = (it.client, view.recall);
                let answers = answers && is_new && it.granted > 0 && !it.frozen;
                let lane = Lane(0);
                return answers.then_some(Event::Yield { client, lane, recall, bytes: Bytes(0) });
            }
            _ => {}
        }
        None
    }

    fn of(&mut self, client: ClientId) -> &mut Tenant {
        self.tenants.iter_mut().find(|it| it.client == client).expect("a client")
    }

    fn granted(&mut self, client: ClientId, bytes: u64) {
        let now = self.rig.now;
        let it = self.of(client);
        let asked = it.pending.take().expect("it asked");
        assert_eq!(bytes, asked.need, "{it:?}");
        assert!(!it.away, "at {now}: {it:?} was granted memory");
        it.granted += bytes;
        assert!(it.granted <= it.limit, "{it:?}");
        let borrows = it.granted > it.cap;
        let waits = |it: &&Tenant| it.pending.is_some_and(|asked| asked.is_claim && !asked.moved);
        let claims: Vec<&Tenant> = self.tenants.iter().filter(waits).collect();
        assert!(!borrows || claims.is_empty(), "at {now}: lent while {claims:?}");
        let what = match (borrows, now > asked.since) {
            (true, _) => "borrowed",
            (false, true) => "waited",
            (false, false) => "granted",
        };
        *self.met.entry(what).or_default() += 1;
    }

    /// Lets time pass, with every step that the engine asks for and every answer of the driver's.
    fn pass(&mut self, until: u64) {
        for step in 0.. {
            assert!(step < 100_000, "at {}: the engine asks for steps without end", self.rig.now);
            let moved = self.moves.iter().map(|it| it.0).min().unwrap_or(u64::MAX);
            let due = self.rig.engine.next_deadline().map_or(u64::MAX, |due| due.0);
            self.rig.now = due.min(moved).clamp(self.rig.now, until.max(self.rig.now));
            match self.moves.iter().position(|it| it.0 <= self.rig.now) {
                Some(at) => {
                    let (_, name, done) = self.moves.remove(at);
                    let it = self.tenants.iter_mut().find(|it| it.name == name);
                    let it = it.expect("a container");
                    it.away = done == Done::Away;
                    let stays = (done == Done::Skipped).then_some(it.client);
                    let stays = Some(stays.into_iter().collect());
                    let (container, away) = (id(name), done != Done::Back);
                    self.step(Event::MemoryMoved { container, away, stays });
                }
                None => self.step(Event::Tick),
            }
            if self.rig.now >= until {
                return;
            }
        }
    }

    /// A process takes or frees memory.
    fn act(&mut self, at: usize) {
        let now = self.rig.now;
        let it = &mut self.tenants[at];
        if it.pending.is_some() {
            return;
        }
        let (client, lane) = (it.client, Lane(0));
        if self.random.below(3) == 0 {
            let bytes = self.random.below(it.granted / PART + 1) * PART;
            it.granted -= bytes;
            return self.step(Event::Release { client, lane, bytes: Bytes(bytes) });
        }
        let most = it.limit.saturating_sub(it.granted) / PART;
        let need = (1 + self.random.below(most.max(1))) * PART;
        let is_claim = it.granted + need <= it.cap;
        it.pending = Some(Pending { need, since: now, is_claim, moved: it.frozen });
        let (token, need) = (Token(3), Bytes(need));
        self.step(Event::Reserve { client, token, lane, need, wish: need });
    }

    /// An administrator changes something of a container, or is refused.
    fn administer(&mut self, at: usize) {
        let (container, token, lane) = (id(self.tenants[at].name), Token(9), Lane(0));
        let mut gib = || MemoryAsk::Exactly(Bytes((1 + self.random.below(16)) * GIB));
        let (memory, limit) = (gib(), Some(gib()));
        let event = match self.random.below(6) {
            0 => Event::Suspend { token, container },
            1 => Event::EndSuspension { token, container },
            2 => Event::Resize { token, container, lane, memory },
            3 => Event::Relimit { token, container, lane, limit: None },
            _ => Event::Relimit { token, container, lane, limit },
        };
        self.step(event);
    }

    /// NVML shows what a container has on the GPU.
    fn look(&mut self, at: usize) {
        let it = &self.tenants[at];
        let (container, client, lane) = (id(it.name), it.client, Lane(0));
        let used = Bytes(if it.away { 0 } else { it.granted });
        self.step(Event::Looking { container, lane });
        self.step(Event::Measured { client, lane, used, requested: false });
        self.step(Event::Looked { container, lane });
    }

    /// The daemon is killed, its workers with it, and the next one starts. A move under way is done, or is not.
    fn restart(&mut self) {
        let now = self.rig.now;
        self.rig = Rig::new(self.config, &[16]);
        self.rig.now = now;
        for (_, name, done) in std::mem::take(&mut self.moves) {
            let it = self.tenants.iter_mut().find(|it| it.name == name);
            it.expect("a container").away = done == Done::Away && self.random.below(2) == 0;
            *self.met.entry("cut short").or_default() += 1;
        }
        (0..self.tenants.len()).for_each(|at| self.restore(at));
        let pending = self.tenants.iter_mut().filter_map(|it| it.pending.as_mut());
        pending.for_each(|asked| (asked.since, asked.moved) = (now, true));
        for at in 0..self.tenants.len() {
            let (client, lane) = (self.tenants[at].client, Lane(0));
            // It asks again.
            if let Some(asked) = self.tenants[at].pending {
                let need = Bytes(asked.need);
                self.step(Event::Reserve { client, token: Token(3), lane, need, wish: need });
            }
        }
        *self.met.entry("restarted").or_default() += 1;
    }

    /// Restores a container from what is on disk; its process attaches again.
    fn restore(&mut self, at: usize) {
        let it = &mut self.tenants[at];
        let (container, mark, token) = (id(it.name), it.mark, Token(1));
        (it.frozen, it.recall) = (mark.is_some(), 0);
        let process = Process { pid: at as u32 + 1, born: 1 };
        let granted = holds(it.granted);
        let record = it.record.clone();
        self.step(Event::Restore(record.into()));
        self.step(Event::RestoreProcess { token, container, process, granted });
        self.step(Event::Complete { container });
        if let Some(Mark { reclaimed, moved }) = mark {
            let token = if reclaimed { Token::NONE } else { Token(9) };
            self.step(Event::WasSuspended { container, token, moved });
        }
        let process = Some(process);
        let actions = self.rig.step(Event::Attach { token, container, process, held: granted });
        self.tenants[at].client = attached(&actions).expect("it attaches again");
        actions.iter().for_each(|action| drop(self.action(action)));
    }

    /// All free everything, and nothing stays behind.
    fn end(&mut self) {
        for _ in 0..400 {
            for at in 0..self.tenants.len() {
                if self.tenants[at].away || self.tenants[at].frozen {
                    let container = id(self.tenants[at].name);
                    self.step(Event::EndSuspension { token: Token(9), container });
                }
                let it = &mut self.tenants[at];
                if !it.frozen && it.pending.is_none() && it.granted > 0 {
                    let (client, bytes) = (it.client, Bytes(std::mem::take(&mut it.granted)));
                    self.step(Event::Release { client, lane: Lane(0), bytes });
                }
            }
            self.pass(self.rig.now + 1_000 * MS);
        }
        let left: Vec<&Tenant> =
            self.tenants.iter().filter(|it| it.pending.is_some() || it.frozen).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// One random walk; returns what it met.
fn walk(seed: u64) -> BTreeMap<&'static str, u32> {
    let mut walk = Walk::new(seed);
    for _ in 0..300 {
        let at = walk.random.below(CONTAINERS.len() as u64) as usize;
        match walk.random.below(20) {
            0 => walk.administer(at),
            1 | 2 => walk.look(at),
            3 if walk.random.below(3) == 0 => walk.restart(),
            _ => walk.act(at),
        }
        let gap = [0, 0, 1, 50, 500, 3_000][walk.random.below(6) as usize] * MS;
        walk.pass(walk.rig.now + gap);
    }
    walk.end();
    walk.met
}

#[test]
fn promises_hold_beside_loans() {
    let mut met: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..300 {
        for (what, times) in walk(seed) {
            *met.entry(what).or_default() += times;
        }
    }
    std::eprintln!("{met:?}");
    let answers = ["borrowed", "waited", "granted", "refused"];
    let events = ["suspended", "resumed", "changed", "restarted", "cut short"];
    for what in answers.into_iter().chain(events) {
        assert!(met.get(what).is_some_and(|times| *times > 100), "{what} was hardly met: {met:?}");
    }
}
