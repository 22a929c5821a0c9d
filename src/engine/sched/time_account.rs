//! Time accounts: where a container's wall time went on a GPU, so that a reader sees why it is slow.
//!
//! # Problem
//! A container that is slow may wait for others, be held back by its own share, or have nothing to do.
//! GPU time and waiting time alone do not tell these apart.
//!
//! # Idea
//! At every instant a container is in exactly one state on a GPU, and the time since the last step is added
//! to that state's sum. So the sums add up to the wall time since the container's admission, in ns, without
//! rounding. The states, the first that applies:
//!
//! | state | the container |
//! |---|---|
//! | running | has its turn, until it has drained; or has work in flight beside others; or is runnable in open mode |
//! | suspended | is suspended, or on the way to or from it |
//! | idle | is not runnable, or has no process |
//! | limited | is runnable, and its own share or cap does not pay for a turn |
//! | waiting | is runnable, and another container has the GPU, has not drained, or has it reserved |
//! | hand-over | is runnable, and the GPU is between two turns, for as long as an honest drain takes |
//! | gang | is runnable, and waits for other GPUs of its gang: this one is free, or has a turn that fits in before |
//! | absent | is unknown: no step came when one was due, or its processes may come back after a restart |
//!
//! All instants are of the daemon's clock. That a container is runnable is a claim, and so is that it has
//! drained; that a kernel ran is not measured. A liar can lengthen its own waiting and running, or shorten
//! them in favour of idle. It lengthens the waiting of others by the time that it keeps the GPU, as measured.
//!
//! A container that claims work without having any therefore shows as waiting and running. A container that
//! has overrun is running: its work is on the GPU and it is charged, whether it waits for a turn or not.
//! Stopped work waits for its turn as any other.
//!
//! Nothing is decided from an account. A restart of the daemon begins it anew.

use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};
use gpuslice_wire::waits::WaitCause;

use super::entity::Entity;
use super::untracked::Untracked;
use super::waits::Waits;
use super::{Phase, Turns};
use crate::config::Charged;
use crate::index::ContainerIndex;

/// The state of a container on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Waiting { behind: ContainerIndex, cause: WaitCause },
    HandOver,
    Limited,
    Gang,
    Idle,
    Suspended,
    Absent,
}

/// A state, and the one that follows it at a known instant.
#[derive(Clone, Copy, Debug)]
struct Course {
    first: State,
    then: Option<(Instant, State)>,
}

impl From<State> for Course {
    fn from(first: State) -> Course {
        Course { first, then: None }
    }
}

/// What keeps runnable containers from a GPU.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    /// Nothing that lasts: the next turn begins at once.
    None,
    /// The turn of a container.
    Turn { index: ContainerIndex, class: Class },
    /// A container that has not drained, which is ordinary until `late`.
    Drain { index: ContainerIndex, late: Instant, cause: WaitCause },
    /// A reservation for a gang.
    Reserved { index: ContainerIndex },
}

/// The wall time of one container on one GPU, by state.
#[derive(Clone, Debug)]
pub(crate) struct TimeAccount {
    /// The begin of the account.
    pub(crate) since: Instant,
    /// After a restart of the daemon: processes may attach again until then.
    returns: Instant,
    pub(crate) running: Duration,
    pub(crate) handover: Duration,
    pub(crate) limited: Duration,
    pub(crate) gang: Duration,
    pub(crate) idle: Duration,
    pub(crate) suspended: Duration,
    pub(crate) absent: Duration,
    pub(crate) waits: Waits,
}

impl TimeAccount {
    /// An account that begins at `since`.
    pub(crate) fn new(since: Instant) -> TimeAccount {
        let none = Duration(0);
        TimeAccount {
            since,
            returns: since,
            running: none,
            handover: none,
            limited: none,
            gang: none,
            idle: none,
            suspended: none,
            absent: none,
            waits: Waits::default(),
        }
    }

    /// The time waited behind other containers.
    pub(crate) fn waiting(&self) -> Duration {
        self.waits.table().total()
    }

    /// The time in which it had work and not the GPU: `wait_ns` of a snapshot, and WAIT in lists.
    pub(crate) fn waited(&self) -> Duration {
        let own = self.handover.0 + self.limited.0 + self.gang.0;
        Duration(self.waiting().0 + own)
    }

    /// The sum of all states: the wall time since `since`.
    pub(crate) fn total(&self) -> Duration {
        let off = [self.handover, self.limited, self.gang, self.idle, self.suspended, self.absent];
        Duration(off.iter().map(|part| part.0).sum::<u64>() + self.running.0 + self.waiting().0)
    }

    fn spend(&mut self, state: State, time: Duration) {
        if time.0 == 0 {
            return;
        }
        if !matches!(state, State::Waiting { .. } | State::HandOver) {
            self.waits.ends();
        }
        let sum = match state {
            State::Waiting { behind, cause } => return self.waits.add(behind, cause, time.0),
            State::Running => &mut self.running,
            State::HandOver => &mut self.handover,
            State::Limited => &mut self.limited,
            State::Gang => &mut self.gang,
            State::Idle => &mut self.idle,
            State::Suspended => &mut self.suspended,
            State::Absent => &mut self.absent,
        };
        *sum = Duration(sum.0 + time.0);
    }

