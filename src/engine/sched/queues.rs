//! The two run queues of a class: shares in the upper one, weights in the lower one.
//!
//! # Problem
//! A share is reserved: admission refuses a share that would raise the sum on a GPU above 100 %. In one
//! queue with weights it would only be a cap: a share of 50 beside weights 1 and 3 had 20 % of the time.
//!
//! # Idea
//! Hierarchical start-time fair queueing. The upper queue has the containers with a share and the *pool*:
//! all containers without a share, as one entry. Each weighs what is due to it ([`super::dues`]): the share
//! and a part of the rest; the pool weighs the sum of what is due to its containers. The lower queue has
//! the containers of the pool, with their weights:
//! ```text
//!                           upper queue                lower queue
//!   share 50 ───────────────── 50
//!   share 20, idle            (20)
//!   share 10, weight 1 ─────── 18
//!   pool ───────────────────── 32 ──────┬─ weight 1 ───── 1 of 4
//!                                       └─ weight 3 ───── 3 of 4
//! ```
//! Each container has tags in one queue; the pool's tags grow with the use of any of its containers. The
//! upper queue is asked first.
//!
//! # Bound
//! That of start-time fair queueing holds in each queue. The pool's longest turn is the longest turn of any
//! of its containers: the lower queue does not decide when it is served. [`super::dues`] derives what a
//! container with a share has at least.
//!
//! A container of the pool that has overrun goes before the pool, as one with a share keeps the position it had
//! before its turn: work it left running may need the next turn to end. The pool itself is enqueued behind what
//! it used. Otherwise the next container of the pool would go at that position, too, and the pool would lead by
//! two turns.
//!
//! The weights of the upper queue change as containers begin and cease to count. The lead of each entry
//! stays the same GPU time, as with any change of a weight.

use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant};

use super::Turns;
use super::dues::ALL_PPM;
use super::entity::{Entity, QueueWeight, Virtual};
use crate::index::ContainerIndex;

/// A container's queue position; the smallest goes first. First its position in the upper queue, which is
/// the pool's for a container of the pool, then its own.
pub(crate) type Position = (Virtual, Instant, Virtual, Instant, ContainerIndex);

/// The containers of a class without a share, as one entry of the upper queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    start: Virtual,
    finish: Virtual,
    queued: Instant,
    weight: QueueWeight,
}

/// The run queues of one class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunQueues {
    /// Virtual time of the upper queue.
    upper: Virtual,
    /// Virtual time of the lower queue.
    lower: Virtual,
    pub(super) pool: Pool,
}

impl RunQueues {
    pub(crate) fn new(now: Instant) -> RunQueues {
        RunQueues {
            upper: Virtual::default(),
            lower: Virtual::default(),
            pool: Pool {
                start: Virtual::default(),
                finish: Virtual::default(),
                queued: now,
                weight: QueueWeight::new(ALL_PPM),
            },
        }
    }

    /// Virtual time of the queue of containers with a share, or without.
    pub(super) fn time_of(&self, reserved: bool) -> Virtual {
        if reserved { self.upper } else { self.lower }
    }

    /// Charges the pool for `used` GPU time of `entity`.
    pub(super) fn charge(&mut self, entity: &Entity, used: Duration) {
        if !entity.reserved && !entity.guest {
            let pool = &mut self.pool;
            pool.finish = pool.finish.max(pool.start).after(used, pool.weight);
        }
    }

    /// Undoes the charge for `part` of that time.
    pub(super) fn compensate(&mut self, entity: &Entity, part: Duration) {
        if !entity.reserved && !entity.guest {
            let pool = &mut self.pool;
            pool.finish = pool.finish.before(part, pool.weight).max(pool.start);
        }
    }

    /// `entity` runs without turns: the virtual times follow it.
    pub(super) fn follow(&mut self, entity: &Entity) {
        if entity.reserved {
            self.upper = self.upper.max(entity.start);
            return;
        }
        self.lower = self.lower.max(entity.start);
        self.pool.start = self.pool.finish.max(self.pool.start);
        self.upper = self.upper.max(self.pool.start);
    }

    /// Sets the pool to the queue's virtual time, with neither debt nor credit.
    pub(super) fn reset_pools(&mut self) {
        (self.pool.start, self.pool.finish) = (self.upper, self.upper);
    }

    /// Enqueues the pool.
    pub(super) fn enqueue_pool(&mut self, now: Instant) {
        self.pool.start = self.upper.max(self.pool.finish);
        self.pool.queued = now;
    }

    /// Whether the pool used time ahead of the upper queue.
    pub(super) fn pool_leads(&self) -> bool {
        self.pool.finish > self.upper
    }

    /// GPU time the pool used ahead of the upper queue.
    #[cfg(test)]
    pub(super) fn pool_debt(&self) -> Duration {
        self.pool.finish.ahead(self.upper, self.pool.weight)
    }

    /// The pool's weight in the upper queue.
    pub(super) fn pool_weight(&self) -> u64 {
        self.pool.weight.get().into()
    }

