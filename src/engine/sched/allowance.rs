//! What a hand-over costs its holder, and is not charged for.
//!
//! # Problem
//! A turn is charged from its grant until all is quiet again. A part of that is nobody's work but the
//! machine's: noticing the close, waking, reporting. It is the same for everybody whatever the
//! length of the turn, so it is more of a light container's turn, and the time that its kernels get ends
//! up below its weight's part.
//!
//! # Idea
//! ```text
//! charge = used - min(c, used / 2)        c: the least close-to-quiet time of the last 64 hand-overs
//! ```
//! The *least* of all containers, since what exceeds it was work in flight, and so that nobody can raise
//! it alone: whoever drains slowly pays for it in full. A container that lies can only lower it, and
//! then everybody pays as without it. Where all keep a window's work in flight even the least holds some of
//! that, and where all have long kernels it is mostly that, so `c` has an upper bound too: a tenth of the
//! shortest turn. Only a turn that ended by time or for others counts: who gives up its turn because
//! it is idle drains nothing. The line (and not the cap, nor the bill) is what is spared.
//!
//! # Bound
//! At least half of a turn is charged, so finish tags only grow, and the bound of start-time fair
//! queueing holds for what is charged: `|C_i/w_i - C_j/w_j| <= l_i/w_i + l_j/w_j`, with `C = W - n c` where
//! `n` counts the hand-overs.

use gpuslice_wire::units::Duration;

use crate::config::Config;

/// Hand-overs that are remembered.
const KEPT: usize = 64;

/// The last hand-overs of one GPU.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    took: [Duration; KEPT],
    next: usize,
    most: Duration,
}

impl Allowance {
    /// Nothing is allowed before as many were seen as are kept.
    pub(crate) fn new(config: &Config) -> Allowance {
        Allowance {
            took: [Duration(0); KEPT],
            next: 0,
            most: Duration(config.turn_min.0 / 10),
        }
    }

    /// A GPU was quiet `took` after a close.
    pub(crate) fn saw(&mut self, took: Duration) {
        self.took[self.next] = took;
        self.next = (self.next + 1) % KEPT;
    }

    /// What is not charged of a turn of `used`.
    pub(crate) fn of(&self, used: Duration) -> Duration {
        let least = self.took.iter().copied().min().unwrap_or_default();
        least.min(self.most).min(Duration(used.0 / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    #[test]
    fn it_is_the_least_of_all_and_nobody_raises_it_alone() {
        let mut allowance = Allowance::new(&Config::default());
        let turn = Duration(8_000 * US);
        for _ in 0..KEPT - 1 {
            allowance.saw(Duration(90 * US));
        }
        assert_eq!(allowance.of(turn), Duration(0), "too few were seen");
        allowance.saw(Duration(80 * US));
        assert_eq!(allowance.of(turn), Duration(80 * US));
        // 63 slow ones of one that wants to raise it, and one of another
        for _ in 0..10 {
            (1..KEPT).for_each(|_| allowance.saw(Duration(2_000 * US)));
            allowance.saw(Duration(70 * US));
            assert_eq!(allowance.of(turn), Duration(70 * US));
        }
        allowance.saw(Duration(US));
        assert_eq!(allowance.of(turn), Duration(US));
    }

    #[test]
    fn half_a_turn_is_always_charged_and_long_kernels_are_work() {
        let mut allowance = Allowance::new(&Config::default());
        (0..KEPT).for_each(|_| allowance.saw(Duration(50_000 * US)));
        assert_eq!(allowance.of(Duration(8_000 * US)), Duration(100 * US));
        assert_eq!(allowance.of(Duration(101 * US)), Duration(50_500));
        assert_eq!(allowance.of(Duration(0)), Duration(0));
    }
}
