//! Memory: no grant exceeds the cap, pages show the reserved bytes, and a process's memory is free when it
//! has ended.
//!
//! The checker's own ledger: each process's grants, NVML's figures against its claims, the memory of
//! unattributed processes, and every cap. [`super::requests`] checks requests.

mod ended;
mod limits;
mod restored;

use std::collections::{BTreeMap, BTreeSet};

use gpuslice_engine::{Action, Claims, Cut, Event, Process, Record};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};

use super::Objection;
use super::looks::Seen;
use super::unfreed::Unfreed;
use crate::observer::{LaneKey, Observer};

/// One process's memory on one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    granted: u64,
    /// The largest grant, since the last measurement and between the two before.
    most: [u64; 2],
    claims: Claims,
    /// NVML's last figure for it, and the part of that beyond `most`.
    seen: u64,
    own: u64,
    beyond: Seen,
    /// All its memory by a measurement that it requested, until the next sample.
    answered: Option<u64>,
    /// While its container is suspended: the most that was charged to it by then.
    kept: u128,
}

impl Share {
    fn charged(&self) -> u128 {
        self.charged_with(self.granted)
    }

    /// Memory that the driver does not show, by its claim: it holds that within its grants.
    fn unseen(&self) -> u64 {
        self.claims.unseen.0.min(self.granted)
    }

    /// The part of its memory beyond grants that its grants since then explain.
    fn covered(&self) -> u64 {
        let most = self.answered.map_or(u64::MAX, |all| all.saturating_sub(self.granted));
        self.beyond.counts.saturating_sub(most)
    }

    /// What would count for it with so much granted.
    fn charged_with(&self, granted: u64) -> u128 {
        let most = self.answered.map_or(u64::MAX, |all| all.saturating_sub(granted));
        u128::from(granted) + u128::from(self.beyond.counts.min(most))
    }
}

/// One container's memory on one account.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The GPU; `None` is the host's memory.
    pub gpu: Option<GpuUuid>,
    /// The promise.
    pub cap: u64,
    /// The most that may be granted: the cap, or a memory limit above it.
    pub limit: u64,
    /// Its limit is, or was, above its cap.
    pub elastic: bool,
    unattributed: Seen,
    /// The largest sum of grants since the driver was asked or has answered, but never beyond the limit.
    most: u128,
    /// NVML's sum beyond that, and the part of it charged to no single process.
    beyond: Seen,
    hidden: u128,
    /// What its page shows as reserved.
    pub shown: u64,
}

/// The checker's own ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    homes: BTreeMap<ClientId, ContainerId>,
    /// Every identity ever given: each is unique.
    known: BTreeSet<ClientId>,
    totals: BTreeMap<GpuUuid, u64>,
    shares: BTreeMap<(ClientId, Lane), Share>,
    /// The kernel's identity of each process.
    processes: BTreeMap<ClientId, Option<Process>>,
    /// Processes without a connection: they may live, and their grants count.
    apart: BTreeSet<ClientId>,
    /// Those that said at their attach that they hold nothing, or took over from one that did.
    anew: BTreeSet<ClientId>,
    /// The memory of a process that attaches again in this step.
    taken: Vec<(ClientId, BTreeMap<Lane, Share>)>,
    /// Accounts whose file shows more than the cap, because a decrease was not written yet: until they fit.
    overstated: BTreeSet<LaneKey>,
    /// Containers whose grants the engine knows completely.
    complete: BTreeSet<ContainerId>,
    accounts: BTreeMap<LaneKey, Account>,
    /// What NVML has shown of processes that are not attached, while their container was suspended.
    strangers: BTreeMap<LaneKey, u64>,
    /// Limits that were lowered once, also by an earlier engine, so that grants may exceed them.
    lowered: BTreeSet<LaneKey>,
    /// Charges of ended processes, where the engine sees devices.
    unfreed: Unfreed,
    sees_devices: bool,
    oversubscribes: bool,
    now: u64,
}

impl Ledger {
    /// The ledger of a new engine in the same world.
    #[must_use]
    pub fn restart(&self) -> Ledger {
        Ledger { lowered: self.lowered.clone(), ..Ledger::default() }
    }

