//! Containers and processes: their states and transitions.
//!
//! ```text
//! container             attach of a process   grace over   last process gone   dismiss
//!   (none) -admit->
//!   Settled             Settled               -            Settled             (none)
//!   (none) -restore->
//!   Returning           Returning *           Settled      Returning *         (none)
//!
//! process               attach                left, or cut         gone, taken over, or dismissed
//!   (free slot)         Connected             -                    -
//!   Connected           -                     Apart                (free slot, generation + 1)
//!   Apart               -                     -                    (free slot, generation + 1)
//! ```
//! An `Apart` process may live and has no connection: its grants count, and nothing else of it. The state
//! ends with the process, or the next connection of that process takes it over. A process without grants is
//! not kept.
//!
//! `Returning` is the time after a restart of the daemon in which processes that still hold memory attach
//! again. Growth waits for them; otherwise it could be given memory they already have. (*) Where the grants
//! are known, the state ends as soon as all have attached again or ended. It begins again when processes can
//! attach: at the end of the daemon's start, or later.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::limits::{CLIENTS_MAX, CONTAINERS_MAX};
use gpuslice_wire::snapshot::SuspensionState;
use gpuslice_wire::units::{Bytes, Instant};

use crate::action::LaneView;
use crate::event::{Claims, Process, Token};
use crate::index::ContainerIndex;
use crate::lanes::ByLane;
use crate::ledger::{Measured, MemoryAccount, Window};
use crate::record::{LaneRecord, Record};
use crate::sched::entity::Report;
use crate::sched::overhead::WorkSpan;
use crate::unfreed::{CONTEXT_MOST, Unfreed};

/// Whether all processes that hold memory are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// All are known: growth is answered at once.
    Settled,
    /// Some may still attach again: growth waits until then.
    Returning { until: Instant },
}

impl Stage {
    /// The stage at `now`.
    pub(crate) fn at(self, now: Instant) -> Stage {
        match self {
            Stage::Returning { until } if now < until => self,
            _ => Stage::Settled,
        }
    }
}

/// How far the suspension of a container is, see [`crate::suspend`].
///
/// The token is of the event that is not answered yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Suspension {
    /// It is not suspended.
    #[default]
    None,
    /// It takes no turns any more, and may have work in flight until then. `again`: an earlier daemon began the move.
    Draining { token: Token, until: Instant, again: bool },
    /// Its memory is being moved to the host.
    Leaving { token: Token },
    /// Its memory is on the host.
    Away,
    /// Its memory is being moved back.
    Returning { token: Token },
}

impl Suspension {
    /// Whether its launches wait although no other container has work.
    pub(crate) fn closes_gate(self) -> bool {
        !matches!(self, Suspension::None | Suspension::Away)
    }

    /// What it changes of a report to the GPUs.
    pub(crate) fn on_report(self, report: &mut Report) {
        match self {
            Suspension::None => {}
            // Whatever its processes claim, the driver lets none of them do anything.
            Suspension::Away => *report = Report { drained: true, ..Report::default() },
            _ => report.runnable = false,
        }
        report.suspended = self != Suspension::None;
    }

    /// What observers see of it.
    pub(crate) fn shown(self) -> Option<SuspensionState> {
        match self {
            Suspension::None => None,
            Suspension::Draining { .. } | Suspension::Leaving { .. } => {
                Some(SuspensionState::Suspending)
            }
            Suspension::Away => Some(SuspensionState::Suspended),
            Suspension::Returning { .. } => Some(SuspensionState::Resuming),
        }
    }
}

/// A request for memory, in its account's queue until it is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(crate) client: ClientId,
    pub(crate) token: Token,
    pub(crate) lane: Lane,
    pub(crate) need: Bytes,
    pub(crate) wish: Bytes,
    /// The account's recall number at its arrival: it is decided at the latest after a later one.
    pub(crate) after: u32,
    /// It could not be decided at once: then only its need is granted.
    pub(crate) waited: bool,
    /// When it arrived.
    pub(crate) at: Instant,
    /// Since when borrowers are asked for it; see `memory::borrow`.
    pub(crate) claims_since: Option<Instant>,
}

