//! The part of its GPU's time that a slice is due among the slices with work.
//!
//! The same division as the engine's, computed anew from a snapshot: higher classes go first; of what they
//! leave, each slice of a class is due its share, and a part of the rest by weight, up to its limit. Slices
//! with a share alone divide the time that no weight can use, in proportion to their shares.

use super::{Row, View};
use gpuslice_wire::policy::{Class, Policy};

/// All of a GPU's time, parts per million.
const WHOLE_PPM: f64 = 1e6;

/// What a slice asks for; parts of all of a GPU's time.
#[derive(Clone, Copy)]
struct Demand {
    share: f64,
    weight: f64,
    cap: f64,
    due: f64,
}

impl View {
    /// The part of its GPU, 0..=1, that a slice is due among the slices with work.
    pub fn due(&self, row: &Row) -> f64 {
        let policy = self.policy(row.gpu);
        let same = |peer: &Row| peer.container == row.container;
        let peers = self.rows.iter();
        let peers = peers.filter(|peer| peer.gpu == row.gpu && (peer.runnable || same(peer)));
        let mut left = 1.0;
        for class in Class::ALL {
            let ours: Vec<&Row> = peers.clone().filter(|peer| peer.class == class).collect();
            let mut all: Vec<Demand> = ours.iter().map(|peer| demand(peer, policy, left)).collect();
            divide(&mut all, left);
            if let Some(at) = ours.iter().position(|peer| same(peer)) {
                return all[at].due;
            }
            left = (left - all.iter().map(|it| it.due).sum::<f64>()).max(0.0);
        }
        0.0
    }
}

/// The demand of `row` where its class has `left`.
fn demand(row: &Row, policy: Policy, left: f64) -> Demand {
    let rules = policy.rules();
    let share = row.share.filter(|_| rules.turns).map_or(0.0, |share| f64::from(share) / 100.0);
    let alone = if share > 0.0 { 0.0 } else { 1.0 };
    let weight = match row.weight {
        Some(weight) if rules.turns && rules.weights => f64::from(weight),
        Some(_) => 1.0,
        None => alone,
    };
    let cap = f64::from(row.cap_ppm) / WHOLE_PPM;
    Demand { share, weight, cap, due: (share * left).min(cap) }
}

/// Divides `left` among them.
fn divide(all: &mut [Demand], left: f64) {
    let shares: f64 = all.iter().map(|it| it.due).sum();
    let rest = fill(all, left - shares, |it| it.weight);
    fill(all, rest, |it| if it.weight > 0.0 { 0.0 } else { it.share });
}

/// Divides `left` by weight among those below their caps; returns what all of them must leave.
fn fill(all: &mut [Demand], mut left: f64, weight: impl Fn(&Demand) -> f64) -> f64 {
    loop {
        let open = |it: &Demand| weight(it) > 0.0 && it.due < it.cap;
        let weights: f64 = all.iter().filter(|it| open(it)).map(&weight).sum();
        if weights == 0.0 || left <= 0.0 {
            return left;
        }
        let part = |it: &Demand| left * weight(it) / weights;
        let mut taken = 0.0;
        for it in all.iter_mut().filter(|it| open(it)) {
            if it.cap - it.due <= part(it) {
                taken += it.cap - it.due;
                it.due = it.cap;
            }
        }
        if taken == 0.0 {
            all.iter_mut().filter(|it| open(it)).for_each(|it| it.due += part(it));
            return 0.0;
        }
        left -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Gpu;
    use crate::table::tests::{gpu, slice};

    /// The due share of each, in whole percent.
    fn due(policy: Policy, rows: Vec<Row>) -> Vec<f64> {
        let gpus = vec![Gpu { policy, ..gpu(1, 0) }];
        let view = View { gpus, rows, ..View::default() };
        let rows = view.rows.iter();
        rows.map(|row| (view.due(row) * 100.0).round()).collect()
    }

    #[test]
    fn due_shares_go_by_weight_up_to_each_limit() {
        let rows = vec![
            slice("a", 1, None, true, 0),
            slice("b", 3, None, true, 0),
            slice("c", 4, Some(20), true, 0),
            slice("idle", 6, None, false, 0),
        ];
        // The last one is idle: the share it would get if it had work now.
        assert_eq!(due(Policy::Soft, rows.clone()), [20.0, 60.0, 20.0, 48.0]);
        assert_eq!(due(Policy::Preemptive, rows), [40.0, 40.0, 20.0, 27.0]);
    }

    #[test]
    fn a_higher_class_goes_first_and_limits_leave_time_unused() {
        let high = Row { class: Class::High, ..slice("high", 1, Some(30), true, 0) };
        let low = Row { class: Class::BestEffort, ..slice("low", 9, None, true, 0) };
        let normal = slice("normal", 1, Some(50), true, 0);
        let rows = vec![low, normal.clone(), high];
        assert_eq!(due(Policy::Soft, rows), [20.0, 50.0, 30.0]);
        assert_eq!(due(Policy::Fixed, vec![normal]), [50.0]);
    }

    #[test]
    fn a_share_comes_first_and_weights_divide_the_rest() {
        let none = |row: Row| Row { share_limit: None, cap_ppm: 1_000_000, ..row };
        let half = none(slice("half", 1, Some(50), true, 0));
        let (one, three) = (slice("one", 1, None, true, 0), slice("three", 3, None, true, 0));
        let with = |first: &Row| vec![first.clone(), one.clone(), three.clone()];
        assert_eq!(due(Policy::Soft, with(&half)), [50.0, 13.0, 38.0]);
        let more = Row { weight: Some(1), ..half.clone() };
        assert_eq!(due(Policy::Soft, with(&more)), [60.0, 10.0, 30.0]);
        let limited = Row { cap_ppm: 520_000, ..more };
        assert_eq!(due(Policy::Soft, with(&limited)), [52.0, 12.0, 36.0]);
        let idle = none(slice("fifth", 1, Some(20), true, 0));
        assert_eq!(due(Policy::Soft, vec![half.clone(), idle]), [71.0, 29.0]);
        assert_eq!(due(Policy::Soft, vec![half]), [100.0]);
    }
}
