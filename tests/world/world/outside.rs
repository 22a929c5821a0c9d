//! Processes outside of all slices: programs of the host, and containers without a slice.
//!
//! They take and give back memory of a GPU at any moment. The daemon learns of it from samples alone; one of a late
//! driver shows what was there before the last change.

use gpuslice_wire::ids::{GpuUuid, Lane};
use gpuslice_wire::units::MIB;
use std::collections::BTreeMap;

use super::{Letter, World};

/// Memory of processes outside of all slices, by GPU.
#[derive(Debug, Default)]
pub(super) struct Outside {
    used: BTreeMap<GpuUuid, u64>,
    /// What was there before the last change.
    before: BTreeMap<GpuUuid, u64>,
}

impl World {
    /// Memory of such processes changes, or the daemon is told of it.
    pub(super) fn act_outside(&mut self) {
        let (gpu, total) = self.rng.pick(&self.gpus);
        let used = self.outside.used.get(&gpu).copied().unwrap_or(0);
        match self.rng.below(100) {
            0..3 => {
                // The driver gives no more than it has, and half of the GPU is left to containers.
                let free = total.0.saturating_sub(self.present(gpu)).min(total.0 / 2);
                let more = self.rng.magnitude(64 * MIB, total.0 / 2).min(free.saturating_sub(used));
                self.change_outside(gpu, used + more);
            }
            3 => {
                let less = self.rng.below(used + 1);
                self.change_outside(gpu, less);
            }
            4 => self.change_outside(gpu, 0),
            5..20 => {
                let late = self.rng.per_mille(100);
                let before = self.outside.before.get(&gpu).copied().unwrap_or(0);
                self.deliver(Letter::Outside(gpu, if late { before } else { used }));
            }
            _ => {}
        }
    }

    fn change_outside(&mut self, gpu: GpuUuid, used: u64) {
        let before = self.outside.used.insert(gpu, used).unwrap_or(0);
        self.outside.before.insert(gpu, before);
        self.checkers.outside(gpu, used);
        if used > before {
            self.checkers.meets("memory taken outside");
        }
    }

    /// What processes of containers have on a GPU.
    fn present(&self, gpu: GpuUuid) -> u64 {
        let its = self.processes.iter().filter(|it| it.alive && !it.on_host);
        let used = its.map(|it| {
            let lanes = self.records.get(&it.container).map_or(&[][..], |record| &record.lanes);
            let lanes = (0..).map(Lane).zip(lanes).filter(|(_, lane)| lane.gpu == gpu);
            lanes
                .filter_map(|(lane, _)| it.purses.get(it.account_of(lane)))
                .map(|it| it.used)
                .sum::<u64>()
        });
        used.sum()
    }
}
