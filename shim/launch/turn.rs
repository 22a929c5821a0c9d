//! Decides whether a launch may go now, from one lane of the container's page.
//!
//! A dead daemon must not stop its tenants, nor may a hung one: the page carries the daemon's heartbeat, and
//! waiting launches check it. Once it is stale, launches in fair mode go without turns; launches in hard
//! mode are held, for a limited time.
//!
//! `tests/pages` compiles this file as it is, as [`super::claim`].
#![forbid(unsafe_code)]

use super::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use super::atomic::{AtomicU32, AtomicU64};
use super::claim::ClaimWords;
use gpuslice_wire::limits::{DAEMON_WAIT_NS, HEARTBEAT_STALE_NS};
use gpuslice_wire::page::{MODE_GATES, MODE_OPEN, may_launch};

/// The words of one lane that the daemon writes and a launch reads.
#[derive(Clone, Copy, Debug)]
pub struct LaneWords<'a> {
    /// `MODE_*`.
    pub mode: &'a AtomicU32,
    /// Turn word of the lane.
    pub turn: &'a AtomicU32,
    /// End of the turn.
    pub turn_end_ns: &'a AtomicU64,
    /// Limit of work in flight near a turn's end; 0 for the default.
    pub window_us: &'a AtomicU32,
    /// Idle time; 0 for the default.
    pub idle_us: &'a AtomicU32,
    /// The daemon's last heartbeat.
    pub heartbeat_ns: &'a AtomicU64,
    /// Not 0 if launches are held while the daemon is away.
    pub hard: &'a AtomicU32,
}

/// The fields of a page that one decision needs; times in ns of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct LaneFacts {
    /// `MODE_*`.
    pub mode: u32,
    /// Turn word of the lane.
    pub turn: u32,
    /// End of the turn.
    pub turn_end_ns: u64,
    /// Limit of work in flight near a turn's end.
    pub window_ns: u64,
    /// Longest time for which the turn is kept with nothing in flight; without turns, the time after the last launch
    /// for which the process counts as runnable.
    pub idle_ns: u64,
    /// The daemon's last heartbeat.
    pub heartbeat_ns: u64,
    /// Launches are held while the daemon is away.
    pub hard: bool,
}

/// Window if the page gives none.
const WINDOW_DEFAULT_NS: u64 = 500_000;
/// Idle time if the page gives none: with turns, and without.
const IDLE_TURNS_NS: u64 = 2_000_000;
const IDLE_OPEN_NS: u64 = 20_000_000;

/// Typical time from a turn's end until the daemon closes it, and the shortest and longest pause between
/// checks after that.
const CLOSING_NS: (u64, u64, u64) = (20_000, 50_000, 500_000);

/// The decision about one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No turns are taken: launch.
    Open,
    /// The container has a turn until about `end_ns`: launch.
    Turn {
        /// The odd turn word.
        turn: u32,
        /// Its end.
        end_ns: u64,
    },
    /// Wait until the turn word differs from `turn`.
    Wait {
        /// The turn word as read.
        turn: u32,
    },
}

/// What a launch may do after it has claimed what it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The decision; what it allows is claimed.
    Kept(Verdict),
    /// The open mode has ended: read again.
    OpenEnded,
    /// The turn has ended, and this process, which claimed part in it, owes a report: read again.
    TurnEnded,
}

impl LaneFacts {
    /// Reads a lane. The turn is read with sequential consistency, since closing a turn and
    /// claiming it are a store and a load on each side.
    #[must_use]
    pub fn read(words: &LaneWords<'_>) -> LaneFacts {
        let or = |us: u32, default: u64| {
            if us == 0 { default } else { u64::from(us) * 1_000 }
        };
        let mode = words.mode.load(Acquire);
        let idle = if mode == MODE_OPEN { IDLE_OPEN_NS } else { IDLE_TURNS_NS };
        LaneFacts {
            mode,
            turn: words.turn.load(SeqCst),
            turn_end_ns: words.turn_end_ns.load(Relaxed),
            window_ns: or(words.window_us.load(Relaxed), WINDOW_DEFAULT_NS),
            idle_ns: or(words.idle_us.load(Relaxed), idle),
            heartbeat_ns: words.heartbeat_ns.load(Relaxed),
            hard: words.hard.load(Relaxed) != 0,
        }
    }

    /// Distance between gates in streams, ns; 0 for none.
    #[must_use]
    pub const fn gates(&self) -> u64 {
        // The work between two gates remains when they close, and closing takes time too.
        match self.mode {
            MODE_GATES => self.window_ns / 3,
            _ => 0,
        }
    }

    /// Whether the daemon's heartbeat is stale.
    #[must_use]
    pub const fn stale(&self, now: u64) -> bool {
        now.saturating_sub(self.heartbeat_ns) > HEARTBEAT_STALE_NS
    }

    /// Time until the heartbeat may be stale, ns; at least a millisecond.
    #[must_use]
    pub fn patience(&self, now: u64) -> u64 {
        let noticed = self.heartbeat_ns.saturating_add(HEARTBEAT_STALE_NS);
        noticed.saturating_sub(now).max(1_000_000)
    }

    /// Time until the end of the present turn must be checked, ns: a turn closed at its announced end wakes
    /// no thread. If the daemon closes it late, checks become less frequent.
    #[must_use]
    pub fn left(&self, now: u64) -> u64 {
        if !may_launch(self.turn) {
            return u64::MAX;
        }
        match self.turn_end_ns.checked_sub(now) {
            Some(left) => left.saturating_add(CLOSING_NS.0),
            None => (now - self.turn_end_ns).clamp(CLOSING_NS.1, CLOSING_NS.2),
        }
    }