    /// Changes the pool's weight. Its lead or lag stays the same GPU time.
    pub(super) fn reweigh(&mut self, weight: QueueWeight) {
        if weight == self.pool.weight {
            return;
        }
        let (upper, was) = (self.upper, self.pool.weight);
        let tag = |tag: Virtual| tag.rescaled(upper, was, weight);
        (self.pool.start, self.pool.finish) = (tag(self.pool.start), tag(self.pool.finish));
        self.pool.weight = weight;
    }
}

impl Turns {
    pub(super) fn queues(&self, class: Class) -> &RunQueues {
        &self.queues[class as usize]
    }

    /// Virtual time of the queue of `entity`.
    pub(super) fn queue_time(&self, entity: &Entity) -> Virtual {
        self.queues(entity.class).time_of(entity.reserved)
    }

    /// Enqueues `index`, and with it the pool, if it belongs to the pool.
    pub(super) fn requeue(&mut self, index: ContainerIndex) {
        let now = self.now;
        let Some(at) = self.entities.iter().position(|it| it.index == index) else {
            return;
        };
        let queue_time = self.queue_time(&self.entities[at]);
        let entity = &mut self.entities[at];
        entity.enqueue(now, queue_time);
        entity.goes_before = None;
        if let Some(member) = &mut entity.gang {
            member.called = false; // that was at its last position
        }
        if !entity.reserved {
            self.queues[entity.class as usize].enqueue_pool(now);
        }
    }

    /// `index` is not waited for any more: it has overrun, since its turn was closed at `closed`.
    pub(super) fn overran(&mut self, index: ContainerIndex, closed: Option<Instant>) {
        let Some(entity) = self.entities.iter_mut().find(|it| it.index == index) else {
            return;
        };
        entity.overrun = closed;
        if !entity.reserved {
            let queues = &mut self.queues[entity.class as usize];
            entity.goes_before = Some(queues.pool.queued);
            queues.enqueue_pool(self.now);
        }
    }

    /// `index` begins to be runnable. The pool keeps its position if another of its containers is already
    /// runnable.
    pub(super) fn becomes_runnable(&mut self, index: ContainerIndex) {
        let Some(entity) = self.find(index) else {
            return;
        };
        let class = entity.class;
        self.pass_called(index, class);
        let others = self.entities.iter().filter(|it| it.index != index);
        let waits =
            others.filter(|it| !it.reserved && it.class == class).any(|it| it.reported.runnable);
        let pool = self.queues(class).pool;
        self.requeue(index);
        if waits {
            self.queues[class as usize].pool = pool;
        }
    }

    /// `index`, of `class`, begins to be runnable. If a gang is called that waits for other GPUs, the
    /// virtual times advance to the least start tag of those that wait: the gang goes next, and would have
    /// run already on this GPU alone. Otherwise `index` would come before it, and have the turns that
    /// the gang has had before it, in addition to those that the gang owes for its last turn. They do not pass
    /// a container that is charged, runnable or not: it owes its present turn to `index`, too.
    fn pass_called(&mut self, index: ContainerIndex, class: Class) {
        let called = |it: &Entity| it.gang.is_some_and(|member| member.called);
        let others = self.entities.iter().filter(|it| it.index != index);
        let all = others.filter(|it| it.class == class);
        if !all.clone().any(called) {
            return;
        }
        let counts = |it: &&Entity| match it.eligible() {
            true => it.gang.is_none() || called(it),
            false => self.charged(it),
        };
        let waiting = all.filter(counts);
        let tags = waiting.map(|it| self.least_tags(it));
        let pooled = tags.clone().filter_map(|(_, lower)| lower).min();
        let upper = tags.map(|(upper, _)| upper).min();
        let queues = &mut self.queues[class as usize];
        queues.upper = queues.upper.max(upper.unwrap_or_default());
        queues.lower = queues.lower.max(pooled.unwrap_or_default());
    }

    /// The least start tags that `entity` can have in the upper queue and in the lower one, if it is in the
    /// pool. Overhead of a switch may still be taken from the charges of a turn.
    pub(super) fn least_tags(&self, entity: &Entity) -> (Virtual, Option<Virtual>) {
        let overhead = Duration(self.config.turn_min.0 / 2);
        let runs = |it: &Entity| match it.eligible() {
            true => self.on_gpu() == Some(it.index) || it.untracked.is_some(),
            false => self.charged(it),
        };
        let own = match runs(entity) {
            true => entity.finish.before(overhead, entity.weight),
            false => entity.start,
        };
        if entity.reserved {
            return (own, None);
        }
        let mut pool = self.entities.iter().filter(|it| !it.reserved);
        let queue = self.queues(entity.class).pool;
        let upper = match pool.any(|it| it.class == entity.class && runs(it)) {
            true => queue.finish.before(overhead, queue.weight),
            false => queue.start,
        };
        (upper, Some(own))
    }

