//! Limits how much time the rings and the requests of processes take.
//!
//! # Problem
//! The thread that gives turns also reads the claims of a process that rings, and the requests of all processes, and
//! passes them to the engine. That takes longer the more processes and GPUs a container has: a request that does not
//! fit has the claims of all of its container's processes read. A container whose processes ring or ask without a pause
//! would have most of that thread's time: every neighbour would wait.
//!
//! # Idea
//! What is limited is the time that reading took, as it was measured. A token bucket of nanoseconds for the node bounds
//! the sum. The containers that find it empty wait in a queue, and each has one process read when its turn comes,
//! however often its processes ring or ask. A bucket for each container is enough for a well-behaved one, so that it
//! never waits beside an attacker. All of these together gain a bounded part of the time: where there are many
//! containers, each pays from its own bucket as many times more as it has too many neighbours for that. Rings and
//! requests have such a queue each.
//!
//! A claim that is read late delays its own container most: it gets its turns later. Others wait for it no longer than
//! for a process that does not report at all. A request that is read late is answered late.

use crate::bucket::Bucket;
use crate::slab::Key;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::VecDeque;

/// How much of the thread's time reading may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Time in which the node's bucket gains a nanosecond, and how many it has when it is full.
    node: (Duration, u64),
    /// The same of each container's bucket.
    own: (Duration, u64),
}

/// The buckets of all containers together gain at most a nanosecond in this time.
const OWN_SUM: Duration = Duration(4);

/// Rings have half of the thread's time, and a quarter more from the containers' own buckets. With 3 µs for a ring,
/// a container's own pays for 5,000 rings a second beside 15 others, and for 300 beside 255.
pub(super) const RINGS: Limits =
    Limits { node: (Duration(2), 4_000_000), own: (Duration(64), 2_000_000) };
/// The same of requests. With 5 µs for a request, a container's own bucket pays for 12,500 requests a second beside
/// three others, more than a program makes that also uses what it allocates, and for 190 beside 255.
pub(super) const REQUESTS: Limits =
    Limits { node: (Duration(2), 8_000_000), own: (Duration(16), 8_000_000) };

/// The bucket from which a reading is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payer {
    Node,
    Container,
}

/// A process whose ring or requests are read now.
#[derive(Debug)]
pub struct TimedRead {
    /// The process.
    pub process: Key,
    pub(super) container: ContainerId,
    pub(super) payer: Payer,
}

/// A container's own bucket, and its processes that wait.
#[derive(Debug)]
pub(super) struct ContainerTime {
    own: Bucket,
    /// Time in which that gains a nanosecond.
    every: Duration,
    /// Processes that are not read yet, each once.
    waiting: VecDeque<Key>,
}

impl ContainerTime {
    pub(super) const fn new(limits: Limits) -> ContainerTime {
        let own = Bucket::new(limits.own.0, limits.own.1);
        ContainerTime { own, every: limits.own.0, waiting: VecDeque::new() }
    }

    /// Takes the time that reading took, until `to`, of one of this number of containers.
    pub(super) fn spend(&mut self, containers: usize, (from, to): (Instant, Instant)) {
        let times = (OWN_SUM.0 * containers as u64).div_ceil(self.every.0).max(1);
        self.own.spend(to, to.since(from).0.saturating_mul(times));
    }
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct TimeQueue {
    node: Bucket,
    /// Containers with processes that wait, the next one first.
    waiting: VecDeque<ContainerId>,
}

impl TimeQueue {
    pub(super) const fn new(limits: Limits) -> TimeQueue {
        TimeQueue { node: Bucket::new(limits.node.0, limits.node.1), waiting: VecDeque::new() }
    }

    /// Which bucket pays for a process of a container now. If none does, it must wait. Mostly the node's does, and
    /// the container is not looked for.
    pub(super) fn payer<'a>(
        &self,
        container: impl FnOnce() -> Option<&'a ContainerTime>,
        now: Instant,
    ) -> Option<Payer> {
        // Processes that wait, of whatever container, go first.
        if self.waiting.is_empty() && self.node.next() <= now {
            return Some(Payer::Node);
        }
        let container = container()?;
        let pays = container.waiting.is_empty() && container.own.next() <= now;
        pays.then_some(Payer::Container)
    }

    /// Has a process wait for its turn. It does not wait already.
    pub(super) fn wait(&mut self, id: ContainerId, container: &mut ContainerTime, process: Key) {
        if container.waiting.is_empty() {
            self.waiting.push_back(id);
        }
        container.waiting.push_back(process);
    }

    /// Takes the time that reading took, until `to`, from the node's bucket.
    pub(super) fn spend(&mut self, (from, to): (Instant, Instant)) {
        self.node.spend(to, to.since(from).0);
    }

