//! What a hand-over costs its holder, and is not charged for.
//!
//! # Problem
//! A turn is charged from its grant until all is quiet again. A part of that is nobody's work but the
//! machine's: waking who was granted the turn, the GPU's change to another context, what is left of the turn when
//! the next launch would not end in time, noticing that all is over, reporting that. It takes as long whatever the
//! length of the turn, so it is more of a light container's turn, and the time that its kernels get ends up
//! below its weight's part: 0.2 ms in each turn of a round of 16 ms make 24.4:75.6 of 1:3.
//!
//! # Idea
//! Processes say when their work in a turn began and when the last of it ended. What was idle of
//! the turn is what is before and after that:
//! ```text
//! grant ......... work begins ============= last work over ....... read as quiet
//!        idle                                                idle
//!
//! charge = used - min(c, used / 2)     c: the median, of all in line, of their means of the last 16 turns
//! ```
//! A process can say what it likes, so nobody's own word counts for it alone: the same `c` is spared
//! everybody, and it is what the one in the middle says, of two the one who says less. So who lies, in either
//! direction, changes nothing as long as most do not; of two, one can make both pay for what was idle, as
//! they would without this room, and no more. One alone in having said anything has nobody to be compared
//! with, and is spared nothing. What a container idles beyond the others (its threads are late) is its own.
//!
//! Only a turn that ended by time or for others counts: who gives up its turn because it has nothing to do
//! was not kept from anything.
//!
//! # Bound
//! At least half of a turn is charged, so finish tags only grow, and the bound of start-time fair
//! queueing holds for what is charged: `|C_i/w_i - C_j/w_j| <= l_i/w_i + l_j/w_j`, with `C = W - n c` where
//! `n` counts the hand-overs. One that idles for long (a stalled process) says little about the machine:
//! what is remembered of a turn is half of the shortest one at most.

use alloc::vec::Vec;
use gpuslice_wire::units::{Duration, Instant};

/// Turns of which each container's cost is the mean.
const KEPT: usize = 16;

/// When a container says it was on the GPU in its last turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkSpan {
    /// First launch of any of its processes.
    pub(crate) began: Instant,
    /// End of the last work of any of them.
    pub(crate) calm: Instant,
}

impl WorkSpan {
    /// Both together were there.
    pub(crate) fn with(self, other: WorkSpan) -> WorkSpan {
        WorkSpan {
            began: self.began.min(other.began),
            calm: self.calm.max(other.calm),
        }
    }

    /// What was idle of a turn. A time that cannot be is none: nothing was idle there.
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

/// A turn that is over, as the daemon saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) granted: Instant,
    pub(crate) closed: Instant,
    /// All of it was read as quiet.
    pub(crate) drained: Instant,
}

/// What the last hand-overs cost one container on one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwitchCosts {
    took: [Duration; KEPT],
    seen: usize,
}

impl SwitchCosts {
    /// A turn in which the container says to have been there for `stay`; nothing beyond `most` is believed.
    pub(crate) fn saw(&mut self, turn: Turn, work_span: WorkSpan, most: Duration) {
        self.took[self.seen % KEPT] = work_span.idle(turn).min(most);
        self.seen += 1;
    }

    /// On average; of too few turns none.
    fn mean(&self) -> Option<Duration> {
        let sum: u64 = self.took.iter().map(|took| took.0).sum();
        (self.seen >= KEPT).then_some(Duration(sum / KEPT as u64))
    }
}

/// What is spared everybody whose costs these are: the median, the lower of two.
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

    /// A turn of 5 ms from `n` on that is idle for 60 µs first and for `end` in the end.
    fn turn(costs: &mut SwitchCosts, n: u64, end: u64) {
        let at = |us: u64| Instant(n * 200_000 * US + us * US);
        let work_span = WorkSpan {
            began: at(60),
            calm: at(5_040),
        };
        let turn = Turn {
            granted: at(0),
            closed: at(5_000),
            drained: at(5_040 + end),
        };
        costs.saw(turn, work_span, MOST);
    }

    fn costs(end: u64) -> SwitchCosts {
        let mut costs = SwitchCosts::default();
        (0..KEPT as u64).for_each(|n| turn(&mut costs, n, end));
        costs
    }

    #[test]
    fn it_is_the_median_of_the_means_and_nobody_moves_it_alone() {
        let (honest, much, none) = (costs(40), costs(100_000), costs(0));
        let of = |all: &[&SwitchCosts]| compensation(all.iter().copied()).0 / US;
        assert_eq!(honest.mean(), Some(Duration(100 * US)));
        assert_eq!(much.mean(), Some(MOST));
        assert_eq!(of(&[&honest, &much]), 100, "of two the lower");
        assert_eq!(of(&[&honest, &none]), 60);
        assert_eq!(of(&[&honest, &much, &honest]), 100);
        assert_eq!(of(&[&none, &honest, &honest]), 100);
        assert_eq!(of(&[&none, &honest, &much, &honest, &much]), 100);
        assert_eq!((of(&[&much]), of(&[])), (0, 0), "nobody to compare with");
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
        let turn = Turn {
            granted: Instant(1_000),
            closed: Instant(2_000),
            drained: Instant(2_100),
        };
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
