//! What can be known of the engine's doings from outside: who said what, who was told what.
//!
//! The observer keeps books of its own from events and actions alone, in particular who is *on*
//! a GPU and must pay for it: whoever wants it while there are no turns, whoever has the turn,
//! and whoever had it until every process, read after the close, has nothing in flight.

mod parts;
mod spared;

use std::collections::{BTreeMap, VecDeque};

use gpuslice_engine::{Action, Claims, Config, Event, LaneView, Late, Mode, Record};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::{Gangs, Policy};

/// What one process said on one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// Its claims, as last read.
    pub claims: Claims,
    /// Read since the container's turn was closed.
    pub fresh: bool,
    /// It has wanted the GPU before.
    pub wanted: bool,
    /// It was there when its container's work was last ordered to stop.
    pub reached: bool,
}

/// Whether a container's work is stopped on the GPU. What is stopped, or not known to go on yet,
/// waits for its turn whatever is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody asked for it.
    Free,
    /// It was asked for.
    Stopping,
    /// It is.
    Stopped,
    /// It is to go on.
    Resuming,
}

/// A container on a GPU.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Which GPU.
    pub gpu: GpuUuid,
    /// What was promised.
    pub record: Record,
    /// What its page says.
    pub view: Option<LaneView>,
    /// Its processes.
    pub said: BTreeMap<ClientId, Said>,
    /// Its turn was closed and it is not quiet yet; since when.
    pub closing: Option<u64>,
    /// That, or others ran beside it already, before this step.
    shut_before: bool,
    /// When its page was last closed: later than that, if what closed was a gang's turn that was extended.
    pub shut: u64,
    /// What may be in flight of it was launched without turns.
    pub untracked: bool,
    /// ... when its present turn began.
    pub was_untracked: bool,
    /// Its present turn began before it had a cap; or others run beside what began so, or without turns.
    pub freely: bool,
    /// ... since when, if its turn was extended after that.
    pub again: Option<u64>,
    /// Its present turn was given in another line: its class or share changed since.
    pub guest: bool,
    /// Whether its work is stopped on the GPU.
    pub hold: Hold,
    /// Others may run beside it.
    pub overrun: bool,
    /// When it was given its turn.
    pub granted: u64,
    /// GPU time to its account, ns.
    pub used: u64,
    /// What goes off of what comes to it next: it was spared.
    off: u64,
    /// GPU time since the step before.
    pub billed: u64,
    /// ... of an earlier turn that the line does not count, as of this step, and as of the next one.
    pub spared: u64,
    sparing: u64,
    /// What it used since it was last given a turn, or more of one.
    stint: u64,
    idle: Idle,
    /// How often that was divided among several, and rounded.
    pub rounded: u64,
    /// ... of `used` in the present turn, or part of a turn if it was extended.
    pub stretch: u64,
    /// The `stretch` before that.
    pub last: u64,
    /// The longest `stretch` so far.
    pub longest: u64,
    /// How long it took to get quiet after a turn, lately: the longest, halved each time, ns.
    pub tail: u64,
    /// Since when it wants the GPU without being on it.
    pub waits: Option<u64>,
    /// What it may have of the GPU's time at most, as a fraction.
    pub cap: (u64, u64),
    /// What it weighs in the line.
    pub weight: u64,
    /// It has a share, in percent, of which it is sure; 0 if it has none.
    pub share: u64,
    /// There are no turns on this GPU, whatever happens.
    pub native: bool,
    /// How often weight or class changed.
    pub tuned: u64,
    /// It takes its turns together with the container's other GPUs,
    pub gang: bool,
    /// of which one is wanted.
    pub drawn: bool,
}

