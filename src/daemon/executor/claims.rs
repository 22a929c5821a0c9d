//! What agents ask for, and the life of a claim: reserved, joined by containers, left, released.
//!
//! Reserve: the engine admits a slice; its record, the CDI file and the claim's file are written; then the answer. A
//! daemon killed in between leaves a slice without a claim's file, which ends at the next start, and the agent asks
//! again. Release: the answer waits until the claim's file is gone, so that a released claim never comes back.

use super::Duties;
use crate::agents::rows::Rows;
use crate::claims::{CdiFiles, Change, Claim, NodeDenied, Written};
use crate::containers::{Joining, Members};
use crate::events::Happening;
use crate::replies::{Denied, NO_REPLY, agent_token, key_of};
use crate::slab::Key;
use gpuslice_engine::{Engine, Event, Record, Refusal, SliceRequest, Token};
use gpuslice_host::clock::now;
use gpuslice_wire::admin::{Answer, Command, Denial, MemoryAsk};
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::node::{NodeAnswer, NodeDenial, NodeRequest, Reservation};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::{CgroupPath, Name, Text};
use gpuslice_wire::units::Bytes;

impl Duties {
    /// Executes an agent's request.
    pub fn node_request(&mut self, engine: &Engine, key: Key, request: NodeRequest) {
        match request {
            NodeRequest::Facts {} => {
                let rows = self.node_rows(engine);
                let gpus = rows.all().filter(|row| matches!(row, NodeAnswer::Gpu { .. }));
                self.agents.answer_all(key, &gpus.cloned().collect::<Vec<_>>());
            }
            NodeRequest::List {} => {
                let rows: Vec<_> = self.node_rows(engine).all().cloned().collect();
                self.agents.answer_all(key, &rows);
            }
            NodeRequest::Watch {} => {
                let rows = self.node_rows(engine);
                self.agents.begin_watch(key, rows, now());
            }
            NodeRequest::Reserve { words } => {
                if let Err((why, text)) = self.reserve(key, words) {
                    self.agents.deny(key, why, &text);
                }
            }
            NodeRequest::Release { claim } => {
                let changes = self.claims.get(&claim).is_some();
                if changes && let Err((why, text)) = self.claims.may_change() {
                    return self.agents.deny(key, why, &text);
                }
                let members = self.release(&claim);
                self.answer_written(key, &claim, NodeAnswer::Released { members });
            }
        }
    }

    /// All rows that an agent sees.
    pub fn node_rows(&self, engine: &Engine) -> Rows {
        self.gpu_table
            .rows(&engine.snapshot(now()), |slice| {
                let claim = ClaimId::of_slice(slice);
                let released =
                    claim.is_some_and(|it| self.claims.get(&it) == Some(&Claim::Released));
                (self.containers.owner_of(slice), claim, released)
            })
            .chain(
                self.containers
                    .all_members()
                    .map(|(claim, container)| NodeAnswer::Member { claim, container }),
            )
            .collect()
    }

    /// Asks the engine for a claim's slice, or answers from what is known.
    fn reserve(&mut self, key: Key, words: Reservation) -> Result<(), NodeDenied> {
        if let Some(known) = self.claims.known_answer(&words) {
            return known.map(|()| self.answer_reserved(key, &words.claim));
        }
        self.claims.may_change()?;
        if let Some(why) = self.cgroup_limits.why_no_claims() {
            return Err((NodeDenial::Host, format!("claim {}: {why}", words.claim)));
        }
        let slice = words.claim.slice();
        let room = self.containers.has_room(&slice);
        room.map_err(|(why, text)| (of_denial(why), text))?;
        if let Some(text) = self.gpu_table.unhealthy(words.gpus.as_slice()) {
            return Err((NodeDenial::Unhealthy, text));
        }
        let ask = request_of(&words)?;
        self.claims.ask(words);
        self.tasks.step(Event::Admit { token: agent_token(key), ask: ask.into() });
        Ok(())
    }

    /// The event that asks for the slice of a claim from before a reboot.
    ///
    /// # Errors
    /// Its words are invalid.
    pub fn reserve_again(&mut self, words: Reservation) -> Result<Event, NodeDenied> {
        let ask = request_of(&words)?;
        self.claims.ask(words);
        Ok(Event::Admit { token: agent_token(key_of(NO_REPLY)), ask: ask.into() })
    }

