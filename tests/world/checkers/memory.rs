//! Memory: nobody is granted beyond the cap, pages say what is reserved, and what a process had
//! is free when it is gone.
//!
//! The checker's own ledger: what each process was granted, what NVML showed of it against what
//! it said, what strangers have, and what every cap is. Requests are [`super::requests`]'.

use std::collections::{BTreeMap, BTreeSet};

use gpuslice_engine::{Action, CapChange, Claims, Cut, Event, Process, Record};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::units::Bytes;

use super::Objection;
use super::looks::Seen;
use crate::observer::{LaneKey, Observer};

/// What a process has on one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    granted: u64,
    /// The most that was granted, since the last look and between the two before.
    most: [u64; 2],
    claims: Claims,
    /// What NVML showed of it last, and what of that is beyond `most`.
    seen: u64,
    own: u64,
    beyond: Seen,
}

/// What a container has on one account.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Which GPU; none is the host's memory.
    gpu: Option<GpuUuid>,
    /// The promise.
    pub cap: u64,
    stray: Seen,
    /// The most that was granted to all together, as in a [`Share`], but never beyond the cap.
    most: [u128; 2],
    /// What NVML shows of all together beyond that, and what of it counts for no single one.
    beyond: Seen,
    hidden: u128,
    shown: u64,
}

/// The checker's own ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    homes: BTreeMap<ClientId, ContainerId>,
    /// Every identity ever given: none is given twice.
    known: BTreeSet<ClientId>,
    totals: BTreeMap<GpuUuid, u64>,
    shares: BTreeMap<(ClientId, Lane), Share>,
    /// Which process each is.
    processes: BTreeMap<ClientId, Option<Process>>,
    /// Those without a connection: they live, or may, and what they were granted counts.
    apart: BTreeSet<ClientId>,
    /// What a process had that attaches anew in this step.
    taken: Vec<(ClientId, BTreeMap<Lane, Share>)>,
    /// Accounts of which more was written down than the cap, because less was not written yet: until it fits.
    overstated: BTreeSet<LaneKey>,
    /// Containers of which the engine knows everything that was ever granted.
    complete: BTreeSet<ContainerId>,
    accounts: BTreeMap<LaneKey, Account>,
    /// Caps that were lowered once, so that more than the cap may be granted; also by an earlier
    /// engine.
    lowered: BTreeSet<LaneKey>,
}

impl Ledger {
    /// The books of a new engine in the same world.
    #[must_use]
    pub fn restart(&self) -> Ledger {
        Ledger {
            lowered: self.lowered.clone(),
            ..Ledger::default()
        }
    }

    /// The engine is told `event`; `cut` if it ends somebody's connection.
    ///
    /// # Errors
    /// The objection.
    pub fn event(&mut self, seen: &Observer, event: &Event, cut: bool) -> Result<(), Objection> {
        self.taken.clear();
        match *event {
            Event::GpuFound { uuid, total, .. } => drop(self.totals.insert(uuid, total.0)),
            Event::Release {
                client,
                lane,
                bytes,
            }
            | Event::Yield {
                client,
                lane,
                bytes,
                ..
            } if self.homes.contains_key(&client) => {
                let has = self.shares.entry((client, lane)).or_default();
                match has.granted.checked_sub(bytes.0) {
                    Some(rest) => has.granted = rest,
                    None if cut => {}
                    None => return Err(format!("{client:?} released more than it had")),
                }
            }
            Event::Claims {
                client,
                lane,
                claims,
            } if self.homes.contains_key(&client) => {
                self.shares.entry((client, lane)).or_default().claims = claims;
            }
            Event::Measured { client, lane, used }
                if self.homes.contains_key(&client) && lane != Lane::HOST =>
            {
                let share = self.shares.entry((client, lane)).or_default();
                let all = used.0.saturating_add(share.claims.unseen.0);
                let asked_for = share.most[0].max(share.most[1]);
                share.most = [share.granted, share.most[0]];
                share.own = all.saturating_sub(asked_for);
                share.seen = used.0;
                share.beyond.look(seen.now, share.own);
                self.hide_of(client, lane);
            }
            Event::Looked { container, lane } if lane != Lane::HOST => {
                self.looked(seen.now, (container, lane));
            }
            Event::Unattributed {
                container,
                lane,
                used,
            } if lane != Lane::HOST => {
                let account = self.accounts.get_mut(&(container, lane));
                account
                    .into_iter()
                    .for_each(|it| it.stray.look(seen.now, used.0));
            }
            Event::Complete { container } => drop(self.complete.insert(container)),
            Event::Left { client } if self.holds(client) => drop(self.apart.insert(client)),
            Event::Left { client } | Event::Gone { client } => self.part(client),
            _ => {}
        }
        Ok(())
    }

