//! Quota of process places, of which a node has a limited number: a guaranteed number for each container,
//! whatever the others use, and the rest in order of arrival.
//!
//! Half of all places are guaranteed, in equal parts, to as many containers as the node may have. So a
//! container that starts late still finds its part, and admission need not count connected processes.

use gpuslice_wire::limits::CLIENTS_PER_CONTAINER_MAX;

/// The division of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    each: usize,
    shared: usize,
    most: usize,
}

impl Quota {
    /// Divides `total` places among at most `containers` containers. There must be a place for each.
    #[must_use]
    pub fn new(total: usize, containers: usize) -> Quota {
        let most = (total / 4).clamp(1, CLIENTS_PER_CONTAINER_MAX);
        let containers = containers.max(1);
        let each = (total / 2 / containers).clamp(1, most);
        Quota { each, shared: total.saturating_sub(each * containers), most }
    }

    /// The guaranteed places of each container.
    #[must_use]
    pub fn guaranteed(self) -> usize {
        self.each
    }

    /// The most places of one container.
    #[must_use]
    pub fn most(self) -> usize {
        self.most
    }

    /// Whether a container with `own` places gets one more; `all` is the number of each container.
    #[must_use]
    pub fn admits(self, own: usize, all: impl Iterator<Item = usize>) -> bool {
        let beyond = |count: usize| count.saturating_sub(self.each);
        own < self.each || (own < self.most && all.map(beyond).sum::<usize>() < self.shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::limits::{CLIENTS_MAX, CONTAINERS_MAX};
    use std::vec;

    /// Reproducible noise (xorshift64*).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit as u64) as usize
        }
    }

    #[test]
    fn in_any_order_each_container_has_its_minimum() {
        let mut random = Random(0xC0FFEE);
        for _ in 0..300 {
            let containers = 1 + random.below(CONTAINERS_MAX);
            let total = containers + random.below(CLIENTS_MAX);
            let quota = Quota::new(total, containers);
            assert!(quota.guaranteed() >= 1 && quota.guaranteed() * containers <= total);
            // Some are greedy from the start, the others come and go.
            let greedy = random.below(containers + 1);
            let mut counts = vec![0_usize; containers];
            for _ in 0..2_000 {
                let all = random.below(4) == 0;
                let one = random.below(if all { containers } else { greedy.max(1) });
                if one >= greedy && random.below(2) == 0 {
                    counts[one] = counts[one].saturating_sub(1);
                    continue;
                }
                let admitted = quota.admits(counts[one], counts.iter().copied());
                assert!(admitted || counts[one] >= quota.guaranteed(), "{quota:?} {one}");
                counts[one] += usize::from(admitted);
                assert!(counts[one] <= quota.most() && counts.iter().sum::<usize>() <= total);
            }
        }
    }

    #[test]
    fn four_greedy_containers_leave_room_for_all_others() {
        let quota = Quota::new(CLIENTS_MAX, CONTAINERS_MAX);
        assert_eq!(
            (CLIENTS_MAX, CONTAINERS_MAX, quota.guaranteed(), quota.most()),
            (2_048, 256, 4, 256)
        );
        assert_eq!(Quota::new(CLIENTS_MAX, 64).guaranteed(), 16, "fewer containers have more");
        assert_eq!(Quota::new(CONTAINERS_MAX, CONTAINERS_MAX).guaranteed(), 1, "few descriptors");
        let mut counts = vec![0; CONTAINERS_MAX];
        for one in 0..4 {
            while quota.admits(counts[one], counts.iter().copied()) {
                counts[one] += 1;
            }
            assert_eq!(counts[one], CLIENTS_PER_CONTAINER_MAX);
        }
        for one in 4..CONTAINERS_MAX {
            for _ in 0..quota.guaranteed() {
                assert!(quota.admits(counts[one], counts.iter().copied()), "{one}");
                counts[one] += 1;
            }
        }
    }
}
