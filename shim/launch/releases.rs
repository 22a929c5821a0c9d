//! Releases: launches that go without a turn, because work in flight may wait for them.
//!
//! # Problem
//! Work in flight may itself wait for a launch that the gate holds. Then it never ends, no further turn comes, and
//! the launch would never go. So a held launch is *released* once the work in flight is stuck. But a kernel that is
//! merely long looks stuck too. If each kernel of 8 s released the launch behind it, a queue of them would never
//! drain: the process would keep the GPU, and neither its container's weight nor its limit would bound it.
//!
//! # Idea
//! A deadlock ends with the launches that the work waits for. After a release in vain there is work in flight that
//! ends by itself, and the next held launch is again behind work in flight. So until nothing is in flight, each
//! release makes the next one wait twice as long. Launches into idle streams while the same work is stuck do not: a
//! kernel may wait for many of them, one after the other.
//!
//! # Bound
//! In a queue of kernels of length `K`, one is always held behind the others. Its release `n` comes after at least
//! `2^n - 1` times [`BEHIND_MAX_NS`], and the work is in flight until at most `(n + 1) * K`. The former is larger
//! for some `n` of about `log2(K / BEHIND_MAX_NS) + 2`, unless `K` is longer than the longest wait, ten minutes. Then
//! the process drains, the daemon learns of it, and the container waits until it has paid for what it used.
#![forbid(unsafe_code)]

use super::window::InFlight;

/// How long a launch is held whose stream is busy while the work in flight is stuck, and a copy over the bus
/// while nothing is in flight here: a sibling's work may wait for it.
pub const BEHIND_MAX_NS: u64 = 5_000_000_000;
/// The wait is doubled this often at most: to 640 s.
const DOUBLINGS_MAX: u32 = 7;

/// The releases of one lane since nothing was in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Releases {
    doublings: u32,
    /// The begin of the oldest work in flight at the last release.
    last: Option<u64>,
}

impl Releases {
    /// Whether a launch that was held for `waited` ns goes without a turn, at the time `now`; `busy` tells whether
    /// its stream has work in flight. Such work cannot wait for a launch behind it in the same stream, unless that
    /// stream runs a host callback; this is rare enough for a much longer wait.
    #[must_use]
    pub fn allow(&self, in_flight: &InFlight, now: u64, waited: u64, busy: bool) -> bool {
        let patience = BEHIND_MAX_NS << self.doublings;
        in_flight.stuck(now, self.doublings) && (waited >= patience || !busy)
    }

    /// Notes a release.
    pub fn released(&mut self, in_flight: &InFlight, busy: bool) {
        let head = in_flight.ended();
        let progressed = self.last.replace(head).is_some_and(|last| last != head);
        let doublings = self.doublings + u32::from(busy || progressed);
        self.doublings = doublings.min(DOUBLINGS_MAX);
    }

    /// Notes that nothing is in flight.
    pub fn drained(&mut self) {
        *self = Releases::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::backend::{Event, Progress};
    use super::super::estimate::{Estimate, Key, Task};
    use super::super::window::HELD_MAX_NS;
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    /// Kernels of one length, launched into streams, which run one after the other from the time 1 s on.
    struct Queue {
        in_flight: InFlight,
        releases: Releases,
        kernel: u64,
        launched: u64,
        retired: u64,
        now: u64,
    }

    impl Queue {
        fn of(kernel: u64) -> Queue {
            let (in_flight, releases) = (InFlight::default(), Releases::default());
            let mut queue = Queue { in_flight, releases, kernel, launched: 0, retired: 0, now: S };
            queue.launch(0);
            queue
        }

        fn launch(&mut self, stream: u16) {
            let expected = Estimate { ns: self.kernel, known: true, tried: true };
            let task = Task::launch(Key(1));
            self.in_flight.launched(self.now, stream, task, expected, None);
            let fence = Event(self.launched as usize);
            assert_eq!(self.in_flight.fence(stream, fence), None);
            self.launched += 1;
        }

        /// Retires what has ended until now.
        fn collect(&mut self) {
            let ended = (self.now - S) / self.kernel;
            let look = |fence: Event| match (fence.0 as u64) < ended {
                true => Progress::Done,
                false => Progress::Pending,
            };
            while self.in_flight.retire(self.now, |group| group.fence.map(look)).is_some() {
                self.retired += 1;
            }
        }

        /// Kernels that run until nothing is in flight, while a launch into one of `streams` streams is held, if one
        /// of these has fewer than `depth` kernels in flight; `None` if there are more than 40.
        fn until_drained(&mut self, streams: u16, depth: usize) -> Option<u64> {
            let mut since = self.now;
            while !self.in_flight.empty() {
                self.now += 50 * MS;
                self.collect();
                let in_flight = self.launched - self.retired;
                if in_flight >= depth as u64 * u64::from(streams) {
                    since = self.now;
                    continue;
                }
                let stream = (self.launched % u64::from(streams)) as u16;
                let (busy, waited) = (self.in_flight.busy(stream), self.now - since);
                let held = waited >= HELD_MAX_NS;
                if held && self.releases.allow(&self.in_flight, self.now, waited, busy) {
                    self.releases.released(&self.in_flight, busy);
                    self.launch(stream);
                    since = self.now;
                }
                if self.launched > 40 {
                    return None;
                }
            }
            Some(self.launched)
        }
    }

    /// From kernels just longer than the shortest wait to such of five minutes.
    #[test]
    fn a_queue_of_long_kernels_drains() {
        for (kernel, most) in [(3, 1), (6, 3), (8, 3), (20, 5), (60, 7), (300, 10)] {
            let ran = Queue::of(kernel * S).until_drained(1, 1_000);
            assert!(ran.is_some_and(|ran| ran <= most), "{kernel} s: {ran:?} kernels");
        }
    }

    /// Two threads with a stream each, which wait for their kernels: the stream of the held launch is idle.
    #[test]
    fn long_kernels_in_alternating_streams_drain() {
        for kernel in [5_500, 6_000, 8_000, 60_000] {
            let ran = Queue::of(kernel * MS).until_drained(2, 1);
            assert!(ran.is_some_and(|ran| ran <= 8), "{kernel} ms: {ran:?} kernels");
        }
    }

    /// A kernel waits for twenty launches into idle streams, which go one after the other at the first pace.
    #[test]
    fn launches_for_the_same_stuck_work_do_not_slow_down() {
        let mut queue = Queue::of(3_600 * S);
        queue.now += 6 * S;
        for stream in 1..=20 {
            queue.collect();
            assert!(queue.releases.allow(&queue.in_flight, queue.now, 100 * MS, false), "{stream}");
            queue.releases.released(&queue.in_flight, false);
            queue.launch(stream);
            queue.now += 100 * MS;
        }
        assert!(!queue.releases.allow(&queue.in_flight, queue.now, 4_999 * MS, true));
        assert!(queue.releases.allow(&queue.in_flight, queue.now, 5_000 * MS, true));
    }

    #[test]
    fn the_first_pace_returns_when_nothing_is_in_flight() {
        let mut queue = Queue::of(3_600 * S);
        queue.now += 1_000 * S;
        let goes =
            |queue: &Queue, waited| queue.releases.allow(&queue.in_flight, queue.now, waited, true);
        for wait in [5, 10, 20, 40, 80, 160, 320, 640, 640, 640] {
            assert!(!goes(&queue, wait * S - 1) && goes(&queue, wait * S), "{wait} s");
            queue.releases.released(&queue.in_flight, true);
        }
        queue.releases.drained();
        assert!(!goes(&queue, 5 * S - 1) && goes(&queue, 5 * S));
    }
}
