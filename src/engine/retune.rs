//! The division of time changes while containers run: a GPU's policy, a slice's weight, hard share and
//! class.
//!
//! Past charges do not change with it: see [`crate::sched`]. A larger hard share is a new promise and
//! follows the rules of admission.

use alloc::vec::Vec;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::NAME_BYTES_MAX;
use gpuslice_wire::policy::{Policy, ShareAsk};
use gpuslice_wire::select::GpuSelector;

use crate::action::{Action, Actions};
use crate::admission::{GpuCapacity, beginning, find};
use crate::engine::Engine;
use crate::event::{TimeChange, Token};
use crate::index::ContainerIndex;
use crate::record::Record;
use crate::refusal::Refusal;

impl Engine {
    pub(crate) fn set_policy(
        &mut self,
        token: Token,
        gpus: GpuSelector,
        policy: Policy,
        actions: &mut Actions,
    ) {
        let chosen: Result<Vec<usize>, Refusal> = match gpus {
            GpuSelector::Any | GpuSelector::All if self.gpus.is_empty() => Err(Refusal::NoGpu),
            GpuSelector::Any | GpuSelector::All => Ok((0..self.gpus.len()).collect()),
            GpuSelector::List(list) => {
                let capacities = self.capacities();
                let named = list.iter().flatten();
                named.map(|&asked| find(&capacities, asked)).collect()
            }
        };
        match chosen {
            Ok(chosen) => {
                let was = chosen.iter().map(|&at| {
                    let gpu = &mut self.gpus[at];
                    let was = (gpu.uuid, gpu.turns.policy());
                    gpu.turns.set_policy(policy);
                    was
                });
                let was = was.collect();
                actions.push(Action::PolicySet { token, policy, was });
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    pub(crate) fn retune(
        &mut self,
        token: Token,
        id: ContainerId,
        change: TimeChange,
        actions: &mut Actions,
    ) {
        match self.retuned(id, change) {
            Ok((index, was)) => {
                let Some(container) = self.containers.get(index) else {
                    return;
                };
                let record = container.record.clone();
                let gpus = container.slices.gpus.iter().enumerate();
                for (lane, gpu) in gpus.filter_map(|(lane, slice)| Some((lane, slice.gpu?))) {
                    self.gpus[gpu].turns.retune(index, record.entitlement(lane));
                }
                actions.push(Action::Retuned { token, record, was });
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    /// Changes the record, if the new share can be promised; returns the change that undoes it.
    fn retuned(
        &mut self,
        id: ContainerId,
        change: TimeChange,
    ) -> Result<(ContainerIndex, TimeChange), Refusal> {
        let name = beginning(id, NAME_BYTES_MAX);
        let index = self.containers.find(id).ok_or(Refusal::NoSlice(name))?;
        let capacities = self.capacities();
        let Some(container) = self.containers.get_mut(index) else {
            return Err(Refusal::NoSlice(name));
        };
        let record = &mut container.record;
        let share = match change.share {
            ShareAsk::Keep => record.share,
            ShareAsk::None => None,
            ShareAsk::Hard(share) => Some(share),
        };
        let old = record.share.map_or(0, |share| share.get());
        for slice in &container.slices.gpus {
            let Some(capacity) = slice.gpu.and_then(|gpu| capacities.get(gpu)) else {
                continue;
            };
            let without = GpuCapacity { shares: capacity.shares.saturating_sub(old), ..*capacity };
            without.take_share(share)?;
        }
        let was = said(record);
        record.share = share;
        record.weight = change.weight.unwrap_or(record.weight);
        record.class = change.class.unwrap_or(record.class);
        Ok((index, was))
    }
}

/// The change that sets a slice to `record`.
fn said(record: &Record) -> TimeChange {
    TimeChange {
        weight: Some(record.weight),
        share: record.share.map_or(ShareAsk::None, ShareAsk::Hard),
        class: Some(record.class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::tests::{Rig, ask, id};
    use crate::{Config, SliceRequest};
    use gpuslice_wire::admin::Denial;
    use gpuslice_wire::policy::Class;
    use gpuslice_wire::snapshot::Snapshot;
    use gpuslice_wire::units::{GIB, Percent, Weight};

    fn wants(container: &str, percent: u32) -> Event {
        Event::Retune {
            token: Token(1),
            container: id(container),
            change: TimeChange {
                weight: Weight::new(9).ok(),
                share: Percent::new(percent).map_or(ShareAsk::None, ShareAsk::Hard),
                class: Some(Class::BestEffort),
            },
        }
    }

    /// Cap, weight and class as an observer sees them.
    fn shown(rig: &Rig, container: &str) -> (u32, u32, Class) {
        match rig.slice(container) {
            Snapshot::Slice { cap_ppm, weight, class, .. } => (cap_ppm, weight.get(), class),
            other => panic!("{other:?}"),
        }
    }

    fn denial(actions: &[Action]) -> Denial {
        match actions {
            [Action::Denied { why, .. }] => why.denial(),
            other => panic!("no refusal but {other:?}"),
        }
    }

    #[test]
    fn shares_stay_promises_and_the_former_values_undo_a_change() {
        let mut rig = Rig::new(Config::default(), &[16]);
        for (name, share) in [("a", 60), ("b", 30)] {
            let share = Percent::new(share).ok();
            let ask = SliceRequest { share, ..ask(name, "0", GIB) };
            rig.admit(ask).expect("fits");
        }
        assert_eq!(denial(&rig.step(wants("b", 41))), Denial::Capacity);
        assert_eq!(denial(&rig.step(wants("c", 1))), Denial::NoSuchSlice);
        assert_eq!(shown(&rig, "b"), (300_000, 1, Class::Normal));
        let done = rig.step(wants("b", 40));
        assert_eq!(shown(&rig, "b"), (400_000, 9, Class::BestEffort));
        let was = done.iter().find_map(|action| match action {
            Action::Retuned { was, record, .. } => {
                assert_eq!(record.share, Percent::new(40).ok());
                Some(*was)
            }
            _ => None,
        });
        let undo = Event::Retune {
            token: Token(2),
            container: id("b"),
            change: was.expect("it was done"),
        };
        rig.step(undo);
        assert_eq!(shown(&rig, "b"), (300_000, 1, Class::Normal));
        rig.step(wants("b", 0));
        assert_eq!(shown(&rig, "b").0, 1_000_000);
    }

    #[test]
    fn a_policy_is_of_the_gpus_that_are_named() {
        let mut rig = Rig::new(Config::default(), &[16, 16]);
        for (name, gpu) in [("a", "0"), ("b", "1")] {
            rig.admit(ask(name, gpu, GIB)).expect("fits");
        }
        let mut set = |gpus: &str, policy| {
            let gpus = GpuSelector::parse(gpus).expect("a selector");
            let done = rig.step(Event::SetPolicy { token: Token(1), gpus, policy });
            let caps = ["a", "b"].map(|name| shown(&rig, name).0);
            (done, caps)
        };
        assert_eq!(set("1", Policy::Fair).1, [1_000_000, 62_500]);
        let (refused, caps) = set("0,7", Policy::Fixed);
        assert_eq!((denial(&refused), caps), (Denial::NoSuchGpu, [1_000_000, 62_500]));
        let (done, caps) = set("all", Policy::Fixed);
        assert_eq!(caps, [62_500, 62_500]);
        let before = |action: &Action| match action {
            Action::PolicySet { was, .. } => Some(was.iter().map(|it| it.1).collect()),
            _ => None,
        };
        let before: Vec<Policy> = done.iter().find_map(before).expect("it was done");
        assert_eq!(before, [Policy::Soft, Policy::Fair]);
    }
}
