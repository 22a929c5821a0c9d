//! How a slice's wall time grew over a stretch: the difference of two accounts.
//!
//! The last seconds matter more than the whole life: a container that waited an hour ago and is idle now is idle.
//! The account of a slice begins anew with the daemon. If that happened in the stretch, the time between the last
//! look at the old account and the begin of the new one is the daemon's absence, or more than that: when the old daemon
//! ended is not known.
//!
//! A row of waits is shown only while it is among the largest three. What a row without a predecessor had before
//! the stretch is unknown, but no more than the smallest row that was shown then: that much is left out.

use crate::table::{Row, View};
use crate::wall_time::WallTime;
use gpuslice_wire::waits::{WaitBehind, WaitCause};

/// Time by cause, in the order of [`WaitCause::ALL`], ns.
type ByCause = [u64; WaitCause::ALL.len()];

/// Wall time of a slice in a stretch, by where it went, ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Growth {
    /// The sum of all parts.
    pub wall: u64,
    /// It had the GPU.
    pub running: u64,
    /// Others had it.
    pub waiting: u64,
    /// Switches between turns.
    pub handover: u64,
    /// Its own limit held it back.
    pub limited: u64,
    /// It waited for other GPUs of its gang.
    pub gang: u64,
    /// It had no work.
    pub idle: u64,
    /// It was suspended.
    pub suspended: u64,
    /// The daemon did not run.
    pub absent: u64,
    /// The daemon began anew, so `absent` is what its absence was at most.
    pub is_anew: bool,
    /// The containers that it waited behind.
    pub behind: Vec<Behind>,
    /// GPU time charged to it.
    pub gpu: u64,
    /// The part of the GPU that it got, 0..=1; `None` if that is not known.
    pub got: Option<f64>,
    /// It launched without turns for a part of the time at least: when it ran then is not known.
    pub is_open: bool,
    /// Allocations that were refused; unknown for a whole life.
    pub denied: Option<u64>,
}

/// Waiting behind one container in the stretch.
#[derive(Clone, Debug, PartialEq)]
pub struct Behind {
    /// Its id.
    pub container: String,
    /// Time by cause, ns.
    pub by_cause: ByCause,
    /// The longest single wait since the account's begin, ns.
    pub longest: u64,
}

impl Growth {
    /// The growth of a slice's account since `before`, or since its begin. `None` if the daemon shows no account.
    pub fn of(before: Option<&View>, now: &View, row: &Row) -> Option<Growth> {
        let time = now.time(row)?;
        let known = before.and_then(|view| Some((view, view.row(row)?, view.time(row)?)));
        let same = known.filter(|(_, _, old)| old.since_ns == time.since_ns);
        let grown = |of: fn(&WallTime) -> u64| {
            of(time).saturating_sub(same.map_or(0, |(_, _, old)| of(old)))
        };
        let [running, waiting, handover, limited, gang, idle, suspended, absent] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| {
                let old = same.map_or(0, |(_, _, old)| old.parts[at].1);
                time.parts[at].1.saturating_sub(old)
            });
        let restarted = known.filter(|_| same.is_none());
        let away = restarted.map_or(0, |(view, ..)| time.since_ns.saturating_sub(view.now_ns));
        let old = same.map(|(_, old, _)| old);
        let is_open = now.is_open(row.gpu, before.unwrap_or(now));
        Some(Growth {
            wall: grown(WallTime::total) + away,
            running,
            waiting,
            handover,
            limited,
            gang,
            idle,
            suspended,
            absent: absent + away,
            is_anew: restarted.is_some(),
            behind: behind(same.map(|(_, _, old)| old), time),
            gpu: row.gpu_ns.saturating_sub(old.map_or(0, |old| old.gpu_ns)),
            got: match before {
                Some(before) => now.got(row, before),
                None => (!is_open).then(|| row.gpu_ns as f64 / time.total().max(1) as f64),
            },
            is_open,
            denied: old.map(|old| row.denied.saturating_sub(old.denied)),
        })
    }

    /// A part of the wall time, 0..=1.
    pub fn part(&self, ns: u64) -> f64 {
        ns as f64 / self.wall.max(1) as f64
    }

    /// Time in which it had work and not the GPU, because of other containers or of its limit, ns: what WAIT is
    /// everywhere. The daemon's absence is not in it: nothing is known of that time.
    pub fn waited(&self) -> u64 {
        self.waiting + self.handover + self.limited + self.gang
    }

    /// Time that it may have lost, the daemon's absence included, ns.
    pub fn held_back(&self) -> u64 {
        self.waited() + self.absent
    }

    /// Waiting by cause, behind all containers that are known, ns.
    pub fn by_cause(&self) -> ByCause {
        let mut sums = ByCause::default();
        for behind in &self.behind {
            sums.iter_mut().zip(behind.by_cause).for_each(|(sum, ns)| *sum += ns);
        }
        sums
    }
}

/// The growth of each row of waits.
fn behind(old: Option<&WallTime>, new: &WallTime) -> Vec<Behind> {
    let smallest = old.filter(|old| old.waits().count() == old.behind.len());
    let smallest = smallest.and_then(|old| old.waits().map(|(_, wait)| wait.total_ns).min());
    let rows = new.waits().map(|(container, wait)| {
        let was = old.and_then(|old| old.waits().find(|(it, _)| *it == container));
        let by_cause = match was.map(|(_, was)| was) {
            Some(was) if was.total_ns <= wait.total_ns => difference(wait, was),
            Some(_) => wait.by_cause_ns, // the row began anew
            None => without(wait, smallest.unwrap_or(0)),
        };
        Behind { container: container.to_string(), by_cause, longest: wait.longest_ns }
    });
    rows.filter(|behind| behind.by_cause.iter().sum::<u64>() > 0).collect()
}

fn difference(new: &WaitBehind, old: &WaitBehind) -> ByCause {
    let mut by_cause = new.by_cause_ns;
    let pairs = by_cause.iter_mut().zip(old.by_cause_ns);
    pairs.for_each(|(ns, was)| *ns = ns.saturating_sub(was));
    by_cause
}

/// The row without `hidden`, in proportion.
fn without(wait: &WaitBehind, hidden: u64) -> ByCause {
    let left = u128::from(wait.total_ns.saturating_sub(hidden));
    let whole = u128::from(wait.total_ns.max(1));
    wait.by_cause_ns.map(|ns| u64::try_from(u128::from(ns) * left / whole).unwrap_or(ns))
}
