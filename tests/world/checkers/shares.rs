//! GPU time by weight, and caps.
//!
//! Time over weight is kept in 2^-20 ns, so that rounding stays far below the slack of 1 µs.

use std::collections::BTreeMap;

use super::Objection;
use crate::observer::{LaneKey, LaneState, Observer};

const SLACK: i128 = 1_000 << 20;

fn over_weight(ns: u64, state: &LaneState) -> i128 {
    (i128::from(ns) << 20) / i128::from(state.weight)
}

/// Two containers that have both been runnable since some time.
#[derive(Debug, Default)]
struct Pair {
    /// `W_i/w_i - W_j/w_j` since then, and its extremes.
    lead: i128,
    least: i128,
    most: i128,
    /// Longest turns in that time, and the last ones before it, over weight.
    first: i128,
    second: i128,
    /// Changes of weights and classes of the two.
    tuned: (u64, u64),
}

/// The bound of start-time fair queueing: over every interval in which i and j are both runnable,
/// `|W_i/w_i - W_j/w_j| <= l_i/w_i + l_j/w_j`. W excludes the overhead of switches, by the median of the
/// queued containers' reports. Where turns begin, a lead of a shortest turn keeps no container from going
/// on, so each may be off by that, too.
#[derive(Debug, Default)]
pub struct Pairs(BTreeMap<(LaneKey, LaneKey), Pair>);

impl Pairs {
    /// Advances the clock.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        let queues: Vec<(&LaneKey, &LaneState)> =
            seen.lanes.iter().filter(|(_, state)| queued(state) && !seen.gap).collect();
        self.0.retain(|(a, b), _| {
            let still = |key: &LaneKey| seen.lanes.get(key).is_some_and(queued);
            !seen.gap && still(a) && still(b)
        });
        for (n, &(i, a)) in queues.iter().enumerate() {
            for &(j, b) in &queues[n + 1..] {
                if a.gpu == b.gpu && a.record.class == b.record.class {
                    let pair = self.0.entry((*i, *j)).or_default();
                    if pair.tuned != (a.tuned, b.tuned) {
                        *pair = Pair { tuned: (a.tuned, b.tuned), ..Pair::default() };
                    }
                    pair.advance(a, b);
                    pair.check(tolerance(seen, a, b))
                        .map_err(|why| format!("{} and {}: {why}", i.0, j.0))?;
                }
            }
        }
        Ok(())
    }
}

/// One half of that bound holds for any j, whenever and however long j is runnable: while i is always
/// runnable, `W_j/w_j - W_i/w_i <= l_j/w_j + l_i/w_i`. A debt that j leaves with is still owed when j comes
/// back. A debt of a shortest turn does not prevent open mode, and is in the bound. A capped container is
/// bounded by its cap.
#[derive(Debug, Default)]
pub struct Debts(BTreeMap<(LaneKey, LaneKey), Pair>);