/// An account's recall of unused credit; see `memory::recall`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recall {
    number: u32,
    /// Processes that owe an answer; the recall is on as long as there is one.
    owing: Vec<ClientId>,
}

impl Recall {
    /// The number of the last recall, as the page shows it.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }
    /// Asks these processes.
    pub(crate) fn begin(&mut self, owing: Vec<ClientId>) {
        self.number = self.number.wrapping_add(1);
        self.owing = owing;
    }
    /// No answer is awaited any more.
    pub(crate) fn end(&mut self) {
        self.owing.clear();
    }
    pub(crate) const fn is_on(&self) -> bool {
        !self.owing.is_empty()
    }
    /// Processes that owe an answer.
    pub(crate) fn owing(&self) -> &[ClientId] {
        &self.owing
    }
    /// `client` has answered, or has ended.
    pub(crate) fn answered(&mut self, client: ClientId) {
        self.owing.retain(|&other| other != client);
    }
}

/// The last refusal of an account; zeros for none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastDenied {
    /// What its process wanted, unused credit of its own included.
    pub(crate) need: Bytes,
    /// What it could have had, the same included.
    pub(crate) left: Bytes,
    /// Unused credit of the container's other processes.
    pub(crate) others: Bytes,
    pub(crate) at: Instant,
}

/// One account of a container: its slice of a GPU, or the host memory it pinned.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    /// Index into the engine's GPUs; `None` is the host.
    pub(crate) gpu: Option<usize>,
    pub(crate) account: MemoryAccount,
    /// The least memory that a first context of one of its processes was seen to take.
    pub(crate) context: Option<Bytes>,
    /// Memory of the container's processes that are not attached.
    pub(crate) unattributed: Measured,
    /// NVML's sum over all its processes beyond the sum of their grants, and the part of it that is charged
    /// to none of them alone.
    pub(crate) beyond: Measured,
    pub(crate) hidden: Bytes,
    /// The part charged to single processes: the sum of their residuals.
    pub(crate) residual: u128,
    /// The sum of its processes' grants.
    pub(crate) granted: u128,
    /// While its container's memory is on the host: what NVML shows of the processes that are not attached, and of
    /// all of them.
    pub(crate) strangers_left: Bytes,
    pub(crate) left_behind: Measured,
    /// That is what its processes were granted, and NVML has not been asked since the move.
    pub(crate) assumed: bool,
    /// What its ended processes were charged and the driver has not freed yet.
    pub(crate) unfreed: Unfreed,
    /// The largest `granted` while NVML is asked.
    pub(crate) window: Window,
    pub(crate) recall: Recall,
    /// Undecided requests, in order of arrival.
    pub(crate) waiting: VecDeque<Growth>,
    /// It has, or had, a limit above its cap; see `memory::borrow`.
    pub(crate) elastic: bool,
    /// What its limit leaves and it cannot have now, because other containers use it.
    pub(crate) withheld: Bytes,
    /// What it should give back of what it borrowed.
    pub(crate) wanted: Bytes,
    /// The content of the container's page; `None` before the first write.
    pub(crate) shown: Option<LaneView>,
    pub(crate) peak: Bytes,
    /// Counts of ended processes: the counters an observer sees only grow.
    pub(crate) past_launches: u64,
    pub(crate) past_denied: u64,
    pub(crate) last_denied: LastDenied,
}

