//! What an earlier daemon had charged beyond grants counts again at once, and the first look may lower it.

use gpuslice_engine::Untracked;
use gpuslice_wire::ids::{ContainerId, Lane};

use super::{Account, Ledger};
use crate::checkers::looks::Seen;

impl Ledger {
    /// Whether this is what a container is charged beyond grants, for each of its GPUs.
    #[must_use]
    pub fn is_untracked(&self, container: ContainerId, untracked: &[Untracked]) -> bool {
        let mut lanes = (0..).map(Lane).zip(untracked);
        lanes.all(|(lane, it)| {
            let granted: u128 = self.granted(container, lane).map(|(_, it)| u128::from(it)).sum();
            let beyond = self.reserved(container, lane).saturating_sub(granted);
            let beyond = u64::try_from(beyond).unwrap_or(u64::MAX);
            let strangers = self.accounts.get(&(container, lane)).map_or(0, Account::strangers);
            (it.attached.0, it.unattributed.0) == (beyond.saturating_sub(strangers), strangers)
        })
    }

    pub(super) fn untracked_again(&mut self, container: ContainerId, untracked: &[Untracked]) {
        if !self.sees_devices {
            return;
        }
        for (lane, was) in (0..).map(Lane).zip(untracked) {
            let key = (container, lane);
            if let Some(account) = self.accounts.get_mut(&key) {
                account.beyond = Seen::of(was.attached.0);
                account.unattributed = Seen::of(was.unattributed.0);
                self.hide(key);
            }
        }
    }
}
