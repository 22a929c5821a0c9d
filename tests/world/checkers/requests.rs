//! Requests for memory: each is answered once, in order, in bounded time, within the bounds of the request;
//! and none is refused while siblings may still have the memory it needs.

use std::collections::{BTreeMap, BTreeSet};

use gpuslice_engine::{Action, Event, HOLD, Token};
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::RECALL_WAIT_NS;
use gpuslice_wire::units::Bytes;

use super::Objection;
use super::memory::Ledger;
use crate::observer::{LaneKey, Observer};

/// Late ticks and slow daemons, ns.
const SLACK: u64 = 20_000_000;

/// The recall that was under way and one of its own.
const MOST: u64 = 2 * RECALL_WAIT_NS + SLACK;

/// A pending request.
#[derive(Clone, Copy, Debug)]
struct Question {
    token: u64,
    client: ClientId,
    need: Bytes,
    wish: Bytes,
    /// When it was made, or its container went on after a suspension.
    since: u64,
    /// The page's recall number at the request, and how long it has waited beyond others' return.
    recall: u32,
    waits: u64,
}

/// The last recall of an account.
#[derive(Clone, Debug, Default)]
struct Recall {
    number: u32,
    began: u64,
    /// Processes that had grants and have not answered.
    owing: BTreeSet<ClientId>,
    /// When the last of them answered, or ended.
    answered: u64,
}

impl Recall {
    fn answers(&mut self, client: ClientId, now: u64) {
        if self.owing.remove(&client) {
            self.answered = now;
        }
    }
}

/// Whether growth of an account waits for the resume of its container, or for memory that is promised to it.
fn waits_for_others(seen: &Observer, ledger: &Ledger, key: &LaneKey, need: Bytes) -> bool {
    let reserved = ledger.reserved(key.0, key.1) + u128::from(need.0);
    let promised = ledger.account(key).is_some_and(|it| reserved <= u128::from(it.cap));
    let suspended = key.1 != Lane::HOST && seen.suspended.contains_key(&key.0);
    suspended || promised && ledger.lends(key)
}

/// A request is refused while a recall is under way.
fn early(q: &Question, recall: &Recall) -> Objection {
    format!("{:?} was refused before {:?} answered", q.client, recall.owing)
}

/// All pending requests.
#[derive(Debug, Default)]
pub struct Requests {
    asked: BTreeMap<LaneKey, Vec<Question>>,
    recalls: BTreeMap<LaneKey, Recall>,
    /// Accounts of which this step has shown a new recall. What it grants it granted before: pages come first.
    fresh: BTreeSet<LaneKey>,
    /// Restored containers: until then growth may wait for processes that attach again.
    restored: BTreeMap<ContainerId, u64>,
    /// Containers whose growth may still wait so.
    returning: BTreeSet<ContainerId>,
    now: u64,
    /// Accounts for which the driver was asked, and since when: growth may wait for its answer, but not again if it
    /// is asked again meanwhile.
    looking: BTreeMap<LaneKey, u64>,
}

impl Requests {
    /// Advances the clock. A recall ends at a certain time: a later step is due to the daemon, which was
    /// kept from running, and is no wait that the engine decided on.
    pub fn advance(&mut self, seen: &Observer, ledger: &Ledger) {
        let elapsed = if seen.gap { 0 } else { seen.elapsed };
        let from = seen.now - elapsed;
        self.now = seen.now;
        for (key, questions) in &mut self.asked {
            let Some(first) = questions.first().map(|first| first.need) else {
                continue;
            };
            // Memory of ended processes may be awaited, for as long as it may be charged.
            let waits =
                self.looking.contains_key(key) || waits_for_others(seen, ledger, key, first);
            if waits || ledger.unfreed(key) > 0 {
                continue;
            }
            let until = self.restored.get(&key.0).copied().unwrap_or(0);
            let recall = self.recalls.get(key).filter(|it| !it.owing.is_empty());
            let due = recall.map(|recall| recall.began + RECALL_WAIT_NS);
            let due = due.filter(|due| *due > from).unwrap_or(seen.now);
            let beyond = due.min(seen.now).saturating_sub(from.max(until));
            questions.iter_mut().for_each(|q| q.waits += beyond);
        }
    }

    /// Takes in `event`.
    pub fn event(&mut self, ledger: &Ledger, event: &Event) {
        self.fresh.clear();
        if matches!(event, Event::Tick | Event::Reserve { .. }) {
            self.restored.retain(|_, until| self.now < *until);
        }
        match *event {
            Event::Reserve { client, token, lane, need, wish } => {
                let Some(home) = ledger.home(client) else {
                    return;
                };
                self.answers(client, (home, lane), None);
                let recall = self.recalls.entry((home, lane)).or_default().number;
                self.asked.entry((home, lane)).or_default().push(Question {
                    token: token.0,
                    client,
                    need,
                    wish,
                    since: self.now,
                    recall,
                    waits: 0,
                });
            }
            Event::Yield { client, lane, recall, .. } => {
                let home = ledger.home(client);
                home.into_iter().for_each(|home| self.answers(client, (home, lane), Some(recall)));
            }
            Event::Looking { container, lane } => {
                self.looking.entry((container, lane)).or_insert(self.now);
            }
            Event::Looked { container, lane } => drop(self.looking.remove(&(container, lane))),
            Event::Tick => self.looking.retain(|_, since| self.now < *since + HOLD.0),
            Event::Left { client } | Event::Gone { client } => self.part(client),
            _ => {}
        }
    }