impl Slice {
    /// An unused account of a GPU. Where caps promise nothing, nothing can be reclaimed, so nothing is lent either.
    pub(crate) fn of(gpu: usize, lane: &LaneRecord, oversubscribe: bool) -> Slice {
        let mut slice = Slice::new(Some(gpu), lane.cap);
        if lane.elastic && !oversubscribe {
            slice.account.set_cap(lane.cap, lane.limit);
            slice.elastic = true;
        }
        slice
    }
    /// An unused account.
    pub(crate) fn new(gpu: Option<usize>, cap: Bytes) -> Slice {
        Slice {
            gpu,
            account: MemoryAccount::new(cap),
            context: None,
            unattributed: Measured::default(),
            beyond: Measured::default(),
            hidden: Bytes::ZERO,
            residual: 0,
            granted: 0,
            strangers_left: Bytes::ZERO,
            left_behind: Measured::default(),
            assumed: false,
            unfreed: Unfreed::default(),
            window: Window::default(),
            recall: Recall::default(),
            waiting: VecDeque::new(),
            elastic: false,
            withheld: Bytes::ZERO,
            wanted: Bytes::ZERO,
            shown: None,
            peak: Bytes::ZERO,
            past_launches: 0,
            past_denied: 0,
            last_denied: LastDenied::default(),
        }
    }
    /// Notes a larger grant to a process, which the account has reserved. No grant is ever decided beyond
    /// the limit: that much explains NVML's figure as long as it is held, and no longer.
    pub(crate) fn note_grant(&mut self, bytes: Bytes) {
        self.granted += u128::from(bytes.0);
        self.window.note(self.explained());
    }
    /// A process with grants of `was` goes on with `held` of them, or, after a restart of the daemon, with what it
    /// says. That explains NVML's figure only as long as it is held.
    pub(crate) fn regrant(&mut self, was: u128, held: Bytes) {
        self.account.recount(was, u128::from(held.0));
        self.granted = self.granted.saturating_sub(was) + u128::from(held.0);
    }
    /// What it has borrowed with so much. A slice above a cap that was lowered, and never with a larger limit, owes
    /// nothing.
    pub(crate) fn lent(&self, kept: Bytes) -> Bytes {
        if self.elastic { kept.saturating_sub(self.account.cap()) } else { Bytes::ZERO }
    }
    /// What is on the GPU while its container's memory is on the host: the memory of ended processes was not moved.
    pub(crate) fn stays(&self) -> Bytes {
        self.left_behind.charged().saturating_add(self.unfreed.sum())
    }
    /// The grants that explain NVML's figure also when they are gone: no more than the limit.
    pub(crate) fn explained(&self) -> u128 {
        self.granted.min(u128::from(self.account.limit().0))
    }
    /// The most that a process may say it was granted before a restart of the daemon. While others may still say
    /// the same, what was measured does not count: it may be that memory.
    pub(crate) fn left_to_claims(&self, rebuilding: bool) -> Bytes {
        let limit = u128::from(self.account.limit().0);
        match u64::try_from(limit.saturating_sub(self.granted)) {
            Ok(left) if rebuilding => Bytes(left),
            _ => self.account.left(),
        }
    }
    /// A process gives bytes back.
    pub(crate) fn give_back(&mut self, bytes: Bytes) {
        self.granted = self.granted.saturating_sub(u128::from(bytes.0));
        self.account.release(bytes);
    }
    /// The memory of a process that ended at `now` is no longer its own.
    pub(crate) fn end(&mut self, now: Instant, charged: u128) {
        let charged = Bytes(u64::try_from(charged).unwrap_or(u64::MAX));
        let added = self.unfreed.add(now, charged);
        self.account.hold(added);
    }
    /// Memory that was measured beyond the grants of its processes.
    pub(crate) fn untracked(&self) -> Bytes {
        let explained = self.granted + u128::from(self.unfreed.sum().0);
        let beyond = self.account.exactly().saturating_sub(explained);
        Bytes(u64::try_from(beyond).unwrap_or(u64::MAX))
    }
    /// Adds an ended process's counts to those that observers see.
    pub(crate) fn count_past(&mut self, mine: &ClientLane) {
        self.past_launches = self.past_launches.saturating_add(mine.claims.launches);
        self.past_denied = self.past_denied.saturating_add(mine.denied());
    }
    /// A process without other memory has its first context, and `used` is its size. The smallest figure seen is
    /// right; a larger one includes other memory. Each container learns from its own processes alone: a figure
    /// depends on when a process asks for it, so a false one must cost no other container.
    pub(crate) fn note_first_context(&mut self, used: Bytes) {
        if used > Bytes::ZERO && self.context.is_none_or(|least| used < least) {
            self.context = Some(used);
        }
    }
    /// All processes were measured at `now`: together they have this much beyond their grants.
    pub(crate) fn looked(&mut self, now: Instant, beyond: Bytes) {
        self.beyond.look(now, beyond);
        self.settle_hidden();
    }
    /// A measurement changes `residual`, of one process.
    pub(crate) fn recount(&mut self, residual: &mut Measured, look: impl FnOnce(&mut Measured)) {
        self.account.release(residual.charged());
        self.residual = self.residual.saturating_sub(u128::from(residual.charged().0));
        look(residual);
        self.residual += u128::from(residual.charged().0);
        self.account.hold(residual.charged());
        self.settle_hidden();
    }
    /// A process has ended, and its residual with it; with the last process the hidden memory ends.
    pub(crate) fn forget_residual(&mut self, mut residual: Measured, last: bool) {
        self.beyond.reduce(residual.charged());
        if last {
            self.beyond = Measured::default();
        }
        self.recount(&mut residual, |it| *it = Measured::default());
    }
    /// A process's own figure shows that its grants explain so much of the sum over all.
    pub(crate) fn explain(&mut self, bytes: Bytes) {
        self.beyond.reduce(bytes);
        self.settle_hidden();
    }
    pub(crate) fn settle_hidden(&mut self) {
        let hidden = u128::from(self.beyond.charged().0).saturating_sub(self.residual);
        self.account.release(self.hidden);
        self.hidden = Bytes(u64::try_from(hidden).unwrap_or(u64::MAX));
        self.account.hold(self.hidden);
    }
}

