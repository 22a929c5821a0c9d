//! Admission: whether a container gets the slice it asks for, on which GPUs, with which cap.
//!
//! A slice on several GPUs is granted on all of them, or refused with the first reason. Caps are promises,
//! so their sum stays within a GPU's memory unless the administrator allows oversubscription. Shares are
//! promises too, and stay within 100 %. Weights and limits promise nothing and need no capacity; a limit
//! below the share would break that promise.
//!
//! Nothing is promised of a GPU that has failed, or that the driver runs so that caps and turns mean nothing
//! (`no_slices`). Slices that it had before go on, also after a restart of the daemon, except in MIG mode, where CUDA
//! shows no such GPU.

use alloc::vec::Vec;
use core::cmp::Reverse;
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ContainerId, GpuUuid, NvmlIndex};
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, MIB, Percent};

use crate::engine::Engine;
use crate::event::{Bounds, SliceRequest};
use crate::no_slices::NoSlices;
use crate::record::{LaneRecord, Record};
use crate::refusal::Refusal;

/// A GPU's memory and shares, as admission sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuCapacity {
    pub(crate) uuid: GpuUuid,
    pub(crate) index: NvmlIndex,
    pub(crate) total: Bytes,
    /// Sum of the caps on it.
    pub(crate) promised: Bytes,
    /// Sum of the shares on it, percent.
    pub(crate) shares: u32,
    /// A single container has the whole GPU.
    pub(crate) whole: bool,
    /// Why no slice of it is given.
    pub(crate) no_slices: Option<NoSlices>,
}

impl Engine {
    /// A GPU has no slices, or has them again.
    pub(crate) fn set_no_slices(&mut self, uuid: GpuUuid, why: Option<NoSlices>) {
        let gpu = self.gpus.iter_mut().find(|gpu| gpu.uuid == uuid);
        gpu.into_iter().for_each(|gpu| gpu.no_slices = why);
    }

    /// The GPUs as admission sees them.
    pub(crate) fn capacities(&self) -> Vec<GpuCapacity> {
        let mut capacities: Vec<GpuCapacity> = self
            .gpus
            .iter()
            .map(|gpu| GpuCapacity {
                uuid: gpu.uuid,
                index: gpu.index,
                total: gpu.total,
                promised: Bytes::ZERO,
                whole: false,
                shares: 0,
                no_slices: gpu.no_slices,
            })
            .collect();
        for (_, container) in self.containers.iter() {
            let lanes = container.slices.gpus.iter().zip(&container.record.lanes);
            for (slice, lane) in lanes {
                let Some(capacity) = slice.gpu.and_then(|gpu| capacities.get_mut(gpu)) else {
                    continue;
                };
                capacity.whole |= lane.whole;
                capacity.promised = capacity.promised.saturating_add(slice.account.cap());
                capacity.shares += container.record.share.map_or(0, |share| share.get());
            }
        }
        capacities
    }
}

impl GpuCapacity {
    /// Memory that is not promised yet.
    pub(crate) fn left(&self) -> Bytes {
        self.total.saturating_sub(self.promised)
    }

    /// The cap in bytes that `memory` means on this GPU.
    fn cap(&self, memory: MemoryAsk) -> Result<Bytes, Refusal> {
        match memory {
            MemoryAsk::Exactly(Bytes::ZERO) => Err(Refusal::CapZero),
            MemoryAsk::Exactly(cap) => Ok(cap),
            MemoryAsk::Ratio { part, whole } if part == 0 || part > whole => {
                Err(Refusal::RatioInvalid { part, whole })
            }
            MemoryAsk::Ratio { part, whole } => {
                // 2^44 MiB at most, times 2^32: not in 64 bits
                let mib = u128::from(self.total.0 / MIB) * u128::from(part) / u128::from(whole);
                let cap = Bytes(u64::try_from(mib).unwrap_or(u64::MAX).saturating_mul(MIB));
                let (gpu, total) = (self.index, self.total);
                if cap > Bytes::ZERO {
                    Ok(cap)
                } else {
                    Err(Refusal::RatioZero { gpu, total, part, whole })
                }
            }
        }
    }

    /// Checks that a share fits.
    pub(crate) fn take_share(&self, share: Option<Percent>) -> Result<(), Refusal> {
        let left = 100u32.saturating_sub(self.shares);
        match share {
            Some(share) if share.get() > left => {
                Err(Refusal::Shares { gpu: self.index, share, left })
            }
            _ => Ok(()),
        }
    }

