//! The node's GPUs as agents see them: descriptions, health, and what is promised on each.

use crate::gpus::Gpu;
use gpuslice_engine::NoSlices;
use gpuslice_wire::ids::{ContainerId, GpuUuid, NvmlIndex};
use gpuslice_wire::node::{GpuFacts, GpuNumbers, Health, HealthState, NodeAnswer};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, Percent};
use std::collections::BTreeMap;

/// See the file's head.
#[derive(Debug, Default)]
pub struct GpuTable {
    gpus: Vec<Gpu>,
    /// Those that the driver runs so that they have no slices, and since when, in seconds since 1970; 0: the daemon's
    /// start.
    no_slices: BTreeMap<GpuUuid, (NoSlices, u64)>,
    /// The health of each, apart from that.
    health: BTreeMap<GpuUuid, Health>,
    /// Errors and losses of each since the start.
    errors: BTreeMap<GpuUuid, u64>,
    /// Changes of health that are still to be told.
    changes: Vec<(GpuUuid, Health)>,
}

/// What is known of a slice beside its promise: owner, claim, whether the claim is released.
type About = (Owner, Option<ClaimId>, bool);

/// Why no slices are given of a GPU of this health; `None` for a healthy one.
pub fn trouble(health: Health) -> Option<NoSlices> {
    match health.state {
        HealthState::Healthy => None,
        HealthState::Xid => Some(NoSlices::Xid(health.xid)),
        HealthState::Ecc => Some(NoSlices::Ecc),
        HealthState::Lost => Some(NoSlices::Lost),
        HealthState::Mig => Some(NoSlices::Mig),
        HealthState::Mps => Some(NoSlices::Mps),
        HealthState::Exclusive => Some(NoSlices::Exclusive),
    }
}

/// A GPU without slices since then, as its health shows it.
fn shown(why: NoSlices, since: u64) -> Health {
    let (state, xid) = match why {
        NoSlices::Mig => (HealthState::Mig, 0),
        NoSlices::Mps => (HealthState::Mps, 0),
        NoSlices::Exclusive => (HealthState::Exclusive, 0),
        NoSlices::Xid(xid) => (HealthState::Xid, xid),
        NoSlices::Ecc => (HealthState::Ecc, 0),
        NoSlices::Lost => (HealthState::Lost, 0),
    };
    Health { state, xid, since }
}

impl GpuTable {
    /// These GPUs, all healthy but those without slices.
    pub fn new(gpus: Vec<Gpu>) -> GpuTable {
        let no_slices = gpus.iter().filter_map(|gpu| Some((gpu.uuid, (gpu.no_slices?, 0))));
        let no_slices = no_slices.collect();
        GpuTable { gpus, no_slices, ..GpuTable::default() }
    }

    /// All GPUs.
    pub fn uuids(&self) -> impl Iterator<Item = GpuUuid> {
        self.minors().map(|(gpu, _)| gpu)
    }

    /// Each GPU's device node number, if it has one.
    pub fn minors(&self) -> impl Iterator<Item = (GpuUuid, Option<u32>)> {
        self.gpus.iter().map(|gpu| (gpu.uuid, gpu.about.minor))
    }

    /// Why a GPU has no slices by how the driver runs it, if it has none.
    pub fn no_slices(&self, gpu: GpuUuid) -> Option<NoSlices> {
        self.no_slices.get(&gpu).map(|(why, _)| *why)
    }

    /// A GPU has no slices from `now` on, in seconds since 1970, or has them again.
    pub fn set_no_slices(&mut self, gpu: GpuUuid, why: Option<NoSlices>, now: u64) {
        match why {
            Some(why) => self.no_slices.insert(gpu, (why, now)),
            None => self.no_slices.remove(&gpu),
        };
        self.changes.push((gpu, self.health_of(gpu)));
    }

    /// NVML's index of a GPU.
    pub fn index(&self, gpu: GpuUuid) -> Option<NvmlIndex> {
        self.gpus.iter().find(|it| it.uuid == gpu).map(|it| it.index)
    }

    /// A GPU's health has changed. One without slices shows nothing of it until it has slices again.
    pub fn set_health(&mut self, gpu: GpuUuid, health: Health) {
        if self.no_slices(gpu).is_none() && health.state != HealthState::Healthy {
            *self.errors.entry(gpu).or_default() += 1;
        }
        self.restore_health(gpu, health);
    }

    /// As [`GpuTable::set_health`], for an error that an earlier daemon has counted.
    pub fn restore_health(&mut self, gpu: GpuUuid, health: Health) {
        self.health.insert(gpu, health);
        if self.no_slices(gpu).is_none() {
            self.changes.push((gpu, health));
        }
    }

    /// The changes of health since the last call.
    pub fn take_changes(&mut self) -> Vec<(GpuUuid, Health)> {
        std::mem::take(&mut self.changes)
    }

    /// Each GPU's health, and its errors so far.
    pub fn health_rows(&self) -> impl Iterator<Item = Snapshot> {
        self.gpus.iter().map(|gpu| Snapshot::GpuHealth {
            uuid: gpu.uuid,
            health: self.health_of(gpu.uuid),
            errors: self.errors.get(&gpu.uuid).copied().unwrap_or_default(),
        })
    }

    /// Of these rows those of GPUs that are not healthy.
    pub fn unhealthy_rows(&self) -> impl Iterator<Item = Snapshot> {
        self.health_rows().filter(|row| match row {
            Snapshot::GpuHealth { health, .. } => health.state != HealthState::Healthy,
            _ => false,
        })
    }

