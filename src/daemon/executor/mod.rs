//! Executes the engine's actions by calling the duties.
//!
//! Each duty owns its state and sees no duty above it. Effects that concern several duties are composed here: `slices`
//! has the begin, the changes and the end of a slice.

mod claims;
mod over_cap;
mod slices;
mod suspend;

use crate::accounting::Accounting;
use crate::admin::Admins;
use crate::agents::Agents;
use crate::cgroup_limits::CgroupLimits;
use crate::claims::Claims;
use crate::clients::Clients;
use crate::containers::Containers;
use crate::events::{Events, Happening};
use crate::gpu_table::GpuTable;
use crate::health::HealthWatch;
use crate::over_cap::OverCap;
use crate::paths::Paths;
use crate::policies::Policies;
use crate::preempt::Preemption;
use crate::recorder::Recorder;
use crate::replies::{NO_REPLY, is_agents, key_of};
use crate::samples::Samples;
use crate::shared_files::SharedFiles;
use crate::slab::Key;
use crate::suspend::Suspender;
use crate::suspend::room::Rooms;
use crate::tasks::{Task, Tasks};
use gpuslice_engine::{Action, Credit, Cut, Engine, Event, Late, Token};
use gpuslice_host::clock::now;
use gpuslice_wire::admin::{Answer, Denial};
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, Duration};

/// All duties of the daemon.
pub struct Duties {
    /// The containers with a slice.
    pub containers: Containers,
    /// Their processes.
    pub clients: Clients,
    /// Connections to the admin socket.
    pub admins: Admins,
    /// Usage accounting.
    pub accounting: Accounting,
    /// The driver's own limits on cgroups.
    pub cgroup_limits: CgroupLimits,
    /// Preemption of work on GPUs.
    pub preemption: Preemption,
    /// Moves memory of suspended containers.
    pub suspender: Suspender,
    /// Resumes that wait for NVML to tell of room.
    pub rooms: Rooms,
    /// Containers with more on the GPU than their caps.
    pub over_cap: OverCap,
    /// What happened lately.
    pub events: Events,
    /// What slices got in the last minutes.
    pub samples: Samples,
    /// Recorded turns.
    pub recorder: Recorder,
    /// Policies changed at run time, as on disk.
    pub policies: Policies,
    /// Connections of agents.
    pub agents: Agents,
    /// What agents have reserved.
    pub claims: Claims,
    /// The GPUs as agents see them.
    pub gpu_table: GpuTable,
    /// Watches the GPUs' health.
    pub health: HealthWatch,
    /// The libraries that containers see.
    pub shared_files: SharedFiles,
    /// Paths of the runtime directory, the driver and the shim.
    pub paths: Paths,
    /// What follows from the event at hand.
    pub tasks: Tasks,
}

impl Duties {
    /// Executes one action.
    pub fn perform(&mut self, engine: &Engine, action: Action) {
        match action {
            Action::SetLane { container, lane, view } => {
                if let Some(page) = self.containers.page(&container) {
                    // Update the GPU gates first; they take effect without waking a thread.
                    if page.moves_gates(lane, &view) {
                        self.clients.set_gates(&container, lane, view.gate_open);
                    }
                    page.set_lane(lane, &view);
                } else {
                    self.containers.keep_view(&container, lane, view);
                }
            }
            Action::ReadClaims { client, lane } => {
                self.clients.read_lane(client, lane, &mut self.tasks);
            }
            Action::Stop { container, lane, order } => {
                let tasks = &mut self.tasks;
                self.preemption.stop((container, lane), order, &self.clients, tasks);
            }
            Action::Resume { container, lane } => {
                self.preemption.resume(container, lane, &mut self.tasks);
            }
            Action::Reserved { client, token, lane, bytes } => {
                if let Some((container, process)) = self.clients.connected(client) {
                    let containers = &mut self.containers;
                    containers.note_granted(engine, &container, client, process);
                }
                self.reply(client, token, &Reply::Reserved { lane, bytes });
            }
            Action::Refused { client, token, lane, need, left, credit, overdue } => {
                self.note_refused((client, lane), [need, left], credit, overdue);
                self.reply(client, token, &Reply::Refused { lane, need, left })
            }
            Action::Recorded { container, gpu, stretch } => {
                let name = self.events.name(&container);
                self.recorder.add((container, gpu, name), &stretch);
            }
            // `restore` reads these itself.
            Action::Restored { .. }
            | Action::NotRestored { .. }
            | Action::ProcessRestored { .. } => {}
            other => self.perform_rare(engine, other),
        }
    }

