//! The part of a GPU's time that is due to each of its slices, for observers.
//!
//! The same division as the engine's, computed anew from what is shown: higher classes go first, up to the part that
//! they keep while lower ones wait ([`ClassCaps`]). Of what a class has, each of its slices is due its share, and a
//! part of the rest by weight, up to its limit. Slices with a share alone divide the time that no weight can use, in
//! proportion to their shares.
//!
//! A slice that has work for a part of a stretch can use that part at most, and leaves the rest to the others. The
//! slice itself is looked at as if it had work all the time: what it is due does not depend on whether it takes it.

use crate::policy::{Class, ClassCaps, Policy};

/// All of a GPU's time, parts per million.
const WHOLE_PPM: f64 = 1e6;

/// A slice that is due a part of a GPU's time.
#[derive(Clone, Copy, Debug)]
pub struct Claimant {
    /// Its class.
    pub class: Class,
    /// Its share, percent.
    pub share: Option<u32>,
    /// Its weight; none beside a share alone.
    pub weight: Option<u32>,
    /// The most of the GPU's time that it may have, parts per million.
    pub cap_ppm: u32,
    /// The part of the time in which it has work, 0..=1.
    pub active: f64,
}

/// What a slice asks for; parts of all of a GPU's time.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    share: f64,
    weight: f64,
    cap: f64,
    due: f64,
}

/// Slices of one class, at most as many as a GPU has.
type Demands = [Demand; crate::limits::CONTAINERS_MAX];

/// The part, 0..=1, that is due to the claimant `at` of `all` slices of one GPU. Those beyond
/// [`crate::limits::CONTAINERS_MAX`] are not counted.
#[must_use]
pub fn due(policy: Policy, caps: ClassCaps, all: &[Claimant], at: usize) -> f64 {
    let Some(own) = all.get(at) else {
        return 0.0;
    };
    let mut left = 1.0;
    let mut demands: Demands = [Demand::default(); crate::limits::CONTAINERS_MAX];
    for class in Class::ALL {
        let (mut count, mut own_at) = (0, None);
        let has = (left - floors(policy, caps, all, at, class)).max(0.0);
        for (index, it) in all.iter().enumerate() {
            let active = if index == at { 1.0 } else { it.active };
            if it.class != class || active <= 0.0 || count == demands.len() {
                continue;
            }
            own_at = own_at.or((index == at).then_some(count));
            demands[count] = demand(it, policy, has, active);
            count += 1;
        }
        let demands = &mut demands[..count];
        divide(demands, has);
        if own.class == class {
            return own_at.map_or(0.0, |at| demands[at].due);
        }
        left = (left - demands.iter().map(|it| it.due).sum::<f64>()).max(0.0);
    }
    0.0
}

/// What is kept for the classes below `class` that have work: no more than they can use.
fn floors(policy: Policy, caps: ClassCaps, all: &[Claimant], at: usize, class: Class) -> f64 {
    if !policy.rules().turns {
        return 0.0;
    }
    let lower = Class::ALL.into_iter().filter(|it| *it > class);
    let floor = |lower: Class| {
        let of_class = all.iter().enumerate().filter(|(_, it)| it.class == lower);
        let usable =
            of_class.map(|(index, it)| most(it, if index == at { 1.0 } else { it.active }));
        usable.sum::<f64>().min(f64::from(caps.floor(lower)) / 100.0)
    };
    lower.map(floor).sum()
}

/// The most that a slice can use of a GPU's time if it has work for the part `active` of it.
fn most(it: &Claimant, active: f64) -> f64 {
    (f64::from(it.cap_ppm) / WHOLE_PPM).min(active)
}

/// The demand of a slice where its class has `left`.
fn demand(it: &Claimant, policy: Policy, left: f64, active: f64) -> Demand {
    let rules = policy.rules();
    let share = it.share.filter(|_| rules.turns).map_or(0.0, |share| f64::from(share) / 100.0);
    let alone = if share > 0.0 { 0.0 } else { 1.0 };
    let weight = match it.weight {
        Some(weight) if rules.turns && rules.weights => f64::from(weight),
        Some(_) => 1.0,
        None => alone,
    };
    let cap = most(it, active);
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

    fn one(weight: u32, active: f64) -> Claimant {
        let (class, share) = (Class::Normal, None);
        Claimant { class, share, weight: Some(weight), cap_ppm: 1_000_000, active }
    }

    fn caps(high: u32, normal: u32) -> ClassCaps {
        let percent = |it| crate::units::Percent::new(it).unwrap();
        ClassCaps { high: percent(high), normal: percent(normal) }
    }

    /// What is due to each, in whole percent.
    fn within(caps: ClassCaps, claimants: &[Claimant]) -> [u32; 3] {
        [0, 1, 2].map(|at| (100.0 * due(Policy::Soft, caps, claimants, at) + 0.5) as u32)
    }

    /// The same on a node where higher classes leave nothing.
    fn all(claimants: &[Claimant]) -> [u32; 3] {
        within(caps(100, 100), claimants)
    }

    #[test]
    fn a_slice_with_little_work_leaves_the_rest_to_others() {
        assert_eq!(all(&[one(1, 1.0), one(3, 1.0), one(4, 0.0)]), [25, 75, 50]);
        // the third can use a tenth of the time: the others divide nine tenths
        assert_eq!(all(&[one(1, 1.0), one(3, 1.0), one(4, 0.1)]), [23, 68, 50]);
        assert_eq!(all(&[one(1, 0.2), one(3, 0.0), one(4, 0.1)]), [90, 70, 80]);
        let high = Claimant { class: Class::High, ..one(1, 0.3) };
        assert_eq!(all(&[high, one(1, 1.0), one(1, 1.0)]), [100, 35, 35]);
        let limited = Claimant { cap_ppm: 200_000, ..one(9, 1.0) };
        assert_eq!(all(&[limited, one(1, 1.0), one(1, 0.5)]), [20, 40, 40]);
        assert_eq!(due(Policy::Soft, caps(95, 99), &[], 0), 0.0);
    }

    #[test]
    fn a_policy_without_weights_or_turns_divides_equally() {
        let both = [one(1, 1.0), one(3, 1.0)];
        let first = |policy| (100.0 * due(policy, caps(100, 100), &both, 0) + 0.5) as u32;
        assert_eq!([Policy::Soft, Policy::Weighted].map(first), [25; 2]);
        assert_eq!([Policy::Fair, Policy::Preemptive, Policy::Native].map(first), [50; 3]);
    }

    #[test]
    fn higher_classes_keep_no_more_than_their_caps_while_lower_ones_wait() {
        let of = |class, it: Claimant| Claimant { class, ..it };
        let (high, low) = (of(Class::High, one(1, 1.0)), of(Class::BestEffort, one(1, 1.0)));
        assert_eq!(within(caps(95, 99), &[high, one(1, 1.0), low]), [94, 5, 1]);
        assert_eq!(within(caps(50, 80), &[high, one(1, 1.0), low]), [30, 50, 20]);
        // two normal ones divide what is kept for their class
        assert_eq!(within(caps(90, 99), &[high, one(1, 1.0), one(4, 1.0)]), [90, 2, 8]);
        // a slice that cannot use it leaves it; the slice itself is looked at as if it had work all the time
        assert_eq!(within(caps(90, 99), &[high, one(1, 0.05), one(1, 0.0)]), [95, 10, 5]);
        // no class waits where the others have no work
        assert_eq!(
            within(caps(50, 50), &[high, one(1, 0.0), of(Class::BestEffort, one(1, 0.0))]),
            [100, 50, 50]
        );
    }
}
