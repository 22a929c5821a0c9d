//! Policies: each slice's cap on a GPU's time, as one function.
//!
//! Policies that take turns use the same queue. They differ in the weights that count there and in each
//! container's cap ([`gpuslice_wire::policy`] has the table); time above the caps stays unused. A cap depends on
//! the slices that exist, not on those that are runnable: so it is known before any container runs, and changes
//! only when a slice comes, goes or is retuned.
//!
//! Admission reserves a share, and it means the same under each policy: that part of the time, no more and
//! no less ([`super::queues`]). The policy divides the time that shares leave among the containers without
//! one.

use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::units::{Percent, Weight};

/// An exact fraction of a GPU's time: `part / whole`, above zero and at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fraction {
    part: u32,
    whole: u32,
}

impl Fraction {
    /// All of it.
    pub(crate) const ALL: Fraction = Fraction { part: 1, whole: 1 };

    /// `part / whole`, all of it if that is one or more.
    pub(crate) fn new(part: u32, whole: u32) -> Fraction {
        if part >= whole {
            return Fraction::ALL;
        }
        let part = part.max(1);
        Fraction { part, whole }
    }
    pub(crate) fn part(self) -> u32 {
        self.part
    }
    pub(crate) fn whole(self) -> u32 {
        self.whole
    }
    /// Whether it is less than all.
    pub(crate) fn limits(self) -> bool {
        self.part < self.whole
    }
    /// In parts per million, one at least.
    pub(crate) fn ppm(self) -> u32 {
        let ppm = u64::from(self.part) * 1_000_000 / u64::from(self.whole);
        ppm.max(1) as u32
    }
}

/// A slice's entitlement to GPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entitlement {
    pub(crate) weight: Weight,
    pub(crate) share: Option<Percent>,
    pub(crate) class: Class,
    /// The container has the whole GPU, whatever the policy.
    pub(crate) whole: bool,
}

/// All slices of a GPU together, and the number of slices the GPU is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllSlices {
    /// Slices without a share, and the sum of their weights.
    slices: u32,
    weights: u32,
    /// Percent that the shares leave for these, at least one.
    rest: u32,
    slots: u32,
}

impl AllSlices {
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Entitlement>, slots: u32) -> AllSlices {
        let (mut slices, mut weights, mut shares) = (0, 0, 0);
        for slice in all {
            match slice.share {
                Some(share) => shares += share.get(),
                None => {
                    slices += 1;
                    weights += slice.weight.get();
                }
            }
        }
        AllSlices { slices, weights, rest: 100u32.saturating_sub(shares).max(1), slots }
    }
}

/// A slice's cap on the GPU's time.
pub(crate) fn cap(policy: Policy, slice: &Entitlement, all_slices: &AllSlices) -> Fraction {
    if slice.whole || !policy.rules().turns {
        return Fraction::ALL;
    }
    if let Some(share) = slice.share {
        return Fraction::new(share.get(), 100);
    }
    let weight = slice.weight.get();
    let AllSlices { slices, weights, rest, slots } = *all_slices;
    match policy {
        Policy::Native | Policy::Soft => Fraction::ALL,
        Policy::Fair => Fraction::new(1, slots),
        Policy::Preemptive => Fraction::new(rest, 100 * slices),
        Policy::Weighted => Fraction::new(weight * rest, 100 * weights),
        Policy::Fixed => Fraction::new(weight, slots),
    }
}

/// A slice's weight, and whether it is a share, which counts in the upper queue.
pub(crate) fn weight(policy: Policy, slice: &Entitlement) -> (Weight, bool) {
    let rules = policy.rules();
    let share = slice.share.filter(|_| rules.turns && !slice.whole);
    match share.and_then(|share| Weight::new(share.get()).ok()) {
        Some(share) => (share, true),
        None if rules.weights => (slice.weight, false),
        None => (Weight::ONE, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn entitlement(weight: u32, share: u32) -> Entitlement {
        Entitlement {
            weight: Weight::new(weight).expect("a weight"),
            share: Percent::new(share).ok(),
            class: Class::Normal,
            whole: false,
        }
    }

    /// The cap of the first of these slices, each given as (weight, share).
    fn ppm(policy: Policy, all: &[(u32, u32)]) -> u32 {
        let all: Vec<Entitlement> = all.iter().map(|it| entitlement(it.0, it.1)).collect();
        cap(policy, &all[0], &AllSlices::of(all.iter(), 16)).ppm()
    }

    #[test]
    fn the_table() {
        let rows = [
            // alone; of weights 1 and 3; with a share of 30 %, beside weights; beside that share
            (Policy::Fair, [62_500, 62_500, 300_000, 62_500]),
            (Policy::Preemptive, [1_000_000, 500_000, 300_000, 350_000]),
            (Policy::Weighted, [1_000_000, 250_000, 300_000, 175_000]),
            (Policy::Fixed, [62_500, 62_500, 300_000, 62_500]),
            (Policy::Soft, [1_000_000, 1_000_000, 300_000, 1_000_000]),
            (Policy::Native, [1_000_000, 1_000_000, 1_000_000, 1_000_000]),
        ];
        for (policy, expected) in rows {
            let got = [
                ppm(policy, &[(1, 0)]),
                ppm(policy, &[(1, 0), (3, 0)]),
                ppm(policy, &[(9, 30), (1, 0), (3, 0)]),
                ppm(policy, &[(1, 0), (3, 0), (9, 30)]),
            ];
            assert_eq!(got, expected, "{policy}");
        }
        assert_eq!(ppm(Policy::Fixed, &[(20, 0), (1, 0)]), 1_000_000);
        let many = vec![(1_000, 0); 255];
        let least = [&[(1, 0)], many.as_slice()].concat();
        assert_eq!(ppm(Policy::Weighted, &least), 3);
        let shares = [(1, 0), (1, 60), (1, 40)];
        assert_eq!(ppm(Policy::Weighted, &shares), 10_000, "one percent at least");
    }

    #[test]
    fn a_whole_gpu_is_capped_by_no_policy_and_no_share() {
        let entitlement = Entitlement { whole: true, ..entitlement(1, 30) };
        let all_slices = AllSlices::of([&entitlement].into_iter(), 16);
        for policy in [Policy::Fair, Policy::Fixed, Policy::Soft] {
            assert!(!cap(policy, &entitlement, &all_slices).limits(), "{policy}");
            assert_eq!(weight(policy, &entitlement), (Weight::ONE, false), "{policy}");
        }
    }

    #[test]
    fn weights_count_in_the_queue_except_under_fair_and_preemptive() {
        for (policy, expected) in Policy::ALL.into_iter().zip([1, 1, 5, 5, 5, 5]) {
            let (own, reserved) = weight(policy, &entitlement(5, 0));
            assert_eq!((own.get(), reserved), (expected, false), "{policy}");
            let (own, reserved) = weight(policy, &entitlement(5, 30));
            let native = !policy.rules().turns;
            assert_eq!(own.get(), if native { 5 } else { 30 }, "{policy}");
            assert_eq!(reserved, !native, "{policy}");
        }
    }
}
