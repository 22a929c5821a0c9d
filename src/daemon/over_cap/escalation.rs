//! Decides what to do about a container that has more on the GPU than its cap.
//!
//! # Problem
//! Memory that a container takes behind the shim is charged to it, and it gets no more. It keeps what it has, so it
//! holds memory that the node has promised to others. A limit on this time must not be evaded by going below the cap
//! for a moment. It must not hit a program whose first context was charged a little late.
//!
//! # Idea
//! One sum for each container: it grows while the container is over its cap and shrinks as fast while it is not. Each
//! step has a limit on this sum. A container that is over its cap for more than half of the time reaches every limit.

use gpuslice_wire::units::{Duration, Instant};

/// The longest time that one look counts for: a daemon or a driver that stood still has seen nothing meanwhile.
const LOOK_MAX: Duration = Duration(2_000_000_000);

/// A restarted daemon knows after so many looks and so much time what a container has: memory that no process was
/// granted is charged when two samples show it.
const SURE: (u32, Duration) = (3, Duration(1_000_000_000));

/// For how long a container may be over its cap before each step; never without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub warn: Option<Duration>,
    pub freeze: Option<Duration>,
    pub kill: Option<Duration>,
}

impl Limits {
    /// The last one: the sum need not be larger.
    fn last(&self) -> Duration {
        let all = [self.warn, self.freeze, self.kill].into_iter().flatten();
        all.max().unwrap_or(Duration(0))
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Tell of it.
    Warn,
    /// Stop the container's processes where they are.
    Freeze,
    /// Let them go on.
    Thaw,
    /// End them.
    Kill,
}

/// The state of one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Escalation {
    over: Duration,
    looked: Option<Instant>,
    warned: bool,
    frozen: bool,
    killed: bool,
    /// The last step that was due could not be taken.
    refused: bool,
    /// An earlier daemon froze it: looks since then, and when the first one was.
    inherited: Option<(u32, Option<Instant>)>,
}

impl Escalation {
    /// That of a container which an earlier daemon froze.
    pub fn of_frozen(limits: &Limits) -> Escalation {
        let over = limits.freeze.unwrap_or(Duration(0));
        let inherited = Some((0, None));
        Escalation { over, warned: true, frozen: true, inherited, ..Escalation::default() }
    }

    /// Whether an earlier daemon froze it, and what it has is not known yet.
    pub fn is_inherited(&self) -> bool {
        self.inherited.is_some()
    }

    /// Whether a look that finds it within its cap may be one before its memory is known.
    fn is_unsure(&mut self, now: Instant, is_over: bool) -> bool {
        let Some((looks, first)) = self.inherited.filter(|_| !is_over) else {
            self.inherited = None;
            return false;
        };
        let (looks, first) = (looks + 1, first.unwrap_or(now));
        let is_unsure = looks < SURE.0 || now.since(first) < SURE.1;
        self.inherited = is_unsure.then_some((looks, Some(first)));
        is_unsure
    }

    /// Whether nothing has happened that is still to be known.
    pub fn is_idle(&self) -> bool {
        self.over.0 == 0 && !self.frozen
    }

    /// A step that was due could not be taken, and is due again at the next look. Returns whether that is new.
    pub fn refuse(&mut self, step: Step) -> bool {
        match step {
            Step::Freeze => self.frozen = false,
            Step::Kill => self.killed = false,
            Step::Warn | Step::Thaw => {}
        }
        !std::mem::replace(&mut self.refused, true)
    }

