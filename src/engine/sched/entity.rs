//! One container's account of one GPU's time: what it weighs, what it has used, what it may use.

use gpuslice_wire::ids::Lane;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant, Weight};

use super::bucket::Bucket;
use super::gang::Member;
use super::overhead::{SwitchCosts, WorkSpan};
use super::policy::Entitlement;
use super::preempt::Preemption;
use super::untracked::Untracked;
use crate::lifecycle::ContainerIndex;
use crate::view::ToOne;

/// Virtual time: GPU time divided by weight, in 2^-32 ns. 2^64 ns of any weight fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Virtual(u128);

impl Virtual {
    /// This much later for `used` GPU time at `weight`. All that weights do is in this line.
    pub(crate) fn after(self, used: Duration, weight: Weight) -> Virtual {
        let scaled = (u128::from(used.0) << 32) / u128::from(weight.get());
        Virtual(self.0.saturating_add(scaled))
    }

    /// This much earlier.
    pub(crate) fn before(self, compensated: Duration, weight: Weight) -> Virtual {
        let scaled = Virtual::default().after(compensated, weight);
        Virtual(self.0.saturating_sub(scaled.0))
    }

    /// How far this is ahead of `line`, in GPU time at `weight`.
    pub(crate) fn ahead(self, queue_time: Virtual, weight: Weight) -> Duration {
        let ahead = self.0.saturating_sub(queue_time.0);
        let time = ahead.saturating_mul(u128::from(weight.get())) >> 32;
        Duration(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// As far ahead of the line as before in GPU time, at another weight, in line `to` instead of `from`. One that
    /// is behind its line was kept from it by a cap, which earns no credit.
    pub(crate) fn reweighed(self, from: Virtual, to: Virtual, was: Weight, is: Weight) -> Virtual {
        let (was, is) = (u128::from(was.get()), u128::from(is.get()));
        let ahead = self.0.saturating_sub(from.0).saturating_mul(was) / is;
        Virtual(to.0.saturating_add(ahead))
    }

    /// How long a turn that starts here at `weight` lasts, if `nominal` is its due on average and
    /// turns of this one are to end at a fixed point of every round: `rank` of `of`.
    ///
    /// The answer is between half and three halves of `nominal`. A turn that ran over is followed
    /// by a shorter one at once, not by a skipped one later, and who follows whom stays the
    /// same from round to round. That is what keeps shares even over short times: the order of
    /// plain start tags drifts with every overrun, and each change of order costs a turn.
    pub(crate) fn aim(self, nominal: Duration, weight: Weight, rank: u64, of: u64) -> Duration {
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
        let (weight, nominal) = (Weight::new(3).expect("a weight"), Duration(6_000_000));
        let mut at = Virtual::default();
        let (mut used, turns) = (0, 1_000);
        for turn in 0..turns {
            let length = at.aim(nominal, weight, 1, 4);
            assert!(
                (3_000_000..=9_000_001).contains(&length.0),
                "turn {turn}: {length:?}"
            );
            let overrun = turn * 7_919 % 900_000;
            at = at.after(Duration(length.0 + overrun), weight);
            used += length.0 + overrun;
        }
        assert!(used.abs_diff(turns * nominal.0) <= 9_000_000, "{used}");
    }
}

/// What a container's processes say together, as far as turns are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// It has processes.
    pub(crate) attached: bool,
    /// One of them wants the GPU.
    pub(crate) runnable: bool,
    /// All of them were read since the last close and have nothing in flight of that turn.
    pub(crate) drained: bool,
    /// One came after the last order to stop, which cannot have reached it,
    pub(crate) newcomer: bool,
    /// and is not quiet.
    pub(crate) busy_newcomer: bool,
    /// When they were on the GPU in the turn that was closed last, if in any.
    pub(crate) work_span: Option<WorkSpan>,
}

/// A container on a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Entity {
    pub(crate) index: ContainerIndex,
    pub(crate) lane: Lane,
    /// What it was promised.
    pub(crate) entitlement: Entitlement,
    /// What it weighs in its line.
    pub(crate) weight: Weight,
    /// It has a share, which is its weight in the upper line; without one it is of the pool.
    pub(crate) reserved: bool,
    pub(crate) class: Class,
    pub(crate) bucket: Bucket,
    pub(crate) reported: Report,
    /// It had no processes before this step: its first one sees the pages as this step leaves them.
    pub(crate) arrives: bool,
    /// Its present turn was given in another line: what it uses of it is not the use of this one's pool.
    pub(crate) guest: bool,
    /// Start tag: the virtual time at which it waits in line.
    pub(crate) start: Virtual,
    /// Finish tag: grows as it is charged.
    pub(crate) finish: Virtual,
    /// When it got in line; earlier goes first among equal tags.
    pub(crate) queued: Instant,
    /// Odd while it may launch.
    pub(crate) turn: u32,
    pub(crate) turn_end: Instant,
    /// What its page says of its turns; nothing yet if `None`.
    pub(crate) shown: Option<ToOne>,
    /// When its turn began.
    pub(crate) granted: Instant,
    /// What hand-overs cost it.
    pub(crate) switch_costs: SwitchCosts,
    /// Its turn was closed then, others run by now, and it is still not quiet.
    pub(crate) overrun: Option<Instant>,
    /// ... for so long that it may have a turn whether its cap pays for it or not.
    pub(crate) grace: bool,
    /// It may have work in flight from before the turns.
    pub(crate) untracked: Option<Untracked>,
    /// It takes its turns together with the container's other GPUs.
    pub(crate) gang: Option<Member>,
    /// Whether its work is stopped on the GPU itself.
    pub(crate) preemption: Preemption,
    /// How often its work was ordered to stop.
    pub(crate) orders: u32,
    /// How often it was tried to stop its work since its turn was closed.
    pub(crate) stop_tries: u32,
    /// What is on its bill.
    pub(crate) gpu_time: Duration,
    /// ... and should not be: it goes off what comes next.
    pub(crate) compensated: Duration,
    pub(crate) wait_time: Duration,
    /// Time in which it wanted the GPU, on it or not.
    pub(crate) runnable_time: Duration,
    pub(crate) turns: u64,
    /// What it used since it was last given a turn, or more of one.
    pub(crate) run: Duration,
    /// How long it has lately taken to get quiet after a turn: the longest, halved each time.
    pub(crate) tail: Duration,
    /// Turns after which it was late in getting quiet.
    pub(crate) late_turns: u64,
    /// Turns closed before their end for one of a higher class.
    pub(crate) closed_early: u64,
    /// Times its work was stopped on the GPU.
    pub(crate) stops: u64,
}