    fn answers(&mut self, client: ClientId, key: LaneKey, number: Option<u32>) {
        if let Some(recall) = self.recalls.get_mut(&key)
            && number.is_none_or(|number| number == recall.number)
        {
            recall.answers(client, self.now);
        }
    }

    /// Takes in `action`, which `ledger` does not contain yet.
    ///
    /// # Errors
    /// The objection.
    pub fn action(
        &mut self,
        seen: &Observer,
        ledger: &Ledger,
        action: &Action,
    ) -> Result<(), Objection> {
        match *action {
            Action::Restored { container, .. } => {
                let until = seen.now + seen.config.restore_grace.0;
                self.restored.insert(container, until);
                self.returning.insert(container);
            }
            Action::Dismissed { container, .. } => {
                self.asked.retain(|(id, _), _| *id != container);
                self.looking.retain(|(id, _), _| *id != container);
                self.recalls.retain(|(id, _), _| *id != container);
                self.restored.remove(&container);
                self.returning.remove(&container);
            }
            Action::Disconnect { client, .. } => self.part(client),
            Action::Reserved { client, token, lane, bytes } => {
                let (key, q) = self.answered(ledger, client, token, lane)?;
                self.granted(key, client);
                if bytes < q.need || bytes > q.wish.max(q.need) {
                    return Err(format!("{bytes:?} granted for {:?} to {:?}", q.need, q.wish));
                }
            }
            Action::Refused { client, token, lane, overdue, .. } => {
                let (key, q) = self.answered(ledger, client, token, lane)?;
                match overdue {
                    true => self.answered_by_all(seen, key, &q)?,
                    false => self.justified(seen, ledger, key, &q)?,
                }
            }
            Action::SuspensionSettled { container, away: false, .. } => {
                let its = self.asked.iter_mut().filter(|((id, _), _)| *id == container);
                its.flat_map(|(_, all)| all).for_each(|q| (q.since, q.waits) = (seen.now, 0));
            }
            Action::SetLane { container, lane, view } => {
                self.shown(seen, ledger, (container, lane), view.recall)
            }
            _ => {}
        }
        Ok(())
    }

    /// The first request of each account that grows: of which process, for how much, and since when.
    pub fn heads(&self) -> impl Iterator<Item = (&LaneKey, ClientId, u64, u64)> {
        let first = |(key, all): (_, &Vec<Question>)| Some((key, *all.first()?));
        let heads = self.asked.iter().filter_map(first);
        heads.map(|(key, q)| (key, q.client, q.need.0, q.since))
    }

    /// All requests of each account, in order: of which process, for how much, and since when.
    pub fn queues(
        &self,
    ) -> impl Iterator<Item = (&LaneKey, impl Iterator<Item = (ClientId, u64, u64)>)> {
        let each = |q: &Question| (q.client, q.need.0, q.since);
        self.asked.iter().map(move |(key, all)| (key, all.iter().map(each)))
    }

    /// Until when processes of an account may answer a recall, or when all have.
    #[must_use]
    pub fn recalled_until(&self, key: &LaneKey) -> Option<u64> {
        let recall = self.recalls.get(key)?;
        let last = recall.began + RECALL_WAIT_NS;
        Some(if recall.owing.is_empty() { recall.answered.min(last) } else { last })
    }

    /// Whether growth of an account may wait for NVML, or for the return of processes after a restart.
    #[must_use]
    pub fn may_wait(&self, ledger: &Ledger, key: &LaneKey) -> bool {
        let returns = self.restored.contains_key(&key.0) && !ledger.is_complete(&key.0);
        returns || self.looking.contains_key(key)
    }

    fn answered(
        &mut self,
        ledger: &Ledger,
        client: ClientId,
        token: Token,
        lane: Lane,
    ) -> Result<(LaneKey, Question), Objection> {
        let not_asked = || format!("{token:?} of {client:?} was answered and not asked");
        let key = (ledger.home(client).ok_or_else(not_asked)?, lane);
        let questions = self.asked.get_mut(&key).ok_or_else(not_asked)?;
        let of = |q: &Question| (q.token, q.client) == (token.0, client);
        match questions.iter().position(of) {
            None => Err(not_asked()),
            Some(0) => {
                self.returning.remove(&key.0);
                Ok((key, questions.remove(0)))
            }
            Some(_) => Err(format!("{token:?} of {client:?} overtook a waiting request")),
        }
    }

