//! Limits how often connections of processes are accepted.
//!
//! # Problem
//! The thread that gives turns also accepts, identifies and attaches processes, with many system calls for each. A
//! process that connects and closes without a pause would have most of that thread's time: every neighbour would wait.
//!
//! # Idea
//! A token bucket for the node bounds the sum. The sockets that have no token wait in a queue, and each accepts one
//! connection when its turn comes, however many sockets wait or how often one is used. A bucket for each container
//! has as many tokens as a container may have processes. So all of them can connect at once when it starts or the
//! daemon was restarted, even beside an attacker. A socket that waits is not polled; what connects to it waits in the
//! kernel.

use crate::bucket::Bucket;
use crate::slab::Key;
use gpuslice_wire::limits::CLIENTS_PER_CONTAINER_MAX;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::VecDeque;

/// Time in which the node's bucket gains a token: 500 connections a second in all.
const NODE_EVERY: Duration = Duration::from_millis(2);
/// Tokens of the node's full bucket.
const NODE_MOST: u64 = 64;
/// Time in which a container's bucket gains a token. So a full one comes back within 64 s.
const OWN_EVERY: Duration = Duration::from_millis(250);
/// Tokens of a container's full bucket.
const OWN_MOST: u64 = CLIENTS_PER_CONTAINER_MAX as u64;

/// How often a container's processes have connected.
#[derive(Debug)]
pub struct Allowance {
    own: Bucket,
    /// The queue has given it a token.
    called: bool,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { own: Bucket::new(OWN_EVERY, OWN_MOST), called: false }
    }
}

impl Allowance {
    /// The container's listener has a token: its turn in the queue has come.
    pub fn call(&mut self) {
        self.called = true;
    }
}

/// See the file's head.
#[derive(Debug)]
pub struct AcceptQueue {
    node: Bucket,
    /// Listeners that wait for a token, the next one first.
    waiting: VecDeque<Key>,
}

impl Default for AcceptQueue {
    fn default() -> AcceptQueue {
        AcceptQueue { node: Bucket::new(NODE_EVERY, NODE_MOST), waiting: VecDeque::new() }
    }
}

impl AcceptQueue {
    /// Whether a listener of a container may accept a connection now. If not, it must wait.
    pub fn admits(&mut self, container: &mut Allowance, now: Instant) -> bool {
        std::mem::take(&mut container.called)
            || (self.waiting.is_empty() && self.node.take(now))
            || container.own.take(now)
    }

    /// Has a listener wait for its turn.
    pub fn wait(&mut self, listener: Key) {
        self.waiting.push_back(listener);
    }

    /// When the next listener's turn comes, if any waits.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.node.next())
    }

    /// The listener whose turn it is. It has a token once it is [`called`](Allowance::call).
    pub fn due(&mut self, now: Instant) -> Option<Key> {
        let is_due = !self.waiting.is_empty() && self.node.take(now);
        is_due.then(|| self.waiting.pop_front()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Connections in the second that begins at `start`, for containers of which each connects whenever it may.
    fn connect(queue: &mut AcceptQueue, containers: &mut [Allowance], start: u64) -> Vec<u64> {
        let mut accepted = vec![0; containers.len()];
        for ms in 0..1_000 {
            let now = Instant(start + ms * 1_000_000);
            while let Some(key) = queue.due(now) {
                containers[usize::from(key.slot)].call();
            }
            for (at, container) in containers.iter_mut().enumerate() {
                let key = Key { slot: at as u16, generation: 0 };
                if queue.waiting.contains(&key) {
                    continue;
                }
                while queue.admits(container, now) {
                    accepted[at] += 1;
                }
                queue.wait(key);
            }
        }
        accepted
    }

    #[test]
    fn all_processes_of_a_container_connect_at_once() {
        let (mut queue, mut container) = (AcceptQueue::default(), Allowance::default());
        let now = Instant(SECOND);
        let accepted = (0..1_000).filter(|_| queue.admits(&mut container, now)).count() as u64;
        assert_eq!((OWN_MOST, NODE_MOST, accepted), (256, 64, 256 + 64));
        let accepted_after = |seconds| {
            let (mut queue, mut container) = (AcceptQueue::default(), Allowance::default());
            while queue.admits(&mut container, now) {}
            let later = Instant(now.0 + seconds * SECOND);
            (0..1_000).filter(|_| queue.admits(&mut container, later)).count()
        };
        assert_eq!([63, 64, 1_000].map(accepted_after), [252 + 64, 256 + 64, 256 + 64]);
    }

    #[test]
    fn the_sum_is_bounded_and_divided() {
        for count in [1, 2, 7, 256] {
            let mut queue = AcceptQueue::default();
            let mut containers: Vec<_> = (0..count).map(|_| Allowance::default()).collect();
            connect(&mut queue, &mut containers, SECOND);
            let accepted = connect(&mut queue, &mut containers, 2 * SECOND);
            let (least, most) = (accepted.iter().min(), accepted.iter().max());
            let (least, most) = (*least.expect("some"), *most.expect("some"));
            let sum: u64 = accepted.iter().sum();
            let (bound, own) = (SECOND / NODE_EVERY.0, SECOND / OWN_EVERY.0);
            assert_eq!((bound, own), (500, 4), "each second");
            assert!(sum <= bound + count as u64 * (own + 1), "{count}: {sum}");
            assert!(sum >= bound, "{count}: {sum}");
            assert!(most - least <= own, "{count}: {least} to {most}");
        }
    }

    #[test]
    fn a_container_that_comes_late_does_not_wait_for_an_attacker() {
        let mut queue = AcceptQueue::default();
        let mut attackers: Vec<_> = (0..8).map(|_| Allowance::default()).collect();
        connect(&mut queue, &mut attackers, SECOND);
        connect(&mut queue, &mut attackers, 2 * SECOND);
        let (mut late, now) = (Allowance::default(), Instant(3 * SECOND));
        let accepted = (0..1_000).filter(|_| queue.admits(&mut late, now)).count() as u64;
        assert_eq!(accepted, OWN_MOST);
    }

    #[test]
    fn a_listener_that_waits_has_its_turn() {
        let (mut queue, mut container) = (AcceptQueue::default(), Allowance::default());
        let now = Instant(SECOND);
        while queue.admits(&mut container, now) {}
        let key = Key { slot: 3, generation: 1 };
        assert_eq!((queue.deadline(), queue.due(now)), (None, None));
        queue.wait(key);
        let next = queue.deadline().expect("it waits");
        assert_eq!(next, now.plus(NODE_EVERY));
        assert_eq!(queue.due(now), None);
        assert_eq!((queue.due(next), queue.deadline()), (Some(key), None));
        container.call();
        assert!(queue.admits(&mut container, next) && !queue.admits(&mut container, next));
    }
}
