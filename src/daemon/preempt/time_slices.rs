//! Decides the hardware time slices of channel groups, and keeps the results.
//!
//! Every 2 s each worker gets the wanted time slices of its groups on GPUs where a stop has worked: there the driver is
//! known to do what it reports. This is often enough for new processes and new weights, and for processes that
//! change their own time slice: a change affects only work that overlaps.

use super::journal::JournalEntry;
use super::time_slicer::{Observed, WantedSlice};
use crate::clients::Clients;
use crate::containers::Containers;
use gpuslice_engine::Engine;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::limits::HEARTBEAT_NS;
use std::collections::{BTreeMap, BTreeSet};

/// A container and one of its GPUs.
pub type SliceLane = (ContainerId, Lane);

/// Heartbeats between two rounds: 2 s.
pub const LOOK_EVERY: u64 = 40;

const _: () = assert!(LOOK_EVERY * HEARTBEAT_NS == 2_000_000_000);

/// The time slices of a container's groups on a GPU.
#[derive(Debug, Default)]
struct Known {
    /// The time slice in force, µs; 0 if none is set.
    us: u64,
    /// How often a group had another time slice than was set before.
    changes: u64,
    refused: bool,
}

/// The time slices of all containers.
#[derive(Debug, Default)]
pub struct TimeSlices {
    known: BTreeMap<SliceLane, Known>,
    /// Containers with a round in progress.
    looking: BTreeSet<ContainerId>,
}

impl TimeSlices {
    /// The time slice of a container on a GPU, µs, and how often its processes changed it.
    pub fn of(&self, slice_lane: SliceLane) -> (u64, u64) {
        let known = self.known.get(&slice_lane);
        known.map_or((0, 0), |known| (known.us, known.changes))
    }

    /// Whether a container's round is in progress.
    pub fn is_looking(&self, container: &ContainerId) -> bool {
        self.looking.contains(container)
    }

    /// A container's round begins.
    pub fn look(&mut self, container: ContainerId) {
        self.looking.insert(container);
    }

    /// A container's round has no result: its worker was lost. The changes counted so far stay: a container can make
    /// its worker hang.
    pub fn lost(&mut self, container: &ContainerId) {
        self.looking.remove(container);
        for (_, known) in self.known.iter_mut().filter(|(of, _)| of.0 == *container) {
            known.us = 0;
        }
    }

    /// Removes a container.
    pub fn forget(&mut self, container: &ContainerId) {
        self.looking.remove(container);
        self.known.retain(|slice_lane, _| slice_lane.0 != *container);
    }

    /// Stores the results of a container's round, by GPU. A GPU without groups is not in it.
    pub fn found(&mut self, container: ContainerId, found: BTreeMap<u8, Observed>) {
        self.looking.remove(&container);
        for ((of, lane), known) in &mut self.known {
            if *of == container && !found.contains_key(&lane.0) {
                known.us = 0;
            }
        }
        for (gpu, found) in found {
            let known = self.known.entry((container, Lane(gpu))).or_default();
            (known.us, known.changes) = (found.us, known.changes + found.changed);
            if found.changed > 0 && known.changes.is_power_of_two() {
                let changes = known.changes;
                tracing::warn!(%container, gpu, changes, "changes its own time slices on the GPU; they are reset");
            }
            let refused = std::mem::replace(&mut known.refused, found.refused.is_some());
            if let Some(why) = found.refused.filter(|_| !refused) {
                tracing::warn!(%container, gpu, why, "its time slices by weight cannot be set on the GPU");
            }
        }
    }
}

/// The wanted time slices of all groups on these GPUs, by container.
pub fn wanted(
    gpus: &BTreeSet<GpuUuid>,
    clients: &Clients,
    containers: &Containers,
    engine: &Engine,
) -> BTreeMap<ContainerId, Vec<WantedSlice>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (key, tenant) in clients.attached() {
        let container = tenant.container();
        for named in tenant.groups() {
            let gpu = containers.gpu_of(&container, named.lane);
            let us = engine.time_slice(container, named.lane);
            let us = us.filter(|_| gpu.is_some_and(|gpu| gpus.contains(&gpu)));
            if let (Some(us), Some(process)) = (us, tenant.process()) {
                let entry = JournalEntry::of(process.pid, process.born, *named);
                all.entry(container).or_default().push(WantedSlice { key, entry, us });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_add_up_and_time_slices_are_those_of_the_last_round() {
        let [web, batch] = ["web", "batch"].map(|id| ContainerId::new(id).expect("an id"));
        let mut slices = TimeSlices::default();
        let look = |us, changed| BTreeMap::from([(0, Observed { us, changed, refused: None })]);
        slices.look(batch);
        slices.found(web, look(2_000, 0));
        assert!(slices.is_looking(&batch) && !slices.is_looking(&web));
        slices.found(batch, look(6_000, 2));
        slices.found(web, BTreeMap::new());
        slices.found(batch, look(6_000, 1));
        let of = |slices: &TimeSlices, container| slices.of((container, Lane(0)));
        assert_eq!((of(&slices, web), of(&slices, batch)), ((0, 0), (6_000, 3)));
        slices.look(batch);
        slices.lost(&batch);
        assert!(!slices.is_looking(&batch));
        assert_eq!(of(&slices, batch), (0, 3));
        slices.forget(&batch);
        assert_eq!(of(&slices, batch), (0, 0));
    }
}