    /// The slice of a claim exists in the engine: writes its record and its files.
    pub(super) fn claim_admitted(&mut self, token: Token, record: &Record) {
        let key = key_of(token);
        let asked = self.claims.take_asked();
        let Some(words) = asked.filter(|it| it.claim.slice() == record.container) else {
            // A bug's, but its agent must not wait for ever: it has one request at a time.
            self.agents.deny(key, NodeDenial::Host, "the daemon has lost the request; repeat it");
            return self.dismiss(record.container);
        };
        self.expect_slice();
        let claim = words.claim;
        let nobody = (Members::default(), None);
        let opened = self.containers.admit(now(), record, &words.owner, nobody);
        let dir = self.containers.state().container_dir(&record.container);
        let done = opened
            .map_err(|why| format!("{}: {why}", dir.display()))
            .and_then(|()| self.claims.keep(words));
        if let Err(why) = done {
            let text = format!("{why}; free disk space or raise the limit there");
            return self.give_up(key, &claim, text);
        }
        self.containers.link_members(&claim);
        if self.claims.may_log(now()) {
            tracing::info!(%claim, gpus = record.lanes.len(), "claim reserved");
        }
        self.events.know(record.container, record.name);
        let began = Happening::of(EventKind::SliceBegan, record.container);
        self.events.record(now(), began.with(super::slices::given(record), String::new()));
        let finished = self.cgroup_limits.admit(&mut self.accounting, token, record);
        self.continue_after_limits(finished);
    }

    /// Answers a reservation once each limit of its slice is set or refused.
    pub(super) fn answer_limited_claim(&mut self, token: Token, slice: ContainerId) {
        let key = key_of(token);
        let Some(claim) = ClaimId::of_slice(&slice).filter(|_| self.containers.has(&slice)) else {
            let why = "the claim was released before its limits were set";
            return self.agents.deny(key, NodeDenial::Host, why);
        };
        if let Err(text) = self.cgroup_limits.verdict(&slice) {
            return self.give_up(key, &claim, text);
        }
        self.answer_reserved(key, &claim);
    }

    /// The slice of a claim cannot exist. A claim from before a reboot keeps its file: it is promised to its agent.
    fn give_up(&mut self, key: Key, claim: &ClaimId, text: String) {
        tracing::error!(%claim, "{text}");
        self.agents.deny(key, NodeDenial::Host, &text);
        if key == key_of(NO_REPLY) {
            self.claims.note_broken(claim, text);
        }
        self.dismiss(claim.slice());
    }

    fn answer_reserved(&mut self, key: Key, claim: &ClaimId) {
        let device = Text::new(&CdiFiles::device(claim)).unwrap_or(Text::EMPTY);
        self.answer_written(key, claim, NodeAnswer::Reserved { device });
    }

    /// Answers once everything about the claim is on the disk.
    fn answer_written(&mut self, key: Key, claim: &ClaimId, answer: NodeAnswer) {
        if let Some(answer) = self.claims.hold(claim, key, answer) {
            self.agents.answer(key, &answer);
        }
    }

    /// Claims' files were written, or could not be.
    pub fn claims_written(&mut self) {
        while let Some(Written { change, done, answers }) = self.claims.written() {
            let Err(why) = done else {
                for (key, answer) in answers {
                    self.agents.answer(key, &answer);
                }
                continue;
            };
            let claim = change.claim();
            let text = match change {
                Change::Keep(_) => format!("{why}; free disk space or raise the limit there"),
                Change::Forget(_) => {
                    format!("{why}; release the claim again, or delete it by hand")
                }
            };
            tracing::error!(%claim, "{text}");
            for (key, _) in answers {
                self.agents.deny(key, NodeDenial::Host, &text);
            }
            match change {
                Change::Keep(words) if self.claims.is_lost(&words) => self.dismiss(claim.slice()),
                // A file that stays would come back after a reboot.
                Change::Forget(_) if self.claims.get(&claim).is_none() => {
                    self.claims.note_broken(&claim, text);
                }
                _ => {}
            }
        }
    }

    /// The engine refused the slice of a claim.
    pub(super) fn claim_denied(&mut self, token: Token, why: Denial, refusal: &Refusal) {
        let asked = self.claims.take_asked();
        let text = refusal.to_string();
        if key_of(token) == key_of(NO_REPLY)
            && let Some(words) = asked
        {
            let claim = words.claim;
            tracing::error!(%claim, why = text, "claim not restored; its containers do not start until it is released and reserved again");
            self.claims.note_broken(&claim, text);
            return;
        }
        self.agents.deny(key_of(token), of_denial(why), &text);
    }

