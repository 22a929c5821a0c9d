//! The state machine: one event in, actions out.
//!
//! A step charges the elapsed time on the GPUs concerned, applies the event, lets these GPUs decide on
//! turns, and then writes the changes to pages: first to containers that may not launch any more, then to
//! containers that may, so that two never may at once.

use alloc::vec::Vec;
use gpuslice_wire::admin::NO_CAP;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::{CONTAINERS_MAX, GPUS_MAX, NAME_BYTES_MAX};
use gpuslice_wire::policy::Gangs;
use gpuslice_wire::units::{Bytes, Duration, Instant};

use crate::action::{Action, Actions, Cut};
use crate::admission::{admit, beginning, readmit};
use crate::config::{Charged, Config};
use crate::event::{Claims, Event, SliceRequest, Token};
use crate::index::ContainerIndex;
use crate::lanes::ByLane;
use crate::lending::Lending;
use crate::lifecycle::{
    Client, ClientLane, Clients, Container, Containers, Slice, Stage, Suspension,
};
use crate::record::{LaneRecord, Record};
use crate::refusal::Refusal;
use crate::sched::entity::Report;
use crate::sched::gang::{self, Gang, GpuSet};
use crate::sched::gpu::Gpu;
use crate::sched::overhead::WorkSpan;
use crate::sched::preempt::Answer;
use crate::sched::{Note, Turns};
use crate::unfreed::Beside;

/// The state of all GPUs, containers and processes of a node.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) now: Instant,
    pub(crate) charged: Charged,
    /// The last absence: its end and its length.
    absence: Option<(Instant, Duration)>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) containers: Containers,
    pub(crate) clients: Clients,
    /// When the first restored container's growth need no longer wait.
    pub(crate) grace: Option<Instant>,
    /// Recalls under way, each with its deadline.
    pub(crate) recalls: Vec<(Instant, ContainerIndex, Lane)>,
    /// Accounts whose growth waits for NVML's answer, each with its deadline.
    pub(crate) held_back: Vec<(Instant, ContainerIndex, Lane)>,
    /// Accounts whose ledger changed since they were shown.
    pub(crate) changed: Vec<(ContainerIndex, Lane)>,
    /// Containers whose GPUs take turns together, by container index.
    pub(crate) gangs: Vec<Gang>,
    /// Turns are recorded until then.
    pub(crate) recording: Option<Instant>,
    /// Containers that drain before they are suspended.
    pub(crate) draining: Vec<ContainerIndex>,
    /// Containers that the engine suspended to reclaim memory, and the earliest time of their return.
    pub(crate) reclaimed: Vec<(Instant, ContainerIndex)>,
    /// When one of them can be resumed.
    pub(crate) resumes_at: Option<Instant>,
    /// When the next step of a reclaim is due, as the last settlement left it.
    pub(crate) reclaims_at: Option<Instant>,
    /// There may be unfreed memory: each step asks for its deadline, and mostly there is none.
    pub(crate) has_unfreed: bool,
    /// When the turns of each GPU are due for a step without an event; here, and not with the GPU, since every step
    /// asks for all of them.
    pub(crate) due: Vec<Option<Instant>>,
    /// The first of all deadlines, as the last step left them.
    pub(crate) deadline: Option<Instant>,
}

/// All GPUs.
const ALL: GpuSet = GpuSet::MAX;
const _: () = assert!(GPUS_MAX <= GpuSet::BITS as usize);

impl Engine {
    /// An engine that knows no GPU and no container.
    #[must_use]
    pub fn new(config: Config) -> Engine {
        Engine {
            config,
            now: Instant(0),
            charged: Charged::default(),
            absence: None,
            gpus: Vec::new(),
            containers: Containers::default(),
            clients: Clients::default(),
            grace: None,
            recalls: Vec::new(),
            held_back: Vec::new(),
            changed: Vec::new(),
            gangs: Vec::new(),
            recording: None,
            draining: Vec::new(),
            reclaimed: Vec::new(),
            resumes_at: None,
            reclaims_at: None,
            has_unfreed: false,
            due: Vec::new(),
            deadline: None,
        }
    }

