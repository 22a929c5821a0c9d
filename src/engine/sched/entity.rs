//! One container on one GPU: its weight, the GPU time it has used, and its cap.

use gpuslice_wire::ids::Lane;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::bucket::Bucket;
use super::gang::Member;
use super::gpu::ToOne;
use super::overhead::{SwitchCosts, WorkSpan};
use super::policy::Entitlement;
use super::preempt::Preemption;
use super::recording::Present;
use super::time_account::TimeAccount;
use super::untracked::Untracked;
use crate::index::ContainerIndex;

/// The weight of an entry of a run queue, one at least: a container's weight in the lower queue, its due in
/// parts per million in the upper one ([`super::dues`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueWeight(u32);

impl QueueWeight {
    /// That weight, one instead of zero.
    pub(crate) fn new(weight: u32) -> QueueWeight {
        QueueWeight(weight.max(1))
    }
    pub(crate) fn get(self) -> u32 {
        self.0
    }
}

/// Virtual time: GPU time divided by weight, in 2^-32 ns. 2^64 ns of any weight fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Virtual(u128);

impl Virtual {
    /// This much later for `used` GPU time at `weight`. Weights take effect here and nowhere else.
    pub(crate) fn after(self, used: Duration, weight: QueueWeight) -> Virtual {
        let scaled = (u128::from(used.0) << 32) / u128::from(weight.get());
        Virtual(self.0.saturating_add(scaled))
    }

    /// This much earlier.
    pub(crate) fn before(self, compensated: Duration, weight: QueueWeight) -> Virtual {
        let scaled = Virtual::default().after(compensated, weight);
        Virtual(self.0.saturating_sub(scaled.0))
    }

