//! Limits how much time the rings of doorbells take.
//!
//! # Problem
//! The thread that gives turns also reads the claims of a process that rings, and passes them to the engine. That takes
//! longer the more processes and GPUs a container has. A container whose processes ring without a pause would have most
//! of that thread's time: every neighbour would wait.
//!
//! # Idea
//! What is limited is the time that rings took, as it was measured. A token bucket of nanoseconds for the node bounds
//! the sum at half of the thread's time. The containers that find it empty wait in a queue, and each has one ring read
//! when its turn comes, however often its processes ring. A bucket for each container is enough for a well-behaved one,
//! so that it never waits beside an attacker.
//!
//! A claim that is read late delays its own container most: it gets its turns later. Others wait for it no longer than
//! for a process that does not report at all.

use super::Clients;
use crate::bucket::Bucket;
use crate::slab::Key;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::VecDeque;

/// Time in which the node's bucket gains a nanosecond: rings have half of the thread's time.
const NODE_EVERY: Duration = Duration(2);
/// Nanoseconds in the node's full bucket.
const NODE_MOST: u64 = 4_000_000;
/// Time in which a container's bucket gains a nanosecond. With 3 µs for a ring, these are 5,000 rings a second.
const OWN_EVERY: Duration = Duration(64);
/// Nanoseconds in a container's full bucket.
const OWN_MOST: u64 = 2_000_000;

/// The bucket from which a ring is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payer {
    Node,
    Container,
}

/// A ring that is read now.
#[derive(Debug)]
pub struct Ring {
    /// The process that rang.
    pub process: Key,
    container: ContainerId,
    payer: Payer,
}

/// The rings of a container's processes.
#[derive(Debug)]
pub(super) struct Rings {
    own: Bucket,
    /// Processes whose rings are not read yet, each once.
    waiting: VecDeque<Key>,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings { own: Bucket::new(OWN_EVERY, OWN_MOST), waiting: VecDeque::new() }
    }
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct RingQueue {
    node: Bucket,
    /// Containers with rings that wait, the next one first.
    waiting: VecDeque<ContainerId>,
}

impl Default for RingQueue {
    fn default() -> RingQueue {
        RingQueue { node: Bucket::new(NODE_EVERY, NODE_MOST), waiting: VecDeque::new() }
    }
}

impl RingQueue {
    /// Which bucket pays for a ring of a container now. If none does, the ring must wait. Mostly the node's does, and
    /// the container is not looked for.
    fn payer<'a>(
        &self,
        container: impl FnOnce() -> Option<&'a Rings>,
        now: Instant,
    ) -> Option<Payer> {
        // Rings that wait, of whatever container, go first.
        if self.waiting.is_empty() && self.node.next() <= now {
            return Some(Payer::Node);
        }
        let container = container()?;
        let pays = container.waiting.is_empty() && container.own.next() <= now;
        pays.then_some(Payer::Container)
    }

    /// Has a process's ring wait for its turn. None of its waits already.
    fn wait(&mut self, id: ContainerId, container: &mut Rings, process: Key) {
        if container.waiting.is_empty() {
            self.waiting.push_back(id);
        }
        container.waiting.push_back(process);
    }

    /// When the next ring's turn comes, if any waits.
    fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.node.next())
    }

    /// The container whose turn it is.
    fn due(&mut self, now: Instant) -> Option<ContainerId> {
        let is_due = !self.waiting.is_empty() && self.node.next() <= now;
        is_due.then(|| self.waiting.pop_front()).flatten()
    }

    /// The process of that container whose ring is read. The container's next one waits behind those of others.
    fn next_of(&mut self, id: ContainerId, container: &mut Rings) -> Option<Key> {
        let process = container.waiting.pop_front();
        if !container.waiting.is_empty() {
            self.waiting.push_back(id);
        }
        process
    }
}

impl Clients {
    /// A process rang. Its ring is read now if a bucket pays for it, and waits otherwise. One that waits already counts
    /// as one.
    pub fn rang(&mut self, process: Key, now: Instant) -> Option<Ring> {
        let tenant = self.tenants.get_mut(process).filter(|it| !it.rung)?;
        let container = tenant.container;
        let rings = || self.siblings.get(&container).map(|it| &it.rings);
        let payer = self.ring_queue.payer(rings, now);
        if payer.is_none() {
            let rings = &mut self.siblings.get_mut(&container)?.rings;
            tenant.rung = true;
            self.ring_queue.wait(container, rings, process);
        }
        Some(Ring { process, container, payer: payer? })
    }

