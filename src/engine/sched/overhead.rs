//! Switch-overhead compensation: the cost of a switch between containers is not charged to the holder.
//!
//! # Problem
//! A turn is charged from its grant until the container has drained. Part of that is overhead: waking the
//! holder's threads, the GPU's context switch, the rest of the turn in which the next launch would not end
//! in time, detecting that all work has ended, and reporting it. The overhead does not depend on the length
//! of the turn, so it takes more of a light container's turn, and its kernels get less time than its
//! weight's part: 0.2 ms in each turn of a round of 16 ms make 24.4:75.6 of 1:3.
//!
//! # Idea
//! Processes report when their work in a turn began and when the last of it ended. The rest of the turn was
//! idle:
//! ```text
//! grant ......... work begins ============= last work over ....... read as drained
//!        idle                                                idle
//!
//! charge = used - min(c, used / 2)     c: median, over all queued containers, of their means of the last 16 turns
//! ```
//! A process may report anything, so no container's report counts for itself alone: the same `c` is
//! deducted for all containers. It is the median; of two, the lower. A false report, in either direction,
//! changes nothing as long as most are true. Of two containers, one can make both pay for idle time, as
//! they would without compensation, and no more. A single reporting container has none to be compared with,
//! and gets no deduction. A container pays for idle time beyond the others' (its threads are late).
//!
//! A turn counts only if it ended by time or for other containers. A container that gives its turn up
//! because it has nothing to do was not delayed.
//!
//! # Bound
//! At least half of a turn is charged, so finish tags only grow, and the bound of start-time fair queueing
//! holds for the charged time: `|C_i/w_i - C_j/w_j| <= l_i/w_i + l_j/w_j`, with `C = W - n c` where `n`
//! counts the switches. A long idle time (a stalled process) says little about the machine: at most half of
//! the shortest turn is recorded of one turn.

use alloc::vec::Vec;
use gpuslice_wire::units::{Duration, Instant};

/// Turns in each container's mean.
const KEPT: usize = 16;

/// When a container reports that it was on the GPU in its last turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkSpan {
    /// First launch of any of its processes.
    pub(crate) began: Instant,
    /// End of the last work of any of them.
    pub(crate) calm: Instant,
}

impl WorkSpan {
    /// The span that covers both.
    pub(crate) fn with(self, other: WorkSpan) -> WorkSpan {
        WorkSpan { began: self.began.min(other.began), calm: self.calm.max(other.calm) }
    }

    /// Idle time of a turn. An impossible time counts as no idle time.
    fn idle(self, turn: Turn) -> Duration {
        let before = match turn.granted <= self.began && self.began <= turn.closed {
            true => self.began.since(turn.granted),
            false => Duration(0),
        };
        let after = match turn.granted <= self.calm && self.calm <= turn.drained {
            true => turn.drained.since(self.calm),
            false => Duration(0),
        };
        Duration(before.0.saturating_add(after.0))
    }
}

/// A finished turn, as the daemon saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) granted: Instant,
    pub(crate) closed: Instant,
    /// All processes were read as drained.
    pub(crate) drained: Instant,
}

/// The overhead of one container's last switches on one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwitchCosts {
    took: [Duration; KEPT],
    seen: usize,
}

impl SwitchCosts {
    /// Records a turn in which the container reports `work_span`, with at most `most` idle.
    pub(crate) fn saw(&mut self, turn: Turn, work_span: WorkSpan, most: Duration) {
        self.took[self.seen % KEPT] = work_span.idle(turn).min(most);
        self.seen += 1;
    }

    /// The mean; `None` before there are enough turns.
    fn mean(&self) -> Option<Duration> {
        let sum: u64 = self.took.iter().map(|took| took.0).sum();
        (self.seen >= KEPT).then_some(Duration(sum / KEPT as u64))
    }
}

/// The time deducted for each of these containers: the median, of two the lower.
pub(crate) fn compensation<'a>(all: impl Iterator<Item = &'a SwitchCosts>) -> Duration {
    let mut means: Vec<Duration> = all.filter_map(SwitchCosts::mean).collect();
    means.sort_unstable();
    match means.len() {
        0 | 1 => Duration(0),
        count => means[(count - 1) / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MOST: Duration = Duration(500 * US);

    /// Turn `n`, of 5 ms, idle for 60 µs at its beginning and for `end` at its end.
    fn turn(costs: &mut SwitchCosts, n: u64, end: u64) {
        let at = |us: u64| Instant(n * 200_000 * US + us * US);
        let work_span = WorkSpan { began: at(60), calm: at(5_040) };
        let turn = Turn { granted: at(0), closed: at(5_000), drained: at(5_040 + end) };
        costs.saw(turn, work_span, MOST);
    }

    fn costs(end: u64) -> SwitchCosts {
        let mut costs = SwitchCosts::default();
        (0..KEPT as u64).for_each(|n| turn(&mut costs, n, end));
        costs
    }

    #[test]
    fn it_is_the_median_of_the_means_and_no_single_report_moves_it() {
        let (honest, much, none) = (costs(40), costs(100_000), costs(0));
        let of = |all: &[&SwitchCosts]| compensation(all.iter().copied()).0 / US;
        assert_eq!(honest.mean(), Some(Duration(100 * US)));
        assert_eq!(much.mean(), Some(MOST));
        assert_eq!(of(&[&honest, &much]), 100, "of two the lower");
        assert_eq!(of(&[&honest, &none]), 60);
        assert_eq!(of(&[&honest, &much, &honest]), 100);
        assert_eq!(of(&[&none, &honest, &honest]), 100);
        assert_eq!(of(&[&none, &honest, &much, &honest, &much]), 100);
        assert_eq!((of(&[&much]), of(&[])), (0, 0), "no other to compare with");
        let mut new = SwitchCosts::default();
        (1..KEPT as u64).for_each(|n| turn(&mut new, n, 100_000));
        assert_eq!(of(&[&much, &new]), 0, "too few");
        turn(&mut new, 99, 100_000);
        assert_eq!(of(&[&much, &new]), 500);
    }

    #[test]
    fn the_mean_forgets() {
        let mut costs = costs(40);
        (0..8).for_each(|n| turn(&mut costs, n, 140));
        assert_eq!(costs.mean(), Some(Duration(150 * US)));
        (0..8).for_each(|n| turn(&mut costs, n, 140));
        assert_eq!(costs.mean(), Some(Duration(200 * US)));
    }

    #[test]
    fn times_that_cannot_be_count_for_nothing() {
        let turn =
            Turn { granted: Instant(1_000), closed: Instant(2_000), drained: Instant(2_100) };
        let idle = |began: u64, calm: u64| {
            let (began, calm) = (Instant(began), Instant(calm));
            WorkSpan { began, calm }.idle(turn).0
        };
        assert_eq!(idle(1_300, 2_050), 350);
        assert_eq!(idle(1_000, 2_100), 0);
        assert_eq!(idle(999, 2_050), 50, "before its turn");
        assert_eq!(idle(2_001, 2_050), 50, "after its end");
        assert_eq!(idle(1_300, 2_101), 300, "in the future");
        assert_eq!(idle(1_300, 1_500), 900, "nothing more fitted");
        assert_eq!(idle(1_000, 999), 0, "before its turn");
        assert_eq!(idle(0, u64::MAX), 0);
        assert_eq!(idle(u64::MAX, 0), 0);
    }
}