/// A container that has a slice.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) record: Record,
    pub(crate) stage: Stage,
    /// All grants of its processes are known here.
    pub(crate) complete: bool,
    /// Whether its memory is on the host, or on the way.
    pub(crate) suspension: Suspension,
    /// A resume that waits for what others have borrowed: of which event, and since when.
    pub(crate) resume: Option<(Token, Instant)>,
    /// When the driver did not move its memory.
    pub(crate) not_moved: Option<Instant>,
    pub(crate) clients: Vec<ClientId>,
    pub(crate) slices: ByLane<Slice>,
}

/// The state of one process on one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientLane {
    pub(crate) granted: Bytes,
    /// Its largest grant since the driver's last measurement, and between the two before.
    pub(crate) peaks: [Bytes; 2],
    /// NVML's figure for it beyond its grants.
    pub(crate) residual: Measured,
    /// It has requested a measurement that showed memory: its first context was made.
    pub(crate) asked: bool,
    /// All its memory by a measurement that it requested, until the next sample.
    pub(crate) answered: Option<Bytes>,
    /// The part of its residual that is not charged, because its grants since then explain it.
    pub(crate) covered: Bytes,
    /// NVML's figure for it at the last measurement; `None` before the first.
    pub(crate) seen: Option<Bytes>,
    /// The part of that beyond its own grants.
    pub(crate) own: Bytes,
    /// NVML's figure for the process while its container is suspended; before the first one, its memory that stayed.
    pub(crate) left_behind: Bytes,
    /// While its container is suspended: what was charged to it when that began; see `memory::on_host`.
    pub(crate) moved: u128,
    pub(crate) claims: Claims,
    /// The turn word its container had when the page was last read.
    pub(crate) read_at: u32,
    /// The last order to stop its container's work when it attached.
    pub(crate) order: u32,
    /// It has been runnable.
    pub(crate) was_runnable: bool,
    /// Its requests that the engine refused.
    pub(crate) refused: u64,
}