    /// Whether anything counts for a process.
    fn holds(&self, client: ClientId) -> bool {
        let mut its = self.shares.iter().filter(|((id, _), _)| *id == client);
        its.any(|(_, share)| share.granted > 0 || share.beyond.counts > 0)
    }

    /// Whether it has a connection.
    #[must_use]
    pub fn is_connected(&self, client: ClientId) -> bool {
        self.homes.contains_key(&client) && !self.apart.contains(&client)
    }

    /// The engine ends a process's connection.
    fn disconnect(&mut self, client: ClientId, why: Cut, by: &Event) -> Result<(), Objection> {
        match why {
            Cut::Broke(_) if self.holds(client) => drop(self.apart.insert(client)),
            Cut::Broke(_) | Cut::Dismissed => self.part(client),
            Cut::Over => return self.over(client, by),
        }
        Ok(())
    }

    /// An account is over although its process may live.
    fn over(&mut self, client: ClientId, by: &Event) -> Result<(), Objection> {
        if let Event::Attach {
            container, process, ..
        } = by
        {
            let home = self.homes.get(&client) == Some(container);
            if !home || process.is_none() || self.processes.get(&client) != Some(process) {
                return Err(format!("{process:?} takes over what {client:?} has"));
            }
            let its = self.shares.iter().filter(|((id, _), _)| *id == client);
            let its = its.map(|((_, lane), share)| (*lane, *share)).collect();
            self.taken.push((client, its));
            return Ok(());
        }
        match self.holds(client) {
            true => Err(format!(
                "{client:?} may live, and what it holds is forgotten"
            )),
            false => Ok(()),
        }
    }

