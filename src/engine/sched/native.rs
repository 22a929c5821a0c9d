//! Hardware time slices, for work that runs at once in spite of turns.
//!
//! # Problem
//! Turns keep two containers from having work on a GPU at once. Where they fail (a container overruns, a
//! process lies, the daemon is dead), the hardware shares the GPU by itself: a time slice for each context
//! with work, in turn, and the driver makes all slices equal.
//!
//! # Idea
//! Set hardware time slices by weight, in advance. They need only keep the proportion, not suit the
//! containers that run just now; so they follow from the entitlements alone, and change with these. Each
//! class has a range of its own, so that of overlapping work the high class gets most and best-effort
//! little:

use gpuslice_wire::policy::Class;

use super::entity::Entity;
use super::{Turns, dues};
use crate::index::ContainerIndex;

/// Per class: the slice of its lightest container if the heaviest allows it, the maximum and the minimum,
/// µs.
const fn range(class: Class) -> (u64, u64, u64) {
    match class {
        Class::High => (10_000, 10_000, 2_000),
        Class::Normal => (2_000, 10_000, 200),
        Class::BestEffort => (200, 1_000, 200),
    }
}

/// The slice, µs, of a container of `weight` in a class whose weights go from `lightest` to `heaviest`.
fn slice_us(class: Class, weight: u64, lightest: u64, heaviest: u64) -> u64 {
    let (usual, most, least) = range(class);
    let of = |us: u64, other: u64| us.saturating_mul(weight) / other.max(1);
    of(usual, lightest).min(of(most, heaviest)).max(least)
}

impl Turns {
    /// The hardware slice of `index`, µs; `None` leaves it to the driver.
    pub(crate) fn native_slice(&self, index: ContainerIndex) -> Option<u64> {
        let entity = self.find(index)?;
        let class = self.entities.iter().filter(|it| it.class == entity.class);
        // both queues on one scale: the weights divide what the shares leave
        let percent = |it: &Entity| u64::from(dues::share(it));
        let weights: u64 = class.clone().map(|it| u64::from(it.surplus_weight)).sum();
        let rest = 100u64.saturating_sub(class.clone().map(percent).sum()).max(1);
        let of = |it: &Entity| percent(it) * weights.max(1) + u64::from(it.surplus_weight) * rest;
        let all = class.clone().map(of);
        let (lightest, heaviest) = (all.clone().min()?, all.max()?);
        let own = self.policy.rules().turns;
        own.then(|| slice_us(entity.class, of(entity), lightest, heaviest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::sched::tests::Rig;
    use alloc::vec::Vec;
    use gpuslice_wire::policy::Policy;

    /// The slices of containers of one class, by weight.
    fn slices(class: Class, weights: &[u64]) -> Vec<u64> {
        let lightest = weights.iter().copied().min().unwrap_or(0);
        let heaviest = weights.iter().copied().max().unwrap_or(0);
        let all = weights.iter();
        all.map(|weight| slice_us(class, *weight, lightest, heaviest)).collect()
    }

    #[test]
    fn slices_are_as_weights() {
        assert_eq!(slices(Class::Normal, &[7]), [2_000]);
        assert_eq!(slices(Class::Normal, &[1, 3]), [2_000, 6_000]);
        let four = [1_250, 2_500, 5_000, 10_000];
        assert_eq!(slices(Class::Normal, &[1, 2, 4, 8]), four);
        assert_eq!(slices(Class::Normal, &[1, 50]), [200, 10_000]);
        assert_eq!(slices(Class::Normal, &[1, 1000]), [200, 10_000]);
        assert_eq!(slices(Class::High, &[2, 2]), [10_000, 10_000]);
        assert_eq!(slices(Class::High, &[1, 4]), [2_500, 10_000]);
        assert_eq!(slices(Class::BestEffort, &[1, 3]), [200, 600]);
        assert_eq!(slices(Class::BestEffort, &[1, 1000]), [200, 1_000]);
    }

    /// The weights are those of the run queue, which a policy may override; classes do not count each
    /// other.
    #[test]
    fn weights_are_those_of_the_run_queue() {
        let all = [(1, 0, false), (3, 0, false), (5, 0, true)];
        let mut rig = Rig::with(Config::default(), &all);
        let of = |rig: &Rig| [0, 1, 2].map(|who| rig.turns.native_slice(ContainerIndex(who)));
        assert_eq!(of(&rig), [Some(2_000), Some(6_000), Some(10_000)]);
        rig.turns.set_policy(Policy::Preemptive);
        assert_eq!(of(&rig), [Some(2_000), Some(2_000), Some(10_000)]);
        // half for the share, an eighth and three eighths for the weights beside it
        let shared = Rig::with(Config::default(), &[(1, 0, false), (3, 0, false), (1, 50, false)]);
        assert_eq!(of(&shared), [Some(2_000), Some(6_000), Some(8_000)]);
        rig.turns.set_policy(Policy::Native);
        assert_eq!(of(&rig), [None; 3]);
        assert_eq!(rig.turns.native_slice(ContainerIndex(7)), None);
    }
}
