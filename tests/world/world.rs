//! The world: tenants and a daemon around the engine, one event after the other.
//!
//! The daemon is one thread with an inbox. It takes one letter, steps the engine, performs the
//! actions a moment later, and only then takes the next; so what it reads from a page it reads
//! after the performing of all earlier actions, as the engine demands. Everything between a
//! process and the daemon takes 0 to 200 µs and keeps its order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use gpuslice_engine::{Action, Ask, Config, Cut, Engine, Event, LaneView, Mode, Record, Token};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, GIB, Instant, MIB, Percent, Weight};

use crate::checkers::Checkers;
use crate::rng::Rng;
use crate::tenant::{Honesty, Process};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Something that will happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The daemon of this life takes its next letter.
    Daemon(u32),
    /// The daemon of this life performs what the last step decided.
    Perform(u32),
    /// Something arrives at the daemon of this life.
    Letter(u32, Letter),
    /// A new daemon starts.
    Restart,
    /// The administrator, the runtime and fate do something.
    Fate,
    /// A process looks at its lane.
    Pump(usize, usize),
    /// A process marks that it launches in this turn, and looks again afterwards.
    Mark(usize, usize, u32),
    /// A process launches if the turn is still this one.
    Launch(usize, usize, u32),
    /// A process's kernel ends.
    Done(usize, usize),
    /// A process that was idle gives up wanting, if it still is.
    Rest(usize, usize, u64),
    /// A process gets more work.
    Burst(usize, usize),
    /// A process takes or gives memory.
    Memory(usize),
    /// A process asks to be attached.
    Connect(usize),
}

/// What the daemon finds in its inbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Letter {
    Tick,
    Admin(u64),
    Dismiss(ContainerId),
    Attach(usize),
    Read(usize, usize),
    Reserve(usize, usize, u64, u64),
    Release(usize, usize, u64),
    Gone(usize, ClientId),
}

#[derive(Debug)]
struct Daemon {
    engine: Engine,
    life: u32,
    up: bool,
    /// It is at work: the next `Daemon` or `Perform` is on its way.
    busy: bool,
    inbox: VecDeque<Letter>,
    decided: Vec<Action>,
    asked: BTreeMap<u64, usize>,
    tokens: u64,
    deadline: u64,
}

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub struct Mood {
    /// Crashes, stalls, lies, restarts, jumps.
    pub trouble: bool,
    /// Random admissions and processes.
    pub fate: bool,
}

/// Everything there is.
pub struct World {
    /// Its randomness.
    pub rng: Rng,
    /// Its time, ns.
    pub now: u64,
    /// Watches every step.
    pub checkers: Checkers,
    /// Steps of the engine so far.
    pub steps: u64,
    mood: Mood,
    config: Config,
    gpus: Vec<(GpuUuid, Bytes)>,
    daemon: Daemon,
    records: BTreeMap<ContainerId, Record>,
    pages: BTreeMap<(ContainerId, usize), LaneView>,
    processes: Vec<Process>,
    clients: BTreeMap<ClientId, usize>,
    queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    order: u64,
    named: u64,
}

/// The id of GPU `n` of every world.
#[must_use]
pub fn gpu(n: u8) -> GpuUuid {
    GpuUuid([n + 1; 16])
}

/// A container id from a number.
///
/// # Panics
/// Never.
#[must_use]
pub fn container(n: u64) -> ContainerId {
    ContainerId::new(&format!("c{n}")).expect("letters and digits")
}

impl World {
    /// A world with some GPUs and nobody on them.
    #[must_use]
    pub fn new(seed: u64, config: Config, gpus: u8, mood: Mood) -> World {
        let mut rng = Rng::new(seed);
        let start = rng.below(1 << 40);
        let gpus = (0..gpus)
            .map(|n| (gpu(n), Bytes((8 + 8 * u64::from(n)) * GIB)))
            .collect();
        let daemon = Daemon {
            engine: Engine::new(config),
            life: 0,
            up: false,
            busy: false,
            inbox: VecDeque::new(),
            decided: Vec::new(),
            asked: BTreeMap::new(),
            tokens: 0,
            deadline: u64::MAX,
        };
        let mut world = World {
            rng,
            now: start,
            checkers: Checkers::new(config, start),
            steps: 0,
            mood,
            config,
            gpus,
            daemon,
            records: BTreeMap::new(),
            pages: BTreeMap::new(),
            processes: Vec::new(),
            clients: BTreeMap::new(),
            queue: BinaryHeap::new(),
            order: 0,
            named: 0,
        };
        world.start_daemon();
        if mood.fate {
            world.after(0, Happening::Fate);
        }
        world
    }