    /// The cap that a slice with a cap of `old` may have instead. Less can always be promised.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(crate) fn recap(
        self,
        old: Bytes,
        memory: MemoryAsk,
        oversubscribe: bool,
    ) -> Result<Bytes, Refusal> {
        let without = GpuCapacity { promised: self.promised.saturating_sub(old), ..self };
        match without.promise(memory, oversubscribe) {
            Err(Refusal::Promised { cap, .. }) if cap <= old => Ok(cap),
            answer => answer,
        }
    }

    /// The cap that `memory` means, if it can be promised.
    fn promise(&self, memory: MemoryAsk, oversubscribe: bool) -> Result<Bytes, Refusal> {
        let (gpu, cap) = (self.index, self.cap(memory)?);
        let (left, total) = (self.left(), self.total);
        if cap > total {
            return Err(Refusal::CapAboveGpu { gpu, cap, total });
        }
        if cap > left && !oversubscribe {
            return Err(Refusal::Promised { gpu, cap, left, total });
        }
        Ok(cap)
    }

    /// The memory limit beside a cap that `asked` means on this GPU; without one, the cap. It promises nothing, so it
    /// needs no room.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(crate) fn limit(
        &self,
        cap: Bytes,
        asked: Option<MemoryAsk>,
        oversubscribe: bool,
    ) -> Result<Bytes, Refusal> {
        let Some(asked) = asked else {
            return Ok(cap);
        };
        let (gpu, limit, total) = (self.index, self.cap(asked)?, self.total);
        if limit < cap {
            return Err(Refusal::LimitBelowCap { limit, cap });
        }
        if limit > total {
            return Err(Refusal::LimitAboveGpu { gpu, limit, total });
        }
        match limit > cap && oversubscribe {
            true => Err(Refusal::LimitOversubscribed),
            false => Ok(limit),
        }
    }

    /// Whether the cap is within the bounds of the request's source.
    fn within_bounds(&self, ask: &SliceRequest) -> Result<(), Refusal> {
        let (gpu, cap) = (self.index, self.cap(ask.memory)?);
        let most = ask.bounds.and_then(|bounds| bounds.memory);
        let limit = ask.memory_limit.map(|limit| self.cap(limit)).transpose()?;
        let cap = cap.max(limit.unwrap_or_default());
        match most.map(|most| self.cap(most)).transpose()? {
            Some(most) if cap > most => Err(Refusal::BeyondMemory { gpu, cap, most }),
            _ => Ok(()),
        }
    }

    /// Whether any container may have a part of it, or all.
    fn is_there(&self) -> Result<(), Refusal> {
        match (self.no_slices, self.whole) {
            (Some(why), _) => Err(Refusal::NoSlices(self.index, why)),
            (_, true) => Err(Refusal::Taken(self.index)),
            _ => Ok(()),
        }
    }

    /// A lane on this GPU for `ask`.
    fn lane(&self, ask: &SliceRequest, oversubscribe: bool) -> Result<LaneRecord, Refusal> {
        self.is_there()?;
        self.within_bounds(ask)?;
        let cap = self.promise(ask.memory, oversubscribe)?;
        let limit = self.limit(cap, ask.memory_limit, oversubscribe)?;
        self.take_share(ask.share)?;
        Ok(LaneRecord { gpu: self.uuid, cap, limit, elastic: limit > cap, whole: false })
    }

    /// The whole GPU, if no container has a part of it.
    fn all(&self) -> Result<LaneRecord, Refusal> {
        self.is_there()?;
        if self.promised > Bytes::ZERO {
            return Err(Refusal::Sliced(self.index));
        }
        let (cap, limit) = (self.total, self.total);
        Ok(LaneRecord { gpu: self.uuid, cap, limit, elastic: false, whole: true })
    }
}

/// Checks that a limit leaves room for the share.
pub(crate) fn limit_share(share: Option<Percent>, limit: Option<Percent>) -> Result<(), Refusal> {
    match (share, limit) {
        (Some(share), Some(limit)) if limit < share => {
            Err(Refusal::LimitBelowShare { share, limit })
        }
        _ => Ok(()),
    }
}