impl Debts {
    /// Advances the clock.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        let waits = |key: &LaneKey| seen.lanes.get(key).is_some_and(queued) && !seen.gap;
        let counts = |state: &LaneState| !state.gang && !state.capped() && state.share == 0;
        let other = |key: &LaneKey| seen.lanes.get(key).is_some_and(counts);
        self.0.retain(|(i, j), _| waits(i) && other(j));
        for (i, me) in seen.lanes.iter().filter(|(key, _)| waits(key)) {
            for (j, other) in seen.on(me.gpu).filter(|(key, _)| *key != i) {
                if !counts(other) || other.record.class != me.record.class {
                    continue;
                }
                let pair = self.0.entry((*i, *j)).or_default();
                if pair.tuned != (me.tuned, other.tuned) {
                    *pair = Pair { tuned: (me.tuned, other.tuned), ..Pair::default() };
                }
                pair.advance(me, other);
                // the lead of j since it was furthest behind
                pair.most = pair.most.max(pair.lead);
                let ahead = pair.most - pair.lead;
                let tolerance = tolerance(seen, me, other);
                let bound = pair.first + pair.second + tolerance + SLACK;
                if ahead > bound {
                    return Err(format!(
                        "{} had {} ns/weight more than {}, which is always runnable; the bound is {}",
                        j.0,
                        ahead >> 20,
                        i.0,
                        bound >> 20
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The lead that two containers may have where turns begin, and go on nevertheless.
fn tolerance(seen: &Observer, a: &LaneState, b: &LaneState) -> i128 {
    let shortest = seen.config.turn_min.0;
    over_weight(shortest, a) + over_weight(shortest, b)
}

/// Competes by weight alone, on this GPU alone.
fn queued(state: &LaneState) -> bool {
    state.share == 0
        && !state.gang
        && state.runnable()
        && !state.overrun
        && !state.capped()
        && !state.native
}

impl Pair {
    fn advance(&mut self, a: &LaneState, b: &LaneState) {
        let counts = |state: &LaneState| {
            over_weight(state.billed, state) - over_weight(state.compensated, state)
        };
        self.lead += counts(a) - counts(b);
        self.least = self.least.min(self.lead);
        self.most = self.most.max(self.lead);
        self.first = self.first.max(over_weight(a.stretch.max(a.last), a));
        self.second = self.second.max(over_weight(b.stretch.max(b.last), b));
    }

    fn check(&self, tolerance: i128) -> Result<(), Objection> {
        let bound = self.first + self.second + tolerance + SLACK;
        let drift = self.most - self.least;
        if drift <= bound {
            return Ok(());
        }
        let ns = |value: i128| value >> 20;
        Err(format!("shares drift by {} ns/weight, the bound is {}", ns(drift), ns(bound)))
    }
}

/// Whether the time that comes in now is owed to a container with a share: it has the GPU, or waits behind
/// its class.
fn owed(seen: &Observer, state: &LaneState) -> bool {
    let class = |other: &LaneState| other.record.class == state.record.class;
    let busy = |other: &LaneState| other.pays() && (!other.overrun || other.holds());
    let mut others = seen.on(state.gpu).map(|(_, other)| other);
    let mut waits = || others.any(|other| class(other) && busy(other));
    state.share > 0 && (state.pays() || state.runnable() && waits())
}

/// Caps: over every interval t, `used <= c t + c burst + longest turn`. `used` excludes the overhead of
/// switches. Where c changes, its integral takes the place of `c t`, from the next turn on. The state is
/// the level of a bucket, in 2^-20 ns. While a container with a share waits behind others of its class, the
/// share's part of the time does not overflow.
#[derive(Debug, Default)]
pub struct Caps(BTreeMap<LaneKey, i128>);

impl Caps {
    /// Advances the clock.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        self.0.retain(|key, _| seen.lanes.contains_key(key));
        for (&key, state) in &seen.lanes {
            let (part, whole) = (i128::from(state.cap.0), i128::from(state.cap.1));
            let of = |ns: u64| (i128::from(ns) << 20) * part / whole;
            let depth = of(seen.config.burst.0);
            // Untracked work, and work of a turn granted without a cap, has no cap until it has drained.
            // The same holds for the turns that the container has because it has not drained, whether its
            // cap pays for them or not.
            let free = state.native || state.untracked || state.freely;
            let used = if free { 0 } else { state.billed };
            let used = (i128::from(used) - i128::from(state.compensated)) << 20;
            let level = self.0.entry(key).or_insert(depth);
            let was = *level;
            *level += of(seen.elapsed) - used;
            let share = i128::from(seen.elapsed << 20) * i128::from(state.share) / 100;
            // time that came in while it had a share and waited may still be in it
            let kept = match state.share > 0 && state.runnable() {
                _ if owed(seen, state) => was + share,
                true => was,
                false => depth,
            };
            *level = (*level).min(kept.max(depth));
            // a gang's turn is extended, paid for or not, until its work is over
            let turns = if state.gang { 2 } else { 1 };
            let bound = turns * (i128::from(state.longest) << 20) + SLACK;
            if -*level > bound {
                return Err(format!(
                    "{} of cap {part}/{whole} owes {} ns, the bound is {}",
                    key.0,
                    -*level >> 20,
                    bound >> 20
                ));
            }
        }
        Ok(())
    }
}
