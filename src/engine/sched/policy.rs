//! Policies: each slice's cap on a GPU's time, as one function.
//!
//! Policies that take turns use the same queue. They differ in the weights that count there and in each
//! container's cap ([`gpuslice_wire::policy`] has the table); time above the caps stays unused. A cap depends on
//! the slices that exist, not on those that are runnable: so it is known before any container runs, and changes
//! only when a slice comes, goes or is retuned.
//!
//! Admission reserves a share, and each policy keeps it: a container with one has it whenever it wants it. The
//! policy divides the time that shares leave by weight. A container without a share weighs 1 if it names no
//! weight; one with a share then has no part of the rest. If no weight counts on a GPU, `preemptive` and
//! `weighted` divide the rest in proportion to the shares, so that a share alone on a GPU has all of it.
//!
//! A limit caps its container's time under each policy, whatever the policy allows. Under `fixed` a share
//! without a limit is the cap, and one with a limit may use idle time up to the limit.

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
    /// Whether it is less than `other`.
    fn less(self, other: Fraction) -> bool {
        let cross = |one: Fraction, two: Fraction| u64::from(one.part) * u64::from(two.whole);
        cross(self, other) < cross(other, self)
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
    pub(crate) weight: Option<Weight>,
    pub(crate) share: Option<Percent>,
    /// Not below the share.
    pub(crate) limit: Option<Percent>,
    pub(crate) class: Class,
    /// The container has the whole GPU, whatever the policy.
    pub(crate) whole: bool,
    /// The container has no other GPU. Otherwise its streams have no gates: a kernel on one GPU may wait for another
    /// kernel behind the gate of another GPU.
    pub(crate) alone: bool,
}

impl Entitlement {
    /// Its weight for the time that shares leave; 0 for none.
    fn weight(&self) -> u32 {
        let alone = u32::from(self.share.is_none());
        self.weight.map_or(alone, Weight::get)
    }
}

/// All slices of a GPU together, and the number of slices the GPU is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllSlices {
    /// Slices with a weight, and the sum of their weights.
    slices: u32,
    weights: u32,
    /// The sum of the shares, percent.
    shares: u32,
    slots: u32,
}

impl AllSlices {
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Entitlement>, slots: u32) -> AllSlices {
        let (mut slices, mut weights, mut shares) = (0, 0, 0);
        for slice in all {
            slices += u32::from(slice.weight() > 0);
            weights += slice.weight();
            shares += slice.share.map_or(0, Percent::get);
        }
        AllSlices { slices, weights, shares, slots }
    }

    /// `share` and the part `part / whole` of the rest, which is a hundredth at least.
    fn and_rest(&self, share: u32, part: u32, whole: u32) -> Fraction {
        if whole == 0 {
            return Fraction::new(share, self.shares);
        }
        let rest = 100u32.saturating_sub(self.shares).max(1);
        Fraction::new(share * whole + part * rest, 100 * whole)
    }
}

/// A slice's cap on the GPU's time.
pub(crate) fn cap(policy: Policy, slice: &Entitlement, all_slices: &AllSlices) -> Fraction {
    if slice.whole || !policy.rules().turns {
        return Fraction::ALL;
    }
    let (share, weight) = (slice.share.map_or(0, Percent::get), slice.weight());
    let counts = u32::from(weight > 0);
    let limit = slice.limit.map(|limit| Fraction::new(limit.get(), 100));
    let AllSlices { slices, weights, slots, .. } = *all_slices;
    let cap = match policy {
        Policy::Native | Policy::Soft => Fraction::ALL,
        Policy::Fair => Fraction::new(share * slots + counts * 100, 100 * slots),
        Policy::Preemptive => all_slices.and_rest(share, counts, slices),
        Policy::Weighted => all_slices.and_rest(share, weight, weights),
        Policy::Fixed if share > 0 => return limit.unwrap_or(Fraction::new(share, 100)),
        Policy::Fixed => Fraction::new(weight, slots),
    };
    limit.filter(|limit| limit.less(cap)).unwrap_or(cap)
}

/// The share that a policy reserves for a slice, if any.
pub(crate) fn reserved(policy: Policy, slice: &Entitlement) -> Option<Percent> {
    slice.share.filter(|_| policy.rules().turns && !slice.whole)
}