    /// Takes a look at the container; returns the next step if one is due.
    pub fn look(&mut self, now: Instant, is_over: bool, limits: &Limits) -> Option<Step> {
        if limits.freeze.is_some() && self.is_unsure(now, is_over) {
            return None;
        }
        let since = self.looked.replace(now).map_or(Duration(0), |last| now.since(last));
        let since = since.min(LOOK_MAX).0;
        let over = if is_over { self.over.0 + since } else { self.over.0.saturating_sub(since) };
        self.over = Duration(over).min(limits.last());
        if self.over.0 == 0 {
            (self.warned, self.killed, self.refused) = (false, false, false);
        }
        if self.frozen && (!is_over || limits.freeze.is_none()) {
            self.frozen = false;
            return Some(Step::Thaw);
        }
        let is_due = |limit: Option<Duration>| limit.is_some_and(|limit| self.over >= limit);
        let (step, done) = [
            (Step::Warn, limits.warn, &mut self.warned),
            // First: what cannot be frozen is due to be frozen at each look.
            (Step::Kill, limits.kill, &mut self.killed),
            (Step::Freeze, limits.freeze, &mut self.frozen),
        ]
        .into_iter()
        .find_map(|(step, limit, done)| {
            (is_over && !*done && is_due(limit)).then_some((step, done))
        })?;
        *done = true;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const ALL: Limits = Limits {
        warn: Some(Duration(2 * S)),
        freeze: Some(Duration(5 * S)),
        kill: Some(Duration(9 * S)),
    };

    /// The steps of looks once a second, by the second: `over` says which looks find it over its cap.
    fn steps(limits: &Limits, seconds: u64, over: impl Fn(u64) -> bool) -> Vec<(u64, Step)> {
        let mut escalation = Escalation::default();
        let mut look =
            |at: u64| Some((at, escalation.look(Instant((100 + at) * S), over(at), limits)?));
        (0..seconds).filter_map(&mut look).collect()
    }

    #[test]
    fn each_step_comes_at_its_time_and_once() {
        let all = [(2, Step::Warn), (5, Step::Freeze), (9, Step::Kill)];
        assert_eq!(steps(&ALL, 100, |_| true), all);
        assert_eq!(steps(&ALL, 100, |at| at <= 4), [(2, Step::Warn)]);
        assert_eq!(steps(&ALL, 100, |_| false), []);
    }

    #[test]
    fn a_step_without_a_limit_is_never_taken() {
        let warn = Limits { freeze: None, kill: None, ..ALL };
        assert_eq!(steps(&warn, 100_000, |_| true), [(2, Step::Warn)]);
        assert_eq!(steps(&Limits::default(), 100_000, |_| true), []);
        let kill = Limits { kill: ALL.kill, ..Limits::default() };
        assert_eq!(steps(&kill, 100, |_| true), [(9, Step::Kill)]);
    }

    #[test]
    fn what_fits_again_goes_on_and_is_warned_anew_when_all_is_paid_back() {
        let over = |at: u64| at <= 6 || at >= 20;
        let expected = [
            (2, Step::Warn),
            (5, Step::Freeze),
            (7, Step::Thaw),
            (22, Step::Warn),
            (25, Step::Freeze),
            (29, Step::Kill),
        ];
        // The first look over the cap after a pause counts for the time since the last one, at most two seconds.
        let steps = steps(&ALL, 40, over);
        let kinds: Vec<Step> = steps.iter().map(|(_, step)| *step).collect();
        assert_eq!(kinds, expected.map(|(_, step)| step));
        assert_eq!(steps[..3], expected[..3]);
    }

    /// A moment below the cap resets nothing.
    #[test]
    fn a_container_that_is_over_most_of_the_time_reaches_every_step() {
        let steps = steps(&ALL, 60, |at| at % 4 != 3);
        let first = |step| steps.iter().find(|(_, it)| *it == step).map(|(at, _)| *at);
        assert!(first(Step::Freeze) > Some(5), "{steps:?}");
        assert!(first(Step::Kill) > first(Step::Freeze), "{steps:?}");
        assert_eq!(steps.iter().filter(|(_, it)| *it == Step::Warn).count(), 1, "{steps:?}");
        assert_eq!(steps.iter().filter(|(_, it)| *it == Step::Kill).count(), 1, "{steps:?}");
    }

    /// Such as a freeze while another program has frozen the container.
    #[test]
    fn a_step_that_cannot_be_taken_is_due_again() {
        let mut escalation = Escalation::default();
        let mut look = |at: u64, fails: bool| {
            let step = escalation.look(Instant((100 + at) * S), true, &ALL)?;
            let is_new = fails && escalation.refuse(step);
            Some((at, step, is_new))
        };
        let steps: Vec<_> = (0..12).filter_map(|at| look(at, [5, 6, 9].contains(&at))).collect();
        let expected = [
            (2, Step::Warn, false),
            (5, Step::Freeze, true),
            (6, Step::Freeze, false),
            (7, Step::Freeze, false),
            (9, Step::Kill, false),
            (10, Step::Kill, false),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn a_pause_of_the_looks_is_no_time_over_the_cap() {
        let mut escalation = Escalation::default();
        assert_eq!(escalation.look(Instant(S), true, &ALL), None);
        assert_eq!(
            escalation.look(Instant(1_000 * S), true, &ALL),
            Some(Step::Warn),
            "two seconds"
        );
        assert_eq!(escalation.look(Instant(1_001 * S), true, &ALL), None);
    }

    #[test]
    fn what_an_earlier_daemon_froze_is_thawed_by_this_one() {
        let mut fits = Escalation::of_frozen(&ALL);
        assert!(!fits.is_idle());
        let mut look = |ms: u64| fits.look(Instant(S + ms * S / 1_000), false, &ALL);
        assert_eq!([0, 20, 40, 999].map(&mut look), [None; 4], "not all may be charged yet");
        assert_eq!(look(1_000), Some(Step::Thaw));
        let mut seldom = Escalation::of_frozen(&ALL);
        let mut look = |s: u64| seldom.look(Instant(s * S), false, &ALL);
        assert_eq!([1, 6, 11].map(&mut look), [None, None, Some(Step::Thaw)]);
        let mut still = Escalation::of_frozen(&ALL);
        assert_eq!(still.look(Instant(S), false, &ALL), None);
        assert_eq!(still.look(Instant(2 * S), true, &ALL), None);
        assert_eq!(
            still.look(Instant(3 * S), false, &ALL),
            Some(Step::Thaw),
            "it was known by then"
        );
        // The configuration may permit no freezing any more.
        let mut changed = Escalation::of_frozen(&Limits::default());
        assert_eq!(changed.look(Instant(S), true, &Limits::default()), Some(Step::Thaw));
        assert!(changed.is_idle());
    }
}
