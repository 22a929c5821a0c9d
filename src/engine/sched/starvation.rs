//! Slots: what keeps a lower class from starving.
//!
//! Classes above a container go first, always. If they always want the GPU, the lower class would
//! never run. So it gets a *slot*, one shortest turn that nobody interrupts, whenever it has waited
//! for so long that the slot leaves the classes above it their part: a slot of `used` is followed by
//! the next one no earlier than `used / (1 - part)` later. What a kernel that ran over took is paid
//! for in the same way, up to a longest wait.
//!
//! | who | may interrupt | which keep | at most every |
//! |---|---|---|---|
//! | normal | high | `high_cap` | 1 s, whatever its last slot took |
//! | best-effort | normal, high | `normal_cap` | 60 s |

use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Duration, Instant, Percent};

use crate::config::Config;

/// A slot under way: whose class it is of and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardTurn {
    pub(crate) class: Class,
    pub(crate) began: Instant,
}

/// One lower class's.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// What the classes above keep.
    above: Percent,
    /// The longest time that a slot can make the class wait for the next one.
    longest: Duration,
    /// When the next one may be.
    due: Instant,
}

/// The slots of one GPU.
#[derive(Clone, Debug)]
pub(crate) struct StarvationGuards {
    normal: Rule,
    best_effort: Rule,
    shortest: Duration,
}

impl Rule {
    /// What `used` in a slot makes the class wait.
    fn pays(&self, used: Duration) -> Duration {
        let rest = u64::from(100 - self.above.get()).max(1);
        Duration(used.0.saturating_mul(100) / rest)
    }
}

impl StarvationGuards {
    pub(crate) fn new(config: &Config, now: Instant) -> StarvationGuards {
        let rule = |above, longest| Rule {
            above,
            longest,
            due: now,
        };
        StarvationGuards {
            normal: rule(config.high_cap, Duration::from_millis(1_000)),
            best_effort: rule(config.normal_cap, Duration::from_millis(60_000)),
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

    /// When one of `class` may interrupt the classes above it; `None` for never.
    pub(crate) fn due(&self, class: Class) -> Option<Instant> {
        let rule = self.rule(class)?;
        (rule.above.get() < 100).then_some(rule.due)
    }

    /// One of `class` was served just now, or begins to wait: no slot is due before one would be
    /// earned anew.
    pub(crate) fn later(&mut self, class: Class, now: Instant) {
        let shortest = self.shortest;
        if let Some(rule) = self.rule_mut(class) {
            rule.due = rule.due.max(now.plus(rule.pays(shortest)));
        }
    }

    /// A slot is over: the next one may come when the classes above have had their part of the
    /// time since it began.
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

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_all_leaves_no_slots() {
        let config = Config {
            high_cap: Percent::new(100).expect("a percentage"),
            ..Config::default()
        };
        let guards = StarvationGuards::new(&config, Instant(0));
        assert_eq!(guards.due(Class::Normal), None);
        assert_eq!(guards.due(Class::BestEffort), Some(Instant(0)));
        assert_eq!(guards.due(Class::High), None);
    }

    /// A kernel of 10 s in a slot is paid for, up to the longest wait.
    #[test]
    fn a_slot_that_ran_over_is_paid_for_within_bounds() {
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