    fn after(&mut self, delay: u64, what: Happening) {
        self.order += 1;
        self.queue
            .push(Reverse((self.now + delay, self.order, what)));
    }

    /// Runs until the engine made `steps` more steps, or nothing is left to happen.
    pub fn run_steps(&mut self, steps: u64) {
        let end = self.steps + steps;
        while self.steps < end && self.happen(u64::MAX) {}
    }

    /// Runs until `end`.
    pub fn run_until(&mut self, end: u64) {
        while self.happen(end) {}
        self.now = self.now.max(end);
    }

    fn happen(&mut self, end: u64) -> bool {
        match self.queue.peek() {
            Some(Reverse((at, ..))) if *at <= end => {}
            _ => return false,
        }
        let Some(Reverse((at, _, what))) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        match what {
            Happening::Daemon(life) if life == self.daemon.life => self.take_letter(),
            Happening::Perform(life) if life == self.daemon.life => self.perform(),
            Happening::Letter(life, letter) if life == self.daemon.life => self.deliver(letter),
            Happening::Daemon(_) | Happening::Perform(_) | Happening::Letter(..) => {}
            Happening::Restart => self.start_daemon(),
            Happening::Fate => self.fate(),
            Happening::Pump(who, lane) => self.pump(who, lane),
            Happening::Mark(who, lane, turn) => self.mark(who, lane, turn),
            Happening::Launch(who, lane, turn) => self.launch_in(who, lane, turn),
            Happening::Done(who, lane) => self.done(who, lane),
            Happening::Rest(who, lane, launches) => self.rest(who, lane, launches),
            Happening::Burst(who, lane) => self.burst(who, lane),
            Happening::Memory(who) => self.memory(who),
            Happening::Connect(who) => self.connect(who),
        }
        true
    }

    // ---- the daemon ----

    fn start_daemon(&mut self) {
        self.daemon = Daemon {
            engine: Engine::new(self.config),
            life: self.daemon.life + 1,
            up: true,
            busy: false,
            inbox: VecDeque::new(),
            decided: Vec::new(),
            asked: BTreeMap::new(),
            tokens: 0,
            deadline: u64::MAX,
        };
        self.checkers.restart(self.now);
        self.clients.clear();
        self.pages.clear();
        for (n, (uuid, total)) in self.gpus.clone().into_iter().enumerate() {
            self.step(Event::GpuFound {
                uuid,
                index: NvmlIndex(n as u32),
                total,
            });
        }
        for record in self.records.clone().into_values() {
            // what is on the disk is what comes back
            let record = Record::decode(&record.encode()).expect("a record of our own");
            self.step(Event::Restore(record));
        }
        self.perform();
    }

    /// Steps the engine under the checkers' eyes.
    fn step(&mut self, event: Event) {
        self.steps += 1;
        let from = self.daemon.decided.len();
        self.daemon
            .engine
            .step(Instant(self.now), event.clone(), &mut self.daemon.decided);
        if !cfg!(debug_assertions) {
            self.daemon.engine.check(); // otherwise it does so by itself
        }
        self.checkers
            .step(self.now, &event, &self.daemon.decided[from..]);
    }

    fn deliver(&mut self, letter: Letter) {
        if !self.daemon.up {
            return;
        }
        self.daemon.inbox.push_back(letter);
        if !self.daemon.busy {
            self.daemon.busy = true;
            self.after(0, Happening::Daemon(self.daemon.life));
        }
    }

