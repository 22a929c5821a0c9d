//! What may be charged for ended processes, at most: the engine decides from looks at devices how much of it is.
//! The world knows what devices hold, and compares it with the caps; so here only the upper bound counts.

use std::collections::BTreeMap;

use gpuslice_engine::FREED_WITHIN;
use gpuslice_wire::ids::{ContainerId, GpuUuid};

use crate::observer::LaneKey;

/// When processes ended, and what they were charged.
type Ends = Vec<(u64, u128)>;

/// Charges of ended processes, by account, and by GPU for ended containers.
#[derive(Debug, Default)]
pub struct Unfreed {
    accounts: BTreeMap<LaneKey, Ends>,
    gpus: BTreeMap<GpuUuid, Ends>,
}

impl Unfreed {
    /// A process that was charged so much has ended.
    pub fn ended(&mut self, key: LaneKey, now: u64, charged: u128) {
        self.accounts.entry(key).or_default().push((now, charged));
    }

    /// Time has passed: none is charged for longer than the bound.
    pub fn ticked(&mut self, now: u64) {
        for ends in self.accounts.values_mut().chain(self.gpus.values_mut()) {
            ends.retain(|(ended, _)| now < ended + FREED_WITHIN.0);
        }
    }

    /// An account of a container ends.
    pub fn leaves(&mut self, key: &LaneKey, gpu: GpuUuid) {
        let ends = self.accounts.remove(key);
        self.gpus.entry(gpu).or_default().extend(ends.into_iter().flatten());
    }

    /// An account was promised more, and may be charged for what ended containers left.
    pub fn inherits(&mut self, key: LaneKey, gpu: GpuUuid) {
        let left = self.gpus.get(&gpu).cloned().unwrap_or_default();
        self.accounts.entry(key).or_default().extend(left);
    }

    /// The most that an account is charged.
    #[must_use]
    pub fn most(&self, key: &LaneKey) -> u128 {
        self.accounts.get(key).into_iter().flatten().map(|(_, charged)| charged).sum()
    }

    /// Forgets accounts of a container.
    pub fn forget(&mut self, container: &ContainerId) {
        self.accounts.retain(|(id, _), _| id != container);
    }
}
