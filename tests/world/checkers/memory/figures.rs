//! NVML's figures: of one process, and of all processes of a container.

use gpuslice_wire::ids::{ClientId, Lane};

use super::Ledger;
use crate::observer::LaneKey;

impl Ledger {
    /// NVML shows `used` of a process, which has asked itself or is one of a sample.
    pub(super) fn measured(
        &mut self,
        (client, lane): (ClientId, Lane),
        used: u64,
        requested: bool,
    ) {
        let Some(home) = self.home(client) else {
            return;
        };
        let share = self.shares.entry((client, lane)).or_default();
        let awaited = requested && self.owed.is_owed(client, lane);
        if requested && used > 0 {
            self.owed.tells((client, home), lane, share.claims.held.0);
        }
        let all = used.saturating_add(share.unseen());
        let asked_for = share.most[0].max(share.most[1]).max(share.granted);
        share.most = [share.granted, share.most[0]];
        share.own = all.saturating_sub(asked_for);
        share.seen = used;
        let least = if requested { share.beyond.counts } else { 0 };
        match awaited {
            true => share.beyond.assume(share.own.max(least)),
            false => share.beyond.look(self.now, share.own.max(least)),
        }
        share.answered = (requested && !awaited).then_some(all);
        self.hide_of(client, lane);
    }

    /// The driver is asked for all processes of a container: earlier grants explain nothing.
    pub(super) fn looking(&mut self, key: LaneKey) {
        let granted: u128 = self.granted(key.0, key.1).map(|(_, it)| u128::from(it)).sum();
        let account = self.accounts.get_mut(&key);
        account.into_iter().for_each(|it| it.most = granted.min(u128::from(it.limit)));
    }

    /// One query measured all processes of a container.
    pub(super) fn looked(&mut self, key: LaneKey) {
        let now = self.now;
        let (mut all, mut own, mut granted) = (0u128, 0u128, 0u128);
        for (_, share) in self.of_key(key.0, key.1) {
            all += u128::from(share.seen.saturating_add(share.unseen()));
            own += u128::from(share.own);
            granted += u128::from(share.granted);
        }
        let Some(account) = self.accounts.get_mut(&key) else {
            return;
        };
        let most = granted.max(account.most);
        let beyond = own.max(all.saturating_sub(most));
        account.most = granted.min(u128::from(account.limit));
        let beyond = u64::try_from(beyond).unwrap_or(u64::MAX);
        account.beyond.look(now, beyond);
        self.hide(key);
    }

    /// Whether growth of an account may wait for a figure that NVML owes.
    #[must_use]
    pub fn awaits_figure(&self, key: &LaneKey) -> bool {
        self.owed.awaited(key.1).any(|client| self.home(client) == Some(key.0))
    }
}