    fn take_letter(&mut self) {
        let Some(letter) = self.daemon.inbox.pop_front() else {
            self.daemon.busy = false;
            return;
        };
        if let Some(event) = self.open(letter) {
            self.step(event);
        }
        let slow = if self.rng.per_mille(50) {
            200 * US
        } else {
            20 * US
        };
        let delay = self.rng.below(slow);
        self.after(delay, Happening::Perform(self.daemon.life));
    }

    /// What a letter is when it is read now.
    fn open(&mut self, letter: Letter) -> Option<Event> {
        Some(match letter {
            Letter::Tick => Event::Tick,
            Letter::Admin(n) => Event::Admit {
                token: Token(n),
                ask: self.ask(n),
            },
            Letter::Dismiss(container) => Event::Dismiss {
                token: Token(0),
                container,
            },
            Letter::Attach(who) => {
                let process = &self.processes[who];
                let mut held = [Bytes::ZERO; LANES_MAX];
                for (slot, work) in held.iter_mut().zip(&process.work) {
                    *slot = Bytes(work.granted);
                }
                let container = process.container;
                Event::Attach {
                    token: self.token(who),
                    container,
                    held,
                }
            }
            Letter::Read(who, lane) => {
                let client = self.processes[who].client?;
                let claims = self.processes[who].says(lane, &mut self.rng);
                Event::Claims {
                    client,
                    lane: Lane(lane as u8),
                    claims,
                }
            }
            Letter::Reserve(who, lane, need, wish) => Event::Reserve {
                client: self.processes[who].client?,
                token: self.token(who),
                lane: Lane(lane as u8),
                need: Bytes(need),
                wish: Bytes(wish),
            },
            Letter::Release(who, lane, bytes) => Event::Release {
                client: self.processes[who].client?,
                lane: Lane(lane as u8),
                bytes: Bytes(bytes),
            },
            Letter::Gone(_, client) => {
                self.clients.remove(&client);
                Event::Gone { client }
            }
        })
    }

    fn token(&mut self, who: usize) -> Token {
        self.daemon.tokens += 1;
        self.daemon.asked.insert(self.daemon.tokens, who);
        Token(self.daemon.tokens)
    }

    fn perform(&mut self) {
        for action in std::mem::take(&mut self.daemon.decided) {
            self.act(action);
        }
        if let Some(due) = self.daemon.engine.next_deadline()
            && (due.0 < self.daemon.deadline || self.daemon.deadline <= self.now)
        {
            self.daemon.deadline = due.0;
            let late = self.rng.below(100 * US);
            let delay = due.0.saturating_sub(self.now) + late;
            self.after(delay, Happening::Letter(self.daemon.life, Letter::Tick));
        }
        self.daemon.busy = !self.daemon.inbox.is_empty();
        if self.daemon.busy {
            self.after(0, Happening::Daemon(self.daemon.life));
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Admitted { record, .. } => {
                self.records.insert(record.container, record.clone());
                if self.mood.fate {
                    let many = self.rng.range(1, 3);
                    (0..many).for_each(|_| self.spawn(record.container));
                }
            }
            Action::Dismissed { container, .. } => {
                self.records.remove(&container);
                self.pages.retain(|(id, _), _| *id != container);
                for who in 0..self.processes.len() {
                    if self.processes[who].container == container {
                        self.processes[who].alive = false;
                    }
                }
            }
            Action::Attached { token, client, .. } => self.attached(token, client),
            Action::Rejected { token, .. } => {
                let who = self.daemon.asked.remove(&token.0);
                who.into_iter()
                    .for_each(|who| self.processes[who].alive = false);
            }
            Action::Reserved {
                client,
                token,
                lane,
                bytes,
            } => {
                self.daemon.asked.remove(&token.0);
                if let Some(&who) = self.clients.get(&client) {
                    self.processes[who].work[usize::from(lane.0)].granted += bytes.0;
                }
            }
            Action::Refused {
                client,
                token,
                lane,
                ..
            } => {
                self.daemon.asked.remove(&token.0);
                if let Some(&who) = self.clients.get(&client) {
                    self.processes[who].work[usize::from(lane.0)].claims.denied += 1;
                }
            }
            Action::Disconnect { client, why } => self.disconnect(client, why),
            Action::SetLane {
                container,
                lane,
                view,
            } => self.set_page(container, lane, view),
            Action::ReadClaims { container, lane } => self.reread(container, lane),
            Action::Denied { .. }
            | Action::Restored { .. }
            | Action::NotRestored { .. }
            | Action::Overrun { .. } => {}
        }
    }

