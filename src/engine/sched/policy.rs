//! Policies: who may have how much of a GPU's time, as one function.
//!
//! Every policy but `native` is the same line of turns. They differ in the weights that count in the
//! line and in the part of the time that a container may have at most; time above that part is
//! nobody's. What exists counts for a part, not what wants: a part is then known before anybody
//! runs, and it changes only when a slice comes, goes or is retuned.

use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::units::{Percent, Weight};

/// A part of a GPU's time, exact: `part / whole`, above nothing and at most all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    part: u32,
    whole: u32,
}

impl Part {
    /// All of it.
    pub(crate) const ALL: Part = Part { part: 1, whole: 1 };

    /// `part / whole`, all of it if that is one or more.
    pub(crate) fn new(part: u32, whole: u32) -> Part {
        if part >= whole {
            return Part::ALL;
        }
        let part = part.max(1);
        Part { part, whole }
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
    fn min(self, other: Part) -> Part {
        let cross = |a: Part, b: Part| u64::from(a.part) * u64::from(b.whole);
        if cross(self, other) <= cross(other, self) {
            self
        } else {
            other
        }
    }
}

/// What a slice was promised of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) weight: Weight,
    pub(crate) share: Option<Percent>,
    pub(crate) class: Class,
    /// The GPU is its container's as a whole, whatever the policy.
    pub(crate) whole: bool,
}

/// All slices of a GPU together, and how many it is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Everybody {
    pub(crate) slices: u32,
    pub(crate) weights: u32,
    pub(crate) slots: u32,
}

/// What a slice may have of the GPU's time at most.
pub(crate) fn cap(policy: Policy, slice: &Terms, everybody: &Everybody) -> Part {
    if slice.whole {
        return Part::ALL;
    }
    let weight = slice.weight.get();
    let hard = slice.share.map(|share| Part::new(share.get(), 100));
    let part = match policy {
        Policy::Native => return Part::ALL,
        Policy::Soft => Part::ALL,
        Policy::Fair => Part::new(1, everybody.slots),
        Policy::Preemptive => Part::new(1, everybody.slices),
        Policy::Weighted => Part::new(weight, everybody.weights),
        Policy::Fixed if hard.is_some() => Part::ALL,
        Policy::Fixed => Part::new(weight, everybody.slots),
    };
    hard.map_or(part, |hard| hard.min(part))
}

/// What a slice weighs in the line.
pub(crate) fn weight(policy: Policy, slice: &Terms) -> Weight {
    match policy {
        Policy::Fair | Policy::Preemptive => Weight::ONE,
        Policy::Weighted | Policy::Fixed | Policy::Soft | Policy::Native => slice.weight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ppm(policy: Policy, weight: u32, share: u32, slices: u32, weights: u32) -> u32 {
        let terms = Terms {
            weight: Weight::new(weight).expect("a weight"),
            share: Percent::new(share).ok(),
            class: Class::Normal,
            whole: false,
        };
        let everybody = Everybody {
            slices,
            weights,
            slots: 16,
        };
        cap(policy, &terms, &everybody).ppm()
    }

    #[test]
    fn the_table() {
        let rows = [
            // alone; two of weights 1 and 3; with a hard share of 30 %
            (Policy::Fair, [62_500, 62_500, 62_500]),
            (Policy::Preemptive, [1_000_000, 500_000, 300_000]),
            (Policy::Weighted, [1_000_000, 250_000, 250_000]),
            (Policy::Fixed, [62_500, 62_500, 300_000]),
            (Policy::Soft, [1_000_000, 1_000_000, 300_000]),
            (Policy::Native, [1_000_000, 1_000_000, 1_000_000]),
        ];
        for (policy, expected) in rows {
            let got = [
                ppm(policy, 1, 0, 1, 1),
                ppm(policy, 1, 0, 2, 4),
                ppm(policy, 1, 30, 2, 4),
            ];
            assert_eq!(got, expected, "{policy}");
        }
        assert_eq!(ppm(Policy::Fixed, 20, 0, 2, 21), 1_000_000);
        assert_eq!(ppm(Policy::Weighted, 1, 0, 256, 255_001), 3);
        assert_eq!(ppm(Policy::Fair, 1, 3, 1, 1), 30_000);
    }

    #[test]
    fn a_whole_gpu_is_capped_by_no_policy_and_no_share() {
        let terms = Terms {
            weight: Weight::ONE,
            share: Percent::new(30).ok(),
            class: Class::Normal,
            whole: true,
        };
        let everybody = Everybody {
            slices: 1,
            weights: 1,
            slots: 16,
        };
        for policy in [Policy::Fair, Policy::Fixed, Policy::Soft] {
            assert!(!cap(policy, &terms, &everybody).limits(), "{policy}");
        }
    }

    #[test]
    fn weights_count_in_the_line_but_under_fair_and_preemptive() {
        for (number, expected) in [1, 1, 5, 5, 5, 5].into_iter().enumerate() {
            let policy = Policy::of(number as u8).expect("one of six");
            let terms = Terms {
                weight: Weight::new(5).expect("a weight"),
                share: None,
                class: Class::Normal,
                whole: false,
            };
            assert_eq!(weight(policy, &terms).get(), expected, "{policy}");
        }
    }
}