    /// Gives a claim up; returns the number of containers that still live in it.
    fn release(&mut self, claim: &ClaimId) -> u32 {
        if self.claims.get(claim).is_none() {
            return 0;
        }
        let members = self.containers.members_of(claim).len();
        self.claims.release(claim, members > 0);
        if self.claims.may_log(now()) {
            tracing::info!(%claim, members, "claim released");
        }
        self.agents.changed();
        // A slice that was not restored is in no table, and has its record.
        let slice = claim.slice();
        let exists = self.containers.has(&slice) || self.containers.state().has_record(&slice);
        if members == 0 && exists {
            self.dismiss(claim.slice());
        }
        u32::try_from(members).unwrap_or(u32::MAX)
    }

    /// Lets a container live in a claim, as its hook asks.
    ///
    /// # Errors
    /// Why not.
    pub fn join(&mut self, key: Key, command: &Command) -> Result<(), Denied> {
        let &Command::Join { container, claims, owner, pid } = command else {
            return Ok(());
        };
        let claim = one_of(claims)?;
        if self.containers.has_left(&container) {
            self.left(&container);
        }
        self.may_be_joined(&claim)?;
        if self.containers.may_join(&container, &claim, pid)? {
            self.answer(key, &Answer::Done {});
            return Ok(());
        }
        self.admins.hold_first_process(key, pid)?;
        let cgroup = match pid {
            0 => CgroupPath::EMPTY,
            _ => self.cgroup_limits.cgroup_of(&container, pid),
        };
        let joining = Joining { container, claim, owner, cgroup, pid };
        let asked = self.admins.take_asked(key);
        let dir = self.containers.state().container_dir(&container);
        self.containers.join(joining, asked).map_err(|why| {
            let text =
                format!("{}: {why}; free disk space or raise the limit there", dir.display());
            (Denial::Host, text)
        })?;
        tracing::info!(%container, %claim, pod = %owner.pod, "container joined its claim");
        self.agents.changed();
        if !self.answer_joined(key, &container) {
            tracing::warn!(%container, %claim, "the client that asked for the claim has disconnected");
            self.left(&container);
        }
        Ok(())
    }

    /// Whether containers may join a claim.
    fn may_be_joined(&self, claim: &ClaimId) -> Result<(), Denied> {
        let text = match self.claims.get(claim) {
            None => {
                format!("no such claim {claim}; it was released, or never reserved on this node")
            }
            Some(Claim::Released) => format!("claim {claim} was released"),
            Some(Claim::Broken(why)) => format!("claim {claim}: {why}"),
            Some(Claim::Reserved(_)) if !self.containers.has(&claim.slice()) => {
                format!("claim {claim} has no slice; see the log of gpusliced")
            }
            Some(Claim::Reserved(words)) => match self.gpu_table.unhealthy(words.gpus.as_slice()) {
                Some(text) => return Err((Denial::Host, format!("claim {claim}: {text}"))),
                None => return Ok(()),
            },
        };
        Err((Denial::NoSuchSlice, text))
    }

    /// A container in a claim has ended. A released claim ends with the last of them.
    pub fn left(&mut self, container: &ContainerId) {
        let Some(claim) = self.containers.leave(container) else {
            return;
        };
        tracing::info!(%container, %claim, "container left its claim");
        self.agents.changed();
        let is_over = matches!(self.claims.get(&claim), None | Some(Claim::Released));
        if is_over && self.containers.members_of(&claim).is_empty() {
            self.claims.forget_released(&claim);
            self.dismiss(claim.slice());
        }
    }

    /// Ends a container's life in a claim at its request, unless it still runs: a claim's processes are not told apart.
    pub fn dismiss_joined(&mut self, key: Key, container: &ContainerId) {
        if !self.containers.may_have_left(container) {
            let claim = self.containers.claim_of(container);
            let claim = claim.map(|claim| claim.to_string()).unwrap_or_default();
            let text =
                format!("{container} lives in claim {claim} and still runs; stop the container");
            return self.deny(key, Denial::Invalid, &text);
        }
        self.left(container);
        self.answer(key, &Answer::Dismissed {});
    }

    /// Adds the owners of slices to a snapshot, before its end.
    pub fn add_owners(&self, rows: &mut Vec<Snapshot>) {
        let end = rows.pop();
        for container in self.containers.ids() {
            let owner = self.containers.owner_of(container);
            if !owner.is_empty() {
                rows.push(Snapshot::SliceOwner { container: *container, owner });
            }
        }
        rows.extend(end);
    }