    /// How far this is ahead of `queue_time`, in GPU time at `weight`.
    pub(crate) fn ahead(self, queue_time: Virtual, weight: QueueWeight) -> Duration {
        let ahead = self.0.saturating_sub(queue_time.0);
        let time = ahead.saturating_mul(u128::from(weight.get())) >> 32;
        Duration(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// As far ahead of its queue as before in GPU time, at another weight, in queue `to` instead of `from`.
    /// A container behind its queue was kept from running by a cap, which earns no credit.
    pub(crate) fn reweighed(
        self,
        from: Virtual,
        to: Virtual,
        was: QueueWeight,
        is: QueueWeight,
    ) -> Virtual {
        let (was, is) = (u128::from(was.get()), u128::from(is.get()));
        let ahead = self.0.saturating_sub(from.0).saturating_mul(was) / is;
        Virtual(to.0.saturating_add(ahead))
    }

    /// As far ahead of `queue_time` or behind it as before in GPU time, at another weight.
    pub(crate) fn rescaled(
        self,
        queue_time: Virtual,
        was: QueueWeight,
        is: QueueWeight,
    ) -> Virtual {
        let (was, is) = (u128::from(was.get()), u128::from(is.get()));
        let scaled = |distance: u128| distance.saturating_mul(was) / is;
        if self >= queue_time {
            let ahead = scaled(self.0 - queue_time.0);
            return Virtual(queue_time.0.saturating_add(ahead));
        }
        Virtual(queue_time.0.saturating_sub(scaled(queue_time.0 - self.0)))
    }

    /// The length of a turn that starts here at `weight`. Turns of this container have the average length
    /// `nominal` and end at a fixed point of every round: `rank` of `of`.
    ///
    /// The result is between half and three halves of `nominal`. A turn that ran over is followed by a
    /// shorter one at once, not by a skipped one later, and the order of containers stays the same from
    /// round to round. That keeps shares even over short times: the order of plain start tags drifts with
    /// every overrun, and each change of order costs a turn.
    pub(crate) fn aim(
        self,
        nominal: Duration,
        weight: QueueWeight,
        rank: u64,
        of: u64,
    ) -> Duration {
        let round = Virtual::default().after(nominal, weight).0.max(1);
        let phase = round * u128::from(rank) / u128::from(of.max(1));
        let here = self.0.saturating_sub(phase);
        let ends = ((here + round / 2) / round + 1) * round;
        let length = ((ends - here) * u128::from(weight.get())) >> 32;
        Duration(u64::try_from(length).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_near_the_nominal_length_and_correct_overruns() {
        let (weight, nominal) = (QueueWeight::new(3), Duration(6_000_000));
        let mut at = Virtual::default();
        let (mut used, turns) = (0, 1_000);
        for turn in 0..turns {
            let length = at.aim(nominal, weight, 1, 4);
            assert!((3_000_000..=9_000_001).contains(&length.0), "turn {turn}: {length:?}");
            let overrun = turn * 7_919 % 900_000;
            at = at.after(Duration(length.0 + overrun), weight);
            used += length.0 + overrun;
        }
        assert!(used.abs_diff(turns * nominal.0) <= 9_000_000, "{used}");
    }
}

/// The combined report of a container's processes, as far as turns are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The container has attached processes.
    pub(crate) attached: bool,
    /// One of them has work to launch or in flight.
    pub(crate) runnable: bool,
    /// All of them were read since the last close and have no work of that turn in flight.
    pub(crate) drained: bool,
    /// A process attached after the last order to stop, which cannot have reached it,
    pub(crate) newcomer: bool,
    /// and has not drained.
    pub(crate) busy_newcomer: bool,
    /// The container is suspended, or on the way to or from it.
    pub(crate) suspended: bool,
    /// When they were on the GPU in the turn that was closed last, if they were.
    pub(crate) work_span: Option<WorkSpan>,
}

/// A container on a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Entity {
    pub(crate) index: ContainerIndex,
    pub(crate) lane: Lane,
    /// The container's entitlement.
    pub(crate) entitlement: Entitlement,
    /// The weight in its run queue.
    pub(crate) weight: QueueWeight,
    /// The container has a share: its weight in the upper queue is its due. Without a share it belongs to
    /// the pool.
    pub(crate) reserved: bool,
    /// Its weight for the time that shares leave; 0 for none.
    pub(crate) surplus_weight: u32,
    /// The part of its class's time that is due to it, parts per million; `None` while it does not count.
    pub(crate) due: Option<u32>,
    pub(crate) class: Class,
    pub(crate) bucket: Bucket,
    pub(crate) reported: Report,
    /// The container had no processes before this step: its first one sees the pages as this step leaves
    /// them.
    pub(crate) arrives: bool,
    /// Its present turn was granted in another queue: the pool of the present queue is not charged for it.
    pub(crate) guest: bool,
    /// Start tag: its virtual start time while it is queued.
    pub(crate) start: Virtual,
    /// Finish tag: grows with each charge.
    pub(crate) finish: Virtual,
    /// When it was enqueued; of equal tags the earlier goes first.
    pub(crate) queued: Instant,
    /// When the pool was enqueued before the turn after which this container overran, until it is enqueued itself.
    pub(crate) goes_before: Option<Instant>,
    /// The turn word: odd while the container may launch.
    pub(crate) turn: u32,
    pub(crate) turn_end: Instant,
    /// The turn state its page shows; `None` before the first write.
    pub(crate) shown: Option<ToOne>,
    /// When its turn began.
    pub(crate) granted: Instant,
    /// Overhead of its last switches.
    pub(crate) switch_costs: SwitchCosts,
    /// Since when its turn is closed, if it has overrun: other containers run, and it has not drained.
    pub(crate) overrun: Option<Instant>,
    /// It has overrun for so long that it may have a turn whether its cap pays for it or not.
    pub(crate) grace: bool,
    /// It may have work in flight that was launched in open mode.
    pub(crate) untracked: Option<Untracked>,
    /// It takes its turns together with the container's other GPUs.
    pub(crate) gang: Option<Member>,
    /// Whether its work is stopped on the GPU itself.
    pub(crate) preemption: Preemption,
    /// The number of the last order to stop its work; 0 for none.
    pub(crate) order: u32,
    /// Attempts to stop its work since its turn was closed.
    pub(crate) stop_tries: u32,
    /// Turns in a row after which its work had to be stopped.
    pub(crate) stuck: u32,
    /// GPU time charged to it, as shown to observers.
    pub(crate) gpu_time: Duration,
    /// The part of `gpu_time` to subtract from the next charges, as compensation.
    pub(crate) compensated: Duration,
    /// Time in which it was runnable, on the GPU or not.
    pub(crate) runnable_time: Duration,
    pub(crate) turns: u64,
    /// GPU time of its present run: since it was last granted a turn, or an extension of one.
    pub(crate) run: Duration,
    /// How long it has lately taken to drain after a turn: the longest, halved each time.
    pub(crate) tail: Duration,
    /// Turns after which it had not drained within `drain`.
    pub(crate) late_turns: u64,
    /// Turns closed before their end for a higher class.
    pub(crate) closed_early: u64,
    /// Times its work was stopped on the GPU.
    pub(crate) stops: u64,
    /// Where its wall time went.
    pub(crate) time: TimeAccount,
    /// Its present stretch, while turns are recorded.
    pub(crate) present: Option<Present>,
    /// Its gate is closed whether others are runnable or not: it is being suspended or resumed.
    pub(crate) held_back: bool,
}

impl Entity {
    /// May be granted the next turn, also when it has overrun: work it left running may wait for a launch
    /// that only a turn allows.
    pub(crate) fn eligible(&self) -> bool {
        self.reported.runnable && (self.bucket.funded() || self.grace)
    }

    /// When an overrun container may have a turn that its cap does not pay for. It is charged until it
    /// drains, so its bucket would never fill. The wait doubles each time.
    pub(crate) fn grace_at(&self) -> Option<Instant> {
        let closed = self.overrun?;
        let waited = self.turn_end.since(closed);
        Some(closed.plus(Duration(waited.0.saturating_mul(2))))
    }

    /// Whether its streams have gates while a container of the class `high` is attached.
    pub(crate) fn may_have_gates(&self) -> bool {
        self.class == Class::BestEffort && self.entitlement.alone
    }

    /// Has no work running on the GPU. Stopped work does not run, except that of processes that attached
    /// after the order: they may have launched in a turn that began before the answer.
    pub(crate) fn is_off(&self) -> bool {
        let stopped = self.preemption == Preemption::Stopped && !self.reported.busy_newcomer;
        self.reported.drained || !self.reported.attached || stopped
    }

    /// Closes the turn: the container may not launch, and earlier reports say nothing about work in flight
    /// now.
    pub(crate) fn shut(&mut self) {
        (self.reported.drained, self.reported.busy_newcomer) = (false, self.reported.newcomer);
        self.stop_tries = 0;
    }

    /// While turns are taken, whether the GPU may go past gates in its streams. Gates hold work back only
    /// as long as other containers wait for it: work that has not drained then runs beside them, and is
    /// charged.
    pub(crate) fn passes_gates(&self) -> bool {
        gpuslice_wire::page::may_launch(self.turn) || self.overrun.is_some()
    }

    /// Competes for the GPU, with work to launch or with work it left running.
    pub(crate) fn competes(&self) -> bool {
        self.reported.runnable || self.overrun.is_some() || self.untracked.is_some()
    }

    /// GPU time it used ahead of `queue_time`: what it owes the containers that waited meanwhile.
    pub(crate) fn debt(&self, queue_time: Virtual) -> Duration {
        self.start.max(self.finish).ahead(queue_time, self.weight)
    }

    /// Records how long it took to drain after a close, and whether its work was stopped for that. No drain is
    /// waited for longer than `most`; a longer time is a clock jump.
    pub(crate) fn drained_in(&mut self, waited: Duration, most: Duration) {
        let stopped = self.preemption == Preemption::Stopped;
        self.stuck = if stopped { self.stuck.saturating_add(1) } else { 0 };
        self.tail = Duration(self.tail.0 / 2).max(waited.min(most));
    }

    /// Enqueues it at `now`. Used time is behind it, unused time is gone: an idle container starts at the
    /// queue's virtual time, without credit.
    pub(crate) fn enqueue(&mut self, now: Instant, queue_time: Virtual) {
        self.start = queue_time.max(self.finish);
        self.queued = now;
    }

    /// Charges `used` GPU time.
    pub(crate) fn charge(&mut self, used: Duration) {
        let billed = self.billed(used);
        self.compensated = Duration(self.compensated.0 - (used.0 - billed.0));
        self.gpu_time = Duration(self.gpu_time.0.saturating_add(billed.0));
        self.finish = self.finish.max(self.start).after(used, self.weight);
        self.run = Duration(self.run.0.saturating_add(used.0));
        self.bucket.spend(used);
    }

    /// The part of `used` that is added to `gpu_time`.
    pub(crate) fn billed(&self, used: Duration) -> Duration {
        Duration(used.0.saturating_sub(self.compensated.0))
    }

    /// Does not charge `part` of its last run. `gpu_time` only grows, so it makes up for it later.
    pub(crate) fn compensate(&mut self, part: Duration) {
        self.finish = self.finish.before(part, self.weight).max(self.start);
        self.compensated = Duration(self.compensated.0.saturating_add(part.0));
        self.bucket.refund(part);
    }

    /// Joins a queue at its virtual time, with neither debt nor credit.
    pub(crate) fn join(&mut self, queue_time: Virtual) {
        (self.start, self.finish) = (queue_time, queue_time);
    }

    /// Changes the weight in its queue. Its lead or lag stays the same GPU time.
    pub(crate) fn rescale(&mut self, queue_time: Virtual, weight: QueueWeight) {
        let tag = |tag: Virtual| tag.rescaled(queue_time, self.weight, weight);
        (self.start, self.finish) = (tag(self.start), tag(self.finish));
        self.weight = weight;
    }

    /// Changes the weight to `weight`, and the queue from `from` to `to`. Its lead stays the same GPU time.
    pub(crate) fn reweigh(&mut self, from: Virtual, to: Virtual, weight: QueueWeight) {
        let tag = |tag: Virtual| tag.reweighed(from, to, self.weight, weight);
        (self.start, self.finish) = (tag(self.start), tag(self.finish));
        self.weight = weight;
    }
}
