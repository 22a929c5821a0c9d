//! Processes: their launches, kernels and faults.

use gpuslice_engine::{Claims, LaneView, Mode};
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::units::{Bytes, Instant};

use crate::purse::Purse;
use crate::rng::Rng;

/// How long kernels last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// 2 to 100 µs.
    Short,
    /// 0.1 to 5 ms.
    Medium,
    /// Around 50 µs, and fifty times that once in 500.
    Tailed,
    /// Anything from 2 µs to 5 s.
    Wild,
    /// All of this length, ns.
    Exactly(u64),
}

impl Kernels {
    /// One kernel's length, ns.
    pub fn draw(self, rng: &mut Rng) -> u64 {
        match self {
            Kernels::Short => rng.range(2_000, 100_000),
            Kernels::Medium => rng.range(100_000, 5_000_000),
            Kernels::Tailed if rng.per_mille(2) => 50 * rng.range(25_000, 75_000),
            Kernels::Tailed => rng.range(25_000, 75_000),
            Kernels::Wild if rng.per_mille(20) => rng.magnitude(1_000_000, 5_000_000_000),
            Kernels::Wild => rng.magnitude(2_000, 4_000_000),
            Kernels::Exactly(length) => length,
        }
    }
}

/// Whether a process's claims are true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honesty {
    /// They are.
    Honest,
    /// It never claims to have drained.
    NeverDrained,
    /// It claims to have drained while its kernels run.
    FalseDrained,
    /// It is always runnable and never launches.
    AlwaysWants,
    /// It claims work as long as its kernels last, and launches none.
    Hollow,
    /// It claims more idle time in its turns than there was.
    Modest,
    /// It claims no idle time.
    Proud,
    /// Its claims are random.
    Garbage,
}

/// A process's work on one lane.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Kernels left of the present burst.
    pub todo: u64,
    /// A kernel runs until then.
    pub until: Option<u64>,
    /// When the last one ended.
    pub ended: u64,
    /// It was launched under the daemon that still lives.
    pub followed: bool,
    /// It is stopped on the GPU, with this much time left.
    pub left: Option<u64>,
    /// The daemon stopped the process's work on this lane.
    pub stopped: bool,
    /// A launch is on its way through the gate.
    pub entering: bool,
    /// Its page's content when it is honest.
    pub claims: Claims,
}

impl Work {
    /// Claims part in a turn, or with an even word in open mode.
    pub fn takes(&mut self, turn: u32, now: u64) {
        let claims = &mut self.claims;
        if claims.active != turn {
            claims.began = Instant(now);
        }
        if claims.drained == turn {
            // claimed to have drained in this turn already: withdrawn before any launch
            claims.drained = turn.wrapping_sub(1);
        }
        claims.active = turn;
    }

    /// Nothing of it is in flight.
    pub fn calm(&mut self) {
        self.claims.drained = self.claims.active;
        self.claims.calm = Instant(self.ended);
    }
}

/// A process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its container.
    pub container: ContainerId,
    /// It lives.
    pub alive: bool,
    /// The life of the daemon to which it last asked to be attached; 0 if never.
    pub asked: u32,
    /// Its identity, once attached.
    pub client: Option<ClientId>,
    /// The last identity it had: its grants are charged to that until it has ended.
    pub account: Option<ClientId>,
    /// The kernels it launches.
    pub kernels: Kernels,
    /// It never runs out of work.
    pub busy: bool,
    /// It is not runnable for so long after each kernel, ns.
    pub pause: Option<u64>,
    /// It ends instead of pausing, and another one like it comes after the pause.
    pub returns: bool,
    /// Its kernels are parts of collectives: one ends when all lanes have launched theirs. The inner value
    /// is since when one is under way.
    pub collective: Option<Option<u64>>,
    /// They are parts of the same collectives as those of this other process of the container, on its one
    /// lane.
    pub sibling: Option<usize>,
    /// When something last kept a collective of it from its end that no promise speaks of.
    pub excused: u64,
    /// Whether its claims are true.
    pub honesty: Honesty,
    /// It broke a rule of memory: it loses its connection, and its work belongs to no turn.
    pub broke: bool,
    /// Its memory is on the host.
    pub on_host: bool,
    /// It does nothing until then.
    pub stalled: u64,
    /// Its last message is under way until then; they do not overtake each other.
    pub sent: u64,
    /// How long its kernels ran, ns.
    pub ran: u64,
    /// Per lane.
    pub work: Vec<Work>,
    /// Per account: the lanes, and the host's memory last.
    pub purses: Vec<Purse>,
}

