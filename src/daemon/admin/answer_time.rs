//! How much of the thread's time the answers to observers may take.
//!
//! An answer is a snapshot, for which the claims of all processes are read: the thread that gives turns does nothing
//! else meanwhile. Its time is measured, as that of processes' requests is. Observers that ask without a pause wait for
//! the bucket, one after the other. While an observer waits, the daemon watches its connection only for its end.

use crate::bucket::Bucket;
use crate::slab::Key;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::VecDeque;

/// Time in which the bucket gains a nanosecond: an eighth of the thread's time.
const EVERY: Duration = Duration(8);
/// Nanoseconds in a full bucket: all observers' answers at once, as a scrape and a few screens ask for them.
const MOST: u64 = 100_000_000;

/// See the file's head.
#[derive(Debug)]
pub(super) struct AnswerTime {
    time: Bucket,
    /// Observers whose commands wait, the next one first.
    waiting: VecDeque<Key>,
}

impl AnswerTime {
    pub(super) const fn new() -> AnswerTime {
        AnswerTime { time: Bucket::new(EVERY, MOST), waiting: VecDeque::new() }
    }

    /// Whether an observer is answered now: those that wait go first.
    pub(super) fn pays(&self, now: Instant) -> bool {
        self.waiting.is_empty() && self.time.next() <= now
    }

    /// Has an observer wait for its turn. It does not wait already.
    pub(super) fn wait(&mut self, observer: Key) {
        self.waiting.push_back(observer);
    }

    /// An observer that may wait is gone.
    pub(super) fn forget(&mut self, observer: Key) {
        self.waiting.retain(|other| *other != observer);
    }

    /// Takes the time that an answer took.
    pub(super) fn spend(&mut self, (from, to): (Instant, Instant)) {
        self.time.spend(to, to.since(from).0);
    }

    /// When the next observer's turn comes, if one waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.time.next())
    }

    /// The observer whose turn it is.
    pub(super) fn due(&mut self, now: Instant) -> Option<Key> {
        self.deadline().filter(|at| *at <= now).and_then(|_| self.waiting.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(slot: u16) -> Key {
        Key { slot, generation: 1 }
    }

    #[test]
    fn answers_without_a_pause_take_an_eighth_of_the_time() {
        let (mut time, cost) = (AnswerTime::new(), Duration(10_000_000));
        let start = Instant(1_000_000_000);
        let (mut now, mut took) = (start, 0);
        (0..3).for_each(|slot| time.wait(key(slot)));
        while now.since(start) < Duration(10_000_000_000) {
            match time.due(now) {
                Some(observer) => {
                    time.spend((now, now.plus(cost)));
                    (now, took) = (now.plus(cost), took + cost.0);
                    assert!(!time.pays(now) || time.deadline().is_none());
                    time.wait(observer);
                }
                None => now = time.deadline().expect("it waits").max(now.plus(Duration(1))),
            }
        }
        // 0.1 s at once, an eighth of ten seconds, and the answer that is begun last
        let most = 100_000_000 + 10_000_000_000 / 8 + cost.0;
        assert!(took <= most && took >= most / 10 * 9, "{took} of {most} ns");
    }

    #[test]
    fn those_that_wait_have_their_turns() {
        let mut time = AnswerTime::new();
        let now = Instant(1_000_000_000);
        assert!(time.pays(now) && time.deadline().is_none());
        time.spend((Instant(0), now));
        assert!(!time.pays(now));
        time.wait(key(1));
        time.wait(key(2));
        time.wait(key(3));
        time.forget(key(3));
        let at = time.deadline().expect("two wait");
        assert!(at > now && time.due(now).is_none());
        assert!(!time.pays(at), "those that wait go first");
        assert_eq!([time.due(at), time.due(at), time.due(at)], [Some(key(1)), Some(key(2)), None]);
    }
}