    /// Takes in `event`; `cut` tells whether the engine ends a connection.
    ///
    /// # Errors
    /// The objection.
    pub fn event(&mut self, seen: &Observer, event: &Event, cut: bool) -> Result<(), Objection> {
        self.taken.clear();
        (self.now, self.sees_devices) = (seen.now, seen.config.sees_devices);
        self.oversubscribes = seen.config.oversubscribe;
        if self.is_of_suspended(seen, event) {
            return Ok(());
        }
        match *event {
            Event::Tick => self.unfreed.ticked(seen.now),
            Event::GpuFound { uuid, total, .. } => drop(self.totals.insert(uuid, total.0)),
            Event::Release { client, lane, bytes } | Event::Yield { client, lane, bytes, .. }
                if self.homes.contains_key(&client) =>
            {
                let has = self.shares.entry((client, lane)).or_default();
                match has.granted.checked_sub(bytes.0) {
                    Some(rest) => has.granted = rest,
                    None if cut => {}
                    None => return Err(format!("{client:?} released more than it had")),
                }
            }
            Event::Claims { client, lane, claims } if self.homes.contains_key(&client) => {
                self.shares.entry((client, lane)).or_default().claims = claims;
            }
            Event::Measured { client, lane, used, requested }
                if self.homes.contains_key(&client) && lane != Lane::HOST =>
            {
                let share = self.shares.entry((client, lane)).or_default();
                let all = used.0.saturating_add(share.unseen());
                let asked_for = share.most[0].max(share.most[1]).max(share.granted);
                share.most = [share.granted, share.most[0]];
                share.own = all.saturating_sub(asked_for);
                share.seen = used.0;
                let (covered, before) = (share.covered(), share.beyond.counts);
                if !requested {
                    share.beyond.look(seen.now, share.own);
                }
                share.answered = requested.then_some(all);
                // What its grants explain is not hidden, before the figures of all are there.
                let explained = covered.min(before.saturating_sub(share.beyond.counts));
                self.hide_of(client, lane, explained);
            }
            Event::Looking { container, lane } if lane != Lane::HOST => {
                self.looking((container, lane));
            }
            Event::Looked { container, lane } if lane != Lane::HOST => {
                self.looked(seen.now, (container, lane));
            }
            Event::DeviceLooked { gpu, asked, least, most } => {
                self.device_looked(gpu, asked.0, [least.0, most.0]);
            }
            Event::Unattributed { container, lane, used } if lane != Lane::HOST => {
                let account = self.accounts.get_mut(&(container, lane));
                account.into_iter().for_each(|it| it.unattributed.look(seen.now, used.0));
            }
            Event::Complete { container } => drop(self.complete.insert(container)),
            Event::RestoreUntracked { container, ref untracked } => {
                self.untracked_again(container, untracked);
            }
            Event::Left { client } if self.holds(client) => drop(self.apart.insert(client)),
            Event::Left { client } | Event::Gone { client } => self.ends(client),
            _ => {}
        }
        Ok(())
    }

