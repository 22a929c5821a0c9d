//! Loans: memory that a container has beyond its cap belongs to others, who get it when they claim it.
//!
//! # What is promised
//! * The caps of a GPU's containers fit on it together. What containers have there, and is not on the host, fits too.
//! * A request within its container's cap is a *claim*. It is granted, or waits for memory that others borrowed, and
//!   only for that. It is refused after the grace at the earliest, and only if no borrower can be moved, or moves did
//!   not end in time. The grace begins when borrowers can be asked for it: when its cap has room for it, and its
//!   container is not suspended. It is answered within the grace and [`RECLAIM_MOVE_MAX`].
//! * Requests of one account are claims together, as far as its cap has room for all of them.
//! * While a claim waits, nothing is lent on its GPU, and borrowers are told to give back what is missing: the lowest
//!   class first, and no more than each has borrowed. They are told nothing when none waits.
//! * A suspended container is granted nothing. It returns only where all of it fits, and one that was suspended for a
//!   claim returns when there is room.
//! * What a container sees as free below its limit is what it can have.
//! * Memory that processes outside of all slices have is not lent (`outside`).
//!
//! # How the checker knows
//! It keeps its own books: each container's memory from [`super::memory`], the requests that wait from
//! [`super::requests`], and the place of memory from the moves that the driver reports. What NVML shows of a
//! suspended container may count as used or may not, and so may the memory of ended processes and the driver's own
//! (`beside`): there the checker knows bounds, and objects outside of them.

use std::collections::BTreeMap;

use gpuslice_engine::{Action, Event, RECLAIM_MOVE_MAX, Refusal, Token};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::Class;
use gpuslice_wire::snapshot::{Snapshot, SuspensionState};

use beside::{Beside, Look};
use outside::Outside;

use super::memory::Ledger;
use super::requests::Requests;
use super::{Met, Objection};
use crate::observer::{LaneKey, Observer};

mod beside;
mod outside;
mod refusals;
mod reports;

/// Late ticks and slow daemons, ns.
const SLACK: u64 = 50_000_000;
/// A claim's next step comes after this long at the latest, ns.
const NEXT_STEP: u64 = 100_000_000;
/// A suspended container for which there is room is resumed after this long, or after the grace, ns.
const RESUME_WITHIN: u64 = 10_000_000_000;

/// Where the memory of a container is that is not simply on its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It is being moved to the host.
    Leaving,
    /// It is on the host.
    Away,
    /// It is being moved back.
    Returning,
}

/// A suspended container.
#[derive(Clone, Debug)]
struct Suspension {
    place: Place,
    /// The engine decided it, for a claim.
    reclaimed: bool,
    /// Since when there is room for all of it.
    fits: Option<u64>,
    /// The most that may still be on each of its GPUs.
    behind: BTreeMap<Lane, u128>,
}

/// A request that waits for memory which others borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    key: LaneKey,
    client: Option<ClientId>,
    /// No request of its account waits before it.
    head: bool,
    gpu: GpuUuid,
    /// What it asked for, and what of that is not charged yet.
    asked: u64,
    need: u64,
    /// It does not wait for NVML, or for processes that attach again.
    sure: bool,
    /// When it was made, and since when borrowers are surely asked for it: the cap had room for it and those before it,
    /// and it did not wait for anything else.
    since: u64,
    begun: Option<u64>,
    /// Since when it waits for others.
    claims: u64,
}

impl Claim {
    /// A resume that was asked for at `since` waits for all of its memory on a GPU.
    fn of_resume((key, gpu): (LaneKey, GpuUuid), need: u64, since: u64, now: u64) -> Claim {
        Claim {
            key,
            client: None,
            head: true,
            gpu,
            asked: need,
            need,
            sure: true,
            since,
            begun: Some(since),
            claims: now,
        }
    }
}

/// A request: its account, its process, when it was made, and what it asked for.
type Request = (LaneKey, ClientId, u64, u64);

