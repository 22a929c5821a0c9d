//! The world: tenants and a daemon around the engine, one event after the other.
//!
//! The daemon is one thread with an inbox. It takes one message, steps the engine, performs the actions a
//! moment later, and only then takes the next. So it reads a page after the performing of all earlier
//! actions, as the engine demands. Everything between a process and the daemon takes 0 to 200 µs and keeps
//! its order.

mod daemon;
mod fate;
pub mod loans;
mod memory;
mod outside;
mod processes;
mod stop;
mod time;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use gpuslice_engine::{Action, Config, Engine, Granted, LaneView, Mode, Record, Untracked};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::units::{Bytes, GIB, Instant};

use crate::checkers::Checkers;
use crate::rng::Rng;
use crate::tenant::Process;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A future event of the world.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The daemon of this life takes its next message.
    Daemon(u32),
    /// The daemon of this life performs the actions of the last step.
    Perform(u32),
    /// A message arrives at the daemon of this life.
    Letter(u32, Letter),
    /// A new daemon starts.
    Restart,
    /// A random event.
    Fate,
    /// A process looks at its lane.
    Pump(usize, usize),
    /// A process marks that it launches in this turn, and looks again afterwards.
    Mark(usize, usize, u32),
    /// A process launches if the turn is still this one.
    Launch(usize, usize, u32),
    /// A process's kernel ends.
    Done(usize, usize),
    /// A process that was idle withdraws its claim of work, if it still is idle.
    Rest(usize, usize, u64),
    /// A process gets more work.
    Burst(usize, usize),
    /// A process takes or gives memory.
    Memory(usize),
    /// A process answers a recall.
    Yield(usize, Lane, u32),
    /// A process asks to be attached.
    Connect(usize),
    /// A container gives back so much of what is wanted.
    GiveBack(ContainerId, Lane, u64),
    /// The driver has moved a container's memory, as ordered at a time by that daemon.
    Move(u32, ContainerId, u64),
    /// The hardware stops the work of these processes of a container, ordered by that daemon.
    Stop(u32, ContainerId, Lane, u32, Vec<ClientId>),
    /// It resumes a container's work.
    Resume(u32, ContainerId, Lane),
}

/// A message in the daemon's inbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Letter {
    Tick,
    Admin(u64),
    Dismiss(ContainerId),
    Attach(usize),
    Read(usize, usize),
    Reserve(usize, Lane, u64, u64),
    /// With the number of a recall, as the answer to it.
    Release(usize, Lane, u64, Option<u32>),
    Measured(usize, Lane),
    /// The driver is about to be asked for all processes of a container.
    Looking(ContainerId, Lane),
    /// All processes of a container, in one measurement.
    Looked(ContainerId, Lane),
    Unattributed(ContainerId, Lane, u64),
    /// The memory in use on a device is compared with what living processes have.
    Device(GpuUuid),
    /// A sample showed so much memory of processes outside of all slices.
    Outside(GpuUuid, u64),
    Resize(ContainerId, Lane, memory::WantedMemory),
    Left(ClientId),
    Gone(usize, ClientId),
    Policy(Option<u32>, u8),
    Retune(ContainerId, time::Wish),
    Relimit(ContainerId, Lane, Option<memory::WantedMemory>),
    Suspend(ContainerId),
    EndSuspension(ContainerId),
    /// A container's memory is on the host, or not, and which of its processes' is not.
    Moved(ContainerId, bool, Option<Vec<ClientId>>),
    /// The hardware executed an order, or (`None`) refused to stop.
    StopAnswer(ContainerId, Lane, u32, Option<bool>),
}

#[derive(Debug)]
struct Daemon {
    engine: Engine,
    life: u32,
    up: bool,
    /// It is at work: the next `Daemon` or `Perform` is scheduled.
    busy: bool,
    inbox: VecDeque<Letter>,
    decided: Vec<Action>,
    asked: BTreeMap<u64, usize>,
    tokens: u64,
    deadline: u64,
}

/// Which random events happen.
#[derive(Clone, Copy, Debug)]
pub struct Mood {
    /// Crashes, stalls, lies, restarts, clock jumps.
    pub trouble: bool,
    /// Random admissions and processes.
    pub fate: bool,
    /// Few containers, of one class and without caps: turns begin and end all the time.
    pub few: bool,
    /// Containers grow above their caps, and are suspended and resumed, beside processes outside of all slices.
    pub limits: bool,
}