impl Seat {
    /// It may not have all of the GPU's time.
    #[must_use]
    pub fn capped(&self) -> bool {
        self.cap.0 < self.cap.1
    }
    /// A process of it wants the GPU.
    #[must_use]
    pub fn wants(&self) -> bool {
        let stopped = matches!(self.hold, Hold::Stopped | Hold::Resuming);
        stopped || self.drawn || self.asks()
    }
    /// ... this GPU, not only another one of its gang.
    fn asks(&self) -> bool {
        self.said.values().any(|said| said.claims.want)
    }
    /// It may launch, by turn.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.view
            .is_some_and(|view| view.mode == Mode::Turns && view.turn % 2 == 1)
    }
    /// It wants a turn and could have one: nobody waits for what it left running.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.wants() && (self.closing.is_none() || self.overrun)
    }
    /// There are no turns.
    #[must_use]
    pub fn open(&self) -> bool {
        self.view.is_some_and(|view| view.mode == Mode::Open)
    }
    /// Time goes to its account.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.holds() || self.closing.is_some() || self.overrun || (self.open() && self.wants())
    }
    /// ... and is divided among all who run in this way.
    fn shares(&self) -> bool {
        self.untracked || (self.open() && self.wants())
    }
    /// The present stretch ends.
    fn rest(&mut self) {
        if self.stretch > 0 {
            (self.last, self.stretch) = (self.stretch, 0);
        }
    }
    /// What was idle of its turn until now, by the word of those of its processes who took part: before the
    /// first launched, and since the last was quiet.
    fn idled(&self, closed: u64, now: u64) -> Option<u64> {
        let turn = self.view?.turn;
        let said = self.said.values().map(|said| said.claims);
        let there: Vec<Claims> = said
            .filter(|it| it.active.wrapping_add(1) == turn)
            .collect();
        let began = there.iter().map(|it| it.began.0).min()?;
        let calm = there.iter().map(|it| it.calm.0).max()?;
        let before = (self.granted..=closed).contains(&began);
        let before = if before { began - self.granted } else { 0 };
        let after = if (self.granted..=now).contains(&calm) {
            now - calm
        } else {
            0
        };
        Some(before + after)
    }
    /// Nothing of its last turn is in flight, by what its processes say.
    #[must_use]
    pub fn quiet(&self) -> bool {
        let turn = self.view.map_or(0, |view| view.turn);
        let calm = |said: &Said| {
            // Work behind closed gates ran in the turn that is over, whether its process knows or not.
            let answered = !said.claims.parked || said.claims.active.wrapping_add(1) == turn;
            said.fresh && said.claims.drained == said.claims.active && answered
        };
        let stopped = |said: &Said| self.hold == Hold::Stopped && said.reached;
        self.said.values().all(|said| stopped(said) || calm(said))
    }
}

/// What a container says was idle of its last 16 turns, ns.
#[derive(Clone, Debug, Default)]
struct Idle(VecDeque<u64>);

impl Idle {
    fn add(&mut self, ns: u64) {
        self.0.push_back(ns);
        if self.0.len() > 16 {
            self.0.pop_front();
        }
    }
    /// On average, once there are so many.
    fn mean(&self) -> Option<u64> {
        (self.0.len() == 16).then(|| self.0.iter().sum::<u64>() / 16)
    }
}

/// A container and the number of one of its GPUs.
pub type Place = (ContainerId, Lane);

/// All that was seen since the engine began.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    /// Every slice of every GPU.
    pub seats: BTreeMap<Place, Seat>,
    /// How the time of GPUs is divided where it was said.
    pub policies: BTreeMap<GpuUuid, Policy>,
    /// The engine's settings.
    pub config: Config,
    /// When the last step was.
    pub now: u64,
    /// Time that passed before the present step and was booked, ns.
    pub elapsed: u64,
    /// The last gap was so long that it does not count.
    pub gap: bool,
}

const GAP_MAX: u64 = gpuslice_wire::limits::HEARTBEAT_STALE_NS;

impl Observer {
    /// Nothing seen yet, from `now` on.
    #[must_use]
    pub fn new(config: Config, now: u64) -> Observer {
        Observer {
            config,
            now,
            ..Observer::default()
        }
    }