/// The checker of loans.
#[derive(Debug, Default)]
pub struct Loans {
    suspensions: BTreeMap<ContainerId, Suspension>,
    /// Resumes that wait for what others borrowed: their commands, and since when.
    resumes: BTreeMap<ContainerId, (Token, u64)>,
    /// When the driver did not move a container's memory.
    not_moved: BTreeMap<ContainerId, u64>,
    /// Since when a container is about to be moved to the host, and no move is ordered.
    drains: BTreeMap<ContainerId, u64>,
    /// When memory was last on its way from or to a GPU.
    moves: BTreeMap<GpuUuid, u64>,
    /// Claims after the last step.
    claims: Vec<Claim>,
    /// Since when borrowers may have been asked for each request that waits.
    asked: BTreeMap<Request, u64>,
    /// What each container was told to give back.
    wanted: BTreeMap<LaneKey, u64>,
    classes: BTreeMap<ContainerId, Class>,
    /// What is in use beside living processes, by GPU.
    beside: BTreeMap<GpuUuid, Beside>,
    /// What processes outside of all slices have, by GPU.
    outside: BTreeMap<GpuUuid, Outside>,
    /// In this step a process attaches, and says whether it holds nothing.
    attaches: Option<bool>,
    /// Containers that were suspended, or on the way, after the last step.
    before: BTreeMap<ContainerId, SuspensionState>,
    /// A cap or a limit was changed in this step.
    promised: bool,
    /// How often each kind of thing was met.
    pub met: Met,
}

/// A GPU's memory by the checker's books.
#[derive(Clone, Copy, Debug)]
struct Free {
    least: u128,
    most: u128,
    /// The most that may still be there of suspended containers.
    behind: u128,
}

impl Loans {
    /// The books of a new engine.
    #[must_use]
    pub fn restart(&self) -> Loans {
        let outside = self.outside.iter().map(|(gpu, it)| (*gpu, it.unseen())).collect();
        Loans { met: self.met.clone(), outside, ..Loans::default() }
    }

    fn place(&self, id: &ContainerId) -> Option<Place> {
        self.suspensions.get(id).map(|it| it.place)
    }

    fn is_away(&self, id: &ContainerId) -> bool {
        self.place(id) == Some(Place::Away)
    }