/// The weight that counts for a slice's part of the time that shares leave; 0 for none.
pub(crate) fn weight(policy: Policy, slice: &Entitlement) -> u32 {
    match reserved(policy, slice) {
        // where no share is reserved, each slice has a part
        None if !policy.rules().weights => 1,
        None => slice.weight().max(1),
        Some(_) if !policy.rules().weights => slice.weight().min(1),
        Some(_) => slice.weight(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// Weight, share and limit, 0 for none.
    fn limited(weight: u32, share: u32, limit: u32) -> Entitlement {
        Entitlement {
            weight: Weight::new(weight).ok(),
            share: Percent::new(share).ok(),
            limit: Percent::new(limit).ok(),
            class: Class::Normal,
            whole: false,
            alone: true,
        }
    }

    fn entitlement(weight: u32, share: u32) -> Entitlement {
        limited(weight, share, 0)
    }

    /// The cap of the first of these slices, each given as (weight, share).
    fn ppm(policy: Policy, all: &[(u32, u32)]) -> u32 {
        let all: Vec<Entitlement> = all.iter().map(|it| entitlement(it.0, it.1)).collect();
        cap_of_first(policy, &all)
    }

    fn cap_of_first(policy: Policy, all: &[Entitlement]) -> u32 {
        cap(policy, &all[0], &AllSlices::of(all.iter(), 16)).ppm()
    }

    #[test]
    fn the_table() {
        let rows: [(Policy, [u32; 6]); Policy::ALL.len()] = [
            // alone; of weights 1 and 3; with a share of 30 %, alone; beside weights; with a weight too;
            // beside that share
            (Policy::Fair, [62_500, 62_500, 300_000, 300_000, 362_500, 62_500]),
            (Policy::Preemptive, [1_000_000, 500_000, 1_000_000, 300_000, 533_333, 350_000]),
            (Policy::Weighted, [1_000_000, 250_000, 1_000_000, 300_000, 440_000, 175_000]),
            (Policy::Fixed, [62_500, 62_500, 300_000, 300_000, 300_000, 62_500]),
            (Policy::Soft, [1_000_000; 6]),
            (Policy::Native, [1_000_000; 6]),
        ];
        for (policy, expected) in rows {
            let got = [
                ppm(policy, &[(1, 0)]),
                ppm(policy, &[(1, 0), (3, 0)]),
                ppm(policy, &[(0, 30)]),
                ppm(policy, &[(0, 30), (1, 0), (3, 0)]),
                ppm(policy, &[(1, 30), (1, 0), (3, 0)]),
                ppm(policy, &[(1, 0), (3, 0), (0, 30)]),
            ];
            assert_eq!(got, expected, "{policy}");
        }
        assert_eq!(ppm(Policy::Fixed, &[(20, 0), (1, 0)]), 1_000_000);
        let many = vec![(1_000, 0); 255];
        let least = [&[(1, 0)], many.as_slice()].concat();
        assert_eq!(ppm(Policy::Weighted, &least), 3);
        let shares = [(1, 0), (1, 60), (1, 40)];
        assert_eq!(ppm(Policy::Weighted, &shares), 10_000 / 3, "one percent at least");
        let shares = [(0, 20), (0, 30)];
        assert_eq!(ppm(Policy::Preemptive, &shares), 400_000, "in proportion to the shares");
    }

    #[test]
    fn a_limit_caps_under_each_policy_with_turns() {
        let rows = [
            // share 25, limit 50; limit 5 alone; share 25, limit 90; share 25, both limits equal
            (Policy::Fair, [250_000, 50_000, 312_500, 250_000]),
            (Policy::Preemptive, [250_000, 50_000, 500_000, 250_000]),
            (Policy::Weighted, [250_000, 50_000, 625_000, 250_000]),
            (Policy::Fixed, [500_000, 50_000, 900_000, 250_000]),
            (Policy::Soft, [500_000, 50_000, 900_000, 250_000]),
            (Policy::Native, [1_000_000; 4]),
        ];
        let beside = [limited(1, 0, 0), limited(1, 0, 0)];
        for (policy, expected) in rows {
            let firsts = [(0, 25, 50), (1, 0, 5), (2, 25, 90), (0, 25, 25)];
            let got = firsts.map(|(weight, share, limit)| {
                let first = limited(weight, share, limit);
                cap_of_first(policy, &[&[first], &beside[..]].concat())
            });
            assert_eq!(got, expected, "{policy}");
        }
    }

    #[test]
    fn a_whole_gpu_is_capped_by_no_policy_and_no_share() {
        let entitlement = Entitlement { whole: true, ..limited(1, 30, 40) };
        let all_slices = AllSlices::of([&entitlement].into_iter(), 16);
        for policy in [Policy::Fair, Policy::Fixed, Policy::Soft] {
            assert!(!cap(policy, &entitlement, &all_slices).limits(), "{policy}");
            assert_eq!(reserved(policy, &entitlement), None, "{policy}");
        }
    }

    #[test]
    fn weights_count_in_the_queue_except_under_fair_and_preemptive() {
        let weights: [u32; Policy::ALL.len()] = [1, 1, 5, 5, 5, 5];
        for (policy, expected) in Policy::ALL.into_iter().zip(weights) {
            assert_eq!(weight(policy, &entitlement(5, 0)), expected, "{policy}");
            assert_eq!(weight(policy, &entitlement(5, 30)), expected, "{policy}");
            let turns = policy.rules().turns;
            assert_eq!(weight(policy, &entitlement(0, 30)), u32::from(!turns), "{policy}");
            assert_eq!(reserved(policy, &entitlement(0, 30)).is_some(), turns, "{policy}");
        }
    }
}
