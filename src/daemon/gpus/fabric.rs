//! How the node's GPUs are connected: NVLinks, and the way over PCIe.
//!
//! # Problem
//! Links between two GPUs can be counted by the addresses at their other ends. Behind a switch, all links of a GPU end
//! at the switch, so that count is zero between GPUs that are connected best.
//!
//! # Idea
//! NVML says whether one GPU reaches another's memory over NVLink at all. If it does, and no link ends at the other
//! GPU, the links end at switches, and the two share as many as the one with fewer has.

use super::About;
use crate::nvml::{Device, Nvml};
use gpuslice_wire::ids::NvmlIndex;
use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::text::Text;
use serde::{Deserialize, Serialize};

/// The level of a way that is not known.
const UNKNOWN: u8 = u8::MAX;

/// What NVML says about one GPU's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ends {
    /// Its own address.
    address: String,
    /// The addresses at the other ends of its active links.
    links: Vec<String>,
    /// Whether it reaches each GPU over NVLink.
    reaches: Vec<bool>,
    /// NVML's level of the way to each GPU.
    near: Vec<Option<u32>>,
}

/// Numbers for each pair of GPUs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Fabric {
    links: Vec<[u8; GPUS_MAX]>,
    near: Vec<[u8; GPUS_MAX]>,
}

/// Asks NVML about the GPUs with these indices. What it does not answer is unknown.
pub fn of(nvml: &Nvml, gpus: impl Iterator<Item = NvmlIndex>) -> Fabric {
    let devices: Vec<Option<Device<'_>>> = gpus.map(|index| nvml.at(index.0).ok()).collect();
    let ends = |device: &Device<'_>| {
        let reaches = |to: &Device<'_>| device.has_nvlink_to(to).unwrap_or(false);
        let near = |to: &Device<'_>| device.ancestor_with(to).ok();
        Ends {
            address: device.pci().unwrap_or_default(),
            links: device.nvlinks(),
            reaches: devices.iter().map(|it| it.as_ref().is_some_and(reaches)).collect(),
            near: devices.iter().map(|it| it.as_ref().and_then(near)).collect(),
        }
    };
    let all = devices.iter().map(|it| it.as_ref().map(ends).unwrap_or_default());
    Fabric::of_ends(&all.collect::<Vec<Ends>>())
}

impl Fabric {
    fn of_ends(all: &[Ends]) -> Fabric {
        let row = |at: usize, of: &dyn Fn(usize, usize) -> u8, other: u8| {
            let mut row = [other; GPUS_MAX];
            for (to, place) in row.iter_mut().enumerate().take(all.len()).filter(|it| it.0 != at) {
                *place = of(at, to);
            }
            row
        };
        let near = |at: usize, to: usize| {
            let level = all[at].near.get(to).copied().flatten();
            level.and_then(|level| u8::try_from(level).ok()).unwrap_or(UNKNOWN)
        };
        let links = |at, to| links(all, at, to);
        let places = 0..all.len();
        Fabric {
            links: places.clone().map(|at| row(at, &links, 0)).collect(),
            near: places.map(|at| row(at, &near, UNKNOWN)).collect(),
        }
    }

    /// The first GPU of each one's group: those that links connect, over others too.
    fn groups(&self) -> Vec<usize> {
        let mut groups: Vec<usize> = (0..self.links.len()).collect();
        // At most 16 GPUs: a pass for each of them is enough for the longest chain.
        for _ in 0..self.links.len() {
            for (at, row) in self.links.iter().enumerate() {
                for to in (0..groups.len()).filter(|&to| row[to] > 0) {
                    let first = groups[at].min(groups[to]);
                    (groups[at], groups[to]) = (first, first);
                }
            }
        }
        groups
    }

    /// Writes it into the GPUs' descriptions.
    pub fn describe<'a>(&self, gpus: impl Iterator<Item = &'a mut About>) {
        let groups = self.groups();
        for (at, about) in gpus.enumerate() {
            let (Some(links), Some(near)) = (self.links.get(at), self.near.get(at)) else {
                continue;
            };
            (about.links, about.near) = (*links, *near);
            if links.iter().any(|count| *count > 0) {
                let name = format!("nvlink-{}", groups[at]);
                about.island = Text::new(&name).unwrap_or(Text::EMPTY);
            }
        }
    }
}