    /// Takes the time that a ring took from its payer.
    pub fn ring_read(&mut self, ring: Ring, (from, to): (Instant, Instant)) {
        let siblings = self.siblings.get_mut(&ring.container);
        let bucket = match ring.payer {
            Payer::Node => Some(&mut self.ring_queue.node),
            Payer::Container => siblings.map(|it| &mut it.rings.own),
        };
        if let Some(bucket) = bucket {
            bucket.spend(to, to.since(from).0);
        }
    }

    /// When the next ring that waits may be read.
    pub fn ring_deadline(&self) -> Option<Instant> {
        self.ring_queue.deadline()
    }

    /// The ring whose turn it is.
    pub fn ring_due(&mut self, now: Instant) -> Option<Ring> {
        while let Some(container) = self.ring_queue.due(now) {
            // Its processes may be gone.
            let siblings = self.siblings.get_mut(&container);
            let process = siblings.and_then(|it| self.ring_queue.next_of(container, &mut it.rings));
            if let Some(process) = process
                && let Some(tenant) = self.tenants.get_mut(process)
            {
                tenant.rung = false;
                return Some(Ring { process, container, payer: Payer::Node });
            }
        }
        None
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
        queue: &mut RingQueue,
        containers: &mut [(ContainerId, Rings)],
        cost: Duration,
        start: u64,
    ) -> Vec<u64> {
        let mut took = vec![0; containers.len()];
        let mut now = Instant(start);
        while now.0 < start + SECOND {
            let began = now;
            if let Some(id) = queue.due(now) {
                let at = containers.iter().position(|(other, _)| *other == id).expect("known");
                assert_eq!(queue.next_of(id, &mut containers[at].1), Some(key(at)));
                now = now.plus(cost);
                queue.node.spend(now, cost.0);
                took[at] += cost.0;
            }
            for (at, (id, rings)) in containers.iter_mut().enumerate() {
                let payer = queue.payer(|| Some(&*rings), now);
                if payer.is_some() {
                    now = now.plus(cost);
                    took[at] += cost.0;
                }
                match payer {
                    Some(Payer::Node) => queue.node.spend(now, cost.0),
                    Some(Payer::Container) => rings.own.spend(now, cost.0),
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

    fn containers(count: usize) -> Vec<(ContainerId, Rings)> {
        let id = |at| ContainerId::new(&format!("c{at}")).expect("an id");
        (0..count).map(|at| (id(at), Rings::default())).collect()
    }

    #[test]
    fn the_sum_is_bounded_and_divided() {
        for (count, us) in [(1, 3), (2, 3), (2, 3_000), (7, 50), (64, 10)] {
            let (mut queue, mut all) = (RingQueue::default(), containers(count));
            let cost = Duration(us * 1_000);
            ring(&mut queue, &mut all, cost, SECOND);
            let took = ring(&mut queue, &mut all, cost, 2 * SECOND);
            let sum: u64 = took.iter().sum();
            let own = SECOND / OWN_EVERY.0 + cost.0;
            let bound = SECOND / NODE_EVERY.0 + count as u64 * own + cost.0;
            assert!(sum <= bound, "{count} of {us} µs: {sum} of {bound} ns");
            assert!(sum >= SECOND / NODE_EVERY.0 / 2, "{count} of {us} µs: {sum} ns");
            let (least, most) = (took.iter().min(), took.iter().max());
            let (least, most) = (least.expect("some"), most.expect("some"));
            assert!(most - least <= own + cost.0, "{count} of {us} µs: {took:?}");
        }
    }

    #[test]
    fn a_container_that_rings_seldom_does_not_wait_for_an_attacker() {
        let (mut queue, mut all) = (RingQueue::default(), containers(9));
        let attackers = &mut all[..8];
        ring(&mut queue, attackers, Duration(100_000), SECOND);
        let mut now = Instant(2 * SECOND);
        let rings = &mut all[8].1;
        for number in 0..5_000 {
            assert!(queue.payer(|| Some(&*rings), now).is_some(), "{number}");
            now = now.plus(Duration(3_000));
            rings.own.spend(now, 3_000);
            now = now.plus(Duration(192_000));
        }
    }

    #[test]
    fn a_ring_that_waits_has_its_turn() {
        let (mut queue, mut all) = (RingQueue::default(), containers(1));
        let (id, rings) = &mut all[0];
        let now = Instant(SECOND);
        queue.node.spend(now, 2 * NODE_MOST);
        rings.own.spend(now, 2 * OWN_MOST);
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