    /// Time passes up to `now`, in the state that the last step left.
    pub fn advance(&mut self, now: u64) {
        let gap = now.saturating_sub(self.now);
        (self.now, self.elapsed, self.gap) = (self.now.max(now), gap.min(GAP_MAX), gap > GAP_MAX);
        let now = self.now;
        let mut free: BTreeMap<GpuUuid, u64> = BTreeMap::new();
        for seat in self.seats.values().filter(|seat| seat.shares()) {
            *free.entry(seat.gpu).or_default() += 1;
        }
        for seat in self.seats.values_mut() {
            let pays = seat.pays();
            seat.shut_before = seat.closing.is_some() || seat.overrun;
            seat.billed = 0;
            seat.spared = std::mem::take(&mut seat.sparing);
            if pays {
                // nobody knows who had it of those who run without turns
                let among = free.get(&seat.gpu).filter(|_| seat.shares());
                let among = among.copied().unwrap_or(1).max(1);
                seat.billed = self.elapsed / among;
                let off = seat.off.min(seat.billed);
                seat.off -= off;
                seat.used += seat.billed - off;
                seat.rounded += u64::from(among > 1);
                seat.stretch += self.elapsed;
                seat.stint += self.elapsed;
                seat.longest = seat.longest.max(seat.stretch);
                if seat.open() && seat.closing.is_none() {
                    // alone, every instant is a turn of its own: nobody is owed anything for it
                    (seat.stretch, seat.last) = (0, 0);
                }
            } else {
                seat.rest();
                seat.guest = false;
            }
            let waits = seat.wants() && !pays;
            seat.waits = waits.then(|| seat.waits.unwrap_or(now));
        }
    }

