//! Memory of ended processes: from above by the ledger here, from below by what the world's devices hold.

use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::limits::CONTEXT_BYTES_MAX;
use gpuslice_wire::units::Bytes;

use super::{Ledger, Share};
use crate::observer::{LaneKey, Observer};

impl Share {
    /// The most that its process may have had without a charge: what NVML has shown once, or a first context that the
    /// process claims and that no figure has shown whole.
    fn uncharged(&self) -> u128 {
        let shown = u128::from(self.granted) + u128::from(self.own);
        let begins = self.claims.contexts > 0 && self.claims.held == Bytes::ZERO;
        let context = if begins { CONTEXT_BYTES_MAX } else { 0 };
        shown.max(context.into()).saturating_sub(self.charged())
    }
}

impl Ledger {
    /// A process has ended: what it was charged may stay charged.
    pub(super) fn ends(&mut self, client: ClientId) {
        if let Some(home) = self.home(client).filter(|_| self.sees_devices) {
            let lanes = self.shares.range((client, Lane(0))..(client, Lane::HOST));
            let lanes: Vec<Lane> = lanes.map(|((_, lane), _)| *lane).collect();
            for lane in lanes {
                self.unfreed.ended((home, lane), self.now, self.left_by(client, lane));
            }
            let gpus = self.gpus_of(home);
            gpus.into_iter().for_each(|(_, gpu)| self.unfreed.unknown(gpu, self.now));
        }
        self.part(client);
    }

    /// The most that a process leaves when it ends: its charges, and what it had without a charge where that fits.
    #[must_use]
    pub fn left_by(&self, client: ClientId, lane: Lane) -> u128 {
        let home = self.home(client);
        let Some((home, share)) = home.zip(self.shares.get(&(client, lane))) else {
            return 0;
        };
        let limit = self.accounts.get(&(home, lane)).map_or(0, |it| u128::from(it.limit));
        let left = limit.saturating_sub(self.reserved(home, lane));
        share.charged().max(share.kept) + share.uncharged().min(left)
    }

    /// What living processes of a container claim to have that NVML does not show.
    #[must_use]
    pub fn unseen(&self, key: &LaneKey) -> u128 {
        let shares = self.of_key(key.0, key.1);
        shares.map(|(_, it)| u128::from(it.claims.unseen.0).min(it.charged())).sum()
    }

    /// The memory in use on a GPU beside living processes, as it was asked for at `asked`.
    pub(super) fn device_looked(&mut self, gpu: GpuUuid, asked: u64, beside: [u64; 2]) {
        let keys = self.on(gpu).map(|(key, _)| (*key, self.unseen(key)));
        let keys: Vec<(LaneKey, u128)> = keys.collect();
        self.unfreed.looked(gpu, (self.now, asked), beside, &keys);
    }

    /// The most that ended processes are charged on an account.
    #[must_use]
    pub fn unfreed(&self, key: &LaneKey) -> u128 {
        self.unfreed.most(key)
    }

    /// Whether `shown` is what counts on an account, with or without what ended processes may be charged.
    #[must_use]
    pub fn counts(&self, key: &LaneKey, shown: u64, reserved: u128) -> bool {
        let most = u64::try_from(reserved + self.unfreed(key)).unwrap_or(u64::MAX);
        // a false claim may be larger than a page can show
        (u64::try_from(reserved).unwrap_or(u64::MAX)..=most).contains(&shown)
    }

    /// The GPUs of a container's accounts.
    pub(super) fn gpus_of(&self, id: ContainerId) -> Vec<(LaneKey, GpuUuid)> {
        let its = self.accounts.iter().filter(|((of, _), _)| *of == id);
        its.filter_map(|(key, account)| Some((*key, account.gpu?))).collect()
    }

    /// A container ends.
    pub(super) fn leaves(&mut self, id: &ContainerId) {
        let all = self.gpus_of(*id);
        all.into_iter().for_each(|(key, gpu)| self.unfreed.leaves(&key, gpu));
    }

    /// An account was promised more: it may be charged for what ended containers left, as far as that does not fit
    /// beside all promises, and fits within its own. Where more may be promised than there is, no memory is kept for
    /// any.
    pub(super) fn inherits(&mut self, seen: &Observer, key: LaneKey) {
        let its = self.accounts.get(&key).and_then(|it| Some((it.gpu?, u128::from(it.cap))));
        if let Some((gpu, cap)) = its.filter(|_| !seen.config.oversubscribe) {
            let total = self.totals.get(&gpu).map_or(0, |total| u128::from(*total));
            let promised: u128 = self.on(gpu).map(|(_, it)| u128::from(it.cap)).sum();
            let reserved = self.reserved(key.0, key.1);
            let least = cap.saturating_sub(reserved + self.unfreed(&key));
            let most = cap.saturating_sub(reserved);
            self.unfreed.inherits(key, gpu, (total.saturating_sub(promised), [least, most]));
        }
    }

    /// A container is restored: it is not known what ended on its GPUs just before.
    pub(super) fn is_restored(&mut self, id: ContainerId) {
        let gpus = self.gpus_of(id);
        gpus.into_iter().for_each(|(_, gpu)| self.unfreed.unknown(gpu, self.now));
    }
}