    fn attached(&mut self, token: Token, client: ClientId) {
        let Some(who) = self.daemon.asked.remove(&token.0) else {
            return;
        };
        self.clients.insert(client, who);
        let process = &mut self.processes[who];
        process.client = Some(client);
        for work in &mut process.work {
            let (held, denied) = (work.claims.held, work.claims.denied);
            work.claims = gpuslice_engine::Claims {
                held,
                denied,
                ..Default::default()
            };
        }
        if !process.alive {
            self.post(who, Letter::Gone(who, client));
            return;
        }
        for lane in 0..self.processes[who].work.len() {
            self.after(0, Happening::Pump(who, lane));
        }
    }

    fn disconnect(&mut self, client: ClientId, _why: Cut) {
        if let Some(who) = self.clients.remove(&client) {
            self.kill(who);
            self.processes[who].client = None;
        }
    }

    fn set_page(&mut self, container: ContainerId, lane: Lane, view: LaneView) {
        let lane = usize::from(lane.0);
        let before = self.pages.insert((container, lane), view);
        let same = before.is_some_and(|b| (b.mode, b.turn) == (view.mode, view.turn));
        if same && before.is_some_and(|b| b.turn_end == view.turn_end) {
            return;
        }
        for who in 0..self.processes.len() {
            let process = &self.processes[who];
            if process.alive && process.container == container && process.client.is_some() {
                let delay = self.rng.below(200 * US);
                self.after(delay, Happening::Pump(who, lane));
            }
        }
    }

    fn reread(&mut self, container: ContainerId, lane: Lane) {
        let all: Vec<usize> = self.clients.values().copied().collect();
        for who in all {
            if self.processes[who].container == container {
                self.daemon
                    .inbox
                    .push_front(Letter::Read(who, usize::from(lane.0)));
            }
        }
    }

    // ---- processes ----

    /// Sends a letter from a process, behind its earlier ones.
    fn post(&mut self, who: usize, letter: Letter) {
        let at = (self.now + self.rng.below(200 * US)).max(self.processes[who].sent);
        self.processes[who].sent = at;
        self.after(
            at.saturating_sub(self.now),
            Happening::Letter(self.daemon.life, letter),
        );
    }

    /// A process of `container` starts.
    pub fn spawn(&mut self, container: ContainerId) {
        let Some(record) = self.records.get(&container) else {
            return;
        };
        let mut process = Process::new(container, record.lanes.len(), &mut self.rng);
        if !self.mood.trouble {
            process.honesty = Honesty::Honest;
        }
        self.add(process);
    }

    /// A process starts.
    pub fn add(&mut self, process: Process) {
        self.processes.push(process);
        let delay = self.rng.below(MS);
        self.after(delay, Happening::Connect(self.processes.len() - 1));
    }

    fn connect(&mut self, who: usize) {
        let process = &self.processes[who];
        let (asked, life) = (process.asked, self.daemon.life);
        if !process.alive || process.client.is_some() || asked == life {
            return;
        }
        if !self.daemon.up {
            let delay = self.rng.range(10 * MS, 500 * MS);
            return self.after(delay, Happening::Connect(who));
        }
        self.processes[who].asked = life;
        self.post(who, Letter::Attach(who));
        if asked == 0 {
            for lane in 0..self.processes[who].work.len() {
                self.after(0, Happening::Burst(who, lane));
            }
            if self.mood.fate {
                self.after(MS, Happening::Memory(who));
            }
        }
    }

    fn kill(&mut self, who: usize) {
        self.processes[who].alive = false;
        for lane in 0..self.processes[who].work.len() {
            self.processes[who].work[lane].until = None;
        }
    }

    fn crash(&mut self, who: usize) {
        if !self.processes[who].alive {
            return;
        }
        self.kill(who);
        if let Some(client) = self.processes[who].client {
            self.post(who, Letter::Gone(who, client));
        }
    }

