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
            let number = |state: &LaneState| u64::from(state.record.weight.get());
            let share =
                |state: &LaneState| state.record.share.map_or(0, |share| u64::from(share.get()));
            // the containers without a share divide the rest that shares leave
            let shares: u64 = self.on(gpu).map(|(_, state)| share(state)).sum();
            let rest = 100u64.saturating_sub(shares).max(1);
            let others = self.on(gpu).filter(|(_, state)| share(state) == 0);
            let weights: Vec<u64> = others.map(|(_, state)| number(state)).collect();
            let (count, all) = (weights.len() as u64, weights.iter().sum::<u64>());
            let slots = u64::from(self.config.slots);
            for state in self.lanes.values_mut().filter(|state| state.gpu == gpu) {
                let (mine, share) = (number(state), share(state));
                let cap = match policy {
                    Policy::Native => (1, 1),
                    _ if share > 0 => (share, 100),
                    Policy::Soft => (1, 1),
                    Policy::Fixed => (mine, slots),
                    Policy::Fair => (1, slots),
                    Policy::Preemptive => (rest, 100 * count),
                    Policy::Weighted => (mine * rest, 100 * all),
                };
                state.cap = if cap.0 < cap.1 { cap } else { (1, 1) };
                let weight = match policy {
                    Policy::Fair | Policy::Preemptive => 1,
                    Policy::Weighted | Policy::Fixed | Policy::Soft | Policy::Native => mine,
                };
                state.native = policy == Policy::Native;
                let share = if state.native { 0 } else { share };
                let weight = if share > 0 { share } else { weight };
                state.tuned += u64::from((state.weight, state.share) != (weight, share));
                (state.weight, state.share) = (weight, share);
            }
        }
    }
}