    /// When the next process's turn comes, if any waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.node.next())
    }

    /// The container whose turn it is.
    pub(super) fn due(&mut self, now: Instant) -> Option<ContainerId> {
        let is_due = !self.waiting.is_empty() && self.node.next() <= now;
        is_due.then(|| self.waiting.pop_front()).flatten()
    }

    /// The process of that container that is read. The container's next one waits behind those of others.
    pub(super) fn next_of(
        &mut self,
        id: ContainerId,
        container: &mut ContainerTime,
    ) -> Option<Key> {
        let process = container.waiting.pop_front();
        if !container.waiting.is_empty() {
            self.waiting.push_back(id);
        }
        process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn key(at: usize) -> Key {
        Key { slot: at as u16, generation: 0 }
    }

    /// Time that the rings of each container took in the second that begins at `start`. A ring takes this long, and
    /// each container rings again at once, as long as the thread has time.
    fn ring(
        queue: &mut TimeQueue,
        containers: &mut [(ContainerId, ContainerTime)],
        cost: Duration,
        start: u64,
    ) -> Vec<u64> {
        let count = containers.len();
        let mut took = vec![0; count];
        let mut now = Instant(start);
        while now.0 < start + SECOND {
            let began = now;
            if let Some(id) = queue.due(now) {
                let at = containers.iter().position(|(other, _)| *other == id).expect("known");
                assert_eq!(queue.next_of(id, &mut containers[at].1), Some(key(at)));
                queue.spend((now, now.plus(cost)));
                now = now.plus(cost);
                took[at] += cost.0;
            }
            for (at, (id, rings)) in containers.iter_mut().enumerate() {
                let (payer, read) = (queue.payer(|| Some(&*rings), now), (now, now.plus(cost)));
                if payer.is_some() {
                    now = read.1;
                    took[at] += cost.0;
                }
                match payer {
                    Some(Payer::Node) => queue.spend(read),
                    Some(Payer::Container) => rings.spend(count, read),
                    None if rings.waiting.is_empty() => queue.wait(*id, rings, key(at)),
                    None => {}
                }
            }
            if now == began {
                now = now.plus(Duration(1_000));
            }
        }
        took
    }

    fn containers(count: usize) -> Vec<(ContainerId, ContainerTime)> {
        limited(RINGS, count)
    }

    fn limited(limits: Limits, count: usize) -> Vec<(ContainerId, ContainerTime)> {
        let id = |at| ContainerId::new(&format!("c{at}")).expect("an id");
        (0..count).map(|at| (id(at), ContainerTime::new(limits))).collect()
    }

    /// Half of the thread, and of each container a 64th of rings and a sixteenth of requests, a quarter together.
    #[test]
    fn the_parts_of_the_thread_are_the_promised_ones() {
        let rings = [(1, 32 + 1), (32, 48)].map(|it| (RINGS, it));
        let requests = [(1, 32 + 4), (8, 48)].map(|it| (REQUESTS, it));
        for (limits, (count, of_64)) in rings.into_iter().chain(requests) {
            let (mut queue, mut all) = (TimeQueue::new(limits), limited(limits, count));
            ring(&mut queue, &mut all, Duration(3_000), SECOND);
            let took = ring(&mut queue, &mut all, Duration(3_000), 2 * SECOND);
            let (took, due) = (took.iter().sum::<u64>(), SECOND / 64 * of_64);
            assert!(took.abs_diff(due) < due / 50, "{limits:?}, {count}: {took} of {due} ns");
        }
    }

    #[test]
    fn the_sum_is_bounded_and_divided() {
        for (count, us) in [(1, 3), (2, 3), (2, 3_000), (7, 50), (64, 10), (256, 10)] {
            let (mut queue, mut all) = (TimeQueue::new(RINGS), containers(count));
            let cost = Duration(us * 1_000);
            ring(&mut queue, &mut all, cost, SECOND);
            let took = ring(&mut queue, &mut all, cost, 2 * SECOND);
            let sum: u64 = took.iter().sum();
            let own = SECOND / RINGS.own.0.0 + cost.0;
            let all_own = (count as u64 * own).min(SECOND / OWN_SUM.0 + count as u64 * cost.0);
            let bound = SECOND / RINGS.node.0.0 + all_own + cost.0;
            assert!(sum <= bound, "{count} of {us} µs: {sum} of {bound} ns");
            assert!(sum >= SECOND / RINGS.node.0.0 / 2, "{count} of {us} µs: {sum} ns");
            let (least, most) = (took.iter().min(), took.iter().max());
            let (least, most) = (least.expect("some"), most.expect("some"));
            assert!(most - least <= own + cost.0, "{count} of {us} µs: {took:?}");
        }
    }

    #[test]
    fn a_container_that_rings_seldom_does_not_wait_for_an_attacker() {
        let (mut queue, mut all) = (TimeQueue::new(RINGS), containers(9));
        let attackers = &mut all[..8];
        ring(&mut queue, attackers, Duration(100_000), SECOND);
        let mut now = Instant(2 * SECOND);
        let rings = &mut all[8].1;
        for number in 0..5_000 {
            assert!(queue.payer(|| Some(&*rings), now).is_some(), "{number}");
            now = now.plus(Duration(3_000));
            rings.spend(9, (Instant(now.0 - 3_000), now));
            now = now.plus(Duration(192_000));
        }
    }

    #[test]
    fn a_ring_that_waits_has_its_turn() {
        let (mut queue, mut all) = (TimeQueue::new(RINGS), containers(1));
        let (id, rings) = &mut all[0];
        let now = Instant(SECOND);
        queue.node.spend(now, 2 * RINGS.node.1);
        rings.own.spend(now, 2 * RINGS.own.1);
        assert_eq!((queue.payer(|| Some(&*rings), now), queue.deadline()), (None, None));
        queue.wait(*id, rings, key(3));
        queue.wait(*id, rings, key(4));
        let next = queue.deadline().expect("one waits");
        assert!(next > now && queue.due(now).is_none());
        for (at, more) in [(3, true), (4, false)] {
            assert_eq!(queue.due(next), Some(*id));
            assert_eq!(queue.next_of(*id, rings), Some(key(at)));
            assert_eq!(queue.deadline().is_some(), more);
        }
        assert!(queue.payer(|| Some(&*rings), next).is_some());
    }
}