    /// Whether a process can act; if it is stalled it does so when it wakes.
    fn acts(&mut self, who: usize, again: Happening) -> bool {
        let process = &self.processes[who];
        if !process.alive || process.client.is_none() {
            return false;
        }
        if process.stalled > self.now {
            let delay = process.stalled - self.now;
            self.after(delay, again);
            return false;
        }
        true
    }

    fn ring(&mut self, who: usize, lane: usize) {
        self.post(who, Letter::Read(who, lane));
    }

    fn pump(&mut self, who: usize, lane: usize) {
        if !self.acts(who, Happening::Pump(who, lane)) {
            return;
        }
        let Some(view) = self
            .pages
            .get(&(self.processes[who].container, lane))
            .copied()
        else {
            return;
        };
        let now = self.now;
        let process = &mut self.processes[who];
        let work = &mut process.work[lane];
        let owes = work.claims.active != work.claims.drained && view.turn != work.claims.active;
        if work.until.is_none() && !work.entering && owes {
            work.claims.drained = work.claims.active;
            self.ring(who, lane);
        }
        let process = &mut self.processes[who];
        let work = &mut process.work[lane];
        if work.until.is_some() || work.entering {
            return;
        }
        if work.todo == 0 {
            let idle = u64::from(view.idle_us) * US;
            let launches = work.claims.launches;
            if work.claims.want {
                self.after(idle, Happening::Rest(who, lane, launches));
            }
            return;
        }
        if !work.claims.want {
            work.claims.want = true;
            self.ring(who, lane);
        }
        let process = &mut self.processes[who];
        if process.honesty == Honesty::AlwaysWants || !process.admitted(lane, &view, now) {
            return;
        }
        if view.mode == Mode::Open {
            return self.launch(who, lane, false);
        }
        process.work[lane].entering = true;
        let delay = self.rng.below(20 * US);
        self.after(delay, Happening::Mark(who, lane, view.turn));
    }

    fn mark(&mut self, who: usize, lane: usize, turn: u32) {
        if !self.acts(who, Happening::Mark(who, lane, turn)) {
            return;
        }
        self.processes[who].work[lane].claims.active = turn;
        let delay = self.rng.below(20 * US);
        self.after(delay, Happening::Launch(who, lane, turn));
    }

    fn launch_in(&mut self, who: usize, lane: usize, turn: u32) {
        let page = self
            .pages
            .get(&(self.processes[who].container, lane))
            .copied();
        let still = page.is_some_and(|v| v.turn == turn && v.mode == Mode::Turns);
        let work = &mut self.processes[who].work[lane];
        work.entering = false;
        let live = self.processes[who].alive && self.processes[who].client.is_some();
        if !live {
            return;
        }
        if still && self.processes[who].stalled <= self.now {
            self.launch(who, lane, true);
        } else {
            let delay = self.rng.below(20 * US);
            self.after(delay, Happening::Pump(who, lane));
        }
    }

    fn launch(&mut self, who: usize, lane: usize, by_turn: bool) {
        let length = self.processes[who].kernels.draw(&mut self.rng);
        let until = self.now + length;
        let process = &mut self.processes[who];
        let work = &mut process.work[lane];
        work.claims.launches += 1;
        (work.until, work.by_turn) = (Some(until), by_turn);
        self.after(length, Happening::Done(who, lane));
        if by_turn && self.processes[who].honesty == Honesty::Honest {
            self.check_alone(who, lane);
        }
    }

    /// The point of it all: who launches in its turn launches alone. Excepted are those who lie
    /// about being quiet, those the engine stopped waiting for, and what was launched freely.
    fn check_alone(&self, who: usize, lane: usize) {
        let me = self.processes[who].container;
        let Some(gpu) = self.records.get(&me).map(|record| record.lanes[lane].gpu) else {
            return;
        };
        for other in self
            .processes
            .iter()
            .filter(|p| p.alive && p.container != me)
        {
            let Some(record) = self.records.get(&other.container) else {
                continue;
            };
            for (at, work) in other.work.iter().enumerate() {
                let runs = work.by_turn && work.until.is_some_and(|until| until > self.now);
                let honest = other.honesty == Honesty::Honest && !other.broke;
                let honest = honest && other.client.is_some();
                let passed = self.checkers.passed(other.container, Lane(at as u8));
                if runs && honest && record.lanes[at].gpu == gpu && !passed {
                    self.checkers.object(&format!(
                        "{me} launches while {} has a kernel of its turn in flight",
                        other.container
                    ));
                }
            }
        }
    }

