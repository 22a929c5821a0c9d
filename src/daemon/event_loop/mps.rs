//! A GPU has no slices while an MPS server uses it, also one that starts after the daemon.
//!
//! Slices that the GPU has already go on, and nothing is ended. Their memory is still accounted. The server runs the
//! work of its clients at once and in its own context, so turns are not kept against it, which an event tells.

use super::Daemon;
use crate::accounting::attribute::Attached;
use crate::accounting::questions::Sample;
use gpuslice_engine::NoSlices;
use gpuslice_host::clock::now;
use gpuslice_wire::ids::GpuUuid;
use std::time::{SystemTime, UNIX_EPOCH};

impl Daemon {
    /// A sample has shown processes of MPS on a GPU, or none.
    pub(super) fn note_mps(&mut self, sample: &Sample, attached: &[Attached]) {
        let (uuid, duties) = (GpuUuid(sample.gpu), &mut self.duties);
        let may_change = matches!(duties.gpu_table.no_slices(uuid), None | Some(NoSlices::Mps));
        if sample.processes.is_err() || !may_change {
            return;
        }
        let mut outside = duties.containers.outside_of_slices(&sample.mps);
        outside.retain(|pid| attached.iter().all(|process| process.pid != *pid));
        let pid = outside.first().copied().unwrap_or(0);
        let Some(has) = duties.accounting.mps.sampled(now(), uuid, outside) else {
            return;
        };
        let why = match has {
            true => Some(NoSlices::Mps),
            // NVIDIA recommends the mode for MPS; it stays when the server ends.
            false => sample.exclusive.then_some(NoSlices::Exclusive),
        };
        self.set_no_slices(uuid, why, pid);
    }

    /// Slices of a GPU are given no more, because of this process of MPS or for another reason, or again.
    fn set_no_slices(&mut self, uuid: GpuUuid, why: Option<NoSlices>, pid: u32) {
        let table = &mut self.duties.gpu_table;
        let Some(index) = table.index(uuid) else {
            return;
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        table.set_no_slices(uuid, why, since);
        match why {
            Some(why @ NoSlices::Mps) => tracing::warn!(
                %uuid,
                pid,
                "no more slices are given: {}; those that are there go on with their memory accounted; {}",
                why.of(index),
                why.remedy(index)
            ),
            Some(why) => tracing::warn!(
                %uuid,
                "the MPS server has ended, and no slices are given: {}; {}",
                why.of(index),
                why.remedy(index)
            ),
            None => match table.unhealthy(&[uuid]) {
                Some(why) => {
                    tracing::warn!(%why, "the MPS server has ended, and no slices are given");
                }
                None => tracing::info!(%uuid, "the MPS server has ended; slices are given again"),
            },
        }
        self.duties.health_changed();
    }
}