    /// The engine wants `action` done.
    ///
    /// # Errors
    /// The objection.
    pub fn action(
        &mut self,
        seen: &Observer,
        event: &Event,
        action: &Action,
    ) -> Result<(), Objection> {
        match action {
            Action::Admitted { record, .. } => {
                self.complete.insert(record.container);
                self.open(record);
            }
            Action::Restored { .. } => {
                if let Event::Restore(record) = event {
                    self.open(record);
                }
            }
            Action::Dismissed { container, .. } => {
                self.accounts.retain(|(id, _), _| id != container);
                self.complete.remove(container);
            }
            Action::ProcessRestored { client, .. } => return self.accounted(*client, event),
            Action::Attached {
                client, container, ..
            } => return self.attached(*client, *container, event),
            Action::Disconnect { client, why } => return self.disconnect(*client, *why, event),
            Action::Reserved {
                client,
                lane,
                bytes,
                ..
            } => {
                let share = self.shares.entry((*client, *lane)).or_default();
                share.granted += bytes.0;
                share.most[0] = share.most[0].max(share.granted);
                self.granted_more(*client, *lane);
                let (cap, reserved) = self.of(*client, *lane);
                if reserved > u128::from(cap) {
                    return Err(format!("{client:?} was granted beyond the cap {cap}"));
                }
            }
            Action::Refused {
                client,
                lane,
                need,
                left,
                ..
            } => {
                let (cap, reserved) = self.of(*client, *lane);
                let really = u128::from(cap).saturating_sub(reserved);
                if need <= left || u128::from(left.0) != really {
                    return Err(format!("{need:?} refused with {left:?} left of {cap}"));
                }
            }
            Action::Resized { record, change, .. } => {
                return self.resized(seen, event, record, change);
            }
            Action::SetLane {
                container,
                lane,
                view,
            } => {
                if let Some(account) = self.accounts.get_mut(&(*container, *lane)) {
                    account.shown = view.reserved.0;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, record: &Record) {
        let id = record.container;
        for (lane, promised) in (0u8..).zip(&record.lanes) {
            let account = Account {
                gpu: Some(promised.gpu),
                cap: promised.cap.0,
                ..Account::default()
            };
            self.accounts.insert((id, Lane(lane)), account);
        }
        let host = Account {
            cap: record.pinned.map_or(u64::MAX, |cap| cap.0),
            ..Account::default()
        };
        self.accounts.insert((id, Lane::HOST), host);
    }

    fn attached(&mut self, client: ClientId, id: ContainerId, by: &Event) -> Result<(), Objection> {
        if !self.known.insert(client) {
            return Err(format!("{client:?} was somebody else"));
        }
        let Event::Attach { held, process, .. } = by else {
            return Err(format!("{client:?} did not ask to attach"));
        };
        let taken = std::mem::take(&mut self.taken);
        for (lane, bytes) in (0u8..).map(Lane).zip(held) {
            let had = taken.iter().filter_map(|(_, its)| its.get(&lane));
            let had: u128 = had.map(|share| u128::from(share.granted)).sum();
            let cap = self.accounts.get(&(id, lane)).map_or(0, |it| it.cap);
            let left = u128::from(cap).saturating_sub(self.reserved(id, lane));
            let fits = u128::from(bytes.0) <= had + left;
            if self.complete.contains(&id) && !fits {
                return Err(format!(
                    "{client:?} is believed to hold {bytes:?}, was granted {had}, and {left} are left"
                ));
            }
        }
        // another name of the same process, before the old ones go: it is never nobody
        self.homes.insert(client, id);
        self.processes.insert(client, *process);
        let first = taken.first().map(|(_, its)| its.clone());
        if let Some((old, _)) = taken.first() {
            // what it has beyond its grants goes on, and is not taken off its container's
            self.shares.retain(|(id, _), _| id != old);
        }
        taken.iter().for_each(|(old, _)| self.part(*old));
        for (lane, bytes) in (0u8..).map(Lane).zip(held) {
            let before = first.as_ref().and_then(|its| its.get(&lane)).copied();
            if bytes.0 == 0 && before.is_none() {
                continue;
            }
            let mut share = Share {
                granted: bytes.0,
                claims: Claims::default(),
                ..before.unwrap_or_default()
            };
            share.most[0] = share.most[0].max(bytes.0);
            self.shares.insert((client, lane), share);
            self.granted_more(client, lane);
            self.hide((id, lane));
        }
        Ok(())
    }

    /// A process of before counts with all that it was granted.
    fn accounted(&mut self, client: ClientId, by: &Event) -> Result<(), Objection> {
        let Event::RestoreProcess {
            container,
            process,
            granted,
            ..
        } = by
        else {
            return Err(format!("{client:?} counts, and nobody knew of it"));
        };
        if !self.known.insert(client) {
            return Err(format!("{client:?} was somebody else"));
        }
        self.homes.insert(client, *container);
        self.processes.insert(client, Some(*process));
        self.apart.insert(client);
        for (lane, bytes) in (0u8..).map(Lane).zip(granted).filter(|(_, b)| b.0 > 0) {
            let share = Share {
                granted: bytes.0,
                most: [bytes.0, 0],
                ..Share::default()
            };
            self.shares.insert((client, lane), share);
            self.granted_more(client, lane);
            self.overstated.insert((*container, lane));
        }
        Ok(())
    }

    /// A process was granted something: perhaps all together have more than ever.
    fn granted_more(&mut self, client: ClientId, lane: Lane) {
        let Some(home) = self.home(client) else {
            return;
        };
        let sum: u128 = self.granted(home, lane).map(|(_, it)| u128::from(it)).sum();
        if let Some(account) = self.accounts.get_mut(&(home, lane)) {
            account.most[0] = account.most[0].max(sum.min(u128::from(account.cap)));
        }
    }

    /// One look showed all processes of a container.
    fn looked(&mut self, now: u64, key: LaneKey) {
        let (mut all, mut own, mut granted) = (0u128, 0u128, 0u128);
        for (_, share) in self.of_place(key.0, key.1) {
            all += u128::from(share.seen.saturating_add(share.claims.unseen.0));
            own += u128::from(share.own);
            granted += u128::from(share.granted);
        }
        let Some(account) = self.accounts.get_mut(&key) else {
            return;
        };
        let most = granted.max(account.most[0]).max(account.most[1]);
        let beyond = own.max(all.saturating_sub(most));
        account.most = [granted.min(u128::from(account.cap)), account.most[0]];
        let beyond = u64::try_from(beyond).unwrap_or(u64::MAX);
        account.beyond.look(now, beyond);
        self.hide(key);
    }

    /// What all have beyond their grants and none of them is charged for.
    fn hide(&mut self, key: LaneKey) {
        let shares = self.of_place(key.0, key.1);
        let theirs: u128 = shares.map(|(_, it)| u128::from(it.beyond.counts)).sum();
        if let Some(account) = self.accounts.get_mut(&key) {
            account.hidden = u128::from(account.beyond.counts).saturating_sub(theirs);
        }
    }

    fn hide_of(&mut self, client: ClientId, lane: Lane) {
        let home = self.home(client);
        home.into_iter().for_each(|home| self.hide((home, lane)));
    }

    fn resized(
        &mut self,
        seen: &Observer,
        event: &Event,
        record: &Record,
        change: &CapChange,
    ) -> Result<(), Objection> {
        let key = (record.container, change.lane);
        let Event::Resize { memory, .. } = event else {
            return Err(format!("{} was resized and nobody asked", record.container));
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
        account.most[0] = account.most[0].max(granted.min(u128::from(account.cap)));
        if change.cap < change.was {
            self.lowered.insert(key);
        }
        if u128::from(change.reserved.0) != reserved {
            return Err(format!("{change:?} was answered with {reserved} reserved"));
        }
        let Some(gpu) = account.gpu.filter(|_| change.cap > change.was) else {
            return Ok(());
        };
        let all = self.accounts.values().filter(|it| it.gpu == Some(gpu));
        let sum: u128 = all.map(|it| u128::from(it.cap)).sum();
        let total = self.totals.get(&gpu).copied().unwrap_or(0);
        if !seen.config.oversubscribe && sum > u128::from(total) {
            return Err(format!("{sum} bytes are promised of {gpu}'s {total}"));
        }
        Ok(())
    }

    /// Whose process it is.
    #[must_use]
    pub fn home(&self, client: ClientId) -> Option<ContainerId> {
        self.homes.get(&client).copied()
    }

    /// Cap and reserved of the account that a process asks.
    #[must_use]
    pub fn of(&self, client: ClientId, lane: Lane) -> (u64, u128) {
        let Some(home) = self.home(client) else {
            return (0, 0);
        };
        let cap = self.accounts.get(&(home, lane)).map_or(0, |it| it.cap);
        (cap, self.reserved(home, lane))
    }

    /// What each process of a container was granted on a lane.
    pub fn granted(
        &self,
        container: ContainerId,
        lane: Lane,
    ) -> impl Iterator<Item = (ClientId, u64)> {
        self.of_place(container, lane)
            .map(|(client, share)| (client, share.granted))
    }

    fn of_place(&self, id: ContainerId, lane: Lane) -> impl Iterator<Item = (ClientId, &Share)> {
        let all = self.shares.iter();
        let mine =
            all.filter(move |((client, at), _)| *at == lane && self.homes.get(client) == Some(&id));
        mine.map(|((client, _), share)| (*client, share))
    }

    /// What counts on an account.
    #[must_use]
    pub fn reserved(&self, container: ContainerId, lane: Lane) -> u128 {
        let account = self.accounts.get(&(container, lane));
        let beside = account.map_or(0, |it| u128::from(it.stray.counts) + it.hidden);
        let shares = self.of_place(container, lane);
        shares.fold(beside, |sum, (_, share)| {
            sum + u128::from(share.granted) + u128::from(share.beyond.counts)
        })
    }

    fn part(&mut self, client: ClientId) {
        self.apart.remove(&client);
        self.processes.remove(&client);
        let Some(home) = self.homes.remove(&client) else {
            return;
        };
        let last = !self.homes.values().any(|other| *other == home);
        for ((_, lane), account) in self.accounts.iter_mut().filter(|((id, _), _)| *id == home) {
            let its = self.shares.get(&(client, *lane));
            let its = its.map_or(0, |share| share.beyond.counts);
            account.beyond.counts = account.beyond.counts.saturating_sub(its);
            if last {
                account.beyond = Seen::default();
            }
        }
        self.shares.retain(|(other, _), _| *other != client);
        let keys: Vec<LaneKey> = self.accounts.keys().copied().collect();
        let of_it = keys.into_iter().filter(|key| key.0 == home);
        of_it.for_each(|key| self.hide(key));
    }

    /// At every instant, and also while processes come back to a new daemon.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&mut self) -> Result<(), Objection> {
        let mut sums: BTreeMap<LaneKey, (u128, u128)> = BTreeMap::new();
        for ((client, lane), share) in &self.shares {
            if let Some(home) = self.homes.get(client) {
                let (granted, all) = sums.entry((*home, *lane)).or_default();
                *granted += u128::from(share.granted);
                *all += u128::from(share.granted) + u128::from(share.beyond.counts);
            }
        }
        for ((container, lane), account) in &self.accounts {
            let (granted, all) = sums.get(&(*container, *lane)).copied().unwrap_or_default();
            let beside = u128::from(account.stray.counts) + account.hidden;
            let (shown, reserved) = (account.shown, all + beside);
            // what a liar says may be more than a page can
            if u128::from(shown) != reserved.min(u128::from(u64::MAX)) {
                return Err(format!(
                    "{container}'s page says {shown} reserved of {lane:?}, not {reserved}"
                ));
            }
            let key = (*container, *lane);
            if granted <= u128::from(account.cap) {
                self.overstated.remove(&key);
            } else if !self.may_exceed(&key) && !self.overstated.contains(&key) {
                return Err(format!("{container} has {granted} bytes, beyond its cap"));
            }
        }
        Ok(())
    }

    /// Whether more than the cap may be held: it was lowered, or processes came back that the engine could
    /// not know of.
    #[must_use]
    pub fn may_exceed(&self, key: &LaneKey) -> bool {
        self.lowered.contains(key) || !self.complete.contains(&key.0)
    }

    /// What is promised of an account.
    #[must_use]
    pub fn cap(&self, key: &LaneKey) -> Option<u64> {
        self.accounts.get(key).map(|it| it.cap)
    }

    /// All processes are gone.
    ///
    /// # Errors
    /// If something is still granted.
    pub fn nobody_left(&self) -> Result<(), Objection> {
        if self.shares.is_empty() && self.homes.is_empty() {
            return Ok(());
        }
        Err(format!("left over: {:?}, {:?}", self.homes, self.shares))
    }
}
