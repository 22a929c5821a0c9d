//! Decides the hardware time slices of channel groups, and keeps the results.
//!
//! Every 2 s the worker gets the wanted time slices of all groups on GPUs where a stop has worked: there the driver is
//! known to do what it reports. This is often enough for new processes and new weights, and for processes that
//! change their own time slice: a change affects only work that overlaps.

use super::time_slicer::{Observed, SliceLane, WantedSlice};
use crate::clients::Clients;
use crate::containers::Containers;
use gpuslice_engine::Engine;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use std::collections::{BTreeMap, BTreeSet};

/// Heartbeats between two rounds.
pub const LOOK_EVERY: u64 = 40;

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
    /// A round is in progress.
    looking: bool,
}

impl TimeSlices {
    /// The time slice of a container on a GPU, µs, and how often its processes changed it.
    pub fn of(&self, slice_lane: SliceLane) -> (u64, u64) {
        let known = self.known.get(&slice_lane);
        known.map_or((0, 0), |known| (known.us, known.changes))
    }

    /// Whether a round is in progress.
    pub fn is_looking(&self) -> bool {
        self.looking
    }

    /// A round begins, if the worker could be asked.
    pub fn look(&mut self, asked: bool) {
        self.looking = asked;
    }

    /// Removes a container.
    pub fn forget(&mut self, container: &ContainerId) {
        self.known.retain(|slice_lane, _| slice_lane.0 != *container);
    }

    /// Stores a round's results. A container without groups is not in it.
    pub fn found(&mut self, found: BTreeMap<SliceLane, Observed>) {
        self.looking = false;
        for (slice_lane, known) in &mut self.known {
            if !found.contains_key(slice_lane) {
                known.us = 0;
            }
        }
        for ((container, lane), found) in found {
            let known = self.known.entry((container, lane)).or_default();
            (known.us, known.changes) = (found.us, known.changes + found.changed);
            let gpu = lane.0;
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

/// The wanted time slices of all groups on these GPUs.
pub fn wanted(
    gpus: &BTreeSet<GpuUuid>,
    clients: &Clients,
    containers: &Containers,
    engine: &Engine,
) -> Vec<WantedSlice> {
    let mut all = Vec::new();
    for (key, tenant) in clients.attached() {
        let (container, pid) = (tenant.container(), tenant.pid());
        all.extend(tenant.groups().iter().filter_map(|named| {
            let gpu = containers.gpu_of(&container, named.lane)?;
            let us = engine.time_slice(container, named.lane);
            Some(WantedSlice {
                key,
                pid,
                slice_lane: (container, named.lane),
                named: *named,
                us: us.filter(|_| gpus.contains(&gpu))?,
            })
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::ids::Lane;

    #[test]
    fn changes_add_up_and_time_slices_are_those_of_the_last_round() {
        let slice_lane = |id| (ContainerId::new(id).expect("an id"), Lane(0));
        let (web, batch) = (slice_lane("web"), slice_lane("batch"));
        let mut slices = TimeSlices::default();
        let look = |us, changed| Observed { us, changed, refused: None };
        slices.found(BTreeMap::from([(web, look(2_000, 0)), (batch, look(6_000, 2))]));
        slices.found(BTreeMap::from([(batch, look(6_000, 1))]));
        assert_eq!((slices.of(web), slices.of(batch)), ((0, 0), (6_000, 3)));
        slices.forget(&batch.0);
        assert_eq!(slices.of(batch), (0, 0));
    }
}