/// The slice that `ask` gets, as the record to write.
///
/// # Errors
/// [`Refusal`]; nothing was changed.
pub(crate) fn admit(
    capacities: &[GpuCapacity],
    ask: &SliceRequest,
    oversubscribe: bool,
) -> Result<Record, Refusal> {
    if capacities.is_empty() {
        return Err(Refusal::NoGpu);
    }
    if ask.pinned == Some(Bytes::ZERO) {
        return Err(Refusal::PinnedZero);
    }
    limit_share(ask.share, ask.share_limit)?;
    count(capacities, ask)?;
    let mut lanes = match ask.gpus {
        GpuSelector::Any => Vec::from([any(capacities, ask, oversubscribe)?]),
        gpus => each(&named(capacities, &gpus)?, ask, oversubscribe)?,
    };
    if let Some(whole) = ask.whole {
        for capacity in named(capacities, &whole)? {
            if lanes.iter().all(|lane| lane.gpu != capacity.uuid) {
                lanes.push(capacity.all()?);
            }
        }
        if lanes.len() > LANES_MAX {
            return Err(Refusal::TooManyGpus);
        }
    }
    Ok(Record {
        container: ask.container,
        name: if ask.name.is_empty() { beginning(ask.container, 12) } else { ask.name },
        weight: ask.weight,
        share: ask.share,
        share_limit: ask.share_limit,
        class: ask.class,
        gang: ask.gang,
        lanes,
        pinned: ask.pinned,
        cgroup: ask.cgroup,
    })
}

/// Checks the number of GPUs against the bounds of the request's source.
fn count(capacities: &[GpuCapacity], ask: &SliceRequest) -> Result<(), Refusal> {
    let Some(Bounds { gpus: most, .. }) = ask.bounds else {
        return Ok(());
    };
    let asked = match ask.gpus {
        GpuSelector::Any => 1,
        gpus => named(capacities, &gpus)?.len(),
    };
    match asked <= most {
        true => Ok(()),
        false => Err(Refusal::BeyondGpus { asked, most }),
    }
}

/// The GPUs that a selector names, in its order.
fn named<'a>(
    capacities: &'a [GpuCapacity],
    gpus: &GpuSelector,
) -> Result<Vec<&'a GpuCapacity>, Refusal> {
    let mut all: Vec<&GpuCapacity> = capacities.iter().collect();
    all.sort_by_key(|capacity| capacity.index);
    match gpus {
        GpuSelector::Any | GpuSelector::All => Ok(all),
        GpuSelector::List(list) => list
            .iter()
            .flatten()
            .map(|&asked| find(capacities, asked).map(|at| &capacities[at]))
            .collect(),
    }
}

/// The GPU with the most unpromised memory that has capacity for the slice.
fn any(
    capacities: &[GpuCapacity],
    ask: &SliceRequest,
    oversubscribe: bool,
) -> Result<LaneRecord, Refusal> {
    let mut order: Vec<&GpuCapacity> = capacities.iter().collect();
    let unpromised =
        |capacity: &GpuCapacity| i128::from(capacity.total.0) - i128::from(capacity.promised.0);
    order.sort_by_key(|capacity| (Reverse(unpromised(capacity)), capacity.index));
    let mut reasons: Vec<Refusal> = Vec::new();
    for capacity in &order {
        match capacity.lane(ask, oversubscribe) {
            Ok(lane) => return Ok(lane),
            Err(why) => reasons.push(why),
        }
    }
    if let ([_, _, ..], Some(only)) = (reasons.as_slice(), only_room(&order, ask, oversubscribe)) {
        return Err(only);
    }
    let promised = reasons.iter().find_map(|why| match *why {
        Refusal::Promised { cap, left, .. } => Some(Refusal::PromisedAll { cap, left }),
        _ => None,
    });
    match (reasons.as_slice(), promised) {
        ([only], _) => Err(*only),
        (_, Some(promised)) => Err(promised),
        // above every GPU: the answer names the largest, which is the most that can be asked for
        (all, None) => {
            let size = |why: &Refusal| match *why {
                Refusal::NoSlices(..) => (0, Bytes::ZERO),
                Refusal::CapAboveGpu { total, .. } => (1, total),
                _ => (2, Bytes::ZERO),
            };
            Err(all.iter().copied().max_by_key(size).unwrap_or(Refusal::NoGpu))
        }
    }
}

