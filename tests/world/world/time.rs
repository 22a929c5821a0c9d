//! GPU time in the world: policies and entitlements change while containers run.

use gpuslice_engine::{Event, TimeChange, Token};
use gpuslice_wire::ids::{ContainerId, GpuUuid, NvmlIndex};
use gpuslice_wire::policy::{Change, Class, Policy};
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::units::{Percent, Weight};

use super::fate::CLASSES;
use super::{Letter, World};

/// A change of a slice's part of the GPU time, as numbers: 0 keeps, one above the bound removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wish {
    weight: u32,
    share: u32,
    limit: u32,
    class: Option<Class>,
}

impl Wish {
    pub(super) fn event(self, container: ContainerId) -> Event {
        let percent = |number: u32| match number {
            0 => Change::Keep,
            number => Change::to(Percent::new(number).ok()),
        };
        let weight = match self.weight {
            0 => Change::Keep,
            weight => Change::to(Weight::new(weight).ok()),
        };
        let change = TimeChange {
            weight,
            share: percent(self.share),
            share_limit: percent(self.limit),
            class: self.class,
        };
        Event::Retune { token: Token(0), container, change, undoes: false }
    }
}

/// GPUs by index, or all.
pub(super) fn policy(gpu: Option<u32>, number: u8) -> Event {
    let gpus = gpu.map_or(GpuSelector::All, |gpu| one(GpuRef::Index(NvmlIndex(gpu))));
    let policy = Policy::of(number).unwrap_or_default();
    Event::SetPolicy { token: Token(0), gpus: gpus.into(), policy }
}

/// A policy restored from disk.
pub(super) fn kept(gpu: GpuUuid, policy: Policy) -> Event {
    Event::SetPolicy { token: Token(0), gpus: one(GpuRef::Uuid(gpu)).into(), policy }
}

fn one(gpu: GpuRef) -> GpuSelector {
    let mut list = [None; 16];
    list[0] = Some(gpu);
    GpuSelector::List(list)
}

impl World {
    /// The administrator changes a GPU's policy, to the default as often as to all others.
    pub(super) fn change_policy(&mut self) {
        let number = if self.rng.per_mille(500) {
            Policy::Soft.number()
        } else {
            self.rng.below(Policy::ALL.len() as u64) as u8
        };
        let gpu = self.rng.per_mille(800).then(|| self.rng.below(4) as u32);
        self.deliver(Letter::Policy(gpu, number));
    }

    /// The administrator changes a slice's part of time.
    pub(super) fn retune(&mut self, container: ContainerId) {
        let weight = match self.rng.per_mille(500) {
            true => self.rng.magnitude(1, 1001) as u32,
            false => 0,
        };
        let mut percent = || match self.rng.below(4) {
            0 => self.rng.range(1, 100) as u32,
            1 => 101,
            _ => 0,
        };
        let (share, limit) = (percent(), percent());
        let class = self.rng.per_mille(400).then(|| self.rng.pick(&CLASSES));
        let wish = Wish { weight, share, limit, class };
        self.deliver(Letter::Retune(container, wish));
    }
}
