//! Each container's cap, weight and share under the policies, by a table of the observer's own.

use std::collections::BTreeMap;

use gpuslice_engine::Record;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::Policy;

use super::{LaneKey, LaneState, Observer};

impl Observer {
    /// Replaces the promise of one container.
    pub(super) fn retune(&mut self, record: &Record) {
        let queue = |state: &LaneState| (state.record.class, state.share > 0);
        let its = |(id, _): &LaneKey| *id == record.container;
        let lanes = self.lanes.iter().filter(|(key, _)| its(key));
        let was: BTreeMap<LaneKey, _> = lanes.map(|(key, state)| (*key, queue(state))).collect();
        for key in was.keys() {
            if let Some(state) = self.lanes.get_mut(key) {
                state.tuned += u64::from(state.record.class != record.class);
                state.record = record.clone();
            }
        }
        self.tune();
        for (key, was) in was {
            if let Some(state) = self.lanes.get_mut(&key) {
                state.guest |= !state.open() && state.pays() && was != queue(state);
            }
        }
    }

    /// Recomputes all of them.
    pub(super) fn tune(&mut self) {
        let gpus: Vec<GpuUuid> = self.lanes.values().map(|state| state.gpu).collect();
        for gpu in gpus {
            let policy = self.policies.get(&gpu).copied();
            let policy = policy.unwrap_or(self.config.policy);
            let share =
                |state: &LaneState| state.record.share.map_or(0, |share| u64::from(share.get()));
            let number = |state: &LaneState| {
                let alone = u64::from(share(state) == 0);
                state.record.weight.map_or(alone, |weight| u64::from(weight.get()))
            };
            // weights divide the rest that shares leave
            let shares: u64 = self.on(gpu).map(|(_, state)| share(state)).sum();
            let rest = 100u64.saturating_sub(shares).max(1);
            let weights: Vec<u64> = self.on(gpu).map(|(_, state)| number(state)).collect();
            let (count, all) = (
                weights.iter().filter(|weight| **weight > 0).count() as u64,
                weights.iter().sum::<u64>(),
            );
            let slots = u64::from(self.config.slots);
            for state in self.lanes.values_mut().filter(|state| state.gpu == gpu) {
                let (mine, share) = (number(state), share(state));
                let one = mine.min(1);
                let limit = state.record.share_limit.map(|limit| (u64::from(limit.get()), 100));
                let cap = match policy {
                    Policy::Native | Policy::Soft => (1, 1),
                    Policy::Fixed if share > 0 => limit.unwrap_or((share, 100)),
                    Policy::Fixed => (mine, slots),
                    Policy::Fair => (share * slots + one * 100, 100 * slots),
                    Policy::Preemptive | Policy::Weighted if all == 0 => (share, shares),
                    Policy::Preemptive => (share * count + one * rest, 100 * count),
                    Policy::Weighted => (share * all + mine * rest, 100 * all),
                };
                let lower = limit.filter(|limit| limit.0 * cap.1 < cap.0 * limit.1);
                let cap = lower.filter(|_| policy != Policy::Native).unwrap_or(cap);
                state.cap = if cap.0 < cap.1 { cap } else { (1, 1) };
                state.native = policy == Policy::Native;
                let share = if state.native { 0 } else { share };
                let least = if share > 0 { 0 } else { 1 };
                let surplus = match policy {
                    Policy::Fair | Policy::Preemptive => one.max(least),
                    _ => mine.max(least),
                };
                let weight = if share > 0 { share } else { surplus };
                let (was, is) =
                    ((state.weight, state.share, state.surplus), (weight, share, surplus));
                state.tuned += u64::from(was != is);
                (state.weight, state.share, state.surplus) = is;
            }
        }
    }
}