    fn health_of(&self, gpu: GpuUuid) -> Health {
        let no_slices = self.no_slices.get(&gpu).map(|&(why, since)| shown(why, since));
        no_slices.or_else(|| self.health.get(&gpu).copied()).unwrap_or_default()
    }

    /// Why one of these GPUs cannot be used; `None` if all can.
    pub fn unhealthy(&self, gpus: &[GpuUuid]) -> Option<String> {
        gpus.iter().find_map(|gpu| {
            let what = trouble(self.health_of(*gpu))?;
            Some(format!("{gpu} is unhealthy: {what}"))
        })
    }

    /// The rows of GPUs and slices from a snapshot of the engine's.
    pub fn rows(
        &self,
        snapshot: &[Snapshot],
        about: impl Fn(&ContainerId) -> About,
    ) -> impl Iterator<Item = NodeAnswer> {
        let gpus = snapshot.iter().filter_map(|row| self.gpu_row(row, snapshot));
        let gpus: Vec<NodeAnswer> = gpus.collect();
        let mut slices: BTreeMap<ContainerId, NodeAnswer> = BTreeMap::new();
        for row in snapshot {
            self.add_slice(&mut slices, row, &about);
        }
        gpus.into_iter().chain(slices.into_values())
    }

    fn number(&self, gpu: GpuUuid) -> Option<u8> {
        let at = self.gpus.iter().position(|known| known.uuid == gpu)?;
        u8::try_from(at).ok()
    }

    fn gpu_row(&self, row: &Snapshot, snapshot: &[Snapshot]) -> Option<NodeAnswer> {
        let &Snapshot::Gpu { uuid, index, total, promised, slices, policy, .. } = row else {
            return None;
        };
        let number = self.number(uuid)?;
        let about = self.gpus.get(usize::from(number))?.about;
        let shares = snapshot.iter().filter_map(|row| match row {
            Snapshot::Slice { gpu, share, .. } if *gpu == uuid => *share,
            _ => None,
        });
        let shares = shares.map(Percent::get).fold(0, u32::saturating_add);
        let gpu = GpuFacts {
            number,
            uuid,
            index,
            product: about.product,
            pci: about.pci,
            numa: about.numa,
            island: about.island,
            links: about.links,
            near: about.near,
            capability: about.capability,
            driver: about.driver,
            simulated: uuid.is_simulated(),
            health: self.health_of(uuid),
            total,
            promised,
            left: total.saturating_sub(promised),
            share_promised: shares,
            share_left: 100u32.saturating_sub(shares),
            slices,
            policy,
        };
        Some(NodeAnswer::Gpu { gpu })
    }

    /// Adds a lane of a slice to its row.
    fn add_slice(
        &self,
        slices: &mut BTreeMap<ContainerId, NodeAnswer>,
        row: &Snapshot,
        about: &impl Fn(&ContainerId) -> About,
    ) {
        let Snapshot::Slice {
            container, name, gpu, cap, reserved: held, share, weight, class, ..
        } = row
        else {
            return;
        };
        let bit = self.number(*gpu).map_or(0, |number| 1 << number);
        let known = slices.entry(*container).or_insert_with(|| {
            let (owner, claim, released) = about(container);
            NodeAnswer::Slice {
                slice: *container,
                claim,
                released,
                name: *name,
                owner,
                gpus: GpuNumbers::default(),
                memory: Bytes::ZERO,
                reserved: Bytes::ZERO,
                share: *share,
                weight: *weight,
                class: *class,
            }
        });
        if let NodeAnswer::Slice { gpus, memory, reserved, .. } = known {
            gpus.0 |= bit;
            *memory = (*memory).max(*cap);
            *reserved = reserved.saturating_add(*held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::About;

    const GPU: GpuUuid = GpuUuid([7; 16]);

    #[test]
    fn an_error_shows_once_the_gpu_has_slices_again() {
        let about = About::default();
        let gpu = Gpu { uuid: GPU, index: NvmlIndex(0), total: Bytes(1), no_slices: None, about };
        let mut gpus = GpuTable::new(vec![gpu]);
        gpus.set_no_slices(GPU, Some(NoSlices::Mps), 5);
        let mps = Health { state: HealthState::Mps, xid: 0, since: 5 };
        let xid = Health { state: HealthState::Xid, xid: 79, since: 6 };
        gpus.set_health(GPU, xid);
        assert_eq!(gpus.health_of(GPU), mps);
        gpus.set_no_slices(GPU, Some(NoSlices::Exclusive), 7);
        assert_eq!(gpus.no_slices(GPU), Some(NoSlices::Exclusive));
        gpus.set_no_slices(GPU, None, 8);
        assert_eq!(gpus.health_of(GPU), xid);
        let row = Snapshot::GpuHealth { uuid: GPU, health: xid, errors: 0 };
        assert_eq!(gpus.unhealthy_rows().collect::<Vec<_>>(), [row]);
        gpus.set_health(GPU, Health::default());
        assert_eq!(gpus.unhealthy(&[GPU]), None);
        assert_eq!((gpus.health_rows().count(), gpus.unhealthy_rows().count()), (1, 0));
        let exclusive = Health { state: HealthState::Exclusive, xid: 0, since: 7 };
        let told = [mps, exclusive, xid, Health::default()].map(|health| (GPU, health));
        assert_eq!(gpus.take_changes(), told);
    }
}