/// The refusal that names the first GPU that has room for the slice, and of which none are given.
fn only_room(order: &[&GpuCapacity], ask: &SliceRequest, oversubscribe: bool) -> Option<Refusal> {
    order.iter().find_map(|&&capacity| {
        let why = capacity.no_slices?;
        let with_slices = GpuCapacity { no_slices: None, ..capacity };
        with_slices.lane(ask, oversubscribe).ok()?;
        Some(Refusal::OnlyNoSlices(capacity.index, why))
    })
}

fn each(
    capacities: &[&GpuCapacity],
    ask: &SliceRequest,
    oversubscribe: bool,
) -> Result<Vec<LaneRecord>, Refusal> {
    if capacities.len() > LANES_MAX {
        return Err(Refusal::TooManyGpus);
    }
    let mut lanes: Vec<LaneRecord> = Vec::new();
    for capacity in capacities {
        if lanes.iter().any(|lane| lane.gpu == capacity.uuid) {
            return Err(Refusal::GpuTwice(capacity.index));
        }
        lanes.push(capacity.lane(ask, oversubscribe)?);
    }
    if lanes.is_empty() { Err(Refusal::NoGpu) } else { Ok(lanes) }
}

/// The index of a GPU in `capacities`.
///
/// # Errors
/// [`Refusal`].
pub(crate) fn find(capacities: &[GpuCapacity], asked: GpuRef) -> Result<usize, Refusal> {
    let is = |capacity: &GpuCapacity| match asked {
        GpuRef::Index(index) => capacity.index == index,
        GpuRef::Uuid(uuid) => capacity.uuid == uuid,
    };
    let present = capacities.len();
    capacities.iter().position(is).ok_or(Refusal::NoSuchGpu { asked, present })
}

/// An id's first `bytes` characters; container tools show twelve.
pub(crate) fn beginning(id: ContainerId, bytes: usize) -> Name {
    let id = id.as_str();
    Name::new(id.get(..bytes).unwrap_or(id)).unwrap_or(Name::EMPTY)
}

