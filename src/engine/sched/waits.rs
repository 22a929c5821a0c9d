//! Waits: how long a container has waited behind each other container of a GPU, in a table of fixed size.
//!
//! # Problem
//! A container may wait behind hundreds of others in its life. A reader wants the three that cost it most,
//! and the ledger of a container must not grow.
//!
//! # Idea
//! The table keeps [`KEPT`] containers, by the *space-saving* rule (Metwally, Agrawal, El Abbadi, 2005):
//! ```text
//! known, or a row is free:  its row grows
//! otherwise:                the row of the smallest rank is replaced, and the new row's rank begins at the old one
//! ```
//! The rank is never less than the true total, so every container behind which more than 1 / `KEPT` of
//! the time was spent is in the table. What is shown is the time measured since the row began, never the
//! rank. Time behind containers without a row is what the rows lack of all the time waited, to the nanosecond.
//!
//! A *single wait* is a stretch of time behind one container. The wait for a drain in the ordinary time does
//! not interrupt it. Its cause is that of its larger part: the other container's turn, or its undrained work.
//!
//! A step of the engine adds time to every container that waits, and a single wait lasts for several. So a step adds
//! to the single wait alone, whose end adds it to the table. A reader has a copy of the table that includes it
//! ([`Waits::table`]).

use alloc::boxed::Box;
use core::cmp::Reverse;

use gpuslice_wire::units::Duration;
use gpuslice_wire::waits::{WAITS_SHOWN, WaitCause};

use crate::index::ContainerIndex;

/// Containers in the table.
pub(super) const KEPT: usize = 8;

/// Time behind one other container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) behind: ContainerIndex,
    /// An upper bound of the total since the beginning, by which rows are replaced, ns.
    rank: u64,
    /// The total since this row began, by cause, in the order of [`WaitCause::ALL`], ns.
    pub(crate) by_cause: [u64; WaitCause::ALL.len()],
    /// The longest single wait.
    pub(crate) longest: Duration,
    /// The cause of the longest one.
    pub(crate) cause: WaitCause,
}

impl Wait {
    /// The total since this row began.
    pub(crate) fn total(&self) -> Duration {
        Duration(self.by_cause.iter().sum())
    }
}

/// A single wait that goes on.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    behind: ContainerIndex,
    /// In the order of [`WaitCause::ALL`], ns.
    by_cause: [u64; WaitCause::ALL.len()],
    /// Why the other container had the turn, at last.
    turn: WaitCause,
    /// Why it had not drained, at last.
    drain: WaitCause,
}

impl Stretch {
    fn behind(behind: ContainerIndex) -> Stretch {
        let (turn, drain) = (WaitCause::Queue, WaitCause::LongKernel);
        Stretch { behind, by_cause: Default::default(), turn, drain }
    }

    fn add(&mut self, cause: WaitCause, ns: u64) {
        self.by_cause[cause as usize] += ns;
        let last = if is_drain(cause) { &mut self.drain } else { &mut self.turn };
        *last = cause;
    }

    fn length(&self) -> u64 {
        self.by_cause.iter().sum()
    }

    fn cause(&self) -> WaitCause {
        let undrained = WaitCause::ALL.into_iter().filter(|cause| is_drain(*cause));
        let undrained: u64 = undrained.map(|cause| self.by_cause[cause as usize]).sum();
        if undrained > self.length() - undrained { self.drain } else { self.turn }
    }
}

/// Whether the other container's work is the cause, after its turn.
fn is_drain(cause: WaitCause) -> bool {
    match cause {
        WaitCause::LongKernel | WaitCause::NoDrain => true,
        WaitCause::Queue | WaitCause::HigherClass | WaitCause::Gang => false,
    }
}

/// The waits of one container on one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    stretch: Option<Stretch>,
    /// Of the waits that are over. Apart, since each step walks all containers of a GPU, and few waits end in it.
    ended: Box<Table>,
}

