//! Sets of GPUs that are connected well.
//!
//! Each pair of GPUs has a score: what NVLink gives it, and how near the two are over PCIe. A job on several GPUs gets
//! the set with the highest sum. Of equal sets, the one that leaves the best pairs to others: whole islands
//! stay free for jobs that need them. NVLink counts behind a switch as it does between two GPUs directly; a count of
//! links by their other ends would be zero there.

use gpuslice_wire::node::GpuFacts;

/// Score of one NVLink.
const LINK: u32 = 100;
/// GPUs that are looked at, at most: all sets of them are.
const GPUS_MAX: usize = 16;

/// Scores of pairs, by positions of GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scores(Vec<Vec<u32>>);

/// Score of the way over PCIe, by NVML's level: the nearer, the higher.
fn nearness(level: u8) -> u32 {
    match level {
        0 => 60,
        1..=10 => 50,
        11..=20 => 40,
        21..=30 => 30,
        31..=40 => 20,
        41..=50 => 10,
        _ => 0,
    }
}

impl Scores {
    /// The scores of these GPUs.
    #[must_use]
    pub fn of(gpus: &[&GpuFacts]) -> Scores {
        let pair = |a: &GpuFacts, b: &GpuFacts| {
            let at = usize::from(b.number);
            let of = |row: &[u8], unknown: u8| row.get(at).copied().unwrap_or(unknown);
            u32::from(of(&a.links, 0)) * LINK + nearness(of(&a.near, u8::MAX))
        };
        // Both directions are asked, and the worse one counts.
        let row = |a: &&GpuFacts| gpus.iter().map(|b| pair(a, b).min(pair(b, a))).collect();
        Scores(gpus.iter().map(row).collect())
    }

    /// Scores from a table, which is symmetric.
    #[must_use]
    pub fn table(rows: &[&[u32]]) -> Scores {
        Scores(rows.iter().map(|row| row.to_vec()).collect())
    }