    fn done(&mut self, who: usize, lane: usize) {
        let busy = self.processes[who].busy;
        let work = &mut self.processes[who].work[lane];
        let Some(until) = work.until.filter(|until| *until <= self.now) else {
            return;
        };
        let _ = until;
        work.until = None;
        if !busy {
            work.todo = work.todo.saturating_sub(1);
            if work.todo == 0 {
                let gap = self.rng.magnitude(10 * US, 200 * MS);
                self.after(gap, Happening::Burst(who, lane));
            }
        }
        self.pump(who, lane);
    }

    fn burst(&mut self, who: usize, lane: usize) {
        if !self.processes[who].alive {
            return;
        }
        self.processes[who].work[lane].todo = self.rng.magnitude(1, 200);
        self.pump(who, lane);
    }

    fn rest(&mut self, who: usize, lane: usize, launches: u64) {
        if !self.acts(who, Happening::Rest(who, lane, launches)) {
            return;
        }
        let work = &mut self.processes[who].work[lane];
        let idle = work.todo == 0 && work.until.is_none() && !work.entering;
        if idle && work.claims.want && work.claims.launches == launches {
            work.claims.want = false;
            self.ring(who, lane);
        }
    }

    fn memory(&mut self, who: usize) {
        if !self.acts(who, Happening::Memory(who)) {
            if self.processes[who].alive && self.processes[who].client.is_none() {
                self.after(50 * MS, Happening::Memory(who));
            }
            return;
        }
        let lane = self.rng.below(self.processes[who].work.len() as u64) as usize;
        let granted = self.processes[who].work[lane].granted;
        let lie = self.mood.trouble && self.rng.per_mille(3);
        if lie {
            self.processes[who].broke = true;
            self.post(who, Letter::Release(who, lane, granted + (1 << 50)));
        } else if self.rng.per_mille(400) {
            let bytes = self.rng.range(0, granted);
            let work = &mut self.processes[who].work[lane];
            work.granted -= bytes;
            work.claims.held = Bytes(work.claims.held.0.min(work.granted));
            self.post(who, Letter::Release(who, lane, bytes));
        } else {
            let need = self.rng.magnitude(1, 8 * GIB);
            let wish = need + self.rng.below(64 * MIB);
            self.processes[who].work[lane].claims.held = Bytes(self.rng.range(0, granted));
            self.post(who, Letter::Reserve(who, lane, need, wish));
        }
        let gap = if self.rng.per_mille(700) {
            50 * US
        } else {
            500 * MS
        };
        let delay = self.rng.below(gap);
        self.after(delay, Happening::Memory(who));
    }

    // ---- fate ----

    /// What container `n` asks for: mostly something sensible.
    fn ask(&mut self, n: u64) -> Ask {
        let list = |entries: &[u32]| {
            let mut list = [None; 16];
            for (slot, n) in list.iter_mut().zip(entries) {
                *slot = Some(GpuRef::Index(NvmlIndex(*n)));
            }
            GpuSelector::List(list)
        };
        let gpus = match self.rng.below(8) {
            0 => GpuSelector::All,
            1 => list(&[0]),
            2 => list(&[1, 0]),
            3 => list(&[7]),
            _ => GpuSelector::Any,
        };
        let memory = match self.rng.below(10) {
            0 => MemoryAsk::Ratio {
                part: self.rng.below(4) as u32,
                whole: 16,
            },
            1 => MemoryAsk::Exactly(Bytes(self.rng.below(64) * GIB)),
            _ => MemoryAsk::Exactly(Bytes(self.rng.range(1, 3 * GIB))),
        };
        let weight = Weight::new(self.rng.magnitude(1, 1000) as u32).unwrap_or(Weight::ONE);
        let share = self
            .rng
            .per_mille(150)
            .then(|| self.rng.range(1, 60) as u32);
        let twin = self.rng.per_mille(30);
        Ask {
            container: container(if twin { n.saturating_sub(1) } else { n }),
            name: Name::EMPTY,
            gpus,
            memory,
            weight,
            share: share.and_then(|share| Percent::new(share).ok()),
            high: self.rng.per_mille(150),
        }
    }