impl Waits {
    /// Adds `ns` of waiting behind `behind`.
    pub(super) fn add(&mut self, behind: ContainerIndex, cause: WaitCause, ns: u64) {
        if self.stretch.is_some_and(|stretch| stretch.behind != behind) {
            self.ends();
        }
        self.stretch.get_or_insert(Stretch::behind(behind)).add(cause, ns);
    }

    /// The single wait is over.
    pub(super) fn ends(&mut self) {
        let stretch = self.stretch.take();
        stretch.into_iter().for_each(|stretch| self.ended.add(&stretch));
    }

    /// `index` has left the GPU; another container may get its index.
    pub(super) fn forget(&mut self, index: ContainerIndex) {
        if self.stretch.is_some_and(|stretch| stretch.behind == index) {
            self.ends();
        }
        self.ended.forget(index);
    }

    /// All waits, as if the present one ended now.
    pub(crate) fn table(&self) -> Table {
        let mut table = (*self.ended).clone();
        self.stretch.iter().for_each(|stretch| table.add(stretch));
        table
    }
}

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: [Option<Wait>; KEPT],
    /// All time waited, by cause, in the order of [`WaitCause::ALL`], ns.
    by_cause: [u64; WaitCause::ALL.len()],
}

impl Table {
    fn add(&mut self, wait: &Stretch) {
        let row = self.row(wait.behind);
        row.rank += wait.length();
        add(&mut row.by_cause, &wait.by_cause);
        if wait.length() >= row.longest.0 {
            (row.longest, row.cause) = (Duration(wait.length()), wait.cause());
        }
        add(&mut self.by_cause, &wait.by_cause);
    }

    /// The row of `behind`, a new one if it has none.
    fn row(&mut self, behind: ContainerIndex) -> &mut Wait {
        let known = |row: &Option<Wait>| row.as_ref().is_some_and(|row| row.behind == behind);
        let rank = |row: &Option<Wait>| row.as_ref().map(|row| row.rank); // a free row comes first
        let ranks = || self.rows.iter().enumerate().map(|(at, row)| (rank(row), at));
        let at = self.rows.iter().position(known);
        let at = at.or_else(|| ranks().min().map(|(_, at)| at)).unwrap_or(0);
        let row = &mut self.rows[at];
        let old = row.take_if(|row| row.behind != behind);
        row.get_or_insert(Wait {
            behind,
            rank: old.map_or(0, |row| row.rank),
            by_cause: [0; WaitCause::ALL.len()],
            longest: Duration(0),
            cause: WaitCause::Queue,
        })
    }

    fn forget(&mut self, index: ContainerIndex) {
        for row in &mut self.rows {
            row.take_if(|row| row.behind == index);
        }
    }

    /// All time waited, by cause, in the order of [`WaitCause::ALL`], ns.
    pub(crate) fn by_cause(&self) -> [u64; WaitCause::ALL.len()] {
        self.by_cause
    }

    /// All time waited.
    pub(super) fn total(&self) -> Duration {
        Duration(self.by_cause.iter().sum())
    }

    /// The containers behind which most time was spent, the largest first, and the time behind all others.
    pub(crate) fn largest(&self) -> ([Option<Wait>; WAITS_SHOWN], Duration) {
        let mut rows = self.rows;
        rows.sort_unstable_by_key(|row| {
            (Reverse(row.map(|row| row.total())), row.map(|row| row.behind))
        });
        let mut shown = [None; WAITS_SHOWN];
        shown.copy_from_slice(&rows[..WAITS_SHOWN]);
        let sum: u64 = shown.iter().flatten().map(|row| row.total().0).sum();
        (shown, Duration(self.total().0 - sum))
    }
}