    /// Removes what belongs to the claim of a slice that ends. The file of a claim that cannot be kept stays, unless an
    /// administrator ends its slice.
    pub(super) fn claim_dismissed(&mut self, token: Token, claim: &ClaimId) {
        let is_broken = matches!(self.claims.get(claim), Some(Claim::Broken(_)));
        if is_broken && token == NO_REPLY {
            return;
        }
        for container in self.containers.members_of(claim) {
            self.containers.leave(&container);
        }
        self.claims.release(claim, false);
    }

    /// After a start: ends the slices of claims that were released meanwhile, or never written down.
    pub fn end_orphans(&mut self) {
        let slices: Vec<ClaimId> = self.containers.ids().filter_map(ClaimId::of_slice).collect();
        for claim in slices {
            match (self.claims.get(&claim), self.containers.members_of(&claim).is_empty()) {
                (Some(_), _) => {}
                (None, true) => self.dismiss(claim.slice()),
                (None, false) => self.claims.note_released(&claim),
            }
        }
        self.claims.restore_cdi();
    }
}

/// The one claim that a container names.
fn one_of(claims: impl IntoIterator<Item = Option<ClaimId>>) -> Result<ClaimId, Denied> {
    let mut named: Vec<ClaimId> = claims.into_iter().flatten().collect();
    named.dedup();
    match named.as_slice() {
        [claim] => Ok(*claim),
        [] => Err((Denial::Protocol, "no claim is named".to_owned())),
        [first, second, ..] => {
            let text = format!(
                "the container has the devices of two claims, {first} and {second}, and lives in one; \
                 reserve all its GPUs as one claim"
            );
            Err((Denial::Invalid, text))
        }
    }
}

/// The engine's request for a claim's slice.
fn request_of(words: &Reservation) -> Result<SliceRequest, NodeDenied> {
    let invalid = |text: &str| Err((NodeDenial::Invalid, text.to_owned()));
    let gpus = words.gpus.as_slice();
    if gpus.is_empty() {
        return invalid("a claim needs at least one GPU");
    }
    if words.memory == Bytes::ZERO {
        return invalid("a claim needs memory: at least one byte on each GPU");
    }
    let mut list: [Option<GpuRef>; GPUS_MAX] = [None; GPUS_MAX];
    for (place, gpu) in list.iter_mut().zip(gpus) {
        *place = Some(GpuRef::Uuid(*gpu));
    }
    Ok(SliceRequest {
        container: words.claim.slice(),
        name: name_of(&words.claim, &words.owner),
        gpus: GpuSelector::List(list),
        whole: None,
        memory: MemoryAsk::Exactly(words.memory),
        memory_limit: None,
        weight: words.weight,
        share: words.share,
        share_limit: words.share_limit,
        class: words.class,
        gang: words.gang,
        pinned: words.pinned,
        bounds: None,
        cgroup: CgroupPath::EMPTY,
    })
}

/// A claim's name for display: pod and container, or its id.
fn name_of(claim: &ClaimId, owner: &Owner) -> Name {
    let text = match (owner.pod.as_str(), owner.container.as_str()) {
        ("", _) => claim.as_str().to_owned(),
        (pod, "") => pod.to_owned(),
        (pod, container) => format!("{pod}/{container}"),
    };
    let end = text.floor_char_boundary(gpuslice_wire::limits::NAME_BYTES_MAX);
    Name::new(&text[..end]).unwrap_or(Name::EMPTY)
}

fn of_denial(why: Denial) -> NodeDenial {
    match why {
        Denial::Protocol => NodeDenial::Protocol,
        Denial::NoSuchGpu => NodeDenial::NoSuchGpu,
        Denial::Memory => NodeDenial::Memory,
        Denial::Capacity => NodeDenial::Capacity,
        Denial::Invalid => NodeDenial::Invalid,
        Denial::Exists | Denial::Host | Denial::NoSuchSlice => NodeDenial::Host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_lives_in_one_claim() {
        let claim = |id: &str| ClaimId::new(id).ok();
        assert_eq!(one_of([claim("a"), claim("a"), None, None]), Ok(claim("a").expect("an id")));
        assert_eq!(one_of([None; 4]).map_err(|why| why.0), Err(Denial::Protocol));
        let two = one_of([claim("a"), claim("b"), None, None]).expect_err("refused");
        assert!(two.0 == Denial::Invalid && two.1.contains("a and b"), "{two:?}");
    }
}