    /// Whether launches go without turns: none are taken, or the daemon is away.
    #[must_use]
    pub const fn is_open(&self, now: u64) -> bool {
        let away = now.saturating_sub(self.heartbeat_ns);
        let patience = if self.hard { DAEMON_WAIT_NS } else { HEARTBEAT_STALE_NS };
        self.mode == MODE_OPEN || away > patience
    }

    /// The decision.
    #[must_use]
    pub const fn judge(&self, now: u64) -> Verdict {
        if self.is_open(now) {
            return Verdict::Open;
        }
        // A turn left open by a dead daemon is never closed: tenants in hard mode end it themselves.
        let left_open = self.stale(now) && now >= self.turn_end_ns;
        if may_launch(self.turn) && !left_open {
            Verdict::Turn { turn: self.turn, end_ns: self.turn_end_ns }
        } else {
            Verdict::Wait { turn: self.turn }
        }
    }

    /// The decision, and the claim that it needs. A daemon that is away does not end the open mode.
    #[must_use]
    pub fn claim(&self, words: &ClaimWords<'_>, now: u64) -> Claimed {
        let verdict = self.judge(now);
        match verdict {
            Verdict::Open if !words.take_open(self.turn) && !self.stale(now) => Claimed::OpenEnded,
            Verdict::Turn { turn, .. } if !words.take(turn) => Claimed::TurnEnded,
            _ => Claimed::Kept(verdict),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::page::MODE_TURNS;

    const SECOND: u64 = 1_000_000_000;

    fn words(turn: u32) -> LaneFacts {
        LaneFacts {
            mode: MODE_TURNS,
            turn,
            turn_end_ns: 10 * SECOND + 5_000_000,
            window_ns: 500_000,
            idle_ns: 500_000,
            heartbeat_ns: 10 * SECOND,
            hard: false,
        }
    }

    #[test]
    fn odd_launches_and_even_waits() {
        let now = 10 * SECOND + 1_000;
        assert_eq!(words(7).judge(now), Verdict::Turn { turn: 7, end_ns: words(7).turn_end_ns });
        assert_eq!(words(8).judge(now), Verdict::Wait { turn: 8 });
        assert_eq!(LaneFacts { mode: MODE_OPEN, ..words(8) }.judge(now), Verdict::Open);
    }

    #[test]
    fn the_end_of_a_turn_is_checked_without_a_wake_up() {
        let end = words(7).turn_end_ns;
        assert_eq!(words(8).left(end), u64::MAX, "there is none");
        assert_eq!(words(7).left(end - 1_000_000), 1_020_000);
        assert_eq!(words(7).left(end), 20_000);
        let late = [1, 100_000, SECOND].map(|late| words(7).left(end + late));
        assert_eq!(late, [50_000, 100_000, 500_000]);
    }

    #[test]
    fn a_mode_from_the_future_is_treated_as_turns() {
        let future = LaneFacts { mode: 77, ..words(8) };
        assert_eq!(future.judge(10 * SECOND), Verdict::Wait { turn: 8 });
    }

    #[test]
    fn without_a_daemon_fair_mode_launches_and_hard_mode_holds_for_a_while() {
        let later = |ns| 10 * SECOND + ns;
        assert_eq!((HEARTBEAT_STALE_NS, DAEMON_WAIT_NS), (250_000_000, 30 * SECOND));
        assert_eq!(words(8).judge(later(HEARTBEAT_STALE_NS)), Verdict::Wait { turn: 8 });
        assert_eq!(words(8).judge(later(HEARTBEAT_STALE_NS + 1)), Verdict::Open);
        let hard = LaneFacts { hard: true, ..words(8) };
        assert_eq!(hard.judge(later(SECOND)), Verdict::Wait { turn: 8 });
        assert_eq!(hard.judge(later(DAEMON_WAIT_NS)), Verdict::Wait { turn: 8 });
        assert_eq!(hard.judge(later(DAEMON_WAIT_NS + 1)), Verdict::Open);
        let hard_in_turn = LaneFacts { hard: true, ..words(7) };
        let turn = Verdict::Turn { turn: 7, end_ns: words(7).turn_end_ns };
        assert_eq!(hard_in_turn.judge(later(HEARTBEAT_STALE_NS)), turn);
        assert_eq!(hard_in_turn.judge(later(SECOND)), Verdict::Wait { turn: 7 });
    }

    #[test]
    fn a_heartbeat_from_the_future_is_fresh() {
        assert_eq!(words(8).judge(SECOND), Verdict::Wait { turn: 8 });
    }

    #[test]
    fn gates_are_a_third_of_a_window_apart_where_a_turn_may_end_at_any_moment() {
        let gated = LaneFacts { mode: MODE_GATES, window_ns: 150_000, ..words(7) };
        assert_eq!((gated.gates(), words(7).gates()), (50_000, 0));
    }

    #[test]
    fn patience_lasts_until_the_heartbeat_may_be_stale() {
        let at = |later: u64| words(8).patience(10 * SECOND + later);
        assert_eq!(at(0), HEARTBEAT_STALE_NS);
        assert_eq!(at(HEARTBEAT_STALE_NS - 2_000_000), 2_000_000);
        assert_eq!([at(HEARTBEAT_STALE_NS), at(SECOND)], [1_000_000; 2]);
    }
}