/// The whole world.
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
    policies: BTreeMap<GpuUuid, Policy>,
    /// Processes' grants, as on disk, and the containers for which they may be incomplete.
    granted: BTreeMap<usize, Granted>,
    partly: BTreeSet<ContainerId>,
    /// What containers are charged beyond grants, as on disk.
    untracked: BTreeMap<ContainerId, Vec<Untracked>>,
    pages: BTreeMap<(ContainerId, usize), LaneView>,
    processes: Vec<Process>,
    /// Those that may have a collective under way.
    begun: BTreeSet<usize>,
    clients: BTreeMap<ClientId, usize>,
    queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    order: u64,
    named: u64,
    hardware: stop::Hardware,
    suspensions: loans::Suspensions,
    /// Memory of ended processes that the driver has not freed.
    unfreed: Vec<memory::Unfreed>,
    /// Memory of processes outside of all slices.
    outside: outside::Outside,
    /// Devices whose last look explained too much.
    unlucky: BTreeSet<GpuUuid>,
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
    /// A world with some GPUs and no container.
    #[must_use]
    pub fn new(seed: u64, config: Config, gpus: u8, mood: Mood) -> World {
        let mut rng = Rng::new(seed);
        let start = rng.below(1 << 40);
        let gpus = (0..gpus).map(|n| (gpu(n), Bytes((8 + 8 * u64::from(n)) * GIB))).collect();
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
            policies: BTreeMap::new(),
            granted: BTreeMap::new(),
            partly: BTreeSet::new(),
            untracked: BTreeMap::new(),
            pages: BTreeMap::new(),
            processes: Vec::new(),
            begun: BTreeSet::new(),
            clients: BTreeMap::new(),
            queue: BinaryHeap::new(),
            order: 0,
            named: 0,
            hardware: stop::Hardware::default(),
            suspensions: loans::Suspensions::default(),
            unfreed: Vec::new(),
            outside: outside::Outside::default(),
            unlucky: BTreeSet::new(),
        };
        world.hardware = stop::Hardware::any(&mut world.rng);
        world.start_daemon();
        if mood.fate {
            world.after(0, Happening::Fate);
        }
        world
    }

    fn after(&mut self, delay: u64, what: Happening) {
        self.order += 1;
        self.queue.push(Reverse((self.now + delay, self.order, what)));
    }

    /// Runs until the engine made `steps` more steps, or no event is left.
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
            Happening::Fate => {
                self.fate();
                if self.daemon.up {
                    self.no_stop_is_forgotten();
                }
            }
            Happening::Pump(who, lane) => self.pump(who, lane),
            Happening::Mark(who, lane, turn) => self.mark(who, lane, turn),
            Happening::Launch(who, lane, turn) => self.launch_in(who, lane, turn),
            Happening::Done(who, lane) => self.done(who, lane),
            Happening::Rest(who, lane, launches) => self.rest(who, lane, launches),
            Happening::Burst(who, lane) => self.burst(who, lane),
            Happening::Memory(who) => self.memory(who),
            Happening::Yield(who, lane, number) => self.give(who, lane, number),
            Happening::Connect(who) => self.connect(who),
            Happening::GiveBack(container, lane, bytes) => self.give_back(container, lane, bytes),
            Happening::Move(life, container, begun) if life == self.daemon.life => {
                self.end_move(container, begun);
            }
            Happening::Stop(life, container, lane, order, reached) if life == self.daemon.life => {
                self.stop(container, lane, order, &reached);
            }
            Happening::Resume(life, container, lane) if life == self.daemon.life => {
                self.resume(container, lane);
            }
            Happening::Stop(..) | Happening::Resume(..) | Happening::Move(..) => {}
        }
        true
    }
    /// Compares the engine's snapshot with the checkers' state.
    pub fn agree(&self) {
        if self.daemon.up {
            self.no_stop_is_forgotten();
            self.checkers.agree(&self.daemon.engine.snapshot(Instant(self.checkers.now())));
        }
    }

    /// How long each process's kernels ran so far, ns.
    pub fn ran(&self) -> impl Iterator<Item = u64> {
        self.processes.iter().map(|process| process.ran)
    }

    /// Whether containers of a GPU take turns now.
    pub fn takes_turns(&self) -> bool {
        self.pages.values().any(|view| view.mode == Mode::Turns)
    }

    /// The observer's snapshot now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<gpuslice_wire::snapshot::Snapshot> {
        self.daemon.engine.snapshot(Instant(self.now))
    }
}