impl ClientLane {
    /// Whether it was read after its container's turn word became `closed`, and has nothing in flight of
    /// any turn. Work of an earlier turn may be in flight: that turn ended in open mode, without a wait for
    /// it. Parked work ran in the turn that `closed` ended, and must have been reported over since.
    pub(crate) fn drained(&self, closed: u32) -> bool {
        let Claims { parked, active, drained, .. } = self.claims;
        let answered = !parked || active.wrapping_add(1) == closed;
        self.read_at == closed && drained == active && answered
    }
    /// When it was on the GPU in the turn that `closed` ended, by its own claim.
    pub(crate) fn work_span(&self, closed: u32) -> Option<WorkSpan> {
        let Claims { active, began, calm, .. } = self.claims;
        (active.wrapping_add(1) == closed).then_some(WorkSpan { began, calm })
    }
    /// Whether it is runnable for the first time with these claims.
    pub(crate) fn begins(&self, claims: &Claims) -> bool {
        claims.runnable && !self.was_runnable
    }
    /// Bytes it holds by its own claim, at most its grants.
    pub(crate) fn held(&self) -> Bytes {
        self.claims.held.min(self.granted)
    }
    /// Bytes that it was granted and does not hold, by its own claim.
    pub(crate) fn credit(&self) -> Bytes {
        self.granted.saturating_sub(self.held())
    }
    /// All bytes that count for it.
    pub(crate) fn reserved(&self) -> u128 {
        u128::from(self.granted.0) + u128::from(self.untracked().0)
    }
    /// The part of its residual that is charged.
    pub(crate) fn untracked(&self) -> Bytes {
        self.residual.charged().saturating_sub(self.covered)
    }
    /// The memory that counts for it wherever it is.
    pub(crate) fn kept(&self) -> u128 {
        self.reserved().max(self.moved)
    }
    /// Its container is suspended, and its charges are about to fall: its memory stays where it is.
    pub(crate) fn keep(&mut self) {
        self.moved = self.kept();
    }
    /// The most memory that it may have had on the device when it ended: its charges, and memory without a charge yet.
    /// The latter is what NVML has shown once, or the context that it was creating. Such a context rests on a claim, so
    /// it counts at most as much as the cap has left: a false claim costs no other container.
    pub(crate) fn leaves(&self, slice: &Slice) -> u128 {
        let shown = self.own.saturating_sub(self.untracked());
        // What a sample has shown of a context may be the half of it.
        let is_known = self.asked || self.claims.held > Bytes::ZERO || self.claims.contexts == 0;
        let context = if is_known { Bytes::ZERO } else { slice.context.unwrap_or(CONTEXT_MOST) };
        let kept = u64::try_from(self.kept()).unwrap_or(u64::MAX);
        let context = context.saturating_sub(Bytes(kept)).min(slice.account.promised());
        self.kept() + u128::from(shown.max(context).min(slice.account.left()).0)
    }
    /// The state for its next connection: the driver's measurements stay, it claims all else anew.
    pub(crate) fn go_on(&self) -> ClientLane {
        ClientLane {
            peaks: self.peaks,
            residual: self.residual,
            seen: self.seen,
            own: self.own,
            left_behind: self.left_behind,
            ..ClientLane::default()
        }
    }
    /// It attaches with grants from before.
    pub(crate) fn take_over(&mut self, bytes: Bytes) {
        self.granted = bytes;
    }
    /// It is granted so much in addition.
    pub(crate) fn grant(&mut self, bytes: Bytes) {
        self.granted = self.granted.saturating_add(bytes);
        self.peaks[0] = self.peaks[0].max(self.granted);
    }
    /// All its memory: NVML's figure, and by its own claim what NVML does not show. A process holds that within its
    /// grants, so a larger claim is false: no more than its grants counts, or others would lose what they are promised.
    pub(crate) fn all(&self) -> Bytes {
        let unseen = self.claims.unseen.min(self.granted);
        self.seen.unwrap_or_default().saturating_add(unseen)
    }
    /// NVML shows `used` of it. Returns the part beyond its largest grant around the time of the
    /// measurement.
    pub(crate) fn beyond(&mut self, used: Bytes) -> Bytes {
        self.seen = Some(used);
        let most = self.granted.max(self.peaks[0]).max(self.peaks[1]);
        self.own = self.all().saturating_sub(most);
        self.peaks = [self.granted, self.peaks[0]];
        self.own
    }
    /// Refusals, by the larger of two counts: its own, and the engine's.
    pub(crate) fn denied(&self) -> u64 {
        self.claims.denied.max(self.refused)
    }
}