    /// Executes the actions of starts, changes and ends.
    fn perform_rare(&mut self, engine: &Engine, action: Action) {
        // Whatever is not of a process may change a row that agents see.
        self.agents.changed();
        match action {
            Action::Attached { token, client, container, lanes } => {
                self.attached(engine, key_of(token), (client, lanes), &container)
            }
            Action::Rejected { token, why } => {
                self.clients.reject(key_of(token), why, &mut self.tasks);
            }
            Action::Disconnect { client, why } => {
                let rule = match why {
                    Cut::Broke(rule) => Some(rule),
                    _ => None,
                };
                self.clients.cut(client, rule, &mut self.tasks);
            }
            Action::Admitted { token, record } if is_agents(token) => {
                self.claim_admitted(token, &record);
            }
            Action::Admitted { token, record } => self.admitted(token, &record),
            Action::Denied { token, why } if is_agents(token) => {
                self.claim_denied(token, why.denial(), &why);
            }
            Action::Denied { token, why } => {
                let mut text = why.to_string();
                if self.paths.driver.is_simulated() {
                    text.push_str(" (this node's GPUs are simulated)");
                }
                self.deny(key_of(token), why.denial(), &text);
            }
            Action::Dismissed { token, container, known } => {
                self.dismissed(token, &container, known)
            }
            Action::Late { container, lane, stage, after } => {
                log_late(&container, lane, stage, after);
                self.note_late(container, lane, stage, after);
            }
            Action::Resized { token, record, change } => self.resized(token, &record, &change),
            Action::Relimited { token, record, change } => self.relimited(token, &record, &change),
            Action::Wanted { container, lane, bytes } => self.note_wanted(container, lane, bytes),
            Action::PolicySet { token, policy, was } => self.policy_set(token, policy, &was),
            Action::MoveMemory { token, container, away, memory } => {
                let needs = engine.resume_needs(container);
                self.ordered_to_move(token, container, (away, memory), needs);
            }
            Action::NoRoomToMove { token, container, why } => {
                self.note_not_moved(token, container, &why.to_string());
            }
            Action::SuspensionSettled { token, container, away, memory, left } => {
                self.suspension_settled(token, container, (away, [memory, left]));
            }
            Action::Retuned { token, record, was } => self.retuned(token, &record, &was),
            other => tracing::error!(?other, "an action that no duty executes"),
        }
    }

    /// Answers a process.
    pub fn reply(&mut self, client: ClientId, token: Token, reply: &Reply) {
        let id = RequestId(token.0);
        self.clients.reply(client, id, reply, &mut self.tasks);
    }

    /// Answers a command.
    pub fn answer(&mut self, key: Key, answer: &Answer) {
        self.admins.answer(key, answer, &mut self.tasks);
    }

    /// Refuses a command. Where it asked for a slice, that is an event.
    pub fn deny(&mut self, key: Key, why: Denial, text: &str) {
        if let Some((container, name)) = self.admins.take_admission(key) {
            let refused = Happening::of(EventKind::SliceRefused, container).named(name);
            let refused = refused.by_client(self.admins.peer(key));
            self.events.record(now(), refused.with([0; 2], text.to_owned()));
        }
        self.admins.deny(key, why, text, &mut self.tasks);
    }

