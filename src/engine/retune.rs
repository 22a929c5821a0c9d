//! The division of time changes while containers run: a GPU's policy, a slice's weight, share, limit and
//! class.
//!
//! Past charges do not change with it: see [`crate::sched`]. A larger share is a new promise and follows
//! the rules of admission. A limit may be set below what its container uses now: it counts from the next
//! turn on.

use alloc::vec::Vec;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::NAME_BYTES_MAX;
use gpuslice_wire::policy::{Change, Policy};
use gpuslice_wire::select::GpuSelector;

use crate::action::{Action, Actions};
use crate::admission::{GpuCapacity, beginning, find, limit_share};
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
        (change, undoes): (TimeChange, bool),
        actions: &mut Actions,
    ) {
        match self.retuned(id, change, undoes) {
            Ok((index, was)) => {
                let Some(container) = self.containers.get(index) else {
                    return;
                };
                let record = container.record.clone();
                let gpus = container.slices.gpus.iter().enumerate();
                for (lane, gpu) in gpus.filter_map(|(lane, slice)| Some((lane, slice.gpu?))) {
                    self.gpus[gpu].turns.retune(index, record.entitlement(lane));
                }
                actions.push(Action::Retuned { token, record: record.into(), was });
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    /// Changes the record, if that is allowed; returns the change that undoes it. What undoes a change was
    /// allowed before.
    fn retuned(
        &mut self,
        id: ContainerId,
        change: TimeChange,
        undoes: bool,
    ) -> Result<(ContainerIndex, TimeChange), Refusal> {
        let name = beginning(id, NAME_BYTES_MAX);
        let index = self.containers.find(id).ok_or(Refusal::NoSlice(name))?;
        if !undoes {
            self.may_retune(index, change)?;
        }
        let Some(container) = self.containers.get_mut(index) else {
            return Err(Refusal::NoSlice(name));
        };
        let record = &mut container.record;
        let was = said(record);
        record.weight = change.weight.of(record.weight);
        record.share = change.share.of(record.share);
        record.share_limit = change.share_limit.of(record.share_limit);
        record.class = change.class.unwrap_or(record.class);
        Ok((index, was))
    }

    /// Checks that a new share can be promised, and that share and limit fit each other and the policies.
    fn may_retune(&self, index: ContainerIndex, change: TimeChange) -> Result<(), Refusal> {
        let Some(container) = self.containers.get(index) else {
            return Ok(());
        };
        let record = &container.record;
        let share = change.share.of(record.share);
        limit_share(share, change.share_limit.of(record.share_limit))?;
        let old = record.share.map_or(0, |share| share.get());
        let capacities = self.capacities();
        for (slice, lane) in container.slices.gpus.iter().zip(&record.lanes) {
            let Some(gpu) = slice.gpu else { continue };
            let capacity = capacities[gpu];
            let without = GpuCapacity { shares: capacity.shares.saturating_sub(old), ..capacity };
            without.take_share(share)?;
            let fixed = self.gpus[gpu].turns.policy() == Policy::Fixed && !lane.whole;
            let (gpu, removed) = (capacity.index, change.share_limit == Change::None);
            if let Some(share) = share.filter(|_| fixed && removed) {
                return Err(Refusal::LimitFixed { gpu, share });
            }
        }
        Ok(())
    }
}

/// The change that sets a slice to `record`.
fn said(record: &Record) -> TimeChange {
    TimeChange {
        weight: Change::to(record.weight),
        share: Change::to(record.share),
        share_limit: Change::to(record.share_limit),
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
                weight: Change::to(Weight::new(9).ok()),
                share: Change::to(Percent::new(percent).ok()),
                share_limit: Change::to(Percent::new(percent).ok()),
                class: Some(Class::BestEffort),
            },
            undoes: false,
        }
    }

    /// Cap, weight and class as an observer sees them.
    fn shown(rig: &Rig, container: &str) -> (u32, u32, Class) {
        match rig.slice(container) {
            Snapshot::Slice { cap_ppm, weight, class, .. } => {
                (cap_ppm, weight.map_or(0, Weight::get), class)
            }
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
            let ask = SliceRequest { share, share_limit: share, ..ask(name, "0", GIB) };
            rig.admit(ask).expect("fits");
        }
        assert_eq!(denial(&rig.step(wants("b", 41))), Denial::Capacity);
        assert_eq!(denial(&rig.step(wants("c", 1))), Denial::NoSuchSlice);
        assert_eq!(shown(&rig, "b"), (300_000, 0, Class::Normal));
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
            undoes: true,
        };
        rig.step(undo);
        assert_eq!(shown(&rig, "b"), (300_000, 0, Class::Normal));
        rig.step(wants("b", 0));
        assert_eq!(shown(&rig, "b").0, 1_000_000);
    }

    #[test]
    fn a_limit_is_never_below_the_share() {
        let percent = |percent| Change::to(Percent::new(percent).ok());
        let change = |share, share_limit| Event::Retune {
            token: Token(1),
            container: id("a"),
            change: TimeChange { weight: Change::Keep, share, share_limit, class: None },
            undoes: false,
        };
        let mut rig = Rig::new(Config { policy: Policy::Soft, ..Config::default() }, &[16]);
        let limited = SliceRequest {
            share: Percent::new(25).ok(),
            share_limit: Percent::new(20).ok(),
            ..ask("a", "0", GIB)
        };
        let (why, text) = rig.admit(limited).expect_err("below the share");
        assert_eq!(why, Denial::Invalid);
        assert_eq!(
            text,
            "limit 20 % is below the share 25 %; ask for a limit of at least 25 %, or for a share of \
             at most 20 %"
        );
        let fits = SliceRequest { share_limit: Percent::new(50).ok(), ..limited };
        rig.admit(fits).expect("above the share");
        assert_eq!(shown(&rig, "a").0, 500_000);
        let refused =
            [(Change::Keep, percent(24)), (percent(51), Change::Keep), (percent(90), percent(80))];
        for (share, limit) in refused {
            assert_eq!(
                denial(&rig.step(change(share, limit))),
                Denial::Invalid,
                "{share:?} {limit:?}"
            );
            assert_eq!(shown(&rig, "a").0, 500_000);
        }
        let allowed = [
            (Change::Keep, percent(25), 250_000),
            (percent(90), percent(95), 950_000),
            (Change::None, Change::Keep, 950_000),
            (percent(10), Change::None, 1_000_000),
        ];
        for (share, limit, ppm) in allowed {
            rig.step(change(share, limit));
            assert_eq!(shown(&rig, "a").0, ppm, "{share:?} {limit:?}");
        }
    }

    /// Under `fixed` a share is the limit where none is set; to remove one would not lift it.
    #[test]
    fn no_limit_is_removed_under_fixed() {
        let mut rig = Rig::new(Config { policy: Policy::Fixed, ..Config::default() }, &[16]);
        let share = Percent::new(25).ok();
        rig.admit(SliceRequest { share, ..ask("a", "0", GIB) }).expect("fits");
        assert_eq!(shown(&rig, "a").0, 250_000);
        let mut limit = |share_limit, undoes| {
            let change =
                TimeChange { weight: Change::Keep, share: Change::Keep, share_limit, class: None };
            let token = Token(1);
            let done = rig.step(Event::Retune { token, container: id("a"), change, undoes });
            (done, shown(&rig, "a").0)
        };
        assert_eq!(limit(Change::to(Percent::new(60).ok()), false).1, 600_000);
        let (refused, cap) = limit(Change::None, false);
        assert_eq!((denial(&refused), cap), (Denial::Invalid, 600_000));
        assert_eq!(limit(Change::None, true).1, 250_000, "an undone change");
    }

    #[test]
    fn a_policy_is_of_the_gpus_that_are_named() {
        let mut rig = Rig::new(Config::default(), &[16, 16]);
        for (name, gpu) in [("a", "0"), ("b", "1")] {
            rig.admit(ask(name, gpu, GIB)).expect("fits");
        }
        let mut set = |gpus: &str, policy| {
            let gpus = GpuSelector::parse(gpus).expect("a selector");
            let done = rig.step(Event::SetPolicy { token: Token(1), gpus: gpus.into(), policy });
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
