//! Who gets which time slice of the hardware, and what became of it.
//!
//! Every other second the worker is told what all groups are to have, on the GPUs where a stop was seen to work:
//! there the driver is known to do what it says. That is often enough for new processes and new
//! weights, and for those who set a slice of their own: it pays only in what overlaps.

use super::SliceLane;
use super::time_slicer::{Observed, WantedSlice};
use super::worker::Job;
use crate::daemon::Daemon;
use gpuslice_wire::ids::ContainerId;
use std::collections::BTreeMap;

/// A look every so many heartbeats.
pub const LOOK_EVERY: u64 = 40;

/// What is known of a container's slices on a GPU.
#[derive(Debug, Default)]
struct Known {
    /// 0 if it has none of ours.
    us: u64,
    /// How often one was another than we had set.
    changes: u64,
    refused: bool,
}

/// What is known of all.
#[derive(Debug, Default)]
pub struct TimeSlices {
    known: BTreeMap<SliceLane, Known>,
    /// The worker looks at them.
    looking: bool,
}

impl TimeSlices {
    /// The slice that a container has on a GPU, µs, and how often it was changed by somebody else.
    pub fn of(&self, slice_lane: SliceLane) -> (u64, u64) {
        let known = self.known.get(&slice_lane);
        known.map_or((0, 0), |known| (known.us, known.changes))
    }

    /// A container's slice of the node ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.known
            .retain(|slice_lane, _| slice_lane.0 != *container);
    }

    /// What a look found. Who has no group any more is not in it.
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
                tracing::warn!(%container, gpu, changes, "sets its own time slices on the GPU; they are set back");
            }
            let refused = std::mem::replace(&mut known.refused, found.refused.is_some());
            if let Some(why) = found.refused.filter(|_| !refused) {
                tracing::warn!(%container, gpu, why, "has no time slices by weight on the GPU");
            }
        }
    }
}

impl Daemon {
    /// Has the time slices of all groups looked at, unless that is being done.
    pub fn look_at_slices(&mut self) {
        if !self.preemption.shown.is_empty() && !self.preemption.slices.looking {
            let wishes = self.wishes();
            self.preemption.slices.looking = self.preemption.ask(Job::Slices(wishes));
        }
    }

    fn wishes(&self) -> Vec<WantedSlice> {
        let mut all = Vec::new();
        for (key, tenant) in self.tenants.iter().filter(|(_, it)| it.is_attached()) {
            let (container, pid) = (tenant.container(), tenant.pid());
            all.extend(tenant.groups.iter().filter_map(|named| {
                let gpu = self.cgroup_limits.gpu_of(&container, named.lane)?;
                let shown = self.preemption.shown.contains(&gpu);
                let us = self.engine.time_slice(container, named.lane);
                Some(WantedSlice {
                    key,
                    pid,
                    slice_lane: (container, named.lane),
                    named: *named,
                    us: us.filter(|_| shown)?,
                })
            }));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::ids::Lane;

    #[test]
    fn changes_add_up_and_slices_are_those_of_the_last_look() {
        let slice_lane = |id| (ContainerId::new(id).expect("an id"), Lane(0));
        let (web, batch) = (slice_lane("web"), slice_lane("batch"));
        let mut slices = TimeSlices::default();
        let look = |us, changed| Observed {
            us,
            changed,
            refused: None,
        };
        slices.found(BTreeMap::from([
            (web, look(2_000, 0)),
            (batch, look(6_000, 2)),
        ]));
        slices.found(BTreeMap::from([(batch, look(6_000, 1))]));
        assert_eq!((slices.of(web), slices.of(batch)), ((0, 0), (6_000, 3)));
        slices.forget(&batch.0);
        assert_eq!(slices.of(batch), (0, 0));
    }
}
