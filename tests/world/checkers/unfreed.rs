//! What may be charged for ended processes, at most. The world knows what devices hold, and compares it with the caps;
//! so here only the upper bound counts:
//! * for 5 s, and no more than the processes had;
//! * no more than two looks show beside the driver's own memory and living processes, and what the container's living
//!   processes claim to have that NVML does not show. A figure may be older than an end. The remaining bytes count as
//!   those of the processes that ended last, since these stay charged for the longest time;
//! * what ended containers left is charged to one that came later, as far as it does not fit beside all promises and
//!   up to the cap of that one.

use std::collections::BTreeMap;

use gpuslice_engine::{FIGURE_AGE, FREED_WITHIN};
use gpuslice_wire::ids::GpuUuid;

use crate::observer::LaneKey;

/// When processes ended, and what they were charged, in order of time.
#[derive(Clone, Debug, Default)]
struct Ends(Vec<(u64, u128)>);

impl Ends {
    fn sum(&self) -> u128 {
        self.0.iter().map(|(_, charged)| charged).sum()
    }

    fn add(&mut self, other: Ends) {
        self.0.extend(other.0);
        self.0.sort_unstable();
    }

    /// Of those until `end`, no more than `most` is left.
    fn shrink(&mut self, end: u64, most: u128) {
        let mut most = most;
        for (_, charged) in self.0.iter_mut().rev().filter(|(ended, _)| *ended <= end) {
            *charged = most.min(*charged);
            most -= *charged;
        }
        self.0.retain(|(_, charged)| *charged > 0);
    }
}

/// What is known of a device.
#[derive(Clone, Debug, Default)]
struct Device {
    /// What ended containers left.
    left: Ends,
    /// When the last look was asked for, and what it showed.
    last: Option<(u64, u64)>,
    /// The least that a look has shown, and the looks at which nothing else was there than the driver's own.
    least: Option<u64>,
    quiet: u32,
    /// Until then there may be memory of ended processes that none was charged for.
    unknown_until: u64,
}

impl Device {
    /// The driver's own memory, at least: known from two looks.
    fn own(&self) -> u64 {
        self.least.filter(|_| self.quiet >= 2).unwrap_or(0)
    }
}

/// Charges of ended processes, by account, and by GPU for ended containers.
#[derive(Debug, Default)]
pub struct Unfreed {
    accounts: BTreeMap<LaneKey, Ends>,
    gpus: BTreeMap<GpuUuid, Device>,
}

impl Unfreed {
    /// A process that was charged so much has ended.
    pub fn ended(&mut self, key: LaneKey, now: u64, charged: u128) {
        self.accounts.entry(key).or_default().0.push((now, charged));
    }

    /// There may be memory on a GPU that was charged to none.
    pub fn unknown(&mut self, gpu: GpuUuid, now: u64) {
        self.gpus.entry(gpu).or_default().unknown_until = now + FREED_WITHIN.0;
    }

    /// Time has passed: none is charged for longer than the bound.
    pub fn ticked(&mut self, now: u64) {
        let left = self.gpus.values_mut().map(|it| &mut it.left);
        for ends in self.accounts.values_mut().chain(left) {
            ends.0.retain(|(ended, _)| now < ended + FREED_WITHIN.0);
        }
    }

    /// A look shows at least and at most so much in use beside living processes, at `now`. The accounts of the GPU come
    /// with what their processes claim and NVML does not show.
    pub fn looked(
        &mut self,
        gpu: GpuUuid,
        (now, asked): (u64, u64),
        [least, most]: [u64; 2],
        accounts: &[(LaneKey, u128)],
    ) {
        let device = self.gpus.entry(gpu).or_default();
        device.least = Some(device.least.map_or(least, |before| before.min(least)));
        let charged = accounts.iter().filter_map(|(key, _)| self.accounts.get(key));
        let charged = charged.map(Ends::sum).sum::<u128>() + device.left.sum();
        device.quiet += u32::from(charged == 0 && now >= device.unknown_until);
        let Some((earlier, before)) = device.last.replace((asked, most)) else {
            return;
        };
        let shown = u128::from(most.max(before).saturating_sub(device.own()));
        let end = earlier.saturating_sub(FIGURE_AGE.0);
        device.left.shrink(end, shown);
        for (key, unseen) in accounts {
            let ends = self.accounts.get_mut(key);
            ends.into_iter().for_each(|it| it.shrink(end, shown + unseen));
        }
    }

    /// An account of a container ends.
    pub fn leaves(&mut self, key: &LaneKey, gpu: GpuUuid) {
        let ends = self.accounts.remove(key).unwrap_or_default();
        self.gpus.entry(gpu).or_default().left.add(ends);
    }

    /// An account was promised more, and so much is not promised to any: what ended containers left beyond that may be
    /// charged to it, up to `most`, and is charged up to `least`, which it has left of its cap.
    pub fn inherits(
        &mut self,
        key: LaneKey,
        gpu: GpuUuid,
        (room, [least, most]): (u128, [u128; 2]),
    ) {
        let Some(device) = self.gpus.get_mut(&gpu) else {
            return;
        };
        let mut charged = device.left.clone();
        let beyond = device.left.sum().saturating_sub(room);
        charged.shrink(u64::MAX, beyond.min(most));
        device.left.shrink(u64::MAX, device.left.sum() - beyond.min(least));
        self.accounts.entry(key).or_default().add(charged);
    }

    /// The most that ended containers have left on a GPU.
    #[must_use]
    pub fn left(&self, gpu: GpuUuid) -> u128 {
        self.gpus.get(&gpu).map_or(0, |device| device.left.sum())
    }

    /// The most that an account is charged.
    #[must_use]
    pub fn most(&self, key: &LaneKey) -> u128 {
        self.accounts.get(key).map_or(0, Ends::sum)
    }
}