impl Entity {
    /// May be given the next turn, also when it was passed and is still not quiet: what it left running
    /// may be waiting for a launch that only a turn lets go.
    pub(crate) fn eligible(&self) -> bool {
        self.reported.runnable && (self.bucket.funded() || self.grace)
    }

    /// When one that was passed may have a turn that its cap does not pay for: it is charged for as long as
    /// it is not quiet, and would never have one. The wait doubles each time.
    pub(crate) fn grace_at(&self) -> Option<Instant> {
        let closed = self.overrun?;
        let waited = self.turn_end.since(closed);
        Some(closed.plus(Duration(waited.0.saturating_mul(2))))
    }

    /// Has nothing on the GPU. What is stopped has not, but for processes that came after the order: they may have
    /// launched in a turn that began before the answer.
    pub(crate) fn is_off(&self) -> bool {
        let stopped = self.preemption == Preemption::Stopped && !self.reported.busy_newcomer;
        self.reported.drained || !self.reported.attached || stopped
    }

    /// It may launch no more. Nothing that its processes said before tells what is in flight now.
    pub(crate) fn shut(&mut self) {
        (self.reported.drained, self.reported.busy_newcomer) = (false, self.reported.newcomer);
        self.stop_tries = 0;
    }

    /// While turns are taken, whether the GPU may go past gates in its streams. Nobody is kept behind them for
    /// longer than others wait for it: what does not get quiet then runs beside them, and pays.
    pub(crate) fn passes_gates(&self) -> bool {
        gpuslice_wire::page::may_launch(self.turn) || self.overrun.is_some()
    }

    /// Takes part in the contest for the GPU, with what it wants or with what it left running.
    pub(crate) fn competes(&self) -> bool {
        self.reported.runnable || self.overrun.is_some() || self.untracked.is_some()
    }

    /// How much GPU time it used ahead of `line`: what it owes those who waited meanwhile.
    pub(crate) fn debt(&self, queue_time: Virtual) -> Duration {
        self.start.max(self.finish).ahead(queue_time, self.weight)
    }

    /// Was quiet so long after the close of a turn. Nothing is waited for longer than `most`: what is more, the
    /// clock jumped over.
    pub(crate) fn drained_in(&mut self, waited: Duration, most: Duration) {
        self.tail = Duration(self.tail.0 / 2).max(waited.min(most));
    }

    /// Gets in line at `now`. What it used is behind it, what it did not use is gone: a sleeper
    /// starts where the line is, without credit for having slept.
    pub(crate) fn enqueue(&mut self, now: Instant, queue_time: Virtual) {
        self.start = queue_time.max(self.finish);
        self.queued = now;
    }

    /// Was on the GPU for `used`.
    pub(crate) fn charge(&mut self, used: Duration) {
        let billed = self.billed(used);
        self.compensated = Duration(self.compensated.0 - (used.0 - billed.0));
        self.gpu_time = Duration(self.gpu_time.0.saturating_add(billed.0));
        self.finish = self.finish.max(self.start).after(used, self.weight);
        self.run = Duration(self.run.0.saturating_add(used.0));
        self.bucket.spend(used);
    }

    /// What of `used` goes on its bill.
    pub(crate) fn billed(&self, used: Duration) -> Duration {
        Duration(used.0.saturating_sub(self.compensated.0))
    }

    /// So much of its last stint is not charged to it. The bill, which only grows, makes up for it later.
    pub(crate) fn compensate(&mut self, part: Duration) {
        self.finish = self.finish.before(part, self.weight).max(self.start);
        self.compensated = Duration(self.compensated.0.saturating_add(part.0));
        self.bucket.refund(part);
    }

    /// Waits where the line is, owed nothing and owing nothing.
    pub(crate) fn join(&mut self, queue_time: Virtual) {
        (self.start, self.finish) = (queue_time, queue_time);
    }

    /// Weighs `weight` from now on, in this line instead of that. What it is ahead stays the same GPU time.
    pub(crate) fn reweigh(&mut self, from: Virtual, to: Virtual, weight: Weight) {
        let tag = |tag: Virtual| tag.reweighed(from, to, self.weight, weight);
        (self.start, self.finish) = (tag(self.start), tag(self.finish));
        self.weight = weight;
    }
}