impl Process {
    /// A process with random properties.
    pub fn new(container: ContainerId, lanes: usize, rng: &mut Rng) -> Process {
        let kernels =
            [Kernels::Short, Kernels::Medium, Kernels::Tailed, Kernels::Medium, Kernels::Wild];
        let lies = [
            Honesty::NeverDrained,
            Honesty::FalseDrained,
            Honesty::AlwaysWants,
            Honesty::Hollow,
            Honesty::Modest,
            Honesty::Proud,
            Honesty::Garbage,
        ];
        Process {
            container,
            alive: true,
            asked: 0,
            client: None,
            account: None,
            kernels: rng.pick(&kernels),
            busy: rng.per_mille(500),
            pause: None,
            returns: false,
            collective: (lanes > 1 && rng.per_mille(500)).then_some(None),
            sibling: None,
            excused: 0,
            honesty: if rng.per_mille(80) { rng.pick(&lies) } else { Honesty::Honest },
            broke: false,
            on_host: false,
            stalled: 0,
            sent: 0,
            ran: 0,
            work: vec![Work::default(); lanes],
            purses: vec![Purse::default(); lanes + 1],
        }
    }

    /// It is runnable for a kernel at a time, and pauses for about as long as turns last without
    /// contention: 20 ms.
    pub fn aims_at_the_timer(&mut self, rng: &mut Rng) {
        self.pause = Some(rng.range(15_000_000, 35_000_000));
        self.returns = rng.per_mille(200);
        self.kernels = Kernels::Exactly(rng.magnitude(100_000, 1_900_000_000));
        (self.busy, self.collective) = (false, None);
    }

    /// A new process like this one.
    #[must_use]
    pub fn another(&self) -> Process {
        Process {
            alive: true,
            asked: 0,
            client: None,
            broke: false,
            on_host: false,
            excused: 0,
            stalled: 0,
            sent: 0,
            ran: 0,
            work: vec![Work::default(); self.work.len()],
            purses: vec![Purse::default(); self.purses.len()],
            ..self.clone()
        }
    }

    /// Its page's content when the daemon reads it now.
    pub fn says(&self, lane: usize, rng: &mut Rng) -> Claims {
        let purse = &self.purses[lane];
        let truth = Claims {
            held: Bytes(purse.used),
            unseen: Bytes(purse.unseen),
            ..self.work[lane].claims
        };
        match self.honesty {
            Honesty::Honest | Honesty::Hollow => truth,
            Honesty::NeverDrained => Claims { drained: 0, ..truth },
            Honesty::FalseDrained => Claims { drained: truth.active, ..truth },
            Honesty::Modest => {
                Claims { began: Instant(truth.calm.0.saturating_sub(200_000)), ..truth }
            }
            Honesty::Proud => Claims { began: Instant(0), calm: Instant(u64::MAX), ..truth },
            Honesty::AlwaysWants => Claims { runnable: true, ..truth },
            Honesty::Garbage => Claims {
                parked: truth.active % 2 == 1,
                runnable: rng.per_mille(500),
                active: rng.below(8) as u32,
                drained: rng.below(8) as u32,
                began: Instant(rng.draw()),
                calm: Instant(rng.draw()),
                held: Bytes(rng.draw()),
                unseen: Bytes(rng.draw()),
                contexts: rng.below(3) as u32,
                launches: rng.draw() >> 1,
                denied: rng.draw() >> 1,
                untold: rng.per_mille(500),
            },
        }
    }

    /// The lane of an account.
    #[must_use]
    pub fn lane_of(&self, account: usize) -> Lane {
        match account < self.work.len() {
            true => Lane(account as u8),
            false => Lane::HOST,
        }
    }

    /// The account of a lane.
    #[must_use]
    pub fn account_of(&self, lane: Lane) -> usize {
        usize::from(lane.0).min(self.work.len())
    }

    /// Whether the gate lets this process launch under `view` at `now`: a turn that is nearly
    /// over admits only what fits, but every turn admits one launch.
    #[must_use]
    pub fn admitted(&self, lane: usize, view: &LaneView, now: u64) -> bool {
        match view.mode {
            Mode::Open => true,
            Mode::Turns => {
                let first = self.work[lane].claims.active != view.turn;
                view.turn % 2 == 1 && (first || now < view.turn_end.0)
            }
        }
    }
}