/// Checks that a slice from before a restart of the daemon still fits the node. Its caps were promised and
/// hold even where admission would not promise them today.
///
/// # Errors
/// [`Refusal`].
pub(crate) fn readmit(capacities: &[GpuCapacity], record: &Record) -> Result<(), Refusal> {
    if record.lanes.is_empty() || record.lanes.len() > LANES_MAX {
        return Err(Refusal::TooManyGpus);
    }
    for (at, lane) in record.lanes.iter().enumerate() {
        let capacity = capacities.iter().find(|capacity| capacity.uuid == lane.gpu);
        let capacity = capacity.ok_or(Refusal::GpuGone(lane.gpu))?;
        if record.lanes[..at].iter().any(|earlier| earlier.gpu == lane.gpu) {
            return Err(Refusal::GpuTwice(capacity.index));
        }
        if lane.cap == Bytes::ZERO {
            return Err(Refusal::CapZero);
        }
        if let Some(why @ NoSlices::Mig) = capacity.no_slices {
            return Err(Refusal::NoSlices(capacity.index, why));
        }
        capacity.take_share(record.share)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Rig, ask, uuid};
    use crate::{Action, Config, Event};
    use gpuslice_wire::admin::Denial;
    use gpuslice_wire::units::GIB;

    #[test]
    fn a_gpu_that_has_no_slices_is_promised_to_no_container() {
        for (why, state, end, restored) in [
            (NoSlices::Mig, "is in MIG mode", "nvidia-smi -i 0 -mig 0", false),
            (NoSlices::Mps, "has an MPS server", "quit | nvidia-cuda-mps-control", true),
            (NoSlices::Exclusive, "an exclusive compute", "nvidia-smi -i 0 -c DEFAULT", true),
            (NoSlices::Xid(79), "is unhealthy: the driver reported Xid 79", "unhealthy_s", true),
            (NoSlices::Ecc, "is unhealthy: it has an uncorrectable", "unhealthy_s", true),
            (NoSlices::Lost, "is unhealthy: the driver does not list it", "nvidia-smi -L", true),
        ] {
            let mut rig = Rig::new(Config::default(), &[16, 8]);
            let record = rig.admit(ask("before", "0", GIB)).expect("fits");
            rig.step(Event::GpuWithoutSlices { uuid: uuid(0), why });
            let client = rig.attach("before", 0).expect("it goes on");
            let granted = rig.reserve(client, GIB / 2, GIB / 2);
            let granted = granted.iter().any(|it| matches!(it, Action::Reserved { .. }));
            assert!(granted, "{why:?}: the slice that is there goes on");
            let whole = SliceRequest { whole: Some(GpuSelector::All), ..ask("a", "1", GIB) };
            for refused in [ask("a", "0", GIB), ask("a", "all", GIB), whole] {
                let said = rig.admit(refused).expect_err("refused").1;
                let all = ["GPU 0", state, end].iter().all(|part| said.contains(part));
                assert!(all, "{said}");
            }
            let lane = rig.admit(ask("a", "any", GIB)).expect("the other one").lanes[0].gpu;
            assert_eq!(lane, uuid(1));
            rig.step(Event::GpuWithSlices { uuid: uuid(0) });
            rig.admit(ask("b", "0", GIB)).expect("it has slices again");
            let mut next = Rig::new(Config::default(), &[16]);
            next.step(Event::GpuWithoutSlices { uuid: uuid(0), why });
            let kept = next.step(Event::Restore(record.into()));
            let has = kept.iter().any(|it| matches!(it, Action::Restored { .. }));
            assert_eq!(has, restored, "{kept:?}");
        }
    }

    /// What a person can do then is not told by the memory that other GPUs have left.
    #[test]
    fn a_refusal_names_the_gpu_that_alone_has_room_and_has_no_slices() {
        let mut rig = Rig::new(Config::default(), &[16, 16, 8]);
        rig.admit(ask("full", "1", 12 * GIB)).expect("fits");
        rig.step(Event::GpuWithoutSlices { uuid: uuid(0), why: NoSlices::Xid(79) });
        let (kind, said) = rig.admit(ask("a", "any", 12 * GIB)).expect_err("refused");
        let begin = "only GPU 0 has room, and is unhealthy: the driver reported Xid 79; end another slice, or wait";
        assert!(kind == Denial::Capacity && said.starts_with(begin), "{said}");
        // Memory is not all that a slice needs room of.
        let part = |ask, share| SliceRequest { share: Percent::new(share).ok(), ..ask };
        for gpu in ["1", "2"] {
            rig.admit(part(ask(gpu, gpu, GIB), 80)).expect("fits");
        }
        let (_, said) = rig.admit(part(ask("a", "any", GIB), 30)).expect_err("refused");
        assert!(said.starts_with("only GPU 0 has room"), "{said}");
        // Where it has none either, more memory is the answer.
        let (kind, said) = rig.admit(ask("a", "any", 20 * GIB)).expect_err("refused");
        assert!(kind == Denial::Memory && said.contains("is above"), "{said}");
        rig.step(Event::GpuWithSlices { uuid: uuid(0) });
        let lane = rig.admit(ask("a", "any", 12 * GIB)).expect("it is healthy again").lanes[0].gpu;
        assert_eq!(lane, uuid(0));
    }

    /// The node bounds a request that comes from an image, on each GPU by that GPU's memory.
    #[test]
    fn a_request_with_bounds_gets_no_more() {
        let mut rig = Rig::new(Config::default(), &[16, 8]);
        let bounded = |gpus: &str, memory: MemoryAsk, bounds: Bounds| SliceRequest {
            memory,
            bounds: Some(bounds),
            ..ask("a", gpus, GIB)
        };
        let (one, two) = (1, 2);
        let within = |gpus, memory| Bounds { gpus, memory };
        let part = |part, whole| MemoryAsk::Ratio { part, whole };
        let gib = |gib| MemoryAsk::Exactly(Bytes(gib * GIB));
        for (ask, why) in [
            (bounded("all", gib(1), within(one, None)), "asks for 2 GPUs, and may for 1"),
            (bounded("0,1", gib(1), within(one, None)), "environment_gpus_max"),
            (
                bounded("1", part(3, 4), within(one, Some(part(1, 2)))),
                "asks for 6GiB of GPU 1, and may for 4GiB",
            ),
            (bounded("any", part(3, 4), within(one, Some(gib(4)))), "environment_memory_max"),
            (bounded("0,1", part(1, 2), within(two, Some(gib(4)))), "asks for 8GiB of GPU 0"),
        ] {
            let refused = rig.admit(ask).expect_err("beyond");
            assert!(refused.1.contains(why), "{refused:?}");
        }
        let most = bounded("all", part(1, 2), within(two, Some(part(1, 2))));
        assert_eq!(rig.admit(most).expect("within").lanes.len(), 2);
    }
}