    /// The engine was told `event`.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Left { client } | Event::Gone { client } => self.part(*client),
            Event::Claims {
                client,
                lane,
                claims,
            } => {
                for ((_, at), seat) in &mut self.seats {
                    if let Some(said) = seat.said.get_mut(client).filter(|_| at == lane) {
                        *said = Said {
                            claims: *claims,
                            fresh: true,
                            wanted: said.wanted || claims.want,
                            ..*said
                        };
                    }
                }
            }
            Event::Stopped {
                container,
                lane,
                ok,
            } => {
                // one that comes after the order to go on is of a stop before that
                let place = (*container, *lane);
                let goes_on = |seat: &Seat| seat.hold == Hold::Resuming;
                if !self.seats.get(&place).is_some_and(goes_on) {
                    let hold = if *ok { Hold::Stopped } else { Hold::Free };
                    self.hold(*container, *lane, hold);
                }
            }
            Event::Resumed { container, lane } => self.hold(*container, *lane, Hold::Free),
            _ => {}
        }
        self.regroup();
        self.settle();
    }

    /// Which GPUs of a container take turns together: those that its processes have wanted, if there
    /// are several.
    fn regroup(&mut self) {
        let mut gangs: BTreeMap<ContainerId, (u32, bool)> = BTreeMap::new();
        for ((id, _), seat) in &self.seats {
            let may = seat.record.gang == Gangs::Auto;
            if may && seat.said.values().any(|said| said.wanted) {
                let gang = gangs.entry(*id).or_default();
                *gang = (gang.0 + 1, gang.1 || seat.asks());
            }
        }
        for ((id, _), seat) in &mut self.seats {
            let gang = gangs.get(id).filter(|gang| gang.0 > 1);
            let part = gang.filter(|_| seat.said.values().any(|said| said.wanted));
            seat.gang = part.is_some();
            seat.drawn = part.is_some_and(|gang| gang.1);
        }
    }

    fn hold(&mut self, container: ContainerId, lane: Lane, hold: Hold) {
        if let Some(seat) = self.seats.get_mut(&(container, lane)) {
            seat.hold = if seat.said.is_empty() {
                Hold::Free
            } else {
                hold
            };
            let reached = |said: &mut Said| said.reached |= hold == Hold::Stopping;
            seat.said.values_mut().for_each(reached);
        }
    }

    /// The engine wants `action` done.
    pub fn action(&mut self, action: &Action, restored: Option<&Record>) {
        match action {
            Action::Admitted { record, .. } => {
                self.seat(record);
                self.tune();
            }
            Action::Restored { .. } => {
                restored.into_iter().for_each(|record| self.seat(record));
                self.tune();
            }
            Action::PolicySet { policy, was, .. } => {
                let gpus = was.iter().map(|(gpu, _)| (*gpu, *policy));
                self.policies.extend(gpus);
                self.tune();
            }
            Action::Retuned { record, .. } => self.retune(record),
            Action::Dismissed { container, .. } => {
                self.seats.retain(|(id, _), _| id != container);
                self.tune();
            }
            Action::Attached {
                client, container, ..
            } => {
                let lanes = self.seats.iter_mut().filter(|((id, _), _)| id == container);
                for (_, seat) in lanes {
                    // nothing can be in flight of a process that has not seen its page yet
                    let fresh = seat.shut_before;
                    seat.said.insert(
                        *client,
                        Said {
                            fresh,
                            ..Said::default()
                        },
                    );
                }
            }
            Action::Disconnect { client, .. } => self.part(*client),
            Action::SetLane {
                container,
                lane,
                view,
            } => self.set(*container, *lane, *view),
            Action::Stop { container, lane } => self.hold(*container, *lane, Hold::Stopping),
            Action::Resume { container, lane } => self.hold(*container, *lane, Hold::Resuming),
            Action::Late {
                container,
                lane,
                stage: Late::Overrun,
                ..
            } => {
                if let Some(seat) = self.seats.get_mut(&(*container, *lane)) {
                    seat.freely |= seat.untracked;
                    (seat.overrun, seat.untracked) = (true, false);
                    seat.tail = seat.tail.max(self.config.drain_max.0);
                }
            }
            _ => {}
        }
        self.regroup();
        self.settle();
    }

    fn seat(&mut self, record: &Record) {
        for (at, lane) in record.lanes.iter().enumerate() {
            let seat = Seat {
                gpu: lane.gpu,
                record: record.clone(),
                view: None,
                said: BTreeMap::new(),
                closing: None,
                shut_before: false,
                untracked: false,
                freely: false,
                again: None,
                guest: false,
                shut: 0,
                was_untracked: false,
                hold: Hold::Free,
                overrun: false,
                granted: self.now,
                used: 0,
                off: 0,
                billed: 0,
                spared: 0,
                sparing: 0,
                stint: 0,
                idle: Idle::default(),
                rounded: 0,
                stretch: 0,
                last: 0,
                longest: 0,
                tail: 0,
                waits: None,
                cap: (1, 1),
                weight: u64::from(record.weight.get()),
                share: 0,
                native: false,
                tuned: 0,
                gang: false,
                drawn: false,
            };
            self.seats.insert((record.container, Lane(at as u8)), seat);
        }
    }

    fn set(&mut self, container: ContainerId, lane: Lane, view: LaneView) {
        let (now, place) = (self.now, (container, lane));
        let Some(seat) = self.seats.get(&place) else {
            return;
        };
        // one that is known to be stopped when its turn ends is off the GPU at once, and may be next
        let anew = seat
            .view
            .is_some_and(|it| view.turn == it.turn.wrapping_add(2));
        let anew = anew && seat.holds() && !seat.gang;
        if anew && seat.wants() && !seat.overrun {
            self.spare(place);
        }
        let Some(seat) = self.seats.get_mut(&place) else {
            return;
        };
        let held = seat.holds() && !anew;
        let before = seat.view.replace(view);
        if seat.holds() {
            let extended = before.is_some_and(|before| before.turn_end != view.turn_end);
            let again = seat.gang && seat.closing.is_some() && !seat.overrun && !seat.untracked;
            // a gang's turn that is extended because it does not get quiet is the same one, and so are those
            // that one has while it is late
            let late = again || seat.overrun;
            if (if held { extended } else { !seat.untracked }) && !late {
                seat.rest();
            }
            if !held || extended {
                seat.guest = false;
                let still = seat.overrun && seat.freely;
                (seat.freely, seat.stint) = (!seat.capped() || still, 0);
            }
            if !held {
                seat.again = seat.closing.filter(|_| again);
                // turns may begin and be given in one step, where no other one has anything in flight
                let opened = before.is_some_and(|it| it.mode == Mode::Open);
                seat.was_untracked = std::mem::take(&mut seat.untracked) || opened;
                (seat.granted, seat.closing) = (now, None);
                seat.said.values_mut().for_each(|said| said.fresh = false);
            }
        } else if seat.open() {
            seat.guest = false;
            if std::mem::take(&mut seat.untracked) {
                seat.closing = None;
            }
        } else if held || before.is_some_and(|it| it.mode == Mode::Open) {
            if held || !seat.overrun {
                let since = seat.again.filter(|_| held).unwrap_or(now);
                (seat.closing, seat.untracked) = (Some(since), !held);
                seat.shut = now;
            } else {
                // late already, and it pays until it is quiet
                seat.closing = seat.closing.or(Some(now));
            }
            seat.said.values_mut().for_each(|said| said.fresh = false);
        }
    }

    fn part(&mut self, client: ClientId) {
        self.seats.values_mut().for_each(|seat| {
            seat.said.remove(&client);
            if seat.said.is_empty() {
                seat.hold = Hold::Free;
            }
        });
    }

    /// Ends the closing of those who are quiet; of a gang, when all are that others wait for.
    fn settle(&mut self) {
        // in the middle of a step one of them may have its turn again before the others
        let closing = |seat: &Seat| seat.closing.is_some() && !seat.untracked;
        let waited = |seat: &Seat| seat.holds() || closing(seat) && !seat.overrun;
        let busy: Vec<ContainerId> = self
            .seats
            .iter()
            .filter(|(_, seat)| {
                seat.gang && waited(seat) && !(seat.quiet() && seat.closing.is_some())
            })
            .map(|(place, _)| place.0)
            .collect();
        let mut spared: Vec<Place> = Vec::new();
        for ((id, lane), seat) in &mut self.seats {
            let together = seat.gang && !seat.overrun && !seat.untracked && busy.contains(id);
            let closed = seat.closing.filter(|_| seat.quiet() && !together);
            if let Some(closed) = closed {
                if seat.wants() && !seat.gang && !seat.overrun && !seat.untracked {
                    if let Some(ns) = seat.idled(closed, self.now) {
                        seat.idle.add(ns.min(self.config.turn_min.0 / 2));
                    }
                    spared.push((*id, *lane));
                }
                if !seat.overrun {
                    let waited = (self.now - seat.shut).min(self.config.drain_max.0);
                    seat.tail = (seat.tail / 2).max(waited);
                }
                if seat.untracked {
                    // no line chose it for this: what its last turn left it to owe is still owed
                    seat.stretch += seat.last;
                    seat.longest = seat.longest.max(seat.stretch);
                }
                (seat.closing, seat.overrun, seat.untracked) = (None, false, false);
            }
            // who was passed and has a turn nevertheless, or needs none any more, may get quiet in that
            seat.overrun &= !((seat.holds() || seat.open()) && seat.quiet());
        }
        spared.into_iter().for_each(|place| self.spare(place));
    }

    /// The GPUs with which this one is in a container that takes turns together.
    pub fn gang(&self, place: &Place) -> impl Iterator<Item = (&Place, &Seat)> {
        let (id, gang) = (place.0, self.seats.get(place).is_some_and(|seat| seat.gang));
        self.seats
            .iter()
            .filter(move |(other, seat)| gang && other.0 == id && seat.gang)
    }

    /// The seats of one GPU.
    pub fn on(&self, gpu: GpuUuid) -> impl Iterator<Item = (&Place, &Seat)> {
        self.seats.iter().filter(move |(_, seat)| seat.gpu == gpu)
    }
}
