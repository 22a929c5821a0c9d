//! Changed caps and limits, what requests need, and the ledgers of suspended containers.
//!
//! A suspended container's grants are of memory on the host, which NVML does not show. So its figures change nothing in
//! the ledger of such a container. What they show of its processes that are not attached counts when it goes on. What
//! its processes give back meanwhile still counts where their memory is, until they end or it goes on.

use std::collections::BTreeMap;

use gpuslice_engine::{CapChange, Event, Record};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::units::Bytes;

use super::{Account, Ledger, Objection, Share};
use crate::observer::{LaneKey, Observer};

impl Account {
    /// What counts of processes that are not attached.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.unattributed.counts
    }
}

impl Ledger {
    /// What a request needs: less where a part of it is charged already, as memory that NVML showed before it was
    /// granted. An account above its limit is granted nothing.
    #[must_use]
    pub fn lacks(&self, key: &LaneKey, client: ClientId, need: u64) -> u64 {
        let limit = self.accounts.get(key).map_or(0, |it| u128::from(it.limit));
        let share =
            self.shares.get(&(client, key.1)).filter(|_| self.reserved(key.0, key.1) <= limit);
        let more = share.map_or(u128::from(need), |share| {
            share.charged_with(share.granted.saturating_add(need)).saturating_sub(share.charged())
        });
        u64::try_from(more).unwrap_or(u64::MAX)
    }

    /// The same for requests of an account that are granted in the order of the calls: what is charged already is a
    /// part of one grant.
    pub fn lacks_in_order(&self, key: LaneKey) -> impl FnMut(ClientId, u64) -> u64 {
        let mut asked: BTreeMap<ClientId, u64> = BTreeMap::new();
        move |client, need| {
            let before = asked.entry(client).or_default();
            let after = before.saturating_add(need);
            let [less, more] = [*before, after].map(|need| self.lacks(&key, client, need));
            *before = after;
            more.saturating_sub(less)
        }
    }

    pub(super) fn resized(
        &mut self,
        seen: &Observer,
        event: &Event,
        record: &Record,
        change: &CapChange,
    ) -> Result<(), Objection> {
        let key = (record.container, change.lane);
        let Event::Resize { memory, .. } = event else {
            return Err(format!("{} was resized without a request", record.container));
        };
        let reserved = self.reserved(key.0, key.1);
        let granted = self.granted(key.0, key.1);
        let granted: u128 = granted.map(|(_, it)| u128::from(it)).sum();
        let Some(account) = self.accounts.get_mut(&key) else {
            return Err(format!("{key:?} was resized and is not there"));
        };
        let promised = match record.lanes.get(usize::from(change.lane.0)) {
            Some(lane) => lane.cap,
            None => record.pinned.unwrap_or(Bytes(u64::MAX)),
        };
        let exact = match memory {
            MemoryAsk::Exactly(cap) => *cap == change.cap,
            MemoryAsk::Ratio { .. } => true,
        };
        if !exact || promised != change.cap || change.was.0 != account.cap {
            return Err(format!("{key:?} was resized wrongly: {change:?}"));
        }
        account.cap = change.cap.0;
        let (limit, elastic) = match record.lanes.get(usize::from(change.lane.0)) {
            Some(lane) => (lane.limit.0, lane.elastic),
            None => (change.cap.0, false),
        };
        if limit < account.limit {
            self.lowered.insert(key);
        }
        (account.limit, account.elastic) = (limit, elastic);
        account.most = account.most.max(granted.min(u128::from(limit)));
        if !self.counts(&key, change.reserved.0, reserved) {
            return Err(format!("{change:?} was answered with {reserved} reserved"));
        }
        let gpu = self.accounts.get(&key).and_then(|it| it.gpu);
        let Some(gpu) = gpu.filter(|_| change.cap > change.was) else {
            return Ok(());
        };
        self.inherits(seen, key);
        let all = self.accounts.values().filter(|it| it.gpu == Some(gpu));
        let sum: u128 = all.map(|it| u128::from(it.cap)).sum();
        let total = self.totals.get(&gpu).copied().unwrap_or(0);
        if !seen.config.oversubscribe && sum > u128::from(total) {
            return Err(format!("{sum} bytes are promised of {gpu}'s {total}"));
        }
        Ok(())
    }

    /// The most that may be granted on a process's account.
    pub(super) fn limit_of(&self, client: ClientId, lane: Lane) -> Option<u64> {
        let home = self.home(client)?;
        self.accounts.get(&(home, lane)).map(|it| it.limit)
    }

    /// Whether memory is lent on an account's GPU.
    #[must_use]
    pub fn lends(&self, key: &LaneKey) -> bool {
        let gpu = self.accounts.get(key).and_then(|it| it.gpu);
        gpu.is_some_and(|gpu| self.lends_on(gpu))
    }

