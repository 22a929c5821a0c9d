//! Refused requests where memory is lent.

use gpuslice_engine::Reclaim;

use super::*;

/// A container whose memory the driver did not move is left alone for this long, ns.
const MOVE_AGAIN: u64 = 60_000_000_000;

impl Loans {
    /// A request was refused.
    pub(super) fn refused(
        &mut self,
        seen: &Observer,
        (ledger, requests): (&Ledger, &Requests),
        (client, lane): (ClientId, Lane),
        overdue: bool,
    ) -> Result<(), Objection> {
        let Some(home) = ledger.home(client) else {
            return Ok(());
        };
        let key = (home, lane);
        let mut heads = requests.heads();
        let asked = heads.find(|(of, who, ..)| **of == key && *who == client);
        let account = ledger.account(&key).filter(|_| ledger.lends(&key));
        let Some(((_, _, asked, made), account)) = asked.zip(account) else {
            return Ok(());
        };
        let need = ledger.lacks(&key, client, asked);
        let promised = ledger.reserved(home, lane) + u128::from(need) <= u128::from(account.cap);
        if promised != overdue {
            return Err(format!(
                "{home} was refused {need} bytes, within its cap {promised}, overdue {overdue}"
            ));
        }
        let Some(gpu) = account.gpu.filter(|_| overdue) else {
            return Ok(());
        };
        self.meets("overdue");
        let since = self.asked.get(&(key, client, made, asked)).copied().unwrap_or(seen.now);
        let grace = since + seen.config.reclaim_grace.0;
        if seen.now < grace {
            return Err(format!("{home} was refused {} ns before the grace", grace - seen.now));
        }
        if seen.now >= grace + RECLAIM_MOVE_MAX.0 {
            return Ok(());
        }
        if let Some(id) = self.moving(seen, ledger, gpu).find(|id| self.was_moving(seen, id)) {
            return Err(format!("{home} was refused while {id} moves"));
        }
        if self.left(gpu).0 > 0 {
            return Err(format!("{home} was refused what an ended container has left"));
        }
        match self.movable(seen, ledger, (gpu, home)) {
            Some(id) if seen.config.reclaim == Reclaim::Suspend => {
                Err(format!("{home} was refused, and {id} is not suspended"))
            }
            _ => Ok(()),
        }
    }

    /// Whether it moved before this step: one may begin to return because of the refusal.
    fn was_moving(&self, seen: &Observer, id: &ContainerId) -> bool {
        let returns = seen.suspended.get(id) == Some(&SuspensionState::Resuming);
        !returns || self.before.get(id) == Some(&SuspensionState::Resuming)
    }

    /// The containers whose memory leaves a GPU, or returns to it.
    pub(super) fn moving<'a>(
        &'a self,
        seen: &'a Observer,
        ledger: &'a Ledger,
        gpu: GpuUuid,
    ) -> impl Iterator<Item = ContainerId> + 'a {
        let all = ledger.on(gpu).map(|(key, _)| *key);
        let moving = all.filter(move |key| match seen.suspended.get(&key.0) {
            Some(SuspensionState::Suspending) => ledger.kept(key.0, key.1) > 0,
            Some(SuspensionState::Resuming) => true,
            _ => false,
        });
        moving.map(|key| key.0)
    }

    /// A borrower that could be suspended.
    fn movable(
        &self,
        seen: &Observer,
        ledger: &Ledger,
        (gpu, but): (GpuUuid, ContainerId),
    ) -> Option<ContainerId> {
        let memory = |id: &ContainerId| -> u128 {
            let its = ledger.accounts_of(*id).filter(|(key, _)| key.1 != Lane::HOST);
            its.map(|(key, _)| self.kept(ledger, key).1).sum()
        };
        let away: u128 = seen.suspended.keys().map(memory).sum();
        let left = u128::from(seen.config.suspended_memory.0).saturating_sub(away);
        let failed =
            |id: &ContainerId| self.not_moved.get(id).is_some_and(|at| seen.now < at + MOVE_AGAIN);
        let borrowers = self.lent(ledger, gpu, Some(but)).filter(|(_, (least, _))| *least > 0);
        let borrowers = borrowers.map(|(key, _)| key.0);
        let mut borrowers = borrowers.filter(|id| !seen.suspended.contains_key(id));
        borrowers.find(|id| !failed(id) && memory(id) <= left)
    }
}
