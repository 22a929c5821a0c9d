//! What an earlier daemon had charged beyond grants counts again at once, and the first look may lower it.

use gpuslice_engine::Untracked;
use gpuslice_wire::ids::{ContainerId, Lane};

use super::Ledger;
use crate::checkers::looks::Seen;

impl Ledger {
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