    /// Whether a limit on a GPU is above its cap, so that memory there is lent. It is lent, too, until the driver has
    /// freed what an ended container had borrowed: that does not fit beside all promises. Where more may be promised
    /// than there is, no memory is kept for any.
    #[must_use]
    pub fn lends_on(&self, gpu: GpuUuid) -> bool {
        let caps: u128 = self.on(gpu).map(|(_, account)| u128::from(account.cap)).sum();
        let total = self.totals.get(&gpu).copied().unwrap_or(0);
        let left = self.unfreed.left(gpu);
        let was_lent = left > 0 && !self.oversubscribes && caps + left > u128::from(total);
        was_lent || self.on(gpu).any(|(_, account)| account.elastic)
    }

    /// A refusal where memory is lent: the amount left is below the limit, by the memory of other containers.
    pub(super) fn refused(
        &self,
        client: ClientId,
        lane: Lane,
        (need, left): (u64, u64),
    ) -> Result<(), Objection> {
        let (_, reserved) = self.of(client, lane);
        let limit = self.limit_of(client, lane).unwrap_or(0);
        match need <= left || u128::from(left) > u128::from(limit).saturating_sub(reserved) {
            true => Err(format!("{need} refused with {left} left of {limit}")),
            false => Ok(()),
        }
    }

    /// A memory limit was changed.
    pub(super) fn relimited(&mut self, record: &Record, lane: Lane) {
        let key = (record.container, lane);
        let granted: u128 = self.granted(key.0, lane).map(|(_, it)| u128::from(it)).sum();
        let promised = record.lanes.get(usize::from(lane.0));
        let Some((account, promised)) = self.accounts.get_mut(&key).zip(promised) else {
            return;
        };
        if promised.limit.0 < account.limit {
            self.lowered.insert(key);
        }
        (account.limit, account.elastic) = (promised.limit.0, promised.elastic);
        account.most = account.most.max(granted.min(u128::from(account.limit)));
    }

    /// The accounts of a container.
    pub fn accounts_of(&self, id: ContainerId) -> impl Iterator<Item = (&LaneKey, &Account)> {
        self.accounts.iter().filter(move |(key, _)| key.0 == id)
    }

    /// Bytes that are charged to a process.
    #[must_use]
    pub fn charged(&self, client: ClientId, lane: Lane) -> u128 {
        let share = self.shares.get(&(client, lane));
        share.map_or(0, |it| it.charged().max(it.kept))
    }

    /// Before a step: what is charged to processes of suspended containers counts on, whatever the step takes away.
    pub fn keep(&mut self, seen: &Observer) {
        if seen.suspended.is_empty() {
            return;
        }
        for ((client, lane), share) in &mut self.shares {
            let home = self.homes.get(client);
            if *lane != Lane::HOST && home.is_some_and(|it| seen.suspended.contains_key(it)) {
                share.kept = share.kept.max(share.charged());
            }
        }
    }

    /// The memory of an account, wherever it is.
    #[must_use]
    pub fn kept(&self, container: ContainerId, lane: Lane) -> u128 {
        let given_back = |(_, it): (ClientId, &Share)| it.kept.saturating_sub(it.charged());
        let given_back: u128 = self.of_key(container, lane).map(given_back).sum();
        self.reserved(container, lane) + given_back
    }

    /// What NVML has shown last of processes of a suspended container that are not attached.
    #[must_use]
    pub fn strangers(&self, key: &LaneKey) -> u64 {
        self.strangers.get(key).copied().unwrap_or(0)
    }

    /// Whether an event has NVML's figures of a suspended container: they change no ledger.
    pub(super) fn is_of_suspended(&mut self, seen: &Observer, event: &Event) -> bool {
        let container = match *event {
            Event::Measured { client, .. } => self.home(client),
            Event::Looking { container, .. }
            | Event::Looked { container, .. }
            | Event::Unattributed { container, .. } => Some(container),
            _ => None,
        };
        let suspended = container.is_some_and(|id| seen.suspended.contains_key(&id));
        if let Event::Unattributed { container, lane, used } = *event
            && suspended
        {
            self.strangers.insert((container, lane), used.0);
        }
        suspended
    }

    /// A container goes on: what NVML has shown meanwhile of its processes that are not attached counts now. Accounts
    /// without a connection and with nothing in them end.
    pub(super) fn goes_on(&mut self, container: ContainerId) {
        let now = self.now;
        let its = self
            .accounts
            .iter_mut()
            .filter(|((id, lane), _)| *id == container && *lane != Lane::HOST);
        for (key, account) in its {
            let shown = self.strangers.remove(key).unwrap_or(account.unattributed.counts);
            account.unattributed.look(now, shown);
        }
        let its = |client: &ClientId| self.homes.get(client) == Some(&container);
        let shares = self.shares.iter_mut().filter(|((client, _), _)| its(client));
        shares.for_each(|(_, share)| share.kept = 0);
        let apart: Vec<ClientId> = self.apart.iter().copied().filter(its).collect();
        for client in apart.into_iter().filter(|client| !self.holds(*client)).collect::<Vec<_>>() {
            self.ends(client);
        }
    }
}