    /// Records a refused allocation.
    fn note_refused(
        &mut self,
        (client, lane): (ClientId, Lane),
        amounts: [Bytes; 2],
        credit: Credit,
        overdue: bool,
    ) {
        let Some((container, process)) = self.clients.connected(client) else {
            return;
        };
        let gpu = self.containers.gpu_of(&container, lane);
        let [need, left] = amounts;
        let what = match (lane, overdue) {
            (Lane::HOST, _) => "pinned host memory".to_owned(),
            (_, true) => {
                let lent = need.saturating_sub(left);
                format!(
                    "memory within its cap; others have {lent} of it, and did not give that back"
                )
            }
            _ => "GPU memory".to_owned(),
        };
        let unused = match credit.others {
            Bytes::ZERO => String::new(),
            bytes => format!("; {bytes} are unused credit of its other processes"),
        };
        let amounts = amounts.map(|bytes| bytes.saturating_add(credit.own).0);
        let refused = Happening::of(EventKind::MemoryRefused, container).on(gpu);
        let refused = refused.by_process(process.map_or(0, |it| it.pid));
        self.events.record(now(), refused.with(amounts, format!("{what}{unused}")));
    }

    /// Records that a container should give memory back.
    fn note_wanted(&mut self, container: ContainerId, lane: Lane, bytes: Bytes) {
        self.tasks.push(Task::ShowMemory(container));
        if bytes == Bytes::ZERO {
            return;
        }
        let wanted = Happening::of(EventKind::MemoryWanted, container);
        let wanted = wanted.on(self.containers.gpu_of(&container, lane));
        self.events.record(now(), wanted.with([bytes.0, 0], String::new()));
    }

    /// Records an overrun and its end.
    fn note_late(&mut self, container: ContainerId, lane: Lane, stage: Late, after: Duration) {
        let kind = match stage {
            Late::Waiting => return,
            Late::Overrun => EventKind::Overrun,
            Late::Drained => EventKind::Drained,
        };
        let late = Happening::of(kind, container).on(self.containers.gpu_of(&container, lane));
        self.events.record(now(), late.with([after.0, 0], String::new()));
    }

    /// Records what an event for the engine says: stopped work.
    pub fn note_event(&mut self, event: &Event) {
        if let Event::Stopped { container, lane, ok: true, .. } = *event {
            let gpu = self.containers.gpu_of(&container, lane);
            self.events.record(now(), Happening::of(EventKind::Preempted, container).on(gpu));
        }
    }

    fn attached(
        &mut self,
        engine: &Engine,
        key: Key,
        client: (ClientId, u8),
        container: &ContainerId,
    ) {
        let process = self.clients.process(key);
        self.containers.note_granted(engine, container, client.0, process);
        let page = self.containers.page(container);
        let granted = engine.granted_to(client.0).unwrap_or_default();
        let client = (client.0, client.1, &granted);
        self.clients.attach(key, client, container, page, &mut self.tasks);
    }

    /// Records a changed policy and answers; if it cannot be recorded, restores the old one.
    fn policy_set(&mut self, token: Token, policy: Policy, was: &[(GpuUuid, Policy)]) {
        if token == NO_REPLY {
            return;
        }
        let state = self.containers.state();
        match self.policies.changed(state, policy, was) {
            Ok(()) => {
                let former = was.iter().map(|(gpu, policy)| format!("{gpu} was {policy}"));
                let text = format!("{policy}: {}", former.collect::<Vec<_>>().join(", "));
                let client = self.admins.peer(key_of(token));
                let set = Happening::of_node(EventKind::PolicySet).by_client(client);
                self.events.record(now(), set.with([0; 2], text));
                self.answer(key_of(token), &Answer::Done {});
            }
            Err((text, back)) => {
                tracing::error!("{text}");
                back.into_iter().for_each(|event| self.tasks.step_first(event));
                self.deny(key_of(token), Denial::Host, &text);
            }
        }
    }

    /// Lets the container's page show the number of its processes.
    pub fn show_clients(&self, container: &ContainerId) {
        if let Some(page) = self.containers.page(container) {
            page.set_clients(self.clients.attached_of(container).count());
        }
    }
}

fn log_late(container: &ContainerId, lane: Lane, stage: Late, after: Duration) {
    let (gpu, after_ms) = (lane.0, after.0 / 1_000_000);
    match stage {
        Late::Waiting => tracing::debug!(%container, gpu, after_ms, "has not drained yet"),
        Late::Overrun => {
            tracing::warn!(%container, gpu, after_ms, "has not drained the GPU after drain_max_ms; others go on");
        }
        Late::Drained => tracing::info!(%container, gpu, after_ms, "has drained"),
    }
}
