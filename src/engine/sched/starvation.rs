//! The starvation guard: GPU time for a lower class while higher classes are always runnable.
//!
//! Higher classes always go first. If they are always runnable, a lower class would never run. So it gets a
//! *guard turn*, one shortest turn that is not interrupted, once it has waited long enough that the classes
//! above keep their part: a guard turn of `used` is followed by the next one no earlier than
//! `used / (1 - part)` later. The time of a kernel that ran over is paid for in the same way, up to a longest wait.
//!
//! | class | may interrupt | which keep | at most every |
//! |---|---|---|---|
//! | normal | high | `high_cap` | 1 s, however long its last guard turn was |
//! | best-effort | normal, high | `normal_cap` | 60 s |

use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant, Percent};

use crate::config::Config;

/// A guard turn under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardTurn {
    pub(crate) class: Class,
    pub(crate) began: Instant,
}

/// The rule of one lower class.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// The part of the time that the classes above keep.
    above: Percent,
    /// The longest wait that one guard turn can cause for the next.
    longest: Duration,
    /// When the next guard turn may begin.
    due: Instant,
}

/// The starvation guards of one GPU.
#[derive(Clone, Debug)]
pub(crate) struct StarvationGuards {
    normal: Rule,
    best_effort: Rule,
    shortest: Duration,
}

impl Rule {
    /// The wait that `used` in a guard turn causes.
    fn pays(&self, used: Duration) -> Duration {
        let rest = u64::from(100 - self.above.get()).max(1);
        Duration(used.0.saturating_mul(100) / rest)
    }
}

impl StarvationGuards {
    pub(crate) fn new(config: &Config, now: Instant) -> StarvationGuards {
        let rule = |above, longest| Rule { above, longest, due: now };
        StarvationGuards {
            normal: rule(config.class_caps.high, Duration::from_millis(1_000)),
            best_effort: rule(config.class_caps.normal, Duration::from_millis(60_000)),
            shortest: config.turn_min,
        }
    }

    fn rule(&self, class: Class) -> Option<&Rule> {
        match class {
            Class::High => None,
            Class::Normal => Some(&self.normal),
            Class::BestEffort => Some(&self.best_effort),
        }
    }

    fn rule_mut(&mut self, class: Class) -> Option<&mut Rule> {
        match class {
            Class::High => None,
            Class::Normal => Some(&mut self.normal),
            Class::BestEffort => Some(&mut self.best_effort),
        }
    }

    /// When a container of `class` may interrupt the classes above it; `None` for never.
    pub(crate) fn due(&self, class: Class) -> Option<Instant> {
        let rule = self.rule(class)?;
        (rule.above.get() < 100).then_some(rule.due)
    }

    /// `class` was served just now, or begins to wait: the next guard turn must be earned anew.
    pub(crate) fn later(&mut self, class: Class, now: Instant) {
        let shortest = self.shortest;
        if let Some(rule) = self.rule_mut(class) {
            rule.due = rule.due.max(now.plus(rule.pays(shortest)));
        }
    }

    /// A guard turn is over: the next one is due when the classes above have had their part of the time
    /// since it began.
    pub(crate) fn over(&mut self, guard: GuardTurn, now: Instant) {
        let shortest = self.shortest;
        if let Some(rule) = self.rule_mut(guard.class) {
            let used = now.since(guard.began).max(shortest);
            let every = rule.pays(used).min(rule.longest).max(rule.pays(shortest));
            rule.due = guard.began.plus(every).max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::policy::ClassCaps;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_cap_of_100_leaves_no_guard_turns() {
        let default = Config::default();
        let class_caps = ClassCaps { high: Percent::ALL, ..default.class_caps };
        let config = Config { class_caps, ..default };
        let guards = StarvationGuards::new(&config, Instant(0));
        assert_eq!(guards.due(Class::Normal), None);
        assert_eq!(guards.due(Class::BestEffort), Some(Instant(0)));
        assert_eq!(guards.due(Class::High), None);
    }

    /// A kernel of 10 s in a guard turn is paid for, up to the longest wait.
    #[test]
    fn a_guard_turn_that_ran_over_is_paid_for_within_bounds() {
        let mut guards = StarvationGuards::new(&Config::default(), Instant(0));
        for (class, due) in [(Class::Normal, 10), (Class::BestEffort, 60)] {
            let began = Instant(0);
            guards.over(GuardTurn { class, began }, Instant(10 * SECOND));
            assert_eq!(guards.due(class), Some(Instant(due * SECOND)), "{class}");
        }
        let began = Instant(100 * SECOND);
        let class = Class::Normal;
        guards.over(GuardTurn { class, began }, Instant(began.0 + 10_000_000));
        assert_eq!(guards.due(class), Some(Instant(began.0 + 200_000_000)));
    }
}