    /// Adds the time between two instants; the engine was absent for the last part of it. A container that was
    /// suspended stayed so: none but the daemon resumes it.
    fn follow(&mut self, course: Course, from: Instant, to: Instant, absent: Duration) {
        let absent = absent.min(to.since(from));
        let seen = Instant(to.0 - absent.0);
        let change = course.then.map_or(seen, |(at, _)| at.max(from).min(seen));
        self.spend(course.first, change.since(from));
        if let Some((_, state)) = course.then {
            self.spend(state, seen.since(change));
        }
        let unseen = match course.first {
            State::Suspended => State::Suspended,
            _ => State::Absent,
        };
        self.spend(unseen, absent);
    }
}

impl Turns {
    /// `index` is of before a restart of the daemon: its processes may attach again until `until`.
    pub(crate) fn returns(&mut self, index: ContainerIndex, until: Instant) {
        if let Some(entity) = self.find_mut(index) {
            entity.time.returns = until;
        }
    }

    /// The instant up to which all accounts are complete: that of the last step.
    pub(crate) fn accounted_until(&self) -> Instant {
        self.now
    }

    /// Adds the time up to `now` to all accounts, in the state that the last step left.
    pub(super) fn account_time(&mut self, now: Instant, charged: Charged) {
        let (from, absent) = (self.now, charged.absent_since(self.booked));
        if now <= from {
            return;
        }
        let obstacle = self.obstacle(now);
        for at in 0..self.entities.len() {
            let course = self.course(&self.entities[at], obstacle);
            self.entities[at].time.follow(course, from, now, absent);
        }
    }

    /// The account of `entity` as a step at `now` would leave it.
    pub(crate) fn time_account(
        &self,
        entity: &Entity,
        now: Instant,
        charged: Charged,
    ) -> TimeAccount {
        let mut account = entity.time.clone();
        let course = self.course(entity, self.obstacle(now));
        let absent = charged.absent_since(self.booked);
        account.follow(course, self.now, now.max(self.now), absent);
        account
    }

    /// What keeps runnable containers from the GPU until `now`.
    fn obstacle(&self, now: Instant) -> Obstacle {
        let drain = |index, closed: Instant, first: Instant| {
            let over = now >= first.plus(self.config.drain_max);
            let cause = if over { WaitCause::NoDrain } else { WaitCause::LongKernel };
            Obstacle::Drain { index, late: closed.plus(self.honest_drain()), cause }
        };
        match self.phase {
            Phase::Open => Obstacle::None,
            Phase::Held { index, .. } => match self.find(index) {
                Some(holder) => Obstacle::Turn { index, class: holder.class },
                None => Obstacle::None,
            },
            Phase::Closing { index, closed, .. } => {
                drain(index, closed, self.closed_first(index).unwrap_or(closed))
            }
            Phase::Idle => {
                let untracked = self.untracked().next();
                let since = untracked.and_then(|it| it.untracked).map(Untracked::since);
                match (untracked, since, self.demand.kept) {
                    (Some(entity), Some(since), _) => drain(entity.index, since, since),
                    (_, _, Some(kept)) => Obstacle::Reserved { index: kept.index },
                    _ => Obstacle::None,
                }
            }
        }
    }

    /// The state of `entity` since the last step.
    fn course(&self, entity: &Entity, obstacle: Obstacle) -> Course {
        let reported = entity.reported;
        if self.charged(entity) {
            return State::Running.into();
        }
        if reported.suspended {
            return State::Suspended.into();
        }
        if !reported.runnable {
            let returns = (entity.time.returns, State::Idle);
            return match reported.attached {
                true => State::Idle.into(),
                false => Course { first: State::Absent, then: Some(returns) },
            };
        }
        if !entity.eligible() {
            return State::Limited.into();
        }
        let waiting = |behind, cause| State::Waiting { behind, cause };
        let gang = entity.gang.is_some();
        match obstacle {
            Obstacle::Turn { .. } if gang && self.fits_before == Some(entity.index) => {
                State::Gang.into()
            }
            Obstacle::Turn { index, class } if class < entity.class => {
                waiting(index, WaitCause::HigherClass).into()
            }
            Obstacle::Turn { index, .. } => waiting(index, WaitCause::Queue).into(),
            Obstacle::Drain { index, late, cause } => {
                Course { first: State::HandOver, then: Some((late, waiting(index, cause))) }
            }
            Obstacle::Reserved { index } if index != entity.index => {
                waiting(index, WaitCause::Gang).into()
            }
            Obstacle::Reserved { .. } | Obstacle::None if gang => State::Gang.into(),
            Obstacle::Reserved { .. } | Obstacle::None => State::HandOver.into(),
        }
    }
}