    fn meets(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// Memory of a GPU that no container has.
    fn free(&self, ledger: &Ledger, gpu: GpuUuid) -> Free {
        let total = ledger.gpus().find(|(of, _)| *of == gpu).map_or(0, |(_, total)| total);
        let (mut here, mut behind) = (0u128, 0u128);
        for (key, _) in ledger.on(gpu) {
            let reserved = ledger.kept(key.0, key.1);
            match self.suspensions.get(&key.0).filter(|it| it.place == Place::Away) {
                Some(it) => behind += it.behind.get(&key.1).copied().unwrap_or(0),
                None => here += reserved,
            }
        }
        let (least, most) = self.beside.get(&gpu).map_or((0, 0), Beside::bounds);
        let outside = self.beyond(gpu);
        let (least, most) = (least + outside.0, most + outside.1);
        let left = u128::from(total).saturating_sub(here);
        let (least, most) = (left.saturating_sub(behind + most), left.saturating_sub(least));
        Free { least, most, behind }
    }

    /// What the containers of a GPU have borrowed at least and at most, but for one.
    fn lent<'a>(
        &'a self,
        ledger: &'a Ledger,
        gpu: GpuUuid,
        but: Option<ContainerId>,
    ) -> impl Iterator<Item = (LaneKey, (u128, u128))> + 'a {
        let lent = move |(key, account): (&LaneKey, &super::memory::Account)| {
            let (least, most) = match self.suspensions.get(&key.0) {
                Some(it) if it.place == Place::Away => {
                    let behind = it.behind.get(&key.1).copied().unwrap_or(0);
                    (0, behind + self.unfreed(ledger, key).1)
                }
                _ => self.kept(ledger, key),
            };
            let beyond = |bytes: u128| bytes.saturating_sub(account.cap.into());
            (*key, (beyond(least), beyond(most)))
        };
        let others = ledger.on(gpu).filter(move |(key, it)| Some(key.0) != but && it.elastic);
        others.map(lent).filter(|(_, (_, most))| *most > 0)
    }

    /// Takes in `event`, after the ledger.
    pub fn event(&mut self, seen: &Observer, ledger: &Ledger, event: &Event) {
        match event {
            Event::DeviceLooked { gpu, asked, least, most } => {
                let (least, most) = (least.0.into(), most.0.into());
                let look = Look { now: seen.now, asked: asked.0, least, most };
                self.beside.entry(*gpu).or_default().looks(look, |key| ledger.unseen(key));
            }
            Event::Outside { gpu, used } => self.sampled(*gpu, used.0),
            Event::MemoryMoved { container, away, stays } => {
                self.moved(seen, ledger, *container, (*away, stays.as_deref()));
            }
            Event::WasSuspended { container, token, moved: true } => {
                let reclaimed = *token == Token::NONE;
                let (place, behind) = (Place::Away, BTreeMap::new());
                let away = Suspension { place, reclaimed, fits: None, behind };
                self.suspensions.insert(*container, away);
            }
            Event::EndSuspension { container, token } if self.is_away(container) => {
                self.resumes.entry(*container).or_insert((*token, seen.now));
            }
            Event::Measured { client, lane, used, .. } => {
                let home = ledger.home(*client);
                home.into_iter().for_each(|home| self.shows(home, *lane, used.0));
            }
            Event::Unattributed { container, lane, used } => {
                self.shows(*container, *lane, used.0);
            }
            _ => {}
        }
    }

    /// NVML shows memory of a suspended container.
    fn shows(&mut self, id: ContainerId, lane: Lane, used: u64) {
        let behind = self.suspensions.get_mut(&id).map(|it| &mut it.behind);
        behind.into_iter().for_each(|it| *it.entry(lane).or_default() += u128::from(used));
    }

    /// The driver has moved a container's memory, or not.
    fn moved(
        &mut self,
        seen: &Observer,
        ledger: &Ledger,
        id: ContainerId,
        (away, stays): (bool, Option<&[ClientId]>),
    ) {
        let Some(it) = self.suspensions.get_mut(&id) else {
            return;
        };
        if !away {
            if it.place == Place::Leaving {
                self.not_moved.insert(id, seen.now);
            }
            self.suspensions.remove(&id);
            return;
        }
        it.place = Place::Away;
        it.fits = None;
        for (key, account) in ledger.accounts_of(id) {
            let behind = it.behind.entry(key.1).or_default();
            let charged = stays.unwrap_or_default().iter();
            let charged: u128 = charged.map(|client| ledger.charged(*client, key.1)).sum();
            let strangers = account.strangers().max(ledger.strangers(key));
            let left = charged + u128::from(strangers);
            *behind = if stays.is_some() { left } else { left.max(*behind) };
        }
    }

    /// Checks an action before the ledger takes it in.
    ///
    /// # Errors
    /// The objection.
    pub fn action(
        &mut self,
        seen: &Observer,
        (ledger, requests): (&Ledger, &Requests),
        action: &Action,
    ) -> Result<(), Objection> {
        self.promised |= matches!(
            action,
            Action::Admitted { .. }
                | Action::Restored { .. }
                | Action::Resized { .. }
                | Action::Relimited { .. }
        );
        if let Action::Admitted { record, .. } | Action::Resized { record, .. } = action {
            self.inherits(record);
        }
        match action {
            Action::Admitted { record, .. } | Action::Retuned { record, .. } => {
                self.classes.insert(record.container, record.class);
            }
            Action::Disconnect { client, why } => self.disconnected(seen, ledger, *client, *why),
            Action::Dismissed { container, .. } => {
                self.dismissed(ledger, *container);
                self.forget(container);
            }
            Action::Reserved { client, lane, bytes, .. } => {
                return self.granted(ledger, requests, (*client, *lane), bytes.0);
            }
            Action::Refused { client, lane, overdue, .. } => {
                return self.refused(seen, (ledger, requests), (*client, *lane), *overdue);
            }
            Action::Wanted { container, lane, bytes } => {
                self.meets("wanted");
                self.wanted.insert((*container, *lane), bytes.0);
            }
            Action::MoveMemory { token, container, away, memory } => {
                let reclaimed = *token == Token::NONE;
                return self.ordered(ledger, *container, (*away, reclaimed), memory.0);
            }
            Action::SuspensionSettled { container, memory, .. } => {
                self.has(ledger, container, memory.0)?;
                self.meets("settled");
            }
            Action::NoRoomToMove {
                container, why: Refusal::NoRoom { memory, left, .. }, ..
            } if memory <= left => {
                return Err(format!("{container} is not moved for lack of room, and has it"));
            }
            Action::Denied { token, .. } => self.resumes.retain(|_, (of, _)| of != token),
            _ => {}
        }
        Ok(())
    }

    fn forget(&mut self, id: &ContainerId) {
        self.suspensions.remove(id);
        self.resumes.remove(id);
        self.not_moved.remove(id);
        self.drains.remove(id);
        self.classes.remove(id);
        self.wanted.retain(|(of, _), _| of != id);
    }

    /// A suspended container's memory is what it was, whatever its processes gave back meanwhile. What ended ones have
    /// left counts, too.
    fn has(&self, ledger: &Ledger, id: &ContainerId, memory: u64) -> Result<(), Objection> {
        let (mut least, mut most) = (0, 0);
        for (key, _) in ledger.accounts_of(*id).filter(|(key, _)| key.1 != Lane::HOST) {
            let kept = self.kept(ledger, key);
            (least, most) = (least + kept.0, most + kept.1);
        }
        match (least..=most).contains(&memory.into()) || least > u128::from(u64::MAX) {
            true => Ok(()),
            false => Err(format!("{id} is moved with {memory} bytes, and has {least} to {most}")),
        }
    }

    /// A move is ordered.
    fn ordered(
        &mut self,
        ledger: &Ledger,
        id: ContainerId,
        (away, reclaimed): (bool, bool),
        memory: u64,
    ) -> Result<(), Objection> {
        self.has(ledger, &id, memory)?;
        if away {
            self.meets(if reclaimed { "suspended for a claim" } else { "suspended" });
            self.drains.remove(&id);
            let (place, behind) = (Place::Leaving, BTreeMap::new());
            let leaves = Suspension { place, reclaimed, fits: None, behind };
            self.suspensions.insert(id, leaves);
            return Ok(());
        }
        self.meets("resumed");
        self.resumes.remove(&id);
        if !self.is_away(&id) {
            return Err(format!("{id} is moved back and is not on the host"));
        }
        for (key, account) in ledger.accounts_of(id) {
            let Some(gpu) = account.gpu else { continue };
            let reserved = ledger.kept(key.0, key.1);
            let behind = self.suspensions.get(&id).and_then(|it| it.behind.get(&key.1));
            if behind.is_some_and(|behind| reserved <= *behind) {
                continue; // all of it may still be there
            }
            // For an administrator's command the daemon asks NVML what processes outside of all slices have.
            let outside = if reclaimed { 0 } else { self.beyond(gpu).0 };
            if reserved > self.free(ledger, gpu).most + outside {
                return Err(format!(
                    "{id} returns to {gpu} with {reserved} bytes, and has no room"
                ));
            }
        }
        let it = self.suspensions.get_mut(&id);
        // what an administrator has tried to resume is resumed by an administrator
        it.into_iter().for_each(|it| (it.place, it.reclaimed) = (Place::Returning, reclaimed));
        Ok(())
    }

    /// Memory was granted.
    fn granted(
        &mut self,
        ledger: &Ledger,
        requests: &Requests,
        (client, lane): (ClientId, Lane),
        bytes: u64,
    ) -> Result<(), Objection> {
        let Some(home) = ledger.home(client).filter(|_| lane != Lane::HOST) else {
            return Ok(());
        };
        if self.place(&home).is_some() {
            return Err(format!("{home} is suspended and was granted {bytes} bytes"));
        }
        let key = (home, lane);
        let Some(account) = ledger.account(&key).filter(|_| ledger.lends(&key)) else {
            return Ok(());
        };
        let Some(gpu) = account.gpu else { return Ok(()) };
        let bytes = ledger.lacks(&key, client, bytes);
        if bytes == 0 {
            return Ok(()); // it is charged already: nothing is lent
        }
        let after = ledger.reserved(home, lane) + u128::from(bytes);
        let borrows = after > u128::from(account.cap);
        let free = self.free(ledger, gpu).most;
        let there = |(_, (least, _)): (LaneKey, (u128, u128))| least > 0;
        let lent = self.lent(ledger, gpu, Some(home)).any(there) || self.was_lent(ledger, gpu);
        if borrows {
            self.meets("lent");
            let still = |claim: &&Claim| {
                claim.gpu == gpu && claim.sure && self.still_waits(requests, claim)
            };
            if let Some(claim) = self.claims.iter().find(still) {
                return Err(format!("{home} is lent memory that {} claims", claim.key.0));
            }
        }
        match u128::from(bytes) > free && (borrows || lent) {
            true => Err(format!("{home} was granted {bytes} bytes of {gpu}, of {free} free ones")),
            false => Ok(()),
        }
    }

    fn still_waits(&self, requests: &Requests, claim: &Claim) -> bool {
        match claim.client {
            None => self.resumes.contains_key(&claim.key.0),
            Some(client) => requests
                .heads()
                .any(|(key, of, asked, _)| (*key, of, asked) == (claim.key, client, claim.asked)),
        }
    }
}