    /// Applies `event`, which happened at `now`, and appends the actions to perform. An instant earlier
    /// than a former one counts as that one.
    pub fn step(&mut self, now: Instant, event: Event, actions: &mut Actions) {
        let charged = self.charged_at(now);
        let absent = charged.absent_since(self.charged);
        self.charged = charged;
        self.now = self.now.max(now);
        if absent > Duration(0) {
            self.absence = Some((self.now, absent));
        }
        let from = actions.len();
        let reclaims = if self.reclaim_due() { ALL } else { 0 };
        let touched = self.concerned(&event) | self.overdue() | reclaims;
        let touched = gang::closure(&self.gangs, touched);
        let unsettled = self.unsettled(&event) | reclaims;
        self.pass_time(touched);
        self.follow_recording(actions);
        if matches!(event, Event::Tick) {
            self.end_unfreed(actions);
        }
        if matches!(event, Event::Tick | Event::Reserve { .. }) {
            self.end_grace(actions);
        }
        self.apply(event, actions);
        self.settle_loans(unsettled, touched == ALL, actions);
        let told = actions.len() - from;
        self.turn_over(touched, actions);
        self.show_ledgers(actions);
        self.move_drained(actions);
        self.pages_first(&mut actions[from..], told);
        self.deadline = self.first_deadline();
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    fn apply(&mut self, event: Event, actions: &mut Actions) {
        match event {
            Event::GpuFound { uuid, index, total } => self.found(uuid, index, total),
            Event::GpuWithoutSlices { uuid, why } => self.set_no_slices(uuid, Some(why)),
            Event::GpuWithSlices { uuid } => self.set_no_slices(uuid, None),
            Event::Admit { token, ask } => self.admit(token, &ask, actions),
            Event::Restore(record) => self.restore(*record, actions),
            Event::Dismiss { token, container } => self.dismiss(token, container, actions),
            Event::Attach { token, container, process, held } => {
                self.attach(token, container, process, &held, actions);
            }
            Event::RestoreProcess { .. }
            | Event::Complete { .. }
            | Event::RestoreUntracked { .. }
            | Event::Opened { .. }
            | Event::Left { .. }
            | Event::Gone { .. }
            | Event::Reserve { .. }
            | Event::Release { .. }
            | Event::Yield { .. }
            | Event::Measured { .. }
            | Event::Looking { .. }
            | Event::Looked { .. }
            | Event::DeviceLooked { .. }
            | Event::Outside { .. }
            | Event::Unattributed { .. } => self.memory(event, actions),
            Event::Resize { token, container, lane, memory } => {
                self.resize(token, container, lane, memory, actions)
            }
            Event::Relimit { token, container, lane, limit } => {
                self.relimit(token, (container, lane), limit, actions)
            }
            Event::SetPolicy { token, gpus, policy } => {
                self.set_policy(token, *gpus, policy, actions)
            }
            Event::Retune { token, container, change, undoes } => {
                self.retune(token, container, (change, undoes), actions)
            }
            Event::Claims { client, lane, claims } => self.claims(client, lane, claims),
            Event::Stopped { container, lane, order, ok } => {
                self.preempt_done(container, lane, Answer::Stop { order, ok })
            }
            Event::Resumed { container, lane } => {
                self.preempt_done(container, lane, Answer::Resume)
            }
            Event::Record { until } => self.record(until, actions),
            Event::Suspend { token, container } => self.suspend(token, container, actions),
            Event::EndSuspension { token, container } => {
                self.end_suspension(token, container, actions)
            }
            Event::MemoryMoved { container, away, stays } => {
                self.memory_moved(container, away, stays.as_deref(), actions)
            }
            Event::WasSuspended { container, token, moved } => {
                self.was_suspended(container, token, moved)
            }
            Event::Tick => {
                self.end_recalls(actions);
                self.end_held_back(actions);
            }
        }
    }

    /// Where turns begin because a container's first process attaches, it sees pages with turns, and
    /// launches nothing before. A process whose grant covers its residual finds as much free on its page as it is told.
    /// The first `told` actions answer processes; the rest writes pages.
    fn pages_first(&self, actions: &mut [Action], told: usize) {
        let covers = |client, lane| {
            let mine = self.clients.get(client).and_then(|it| it.lanes.get(lane));
            mine.is_some_and(|mine| mine.covered > Bytes::ZERO)
        };
        let talks = |index| self.clients_of(index).filter(|it| it.connected).count();
        let first = |it: &Action| match it {
            Action::Attached { container, .. } => {
                let index = self.containers.find(*container);
                index.is_some_and(|index| talks(index) == 1)
            }
            Action::Reserved { client, lane, .. } => covers(*client, *lane),
            _ => false,
        };
        if let Some(at) = actions[..told].iter().position(first) {
            actions[at..].rotate_left(told - at);
        }
    }

    /// The last time that a step came too late for the tenants: when it came, and by how much.
    #[must_use]
    pub fn last_absence(&self) -> Option<(Instant, Duration)> {
        self.absence
    }

    /// The charged time at `now`, not before the last step.
    pub(crate) fn charged_at(&self, now: Instant) -> Charged {
        // a step that came too late ends an absence, whether it did what was due or not
        let due = self.next_deadline().map(|due| due.max(self.now));
        self.charged.plus(now.since(self.now)).late(due, now)
    }

    /// Charges the time up to now.
    fn pass_time(&mut self, touched: GpuSet) {
        let (now, charged) = (self.now, self.charged);
        self.each_gpu(touched, |gpu| gpu.turns.advance(now, charged));
    }

    fn each_gpu(&mut self, touched: GpuSet, f: impl FnMut(&mut Gpu)) {
        let gpus = self.gpus.iter_mut().enumerate();
        gpus.filter(|(at, _)| touched & (1 << at) != 0).map(|(_, gpu)| gpu).for_each(f);
    }

    /// GPUs whose turns `event` may change: where they may become a gang, all GPUs of the container.
    pub(crate) fn concerned(&self, event: &Event) -> GpuSet {
        let gpus_of = |client: &ClientId| {
            let index = self.clients.get(*client).map(|client| client.index);
            index
                .and_then(|index| self.containers.get(index))
                .map_or(&[][..], |c| c.slices.gpus.as_slice())
        };
        let bit = |slice: &Slice| slice.gpu.map_or(0, |gpu| 1 << gpu);
        let all_of = |client| gpus_of(client).iter().fold(0, |all, slice| all | bit(slice));
        match event {
            // A gang that exists is looked at as a whole anyway.
            Event::Claims { client, lane, claims } => {
                let mine = self.clients.get(*client).and_then(|it| it.lanes.get(*lane));
                match mine.is_some_and(|mine| mine.begins(claims)) {
                    true => all_of(client),
                    false => gpus_of(client).get(usize::from(lane.0)).map_or(0, bit),
                }
            }
            Event::Reserve { client, .. }
            | Event::Release { client, .. }
            | Event::Yield { client, .. }
            | Event::Left { client }
            | Event::Gone { client } => all_of(client),
            Event::Measured { .. }
            | Event::Looking { .. }
            | Event::Looked { .. }
            | Event::DeviceLooked { .. }
            | Event::Outside { .. }
            | Event::Unattributed { .. }
            | Event::Resize { .. }
            | Event::Relimit { .. } => 0,
            Event::Tick => 0, // overdue GPUs are looked at anyway
            _ => ALL,
        }
    }

    fn found(&mut self, uuid: GpuUuid, index: NvmlIndex, total: Bytes) {
        if let Some(gpu) = self.gpus.iter_mut().find(|gpu| gpu.uuid == uuid) {
            gpu.index = index;
        } else if self.gpus.len() < GPUS_MAX {
            let turns = Turns::new(self.config, self.now, self.charged);
            self.due.push(None);
            self.gpus.push(Gpu {
                shown: None,
                notes: Vec::new(),
                uuid,
                index,
                total,
                no_slices: None,
                turns,
                beside: Beside::default(),
                lending: Lending::default(),
            });
        }
    }

    fn admit(&mut self, token: Token, ask: &SliceRequest, actions: &mut Actions) {
        let granted = self
            .vacancy(ask.container)
            .and_then(|()| admit(&self.capacities(), ask, self.config.oversubscribe));
        match granted {
            Ok(record) => {
                actions.push(Action::Admitted { token, record: record.clone().into() });
                self.insert_container(record, Stage::Settled, true);
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    fn restore(&mut self, record: Record, actions: &mut Actions) {
        let (container, lanes) = (record.container, record.lanes.len() as u8);
        match self.vacancy(container).and_then(|()| readmit(&self.capacities(), &record)) {
            Ok(()) => {
                actions.push(Action::Restored { container, lanes });
                self.expect_unfreed(&record);
                let until = self.now.plus(self.config.restore_grace);
                self.insert_container(record, Stage::Returning { until }, false);
            }
            Err(why) => actions.push(Action::NotRestored { container, why }),
        }
    }

    /// Whether one more container of this id can be admitted.
    fn vacancy(&self, id: ContainerId) -> Result<(), Refusal> {
        if self.containers.find(id).is_some() {
            Err(Refusal::Exists(beginning(id, NAME_BYTES_MAX)))
        } else if self.containers.count() >= CONTAINERS_MAX {
            Err(Refusal::TooManyContainers)
        } else {
            Ok(())
        }
    }

    fn insert_container(&mut self, record: Record, stage: Stage, complete: bool) {
        let gpu_of = |lane: &LaneRecord| self.gpus.iter().position(|gpu| gpu.uuid == lane.gpu);
        let slices = record.lanes.iter().filter_map(|lane| {
            let gpu = gpu_of(lane)?;
            Some(Slice::of(gpu, lane, self.config.oversubscribe))
        });
        let host = Slice::new(None, record.pinned.unwrap_or(NO_CAP));
        let slices = ByLane::new(slices.collect(), host);
        if let Stage::Returning { until } = stage {
            self.grace = Some(self.grace.map_or(until, |other| other.min(until)));
        }
        let on: Vec<usize> = slices.gpus.iter().filter_map(|slice| slice.gpu).collect();
        let container = Container {
            record: record.clone(),
            stage,
            complete,
            suspension: Suspension::None,
            resume: None,
            not_moved: None,
            clients: Vec::new(),
            slices,
        };
        let Some(index) = self.containers.insert(container) else {
            return;
        };
        for (lane, gpu) in on.into_iter().enumerate() {
            let turns = &mut self.gpus[gpu].turns;
            turns.enter(index, Lane(lane as u8), record.entitlement(lane));
            if let Stage::Returning { until } = stage {
                turns.returns(index, until);
            }
            self.inherit_unfreed(index, Lane(lane as u8));
        }
        self.changed.push((index, Lane::HOST));
        self.find_lenders();
    }

    fn dismiss(&mut self, token: Token, id: ContainerId, actions: &mut Actions) {
        let index = self.containers.find(id);
        if let Some(index) = index {
            self.shut(index, actions);
            self.drop_waiting(index);
            self.drop_move(index, actions);
            let clients = self.containers.get(index).map(|c| c.clients.clone());
            for client in clients.unwrap_or_default() {
                self.forget(client, actions);
                actions.push(Action::Disconnect { client, why: Cut::Dismissed });
            }
            self.cut_recording(actions);
            self.leave_unfreed(index);
            self.held_back.retain(|&(_, of, _)| of != index);
            self.draining.retain(|of| *of != index);
            self.reclaimed.retain(|(_, of)| *of != index);
            self.containers.remove(index);
            self.find_lenders();
            self.gangs.retain(|gang| gang.index != index);
            self.each_gpu(ALL, |gpu| gpu.turns.leave(index));
        }
        actions.push(Action::Dismissed { token, container: id, known: index.is_some() });
    }

    fn claims(&mut self, client: ClientId, lane: Lane, claims: Claims) {
        let Some(it) = self.clients.get_mut(client) else {
            return;
        };
        let index = it.index;
        it.told = !claims.untold;
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        let (Some(mine), Some(slice)) = (it.lanes.get_mut(lane), container.slices.get_mut(lane))
        else {
            return;
        };
        let gpu = slice.gpu.map(|gpu| &self.gpus[gpu]);
        let entity = gpu.and_then(|gpu| gpu.turns.find(index));
        let (begins, turned) = (mine.begins(&claims), claims.runnable != mine.claims.runnable);
        mine.read_at = entity.map_or(0, |entity| entity.turn);
        mine.was_runnable |= claims.runnable;
        // counters only grow, whatever a page claims
        mine.claims = Claims {
            launches: claims.launches.max(mine.claims.launches),
            denied: claims.denied.max(mine.claims.denied),
            ..claims
        };
        let used = self.used(index, lane);
        if let Some(slice) = self.containers.get_mut(index).and_then(|c| c.slices.get_mut(lane)) {
            slice.peak = slice.peak.max(used);
        }
        let gang = self.gangs.iter().find(|gang| gang.index == index);
        let (gpus, any) = gang.map_or((0, false), |gang| (gang.gpus, gang.runnable));
        // The others of a gang are runnable with this lane. Otherwise it tells nothing of other lanes: a process that
        // reports on all of them must not be asked about all of them for each.
        match begins || turned && gpus != 0 {
            true => self.report_all(index),
            false => self.report(index, lane, gpus, any),
        }
    }

    /// Memory in use on a lane, by the claims of its processes, within their grants.
    pub(crate) fn used(&self, index: ContainerIndex, lane: Lane) -> Bytes {
        let lanes = self.lanes_of(index, lane);
        lanes.fold(Bytes::ZERO, |sum, lane| sum.saturating_add(lane.held()))
    }

    /// Every process's state on one lane of a container.
    pub(crate) fn lanes_of(
        &self,
        index: ContainerIndex,
        lane: Lane,
    ) -> impl Iterator<Item = &ClientLane> {
        let all = self.clients_of(index);
        all.filter_map(move |client| client.lanes.get(lane))
    }

    /// The same of connected processes. The work of others is unknown.
    fn talking(&self, index: ContainerIndex, lane: Lane) -> impl Iterator<Item = &ClientLane> {
        let all = self.clients_of(index).filter(|client| client.connected);
        all.filter_map(move |client| client.lanes.get(lane))
    }

    pub(crate) fn clients_of(&self, index: ContainerIndex) -> impl Iterator<Item = &Client> {
        let clients = self.containers.get(index).map_or(&[][..], |c| c.clients.as_slice());
        clients.iter().filter_map(|&id| self.clients.get(id))
    }

    /// Reports the combined state of a container's processes to its GPUs.
    pub(crate) fn report_all(&mut self, index: ContainerIndex) {
        let gang = self.regroup(index);
        let lanes = self.containers.get(index).map_or(0, |c| c.slices.gpus.len());
        let lanes = (0..lanes as u8).map(Lane);
        let runnable = |it: &ClientLane| it.claims.runnable;
        let any = lanes.clone().any(|lane| self.talking(index, lane).any(runnable));
        if let Some(known) = self.gangs.iter_mut().find(|known| known.index == index) {
            known.runnable = any;
        }
        lanes.for_each(|lane| self.report(index, lane, gang, any));
    }

    /// Reports to one GPU; `any` tells whether the container is runnable on any of its GPUs.
    fn report(&mut self, index: ContainerIndex, lane: Lane, gang: GpuSet, any: bool) {
        let slice = self.containers.get(index).and_then(|c| c.slices.get(lane));
        let Some(gpu) = slice.and_then(|slice| slice.gpu) else {
            return;
        };
        let entity = self.gpus[gpu].turns.find(index);
        let (turn, order) = entity.map_or((0, 0), |entity| (entity.turn, entity.order));
        let mut reported = Report {
            attached: false,
            runnable: any && gang & 1 << gpu != 0,
            drained: true,
            ..Report::default()
        };
        for lane in self.talking(index, lane) {
            reported.attached = true;
            reported.runnable |= lane.claims.runnable;
            reported.drained &= lane.drained(turn);
            reported.newcomer |= lane.order == order;
            reported.busy_newcomer |= lane.order == order && !lane.drained(turn);
            let work_spans = [reported.work_span, lane.work_span(turn)].into_iter().flatten();
            reported.work_span = work_spans.reduce(WorkSpan::with);
        }
        let suspension = self.containers.get(index).map(|it| it.suspension).unwrap_or_default();
        suspension.on_report(&mut reported);
        let turns = &mut self.gpus[gpu].turns;
        turns.hold_back(index, suspension.closes_gate());
        turns.report(index, reported);
    }

    /// Determines which GPUs of a container take turns together: those on which a living process has been
    /// runnable, if there are several.
    fn regroup(&mut self, index: ContainerIndex) -> GpuSet {
        let container = self.containers.get(index);
        let container = container.filter(|it| it.record.gang == Gangs::Auto);
        let slices = container.map_or(&[][..], |c| &c.slices.gpus);
        if slices.len() < 2 {
            return 0;
        }
        let was_runnable = |lane: usize| {
            let mut all = self.talking(index, Lane(lane as u8));
            all.any(|lane| lane.was_runnable)
        };
        let gpus = slices.iter().enumerate().filter(|(lane, _)| was_runnable(*lane));
        let gpus = gpus.filter_map(|(_, slice)| slice.gpu);
        let gpus: GpuSet = gpus.fold(0, |set, gpu| set | 1 << gpu);
        let gpus = if gpus.count_ones() > 1 { gpus } else { 0 };
        let known = self.gangs.iter().find(|gang| gang.index == index);
        if known.map_or(0, |gang| gang.gpus) != gpus {
            self.gangs.retain(|gang| gang.index != index);
            if gpus != 0 {
                self.gangs.push(Gang { index, gpus, runnable: false, ready: None });
                self.gangs.sort_unstable_by_key(|gang| gang.index);
            }
            for (at, gpu) in self.gpus.iter_mut().enumerate() {
                gpu.turns.join_gang(index, gpus & 1 << at != 0);
            }
        }
        gpus
    }

    /// Lets the GPUs decide, and appends the changes.
    fn turn_over(&mut self, touched: GpuSet, actions: &mut Actions) {
        let ties = self.gangs.iter().filter(|gang| gang.gpus & touched != 0);
        let tied = ties.fold(0, |all, gang| all | gang.gpus);
        let known = touched & (1u64 << self.gpus.len()).wrapping_sub(1) as GpuSet;
        for at in gang::each(known & !tied) {
            let Gpu { turns, notes, .. } = &mut self.gpus[at];
            turns.decide(notes);
        }
        if tied != 0 {
            gang::decide(&mut self.gpus, &mut self.gangs, tied);
        }
        // late containers are reported before others profit; closed ones are read after the page shows it
        let late = |note: &Note| matches!(note, Note::Late(..));
        for at in gang::each(known) {
            let notes = self.gpus[at].notes.iter().filter(|note| late(note));
            notes.for_each(|note| self.tell(at, *note, actions));
        }
        for at in gang::each(known) {
            self.show(at, actions);
            self.due[at] = self.gpus[at].turns.deadline();
            let mut notes = core::mem::take(&mut self.gpus[at].notes);
            let closed = notes.drain(..).filter(|note| !late(note));
            closed.for_each(|note| self.tell(at, note, actions));
            self.gpus[at].notes = notes;
        }
    }

    /// Takes in the answer to a stop or a resume.
    pub(crate) fn preempt_done(&mut self, id: ContainerId, lane: Lane, done: Answer) {
        let index = self.containers.find(id);
        let gpu = index.and_then(|index| self.containers.get(index)?.slices.get(lane)?.gpu);
        if let (Some(index), Some(gpu)) = (index, gpu) {
            self.gpus[gpu].turns.preemption_answered(index, done);
            self.report_all(index);
        }
    }

    fn tell(&self, gpu: usize, note: Note, actions: &mut Actions) {
        let (Note::Closed(index) | Note::Late(index, ..) | Note::Stop(index) | Note::Resume(index)) =
            note;
        let entity = self.gpus[gpu].turns.find(index);
        let Some((entity, it)) = entity.zip(self.containers.get(index)) else {
            return;
        };
        let (container, lane) = (it.record.container, entity.lane);
        let read = |&client| Action::ReadClaims { client, lane };
        actions.push(match note {
            Note::Closed(_) => return actions.extend(it.clients.iter().map(read)),
            Note::Stop(_) => Action::Stop { container, lane, order: entity.order },
            Note::Resume(_) => Action::Resume { container, lane },
            Note::Late(_, stage, after) => Action::Late { container, lane, stage, after },
        });
    }
}