    /// Whether any memory counts for a process.
    pub(super) fn holds(&self, client: ClientId) -> bool {
        let mut its = self.shares.iter().filter(|((id, _), _)| *id == client);
        its.any(|(_, share)| share.charged() > 0 || share.kept > 0)
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
            Cut::Broke(_) | Cut::Dismissed => self.ends(client),
            Cut::Over => return self.over(client, by),
        }
        Ok(())
    }

    /// An account ends although its process may live.
    fn over(&mut self, client: ClientId, by: &Event) -> Result<(), Objection> {
        if let Event::Attach { container, process, .. } = by {
            let home = self.homes.get(&client) == Some(container);
            if !home || process.is_none() || self.processes.get(&client) != Some(process) {
                return Err(format!("{process:?} takes over the memory of {client:?}"));
            }
            let its = self.shares.iter().filter(|((id, _), _)| *id == client);
            let its = its.map(|((_, lane), share)| (*lane, *share)).collect();
            self.taken.push((client, its));
            return Ok(());
        }
        // Its process began anew: it says that it does not have this memory any more.
        let of = |id: &ClientId| (self.homes.get(id), self.processes.get(id).copied().flatten());
        let (home, process) = of(&client);
        let anew = process.is_some() && self.anew.iter().any(|id| of(id) == (home, process));
        if anew && matches!(by, Event::Tick) && !self.is_connected(client) {
            self.ends(client);
            return Ok(());
        }
        match self.holds(client) {
            true => Err(format!("{client:?} may live, and its memory is forgotten")),
            false => Ok(()),
        }
    }

    /// Takes in `action`.
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
                let its = self.gpus_of(record.container);
                its.into_iter().for_each(|(key, _)| self.inherits(seen, key));
            }
            Action::Restored { .. } => {
                if let Event::Restore(record) = event {
                    self.open(record);
                    self.is_restored(record.container);
                }
            }
            Action::Dismissed { container, .. } => {
                self.leaves(container);
                self.accounts.retain(|(id, _), _| id != container);
                self.complete.remove(container);
            }
            Action::ProcessRestored { client, .. } => return self.accounted(*client, event),
            Action::Attached { client, container, .. } => {
                return self.attached(*client, *container, event);
            }
            Action::Disconnect { client, why } => return self.disconnect(*client, *why, event),
            Action::Reserved { client, lane, bytes, .. } => {
                let share = self.shares.entry((*client, *lane)).or_default();
                share.granted += bytes.0;
                share.most[0] = share.most[0].max(share.granted);
                self.granted_more(*client, *lane);
                let (cap, reserved) = self.of(*client, *lane);
                let limit = self.limit_of(*client, *lane).unwrap_or(cap);
                if reserved > u128::from(limit) {
                    return Err(format!("{client:?} was granted beyond the cap {limit}"));
                }
            }
            Action::Refused { client, lane, need, left, .. } => {
                let (cap, reserved) = self.of(*client, *lane);
                let home = self.home(*client);
                if home.is_some_and(|home| self.lends(&(home, *lane))) {
                    return self.refused(*client, *lane, (need.0, left.0));
                }
                let unfreed = home.map_or(0, |home| self.unfreed(&(home, *lane)));
                let most = u128::from(cap).saturating_sub(reserved);
                let least = u128::from(cap).saturating_sub(reserved + unfreed);
                if need <= left || !(least..=most).contains(&u128::from(left.0)) {
                    return Err(format!("{need:?} refused with {left:?} left of {cap}"));
                }
            }
            Action::Resized { record, change, .. } => {
                return self.resized(seen, event, record, change);
            }
            Action::Relimited { record, change, .. } => self.relimited(record, change.lane),
            Action::SuspensionSettled { container, away: false, .. } => self.goes_on(*container),
            Action::SetLane { container, lane, view } => {
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
                limit: promised.limit.0,
                elastic: promised.elastic,
                ..Account::default()
            };
            self.accounts.insert((id, Lane(lane)), account);
        }
        let cap = record.pinned.map_or(u64::MAX, |cap| cap.0);
        let host = Account { cap, limit: cap, ..Account::default() };
        self.accounts.insert((id, Lane::HOST), host);
    }

    fn attached(&mut self, client: ClientId, id: ContainerId, by: &Event) -> Result<(), Objection> {
        if !self.known.insert(client) {
            return Err(format!("{client:?} is the identity of another process"));
        }
        let Event::Attach { held, process, .. } = by else {
            return Err(format!("{client:?} did not ask to attach"));
        };
        let taken = std::mem::take(&mut self.taken);
        for (lane, bytes) in (0u8..).map(Lane).zip(held) {
            let had = taken.iter().filter_map(|(_, its)| its.get(&lane));
            let had: u128 = had.map(|share| u128::from(share.granted)).sum();
            let cap = self.accounts.get(&(id, lane)).map_or(0, |it| it.limit);
            let all: u128 = self.granted(id, lane).map(|(_, it)| u128::from(it)).sum();
            let left = match self.complete.contains(&id) {
                true => 0,
                false => u128::from(cap).saturating_sub(all),
            };
            if u128::from(bytes.0) > had + left {
                return Err(format!(
                    "{client:?} is believed to hold {bytes:?}, was granted {had}, and {left} are left"
                ));
            }
        }
        if self.sees_devices && held.iter().all(|bytes| bytes.0 == 0) {
            // another program began in the process: the memory of the former one may not be free
            for (lane, share) in taken.iter().flat_map(|(_, its)| its) {
                if *lane != Lane::HOST {
                    self.unfreed.ended((id, *lane), self.now, share.granted.into());
                }
            }
        }
        let again = taken.iter().any(|(old, _)| self.anew.contains(old));
        if again || held.iter().all(|bytes| bytes.0 == 0) {
            self.anew.insert(client);
        }
        // the process's new identity comes before the old ones go: it always has one
        self.homes.insert(client, id);
        self.processes.insert(client, *process);
        let first = taken.first().map(|(_, its)| its.clone());
        if let Some((old, _)) = taken.first() {
            // its memory beyond its grants stays, and is not taken off its container's
            self.shares.retain(|(id, _), _| id != old);
        }
        taken.iter().for_each(|(old, _)| self.part(*old));
        for (lane, bytes) in (0u8..).map(Lane).zip(held) {
            let before = first.as_ref().and_then(|its| its.get(&lane)).copied();
            let kept = taken.iter().filter_map(|(_, its)| its.get(&lane)).map(|it| it.kept).sum();
            if bytes.0 == 0 && before.is_none() && kept == 0 {
                continue;
            }
            let before = before.unwrap_or_default();
            let (granted, claims, answered) = (bytes.0, Claims::default(), None);
            let share = Share { granted, claims, answered, kept, ..before };
            self.shares.insert((client, lane), share);
            self.hide((id, lane));
        }
        Ok(())
    }

    /// A process from before a restart counts with all its grants.
    fn accounted(&mut self, client: ClientId, by: &Event) -> Result<(), Objection> {
        let Event::RestoreProcess { container, process, granted, .. } = by else {
            return Err(format!("{client:?} counts and was not restored"));
        };
        if !self.known.insert(client) {
            return Err(format!("{client:?} is the identity of another process"));
        }
        self.homes.insert(client, *container);
        self.processes.insert(client, Some(*process));
        self.apart.insert(client);
        for (lane, bytes) in (0u8..).map(Lane).zip(granted).filter(|(_, b)| b.0 > 0) {
            let share = Share { granted: bytes.0, ..Share::default() };
            self.shares.insert((client, lane), share);
            self.overstated.insert((*container, lane));
        }
        Ok(())
    }

    /// A process's grant grew: the sum over all may be the largest so far.
    fn granted_more(&mut self, client: ClientId, lane: Lane) {
        let Some(home) = self.home(client) else {
            return;
        };
        let sum: u128 = self.granted(home, lane).map(|(_, it)| u128::from(it)).sum();
        if let Some(account) = self.accounts.get_mut(&(home, lane)) {
            account.most = account.most.max(sum.min(u128::from(account.limit)));
        }
    }

    /// The driver is asked for all processes of a container: earlier grants explain nothing.
    fn looking(&mut self, key: LaneKey) {
        let granted: u128 = self.granted(key.0, key.1).map(|(_, it)| u128::from(it)).sum();
        let account = self.accounts.get_mut(&key);
        account.into_iter().for_each(|it| it.most = granted.min(u128::from(it.limit)));
    }

    /// One query measured all processes of a container.
    fn looked(&mut self, now: u64, key: LaneKey) {
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

    /// Memory of all processes beyond their grants that none of them is charged for.
    fn hide(&mut self, key: LaneKey) {
        let shares = self.of_key(key.0, key.1);
        let theirs: u128 = shares.map(|(_, it)| u128::from(it.beyond.counts)).sum();
        if let Some(account) = self.accounts.get_mut(&key) {
            account.hidden = u128::from(account.beyond.counts).saturating_sub(theirs);
        }
    }

    fn hide_of(&mut self, client: ClientId, lane: Lane, explained: u64) {
        let Some(key) = self.home(client).map(|home| (home, lane)) else {
            return;
        };
        if let Some(account) = self.accounts.get_mut(&key) {
            account.beyond.counts = account.beyond.counts.saturating_sub(explained);
        }
        self.hide(key);
    }

    /// A process's container.
    #[must_use]
    pub fn home(&self, client: ClientId) -> Option<ContainerId> {
        self.homes.get(&client).copied()
    }

    /// Cap and reserved bytes of a process's account.
    #[must_use]
    pub fn of(&self, client: ClientId, lane: Lane) -> (u64, u128) {
        let Some(home) = self.home(client) else {
            return (0, 0);
        };
        let cap = self.accounts.get(&(home, lane)).map_or(0, |it| it.cap);
        (cap, self.reserved(home, lane))
    }

    /// Each process's grant on a lane of a container.
    pub fn granted(
        &self,
        container: ContainerId,
        lane: Lane,
    ) -> impl Iterator<Item = (ClientId, u64)> {
        self.of_key(container, lane).map(|(client, share)| (client, share.granted))
    }

    fn of_key(&self, id: ContainerId, lane: Lane) -> impl Iterator<Item = (ClientId, &Share)> {
        let all = self.shares.iter();
        let mine =
            all.filter(move |((client, at), _)| *at == lane && self.homes.get(client) == Some(&id));
        mine.map(|((client, _), share)| (*client, share))
    }

    /// Bytes that count on an account.
    #[must_use]
    pub fn reserved(&self, container: ContainerId, lane: Lane) -> u128 {
        let account = self.accounts.get(&(container, lane));
        let beside = account.map_or(0, |it| u128::from(it.unattributed.counts) + it.hidden);
        let shares = self.of_key(container, lane);
        shares.fold(beside, |sum, (_, share)| sum + share.charged())
    }

    fn part(&mut self, client: ClientId) {
        self.apart.remove(&client);
        self.anew.remove(&client);
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

    /// Checks every instant, also while processes attach again to a new daemon.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&mut self) -> Result<(), Objection> {
        let mut sums: BTreeMap<(&ContainerId, Lane), (u128, u128)> = BTreeMap::new();
        for ((client, lane), share) in &self.shares {
            if let Some(home) = self.homes.get(client) {
                let (granted, all) = sums.entry((home, *lane)).or_default();
                *granted += u128::from(share.granted);
                *all += share.charged();
            }
        }
        for ((container, lane), account) in &self.accounts {
            let (granted, all) = sums.get(&(container, *lane)).copied().unwrap_or_default();
            let beside = u128::from(account.unattributed.counts) + account.hidden;
            let (shown, reserved) = (account.shown, all + beside);
            // What a container cannot have below a limit above its cap counts as used: another checker's concern.
            let shown = if account.elastic { all + beside } else { shown.into() };
            let shown = u64::try_from(shown).unwrap_or(u64::MAX);
            if !self.counts(&(*container, *lane), shown, reserved) {
                return Err(format!(
                    "{container}'s page shows {shown} reserved of {lane:?}, not {reserved}"
                ));
            }
            let key = (*container, *lane);
            if granted <= u128::from(account.limit) {
                self.overstated.remove(&key);
            } else if !self.may_exceed(&key) && !self.overstated.contains(&key) {
                return Err(format!("{container} has {granted} bytes, beyond its cap"));
            }
        }
        Ok(())
    }

    /// Whether more than the cap may be held: the cap was lowered, or processes attached again that the
    /// engine could not know of.
    #[must_use]
    pub fn may_exceed(&self, key: &LaneKey) -> bool {
        self.lowered.contains(key) || !self.complete.contains(&key.0)
    }

    /// An account.
    #[must_use]
    pub fn account(&self, key: &LaneKey) -> Option<&Account> {
        self.accounts.get(key)
    }

    /// The accounts of a GPU.
    pub fn on(&self, gpu: GpuUuid) -> impl Iterator<Item = (&LaneKey, &Account)> {
        self.accounts.iter().filter(move |(_, account)| account.gpu == Some(gpu))
    }

    /// Whether the grants of a container's processes are known completely.
    #[must_use]
    pub fn is_complete(&self, container: &ContainerId) -> bool {
        self.complete.contains(container)
    }

    /// The GPUs and their memory.
    pub fn gpus(&self) -> impl Iterator<Item = (GpuUuid, u64)> {
        self.totals.iter().map(|(gpu, total)| (*gpu, *total))
    }

    /// Checks the end of all processes.
    ///
    /// # Errors
    /// If grants remain.
    pub fn no_process_left(&self) -> Result<(), Objection> {
        if self.shares.is_empty() && self.homes.is_empty() {
            return Ok(());
        }
        Err(format!("left over: {:?}, {:?}", self.homes, self.shares))
    }
}