/// An attached process.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) index: ContainerIndex,
    /// Its identity, if it is known.
    pub(crate) process: Option<Process>,
    /// It has a connection.
    pub(crate) connected: bool,
    /// It said that it holds nothing, and took over no account that holds something: another copy's, perhaps. So is one
    /// that took over the account of such a connection.
    pub(crate) began_anew: bool,
    /// It has told whether it has shared GPU memory.
    pub(crate) told: bool,
    pub(crate) lanes: ByLane<ClientLane>,
}

/// All containers, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Containers(Vec<Option<Container>>);

impl Containers {
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ContainerIndex, &Container)> {
        let seats = self.0.iter().enumerate();
        seats.filter_map(|(at, c)| c.as_ref().map(|c| (ContainerIndex(at as u16), c)))
    }
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ContainerIndex, &mut Container)> {
        let seats = self.0.iter_mut().enumerate();
        seats.filter_map(|(at, c)| c.as_mut().map(|c| (ContainerIndex(at as u16), c)))
    }
    pub(crate) fn find(&self, id: ContainerId) -> Option<ContainerIndex> {
        self.iter().find(|(_, c)| c.record.container == id).map(|(index, _)| index)
    }
    pub(crate) fn get(&self, index: ContainerIndex) -> Option<&Container> {
        self.0.get(usize::from(index.0))?.as_ref()
    }
    pub(crate) fn get_mut(&mut self, index: ContainerIndex) -> Option<&mut Container> {
        self.0.get_mut(usize::from(index.0))?.as_mut()
    }
    /// Inserts `container`, or returns `None` if the table is full.
    pub(crate) fn insert(&mut self, container: Container) -> Option<ContainerIndex> {
        let free = self.0.iter().position(Option::is_none);
        let at = free.unwrap_or(self.0.len());
        if at >= CONTAINERS_MAX {
            return None;
        }
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(container);
        Some(ContainerIndex(at as u16))
    }
    pub(crate) fn remove(&mut self, index: ContainerIndex) -> Option<Container> {
        self.0.get_mut(usize::from(index.0))?.take()
    }
}

/// All processes. A slot's generation grows whenever the slot is freed, so an id of a former owner finds no
/// process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients(Vec<(u16, Option<Client>)>);

impl Clients {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.0.iter().enumerate().filter_map(|(slot, (generation, client))| {
            let id = ClientId { slot: slot as u16, generation: *generation };
            client.as_ref().map(|client| (id, client))
        })
    }
    pub(crate) fn get(&self, id: ClientId) -> Option<&Client> {
        let (generation, client) = self.0.get(usize::from(id.slot))?;
        client.as_ref().filter(|_| *generation == id.generation)
    }
    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        let (generation, client) = self.0.get_mut(usize::from(id.slot))?;
        client.as_mut().filter(|_| *generation == id.generation)
    }
    /// A slot for `client`, or `None` if all are taken.
    pub(crate) fn attach(&mut self, client: Client) -> Option<ClientId> {
        let free = self.0.iter().position(|(_, client)| client.is_none());
        let slot = free.unwrap_or(self.0.len());
        if slot >= CLIENTS_MAX {
            return None;
        }
        if slot == self.0.len() {
            self.0.push((0, None));
        }
        self.0[slot].1 = Some(client);
        Some(ClientId { slot: slot as u16, generation: self.0[slot].0 })
    }
    pub(crate) fn detach(&mut self, id: ClientId) -> Option<Client> {
        self.get(id)?;
        let slot = &mut self.0[usize::from(id.slot)];
        slot.0 = slot.0.wrapping_add(1);
        slot.1.take()
    }
}