    /// `index` has no credit for the time for which its position was behind the virtual times.
    pub(super) fn forgo(&mut self, index: ContainerIndex) {
        let Some(at) = self.entities.iter().position(|it| it.index == index) else {
            return;
        };
        let queue_time = self.queue_time(&self.entities[at]);
        let entity = &mut self.entities[at];
        entity.start = entity.start.max(queue_time);
        if !entity.reserved {
            let queues = &mut self.queues[entity.class as usize];
            queues.pool.start = queues.pool.start.max(queues.upper);
        }
    }

    /// `index` may leave its pool. The pool stays charged for the present use, and is enqueued behind that.
    pub(super) fn leave_pool(&mut self, index: ContainerIndex) {
        let entity = self.find(index).filter(|it| self.charged(it));
        if let Some(entity) = entity.filter(|it| !it.reserved) {
            let class = entity.class;
            self.queues[class as usize].enqueue_pool(self.now);
        }
    }

    /// The queue position of `entity`.
    pub(crate) fn position(&self, entity: &Entity) -> Position {
        let queues = self.queues(entity.class);
        let pool = &queues.pool;
        let above = match (entity.reserved, entity.goes_before) {
            (true, _) => (entity.start, entity.queued),
            (false, None) => (pool.start, pool.queued),
            (false, Some(queued)) => (pool.start.min(queues.upper), queued),
        };
        let Entity { start, queued, .. } = *entity;
        (above.0, above.1, start, queued, entity.index)
    }

    /// The position it would have if the running container were enqueued now.
    pub(super) fn position_now(&self, entity: &Entity) -> Position {
        let runs = |it: &Entity| self.on_gpu() == Some(it.index) || it.untracked.is_some();
        let class = entity.class;
        let mut position = self.position(entity);
        if runs(entity) {
            (position.2, position.3) = (self.queue_time(entity).max(entity.finish), self.now);
        }
        if entity.reserved {
            (position.0, position.1) = (position.2, position.3);
            return position;
        }
        let mut pool = self.entities.iter().filter(|it| !it.reserved);
        if pool.any(|it| it.class == class && runs(it)) {
            let queues = self.queues(class);
            (position.0, position.1) = (queues.upper.max(queues.pool.finish), self.now);
        }
        position
    }

    /// Advances the class's virtual times to the start tag of `index`, which is served. A called gang may
    /// go before containers that have waited longer; the virtual times stay behind these, so that they are
    /// owed no less.
    pub(super) fn advance_queues(&mut self, index: ContainerIndex) {
        let Some(entity) = self.find(index) else {
            return;
        };
        let (class, reserved) = (entity.class, entity.reserved);
        let (mut upper, _, mut lower, ..) = self.position(entity);
        let waiting = self.entities.iter().filter(|it| it.gang.is_none());
        for other in waiting.filter(|it| it.class == class && it.eligible()) {
            let position = self.position(other);
            upper = upper.min(position.0);
            if !other.reserved {
                lower = lower.min(position.2);
            }
        }
        let queues = &mut self.queues[class as usize];
        queues.upper = queues.upper.max(upper);
        if !reserved {
            queues.lower = queues.lower.max(lower);
        }
    }

    /// Whether `holder` will be before all other eligible containers of its class after another `used`.
    pub(super) fn stays_first(&self, holder: &Entity, used: Duration) -> bool {
        let finish = |tag: Virtual, weight| tag.after(used, weight);
        let queues = self.queues(holder.class);
        let own = finish(holder.finish.max(holder.start), holder.weight);
        let own = own.max(self.queue_time(holder));
        let above = match holder.reserved {
            true => own,
            false => {
                let pool = queues.pool;
                finish(pool.finish.max(pool.start), pool.weight).max(queues.upper)
            }
        };
        let rivals = self.entities.iter().filter(|e| e.class == holder.class);
        let mut rivals = rivals.filter(|e| e.index != holder.index && e.gang.is_none());
        !rivals.any(|rival| {
            let both = !rival.reserved && !holder.reserved;
            let before = match both {
                true => rival.start <= own,
                false => self.position(rival).0 <= above,
            };
            rival.eligible() && before
        })
    }

    /// The fraction of its class's time due to `entity`, with itself and all eligible containers runnable.
    pub(super) fn due(&self, entity: &Entity) -> (u64, u64) {
        let class = self.entities.iter().filter(|e| e.class == entity.class);
        let (mut shares, mut weights) = (0u64, 0u64);
        for rival in class.filter(|e| e.eligible() || e.index == entity.index) {
            let weight = u64::from(rival.weight.get());
            *(match rival.reserved {
                true => &mut shares,
                false => &mut weights,
            }) += weight;
        }
        let own = u64::from(entity.weight.get());
        let pool = match weights {
            0 => 0,
            _ => self.queues(entity.class).pool_weight(),
        };
        match entity.reserved {
            true => (own, shares + pool),
            false => (own * pool, weights * (shares + pool)),
        }
    }
}