/// The links between two GPUs.
fn links(all: &[Ends], at: usize, to: usize) -> u8 {
    let ends_at = |from: &Ends, address: &str| {
        from.links.iter().filter(|end| !address.is_empty() && end.as_str() == address).count()
    };
    let direct = ends_at(&all[at], &all[to].address);
    let reaches = all[at].reaches.get(to).copied().unwrap_or(false);
    // Links that end at GPUs do not lead to switches.
    let to_switches = |from: &Ends| {
        let ends_at_gpu =
            |end: &&String| all.iter().any(|it| !end.is_empty() && it.address == **end);
        from.links.iter().filter(|end| !ends_at_gpu(end)).count()
    };
    let count = match (direct, reaches) {
        (0, false) => 0,
        (0, true) => to_switches(&all[at]).min(to_switches(&all[to])).max(1),
        (direct, _) => direct,
    };
    u8::try_from(count).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(address: &str, links: &[(&str, usize)], reaches: &[bool]) -> Ends {
        let each = |&(end, count): &(&str, usize)| std::iter::repeat_n(end.to_owned(), count);
        Ends {
            address: address.to_owned(),
            links: links.iter().flat_map(each).collect(),
            reaches: reaches.to_vec(),
            near: vec![Some(10); reaches.len()],
        }
    }

    fn islands(fabric: &Fabric) -> Vec<String> {
        let mut gpus = vec![About::default(); fabric.links.len()];
        fabric.describe(gpus.iter_mut());
        gpus.iter().map(|gpu| gpu.island.as_str().to_owned()).collect()
    }

    #[test]
    fn links_behind_a_switch_count() {
        let all: Vec<Ends> =
            (0..4).map(|n| ends(&format!("g{n}"), &[("s0", 9), ("s1", 9)], &[true; 4])).collect();
        let fabric = Fabric::of_ends(&all);
        assert_eq!(fabric.links[0][..5], [0, 18, 18, 18, 0]);
        assert_eq!(fabric.near[0][..5], [255, 10, 10, 10, 255]);
        assert_eq!(islands(&fabric), ["nvlink-0"; 4]);
        // A GPU with broken links has fewer in common, and a driver that names no ends has one at least.
        let mut broken = all.clone();
        broken[3].links.truncate(2);
        broken[2].links.clear();
        let fabric = Fabric::of_ends(&broken);
        assert_eq!(fabric.links[0][..4], [0, 18, 1, 2]);
    }

    #[test]
    fn direct_links_are_counted_by_their_ends() {
        let pair =
            |n: usize, to: &str, reaches: [bool; 4]| ends(&format!("g{n}"), &[(to, 4)], &reaches);
        let (low, high) = ([true, true, false, false], [false, false, true, true]);
        let all =
            [pair(0, "g1", low), pair(1, "g0", low), pair(2, "g3", high), pair(3, "g2", high)];
        let fabric = Fabric::of_ends(&all);
        assert_eq!(
            fabric.links.iter().map(|row| row[..4].to_vec()).collect::<Vec<_>>(),
            [vec![0, 4, 0, 0], vec![4, 0, 0, 0], vec![0, 0, 0, 4], vec![0, 0, 4, 0],]
        );
        assert_eq!(islands(&fabric), ["nvlink-0", "nvlink-0", "nvlink-2", "nvlink-2"]);
    }

    #[test]
    fn without_links_there_are_no_islands() {
        let all: Vec<Ends> = (0..2).map(|n| ends(&format!("g{n}"), &[], &[false; 2])).collect();
        assert_eq!(islands(&Fabric::of_ends(&all)), ["", ""]);
        let unnamed = [ends("", &[("", 4)], &[false; 2]), ends("", &[("", 4)], &[false; 2])];
        assert_eq!(Fabric::of_ends(&unnamed).links[0][..2], [0, 0], "no address is everyone's");
        assert_eq!(Fabric::of_ends(&[]), Fabric::default());
    }
}