    /// Checks a refusal. It is right if even all memory of the siblings would not suffice, or if they were
    /// asked since, and have answered or had the time to.
    fn justified(
        &self,
        seen: &Observer,
        ledger: &Ledger,
        key: LaneKey,
        q: &Question,
    ) -> Result<(), Objection> {
        let (cap, reserved) = ledger.of(q.client, key.1);
        let theirs = self.siblings(ledger, key, q.client);
        let theirs: u128 = theirs.map(|(_, granted)| u128::from(granted)).sum();
        let limit = ledger.account(&key).map_or(cap, |it| it.limit);
        let lacks = reserved.saturating_sub(theirs) + u128::from(q.need.0) > u128::from(limit);
        if lacks || theirs == 0 && ledger.lends(&key) {
            return Ok(());
        }
        let recall = self.recalls.get(&key);
        let Some(recall) = recall.filter(|recall| recall.number != q.recall) else {
            return Err(format!("{:?} was refused without a recall", q.client));
        };
        match recall.owing.is_empty() || seen.now >= recall.began + RECALL_WAIT_NS {
            true => Ok(()),
            false => Err(early(q, recall)),
        }
    }

    /// Checks a refusal of memory that others borrowed: a recall that began after the request is over, if there is one.
    fn answered_by_all(
        &self,
        seen: &Observer,
        key: LaneKey,
        q: &Question,
    ) -> Result<(), Objection> {
        let recall = self.recalls.get(&key).filter(|recall| recall.number != q.recall);
        let recall = recall.filter(|it| !it.owing.is_empty());
        match recall.filter(|it| seen.now < it.began + RECALL_WAIT_NS) {
            Some(recall) => Err(early(q, recall)),
            None => Ok(()),
        }
    }

    /// The siblings that hold memory and do not wait for more themselves.
    fn siblings(
        &self,
        ledger: &Ledger,
        key: LaneKey,
        but: ClientId,
    ) -> impl Iterator<Item = (ClientId, u64)> {
        let waits: BTreeSet<ClientId> =
            self.asked.get(&key).into_iter().flatten().map(|question| question.client).collect();
        let granted = ledger.granted(key.0, key.1);
        granted.filter(move |(client, granted)| {
            let asked = *client != but && ledger.is_connected(*client);
            *granted > 0 && asked && !waits.contains(client)
        })
    }

    fn shown(&mut self, seen: &Observer, ledger: &Ledger, key: LaneKey, number: u32) {
        if self.recalls.entry(key).or_default().number == number {
            return;
        }
        let first = self.asked.get(&key).and_then(|all| all.first());
        let owing = first.map_or(BTreeSet::new(), |first| {
            let siblings = self.siblings(ledger, key, first.client);
            siblings.map(|(client, _)| client).collect()
        });
        let recall = Recall { number, began: seen.now, owing, answered: 0 };
        self.recalls.insert(key, recall);
        self.fresh.insert(key);
    }

    /// A process with a new grant owes an answer to a recall that began after it.
    fn granted(&mut self, key: LaneKey, client: ClientId) {
        let waits = self.asked.get(&key).is_some_and(|all| all.iter().any(|q| q.client == client));
        let recall = self.recalls.get_mut(&key).filter(|_| self.fresh.contains(&key) && !waits);
        if let Some(recall) = recall {
            recall.owing.insert(client);
        }
    }

    fn part(&mut self, client: ClientId) {
        for questions in self.asked.values_mut() {
            questions.retain(|question| question.client != client);
        }
        for recall in self.recalls.values_mut() {
            recall.answers(client, self.now);
        }
    }

    /// Checks that no request waits where there is memory, for processes that have answered, or for longer
    /// than two recalls and the return of others.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(
        &self,
        seen: &Observer,
        ledger: &Ledger,
        event: &Event,
    ) -> Result<(), Objection> {
        let ticked = matches!(event, Event::Tick);
        for (key, questions) in &self.asked {
            let Some(first) = questions.first().filter(|_| !self.looking.contains_key(key)) else {
                continue;
            };
            if waits_for_others(seen, ledger, key, first.need) {
                continue; // another checker judges it
            }
            let (cap, reserved) = ledger.of(first.client, key.1);
            let unfreed = ledger.unfreed(key);
            let fits = reserved + unfreed + u128::from(first.need.0) <= u128::from(cap);
            if fits && !self.returning.contains(&key.0) {
                return Err(format!(
                    "{:?} waits for {:?}, which is available",
                    first.client, first.need
                ));
            }
            let recall = self.recalls.get(key);
            let recall = recall.filter(|recall| recall.number != first.recall);
            let recall = recall.filter(|_| !self.restored.contains_key(&key.0));
            if unfreed == 0 && recall.is_some_and(|recall| recall.owing.is_empty()) {
                return Err(format!("{:?} waits and all have answered", first.client));
            }
            let late = questions.iter().find(|q| ticked && q.waits > MOST);
            if let Some(q) = late {
                return Err(format!("{:?} waits since {} ns", q.client, q.waits));
            }
        }
        Ok(())
    }

    /// Checks the end of all processes.
    ///
    /// # Errors
    /// If a request is pending.
    pub fn no_process_left(&self) -> Result<(), Objection> {
        match self.asked.values().flatten().next() {
            None => Ok(()),
            Some(question) => Err(format!("left over: {question:?}")),
        }
    }
}