    /// A container of known properties is admitted.
    ///
    /// # Panics
    /// If the engine refuses it.
    pub fn admit(&mut self, ask: Ask) {
        self.step(Event::Admit {
            token: Token(0),
            ask,
        });
        self.perform();
        assert!(
            self.records.contains_key(&ask.container),
            "{ask:?} was refused"
        );
    }

    fn fate(&mut self) {
        let living: Vec<usize> = (0..self.processes.len())
            .filter(|&who| self.processes[who].alive)
            .collect();
        let known: Vec<ContainerId> = self.records.keys().copied().collect();
        let trouble = self.mood.trouble;
        match self.rng.below(100) {
            0..25 if known.len() < 8 => {
                self.named += 1;
                self.deliver(Letter::Admin(self.named));
            }
            25..50 if living.len() < 20 && !known.is_empty() => {
                let container = self.rng.pick(&known);
                self.spawn(container);
            }
            50..55 if !known.is_empty() => {
                let container = self.rng.pick(&known);
                self.deliver(Letter::Dismiss(container));
            }
            55..65 if trouble && !living.is_empty() => {
                let who = self.rng.pick(&living);
                self.crash(who);
            }
            65..75 if trouble && !living.is_empty() => {
                let who = self.rng.pick(&living);
                self.processes[who].stalled = self.now + self.rng.magnitude(MS, 3_000 * MS);
            }
            75 if trouble && self.daemon.up => self.stop_daemon(),
            76 if trouble => self.now += self.rng.magnitude(MS, 20_000 * MS),
            _ => {}
        }
        let gap = self.rng.magnitude(MS, 100 * MS);
        self.after(gap, Happening::Fate);
    }

    /// The daemon dies; what was under way to or from it is lost. Processes come back by
    /// themselves.
    fn stop_daemon(&mut self) {
        self.daemon.up = false;
        self.daemon.life += 1;
        self.clients.clear();
        let pause = self.rng.magnitude(MS, 2_000 * MS);
        for who in 0..self.processes.len() {
            self.processes[who].client = None;
            for work in &mut self.processes[who].work {
                (work.entering, work.by_turn) = (false, false);
            }
            if self.processes[who].asked > 0 {
                let delay = pause + self.rng.range(10 * MS, 500 * MS);
                self.after(delay, Happening::Connect(who));
            }
        }
        self.after(pause, Happening::Restart);
    }

    /// Everybody goes; then nothing may be left.
    pub fn end(&mut self) {
        self.mood.fate = false;
        self.queue
            .retain(|Reverse((_, _, what))| !matches!(what, Happening::Fate));
        if !self.daemon.up {
            self.run_until(self.now + 3_000 * MS);
        }
        for who in 0..self.processes.len() {
            self.crash(who);
        }
        self.run_until(self.now + 5_000 * MS);
        self.checkers
            .nobody_left(&self.daemon.engine.snapshot(Instant(self.now)));
        for container in self.records.keys().copied().collect::<Vec<_>>() {
            self.deliver(Letter::Dismiss(container));
        }
        self.run_until(self.now + 5_000 * MS);
        self.checkers
            .nothing_left(&self.daemon.engine.snapshot(Instant(self.now)));
    }

    /// Compares the engine's own account with what the checkers saw.
    pub fn agree(&self) {
        if self.daemon.up {
            self.checkers
                .agree(&self.daemon.engine.snapshot(Instant(self.checkers.now())));
        }
    }

    /// What an observer sees now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<gpuslice_wire::snapshot::Snapshot> {
        self.daemon.engine.snapshot(Instant(self.now))
    }
}