    /// Whether any pair is better than another, so that a choice matters.
    #[must_use]
    pub fn matter(&self) -> bool {
        let mut pairs = (0..self.0.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let first = pairs.next().map(|(a, b)| self.pair(a, b));
        pairs.any(|(a, b)| Some(self.pair(a, b)) != first)
    }

    fn pair(&self, a: usize, b: usize) -> u32 {
        self.0.get(a).and_then(|row| row.get(b)).copied().unwrap_or(0)
    }

    /// The sum over the pairs of a set.
    #[must_use]
    pub fn sum(&self, set: &[usize]) -> u32 {
        let pairs =
            set.iter().enumerate().flat_map(|(at, a)| set[..at].iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| self.pair(*a, *b)).sum()
    }

    /// The best set of `count` of these GPUs, with all of `must`; of equal ones the first in the order of `fitting`.
    /// `None`: there are not enough.
    #[must_use]
    pub fn best(&self, fitting: &[usize], must: &[usize], count: usize) -> Option<Vec<usize>> {
        let fitting: Vec<usize> = fitting.iter().copied().take(GPUS_MAX).collect();
        if count == 0 || must.len() > count || fitting.len() < count {
            return None;
        }
        let mut best: Option<((u32, u32), Vec<usize>)> = None;
        let ends = 1u32 << fitting.len();
        // The first GPU is the highest bit, so that sets with early GPUs come first.
        for bits in (0..ends).rev().filter(|bits| bits.count_ones() as usize == count) {
            let has = |at: usize| bits & 1 << (fitting.len() - 1 - at) != 0;
            let part = |wanted: bool| -> Vec<usize> {
                let all = fitting.iter().enumerate();
                all.filter(|(at, _)| has(*at) == wanted).map(|(_, gpu)| *gpu).collect()
            };
            let set = part(true);
            if !must.iter().all(|gpu| set.contains(gpu)) {
                continue;
            }
            let score = (self.sum(&set), self.sum(&part(false)));
            if best.as_ref().is_none_or(|(known, _)| *known < score) {
                best = Some((score, set));
            }
        }
        best.map(|(_, set)| set)
    }

    /// How two GPUs are connected, as gputopo's matrix names it: `NV` and the number of links, otherwise how near.
    #[must_use]
    pub fn kind(a: &GpuFacts, b: &GpuFacts) -> String {
        let at = usize::from(b.number);
        match (a.number == b.number, a.links.get(at), a.near.get(at)) {
            (true, _, _) => "N-A".to_owned(),
            (_, Some(links @ 1..), _) => format!("NV{links}"),
            (_, _, Some(0..=10)) => "PIX".to_owned(),
            (_, _, Some(11..=20)) => "PXB".to_owned(),
            (_, _, Some(21..=30)) => "PHB".to_owned(),
            (_, _, Some(31..=40)) => "NODE".to_owned(),
            _ => "SYS".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;
    use gpuslice_wire::units::Bytes;

    /// GPUs with these links and levels between each pair.
    fn node(count: u8, links: impl Fn(u8, u8) -> u8, near: impl Fn(u8, u8) -> u8) -> Vec<GpuFacts> {
        let one = |number: u8| {
            let mut gpu = gpu(number, Bytes(80 << 30));
            for other in (0..count).filter(|other| *other != number) {
                gpu.links[usize::from(other)] = links(number, other);
                gpu.near[usize::from(other)] = near(number, other);
            }
            gpu
        };
        (0..count).map(one).collect()
    }

    fn scores(gpus: &[GpuFacts]) -> Scores {
        Scores::of(&gpus.iter().collect::<Vec<_>>())
    }

    fn all(count: usize) -> Vec<usize> {
        (0..count).collect()
    }

    /// Eight V100 as in DGX-1: a cube mesh in which each GPU has two links to two others and one to two more.
    fn cube_mesh() -> Vec<GpuFacts> {
        let double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
        let single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
        let links = move |a: u8, b: u8| {
            let has = |pairs: &[(u8, u8)]| pairs.contains(&(a.min(b), a.max(b)));
            if has(&double) { 2 } else { u8::from(has(&single)) }
        };
        node(8, links, |a, b| if a / 4 == b / 4 { 20 } else { 50 })
    }

    #[test]
    fn pairs_score_by_links_and_nearness() {
        for (links, level, expected) in [
            (0, 50, 10),
            (0, 40, 20),
            (0, 30, 30),
            (0, 20, 40),
            (0, 10, 50),
            (0, 0, 60),
            (0, 255, 0),
            (1, 50, 110),
            (18, 40, 1820),
            (4, 10, 450),
        ] {
            let gpus = node(2, |_, _| links, |_, _| level);
            assert_eq!(scores(&gpus).sum(&[0, 1]), expected, "{links} links, level {level}");
        }
        // A direction that is worse counts.
        let mut gpus = node(2, |_, _| 4, |_, _| 10);
        gpus[1].links[0] = 2;
        assert_eq!(scores(&gpus).sum(&[0, 1]), 250);
    }

    #[test]
    fn behind_switches_every_pair_is_as_good() {
        let gpus = node(8, |_, _| 18, |_, _| 40);
        let scores = scores(&gpus);
        assert!(!scores.matter());
        assert_eq!(scores.sum(&all(8)), 28 * 1820);
        assert_eq!(scores.best(&all(8), &[], 4), Some(vec![0, 1, 2, 3]));
        // Two GPUs whose links are down are left to others.
        let broken = node(8, |a, b| if a < 2 || b < 2 { 0 } else { 18 }, |_, _| 40);
        assert_eq!(self::scores(&broken).best(&all(8), &[], 6), Some(vec![2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn the_best_set_of_a_cube_mesh() {
        let scores = scores(&cube_mesh());
        for (fitting, must, count, expected) in [
            (all(8), &[][..], 1, vec![0]),
            // Two links and one PCIe switch between them.
            (all(8), &[][..], 2, vec![0, 3]),
            (vec![0, 1, 4, 5], &[][..], 2, vec![0, 4]),
            (all(8), &[5][..], 2, vec![5, 6]),
            (all(8), &[][..], 4, vec![0, 1, 2, 3]),
            (vec![1, 2, 4, 5, 6, 7], &[][..], 4, vec![4, 5, 6, 7]),
            (all(8), &[][..], 8, all(8)),
        ] {
            let found = scores.best(&fitting, must, count);
            assert_eq!(found.as_ref(), Some(&expected), "{count} of {fitting:?} with {must:?}");
        }
        assert_eq!(scores.best(&all(8), &[], 9), None);
        assert_eq!(scores.best(&all(8), &[], 0), None);
        assert_eq!(scores.best(&all(8), &[1, 2], 1), None);
    }

    /// Two pairs and two single GPUs: a job of one leaves the pairs whole.
    #[test]
    fn of_equal_sets_the_one_that_leaves_pairs_whole() {
        let pairs = |a: u8, b: u8| if a / 2 == b / 2 && a < 4 { 4 } else { 0 };
        let gpus = node(6, pairs, |_, _| 40);
        let scores = scores(&gpus);
        assert_eq!(scores.best(&all(6), &[], 1), Some(vec![4]));
        assert_eq!(scores.best(&all(6), &[], 2), Some(vec![0, 1]));
        assert_eq!(scores.best(&all(6), &[], 3), Some(vec![0, 1, 4]));
    }

    #[test]
    fn kinds_of_connections_have_gputopos_names() {
        for (links, level, name) in [
            (2, 20, "NV2"),
            (18, 50, "NV18"),
            (0, 10, "PIX"),
            (0, 20, "PXB"),
            (0, 30, "PHB"),
            (0, 40, "NODE"),
            (0, 50, "SYS"),
            (0, 255, "SYS"),
        ] {
            let gpus = node(2, |_, _| links, |_, _| level);
            assert_eq!(Scores::kind(&gpus[0], &gpus[1]), name);
            assert_eq!(Scores::kind(&gpus[0], &gpus[0]), "N-A");
        }
    }
}