fn add(sums: &mut [u64], parts: &[u64]) {
    sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: WaitCause = WaitCause::Queue;

    fn names(waits: &Waits) -> [Option<u16>; WAITS_SHOWN] {
        waits.table().largest().0.map(|row| row.map(|row| row.behind.0))
    }

    /// Forty containers in turn, and one behind which a fifth of the time is spent, which comes last.
    #[test]
    fn a_large_part_is_in_the_table_however_many_there_are() {
        let (mut waits, mut all) = (Waits::default(), 0);
        for round in 0..200 {
            for n in 0..40 {
                waits.add(ContainerIndex(n), QUEUE, 100);
                all += 100;
            }
            if round >= 100 {
                waits.add(ContainerIndex(99), QUEUE, 2_000);
                all += 2_000;
            }
        }
        assert_eq!((waits.table().total().0, waits.table().by_cause()), (all, [all, 0, 0, 0, 0]));
        assert_eq!(names(&waits)[0], Some(99));
        let ([first, ..], others) = waits.table().largest();
        let shown: u64 = waits.table().largest().0.iter().flatten().map(|row| row.total().0).sum();
        assert_eq!(shown + others.0, all);
        let total = first.expect("the largest").total().0;
        assert!((190_000..=200_000).contains(&total), "{total}: measured, not the rank");
    }

    #[test]
    fn the_longest_wait_has_the_cause_of_its_larger_part() {
        let mut waits = Waits::default();
        let train = ContainerIndex(1);
        let mut wait = |cause, ns: u64| {
            waits.add(train, cause, ns);
            waits.table().largest().0[0].map(|row| (row.longest.0, row.cause))
        };
        assert_eq!(wait(QUEUE, 4), Some((4, QUEUE)));
        assert_eq!(wait(WaitCause::LongKernel, 1_500), Some((1_504, WaitCause::LongKernel)));
        assert_eq!(wait(WaitCause::NoDrain, 500), Some((2_004, WaitCause::NoDrain)));
        waits.ends();
        waits.add(train, WaitCause::HigherClass, 2_003);
        let row = waits.table().largest().0[0].expect("a row");
        assert_eq!((row.longest.0, row.cause), (2_004, WaitCause::NoDrain));
        assert_eq!(row.by_cause, [4, 2_003, 1_500, 500, 0], "in the order of the causes");
        waits.add(train, WaitCause::HigherClass, 2);
        let row = waits.table().largest().0[0].expect("a row");
        assert_eq!((row.longest.0, row.cause), (2_005, WaitCause::HigherClass));
    }

    /// A short wait for a drain does not change why the turn was another's, nor the other way round.
    #[test]
    fn the_smaller_part_of_a_wait_names_no_cause() {
        let cause = |parts: [(WaitCause, u64); 2]| {
            let mut waits = Waits::default();
            parts.into_iter().for_each(|(cause, ns)| waits.add(ContainerIndex(1), cause, ns));
            waits.table().largest().0[0].map(|row| row.cause)
        };
        let drain = WaitCause::LongKernel;
        assert_eq!(cause([(drain, 10), (QUEUE, 3)]), Some(drain));
        assert_eq!(cause([(QUEUE, 10), (drain, 3)]), Some(QUEUE));
        assert_eq!(cause([(QUEUE, 5), (drain, 5)]), Some(QUEUE));
    }

    #[test]
    fn a_container_that_left_is_one_of_the_others() {
        let mut waits = Waits::default();
        waits.add(ContainerIndex(1), QUEUE, 10);
        waits.add(ContainerIndex(2), QUEUE, 5);
        waits.forget(ContainerIndex(1));
        waits.add(ContainerIndex(2), WaitCause::Gang, 5);
        assert_eq!(waits.table().by_cause(), [15, 0, 0, 0, 5], "whoever has left");
        assert_eq!((names(&waits), waits.table().largest().1.0), ([Some(2), None, None], 10));
        let row = waits.table().largest().0[0].expect("a row");
        assert_eq!(row.longest.0, 10, "its wait went on");
    }
}
