//! The event loop. It passes events of the kernel to the duty that waits for them and the duties' events to the
//! engine, and has the engine's actions executed in order, until the queue of tasks is empty.

mod looks;
mod mps;
mod requests;
mod restored;
mod usage;

use crate::events::{Happening, unix_ns};
use crate::executor::Duties;
use crate::observe::daemon_row;
use crate::policies;
use crate::poll::{Poll, Source};
use crate::preempt::LOOK_EVERY;
use crate::replies::{Denied, NO_REPLY, token_of};
use crate::service::Manager;
use crate::slab::Key;
use crate::socket_closer::SocketCloser;
use crate::sockets::Spare;
use crate::tasks::Task;
use gpuslice_engine::{Action, Engine, Event, TimeChange};
use gpuslice_host::clock::now;
use gpuslice_wire::admin::{Admission, Command, Denial, RequestSource};
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::limits::HEARTBEAT_NS;
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Duration, Instant};
use nix::sys::signalfd::SignalFd;
use std::collections::BTreeMap;
use std::io;

/// Heartbeats between two reads of all claims, so that observers see processes that never ring their doorbell.
const CLAIMS_EVERY: u64 = 10;
/// How long the sources of a batch are served before deadlines are looked at again.
const CATCH_UP_AFTER: Duration = Duration(100_000);
/// Heartbeats of an interval of samples: a second.
const SAMPLE_EVERY: u64 = 20;

const _: () = assert!(SAMPLE_EVERY * HEARTBEAT_NS == 1_000_000_000);

/// The daemon; see the file's head.
pub struct Daemon {
    /// Takes every decision.
    engine: Engine,
    /// Everything else that the daemon does.
    pub duties: Duties,
    /// The epoll set and the timer.
    poll: Poll,
    signals: SignalFd,
    /// Closes connections on kernels where a close could block.
    closer: SocketCloser,
    /// Notifications to the service manager.
    pub manager: Manager,
    /// Names of the GPUs' products.
    pub products: BTreeMap<GpuUuid, Name>,
    /// When it began to serve: older slices were restored.
    started: Instant,
    /// When something else is due than a step of the engine.
    duties_due: Option<Instant>,
    spare: Spare,
    /// A signal asked for the end, or no command needs the daemon any more.
    ending: bool,
    actions: Vec<Action>,
}

impl Daemon {
    /// A daemon that serves events of `poll`.
    ///
    /// # Errors
    /// No memory to watch for signals.
    pub fn new(
        engine: Engine,
        duties: Duties,
        (poll, closer): (Poll, SocketCloser),
        (signals, manager): (SignalFd, Manager),
    ) -> io::Result<Daemon> {
        poll.watch().add(&signals, Source::Signal)?;
        Ok(Daemon {
            engine,
            duties,
            poll,
            signals,
            closer,
            manager,
            products: BTreeMap::new(),
            started: now(),
            duties_due: None,
            spare: Spare::new(),
            ending: false,
            actions: Vec::new(),
        })
    }

    /// Runs the event loop until the daemon ends.
    ///
    /// # Errors
    /// None but a bug's.
    pub fn serve(&mut self) -> io::Result<()> {
        let mut sources = Vec::new();
        self.started = now();
        self.duties.health.start();
        let started = Happening::of_node(EventKind::DaemonStarted);
        let restored = self.duties.containers.len() as u64;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.duties.events.record(self.started, started.with([restored, 0], version));
        if self.duties.health.restore(&mut self.duties.gpu_table) {
            self.duties.health_changed();
            self.settle();
        }
        while !self.ending {
            self.duties_due = self.duties_deadline();
            let step = self.engine.next_deadline();
            self.poll.wake_at(self.duties_due.into_iter().chain(step).min())?;
            self.poll.wait(&mut sources)?;
            let mut looked = now();
            for source in sources.drain(..) {
                self.dispatch(source);
                looked = self.catch_up(looked);
            }
            self.ending |= self.duties.admins.is_unused();
        }
        Ok(())
    }

    /// Between two sources of a batch: does what has become due meanwhile, so that a batch of any length delays no
    /// turn. A batch that is quick costs no more than a look at the clock.
    fn catch_up(&mut self, looked: Instant) -> Instant {
        let now = now();
        if now < looked.plus(CATCH_UP_AFTER) {
            return looked;
        }
        self.duties_due = self.duties_deadline();
        self.time_passed(now);
        self.settle();
        now
    }

    fn dispatch(&mut self, source: Source) {
        let (duties, spare) = (&mut self.duties, &mut self.spare);
        let (clients, tasks) = (&mut duties.clients, &mut duties.tasks);
        match source {
            Source::Timer => {
                self.poll.timer_fired();
                self.time_passed(now());
            }
            Source::Signal => self.ending = matches!(self.signals.read_signal(), Ok(Some(_))),
            Source::AdminListener => duties.admins.accept(spare, tasks),
            Source::ObserveListener => duties.admins.accept_observer(spare, tasks),
            Source::Admin(key) => self.read_command(key),
            Source::Listener(key) => clients.accept(&mut duties.containers, key, spare, tasks),
            Source::Tenant(key) => self.requests_ready(key),
            Source::Doorbell(key) => {
                let now = now();
                if let Some(ring) = clients.rang(key, now) {
                    self.read_ring(ring, now);
                }
            }
            Source::Exit(key) => clients.disconnect(key, tasks),
            Source::Lingering(key) => clients.lingering_ready(key, tasks),
            Source::ContainerExit(key) => {
                if let Some(container) = duties.containers.container_of(key) {
                    self.container_ended(container);
                }
            }
            Source::Accounting => self.read_nvml_answers(),
            Source::Preemption(key) => duties.preemption.read(key, &duties.containers, tasks),
            Source::Suspension(key) => {
                let moved = duties.suspender.read(key);
                duties.memory_moved(moved);
            }
            Source::ClaimsWritten => duties.claims_written(),
            Source::AgentListener => duties.agents.accept(spare),
            Source::Health => {
                if duties.health.read(&mut duties.gpu_table) {
                    duties.health_changed();
                }
            }
            Source::Agent(key) => {
                if let Some(request) = duties.agents.ready(key) {
                    duties.node_request(&self.engine, key, request);
                    self.settle();
                    self.duties.agents.executed(key);
                }
            }
            Source::JoinedExit(key) => {
                if let Some(container) = duties.containers.joined_container(key) {
                    duties.left(&container);
                }
            }
            Source::Closer => {
                self.closer.read_helper_answers();
                duties.agents.accept_again();
                duties.containers.accept_again();
                duties.admins.accept_again();
            }
        }
        self.settle();
    }

    /// Reads a command, or sends the rest of an answer. What an observer's takes is counted.
    fn read_command(&mut self, key: Key) {
        let duties = &mut self.duties;
        let (from, observes) = (now(), duties.admins.observes(key));
        if let Some(command) = duties.admins.ready(key, &mut duties.tasks) {
            self.command(key, command);
        }
        if observes {
            self.duties.admins.observer_answered((from, now()));
        }
    }

    fn duties_deadline(&self) -> Option<Instant> {
        let duties = &self.duties;
        let serves = duties.accounting.takes_samples(duties.containers.len());
        [
            duties.containers.deadline(),
            duties.containers.accept_deadline(),
            duties.clients.deadline(),
            duties.clients.ring_deadline(),
            duties.clients.request_deadline(),
            duties.admins.deadline(),
            duties.accounting.deadline(serves),
            self.look_deadline(),
            duties.cgroup_limits.deadline(),
            duties.preemption.deadline(),
            duties.suspender.deadline(),
            duties.rooms.deadline(),
            duties.agents.deadline(),
            duties.health.deadline(),
            duties.claims.cdi.deadline(),
            self.manager.deadline(),
            self.closer.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn time_passed(&mut self, now: Instant) {
        // Most timers are of turns.
        if self.duties_due.is_some_and(|by| by <= now) {
            self.do_what_is_due(now);
        }
        if self.engine.next_deadline().is_some_and(|by| by <= now) {
            self.duties.tasks.step(Event::Tick);
        }
    }

    fn do_what_is_due(&mut self, now: Instant) {
        let heartbeat = self.duties.containers.deadline();
        if heartbeat.is_some_and(|by| by <= now) {
            self.beat(now);
        }
        let duties = &mut self.duties;
        duties.containers.accept_due(now);
        while let Some(ring) = self.duties.clients.ring_due(now) {
            self.read_ring(ring, gpuslice_host::clock::now());
        }
        self.read_waiting_requests(now);
        let duties = &mut self.duties;
        duties.clients.due(now, &mut duties.tasks);
        duties.admins.due(now, &mut duties.tasks);
        duties.preemption.due(now, &duties.containers, &mut duties.tasks);
        let moved = duties.suspender.due(now);
        duties.memory_moved(moved);
        duties.look_for_room(now);
        duties.agents.due(now);
        duties.claims.cdi.due(now);
        if duties.health.due(now, &mut duties.gpu_table) {
            duties.health_changed();
        }
        if duties.agents.is_comparison_due(now) {
            let rows = duties.node_rows(&self.engine);
            duties.agents.show(rows, now);
        }
        self.closer.due(now);
        self.account(now);
        self.manager.due(now, self.duties.containers.len());
    }

    /// Writes the heartbeat to every page, and does what follows from it.
    fn beat(&mut self, now: Instant) {
        let heartbeats = self.duties.containers.beat(now);
        self.open_again(now);
        self.follow_grants();
        let duties = &mut self.duties;
        if heartbeats.is_multiple_of(CLAIMS_EVERY) {
            duties.clients.read_all_claims(&mut duties.tasks);
        }
        if heartbeats.is_multiple_of(SAMPLE_EVERY) {
            self.settle();
            // after the last step, whose sums may be later than the beat
            let at = gpuslice_host::clock::now();
            let (duties, gpus) = (&mut self.duties, self.engine.gpus_in_use());
            let load = |gpu| duties.accounting.loads.of(gpu, at);
            duties.samples.take(at, &self.engine.figures(at), load);
            duties.accounting.ask_loads(at, &gpus);
            duties.recorder.due(at);
            duties.containers.write_lost_grants();
            let containers: Vec<ContainerId> = self.duties.containers.ids().copied().collect();
            containers.iter().for_each(|container| self.show_memory(container));
        }
        let duties = &mut self.duties;
        if heartbeats.is_multiple_of(LOOK_EVERY) {
            let preemption = &mut duties.preemption;
            preemption.look(&duties.clients, &duties.containers, &self.engine);
        }
    }

    fn show_memory(&mut self, container: &ContainerId) {
        self.duties.containers.show_memory(container, self.engine.memory_of(*container));
    }

    /// Writes what was released since the last call to disk.
    fn follow_grants(&mut self) {
        if self.duties.clients.take_given_back() {
            self.duties.containers.follow_grants(&self.engine);
        }
    }

    /// Passes an event to the engine and runs all tasks that follow.
    pub fn deliver(&mut self, event: Event) {
        self.duties.tasks.step(event);
        self.settle();
    }

    /// Runs all waiting tasks and those that follow.
    fn settle(&mut self) {
        while let Some(task) = self.next_task() {
            match task {
                Task::Step(event) => {
                    self.read_before_refusal(&event);
                    self.step(event);
                }
                Task::ReadClaims(key, lane) => {
                    if let Some(claims) = self.duties.clients.claims_of(key, lane) {
                        self.step(claims);
                    }
                }
                Task::Measure(measure) => self.measure(measure),
                Task::Connected(container) => self.duties.show_clients(&container),
                Task::Disconnected(key, container) => {
                    self.duties.show_clients(&container);
                    self.duties.preemption.release(&container, key);
                }
                Task::Command(key, command) => self.command(key, *command),
                Task::ShowMemory(container) => self.show_memory(&container),
                Task::UpdateLimits(container) => {
                    let nvml = &mut self.duties.accounting;
                    self.duties.cgroup_limits.update(nvml, &container);
                }
            }
        }
    }

    /// The next task; questions about handles are answered after all others, as they may have changed the answers.
    fn next_task(&mut self) -> Option<Task> {
        let Duties { clients, tasks, .. } = &mut self.duties;
        tasks.next().or_else(|| {
            clients.answer_lookups(|container| self.engine.is_returning(container), tasks);
            tasks.next()
        })
    }

    fn step(&mut self, event: Event) {
        self.step_at(now(), event);
    }

    fn step_at(&mut self, now: Instant, event: Event) {
        self.duties.note_event(&event);
        let mut actions = std::mem::take(&mut self.actions);
        self.engine.step(now, event, &mut actions);
        for action in actions.drain(..) {
            self.duties.perform(&self.engine, action);
        }
        self.duties.clients.free_slots();
        self.actions = actions;
    }

    /// Ends the slice of a container whose first process has exited.
    fn container_ended(&mut self, container: ContainerId) {
        tracing::info!(%container, "its container ended; slice ended");
        self.dismiss(container);
    }

    fn dismiss(&mut self, container: ContainerId) {
        let token = NO_REPLY;
        self.deliver(Event::Dismiss { token, container });
    }

    /// Executes a command.
    fn command(&mut self, key: Key, command: Command) {
        let (token, duties) = (token_of(key), &mut self.duties);
        let event = match command {
            Command::Admit { asked } => return self.ask_for_slice(key, command, None, &asked),
            Command::AdmitFrom { source, asked } => {
                return self.ask_for_slice(key, command, Some(source), &asked);
            }
            Command::Join { .. } => {
                return if let Err((why, text)) = duties.join(key, &command) {
                    duties.deny(key, why, &text);
                };
            }
            Command::Dismiss { container } if duties.containers.claim_of(&container).is_some() => {
                return duties.dismiss_joined(key, &container);
            }
            Command::Dismiss { container } if duties.is_suspended(&container) => Err((
                Denial::Invalid,
                format!(
                    "container {container} is suspended, and its processes wait; run gpuslice resume {container} first, or end them"
                ),
            )),
            Command::Dismiss { container } => Ok(Event::Dismiss { token, container }),
            Command::Suspend { container } => Ok(Event::Suspend { token, container }),
            Command::Resume { container } => Ok(Event::EndSuspension { token, container }),
            Command::Resize { container, lane, memory } => {
                let (limits, nvml) = (&mut duties.cgroup_limits, &mut duties.accounting);
                let finished = limits.grow(nvml, token, container, (lane, memory));
                return duties.continue_after_limits(finished);
            }
            Command::Relimit { container, lane, limit } => {
                Ok(Event::Relimit { token, container, lane, limit })
            }
            Command::SetPolicy { gpu, policy } => policies::wanted(token, gpu, policy),
            Command::Retune { container, weight, share, share_limit, class } => {
                let change = TimeChange { weight, share, share_limit, class };
                Ok(Event::Retune { token, container, change, undoes: false })
            }
            Command::List {} => return self.list(key, false),
            Command::Observe {} => return self.list(key, true),
            Command::Samples { after_ns } => {
                let rows = duties.samples.after(after_ns, (now(), unix_ns()));
                return duties.admins.answer_all(key, &rows, &mut duties.tasks);
            }
            Command::Processes { container } => {
                self.read_claims();
                return self.duties.show_processes(key, &self.engine, container);
            }
            Command::Record { for_ns, after } => return self.record(key, for_ns, after),
            Command::Events { after } => {
                let rows = duties.events.after(after);
                return duties.admins.answer_all(key, &rows, &mut duties.tasks);
            }
        };
        self.pass(key, event);
    }

    /// Records turns, and answers with those that were recorded.
    fn record(&mut self, key: Key, for_ns: u64, after: u64) {
        let now = now();
        let until = self.duties.recorder.extend(now, for_ns);
        self.step_at(now, Event::Record { until });
        let duties = &mut self.duties;
        let rows = duties.recorder.after(after, (now, unix_ns()));
        duties.admins.answer_all(key, &rows, &mut duties.tasks);
    }

    /// Passes a command to the engine, or refuses it.
    fn pass(&mut self, key: Key, event: Result<Event, Denied>) {
        match event {
            Ok(event) => self.duties.tasks.step(event),
            Err((why, text)) => self.duties.deny(key, why, &text),
        }
    }

    /// Executes a command that asks for a slice. It waits if an earlier container with this id has ended and its slice
    /// is still being removed.
    fn ask_for_slice(
        &mut self,
        key: Key,
        command: Command,
        source: Option<RequestSource>,
        asked: &Admission,
    ) {
        let Admission { container, pid, .. } = *asked;
        self.duties.admins.note_admission(key, asked);
        if self.duties.containers.is_over(&container) {
            self.container_ended(container);
        }
        if self.duties.containers.has_left(&container) {
            self.duties.left(&container);
            self.settle();
        }
        let duties = &mut self.duties;
        if duties.cgroup_limits.is_clearing(&container) {
            return duties.admins.park(key, command, &mut duties.tasks);
        }
        // What the engine cannot know: the disk, the descriptor limit, whether the container still runs.
        let room = duties.containers.has_room(&container);
        let room = room.and_then(|()| not_a_claims(&container));
        let lives = room.and_then(|()| duties.admins.hold_first_process(key, pid));
        duties.admins.hold_owner(key, asked.owner);
        let cgroup = |container: &_, pid| duties.cgroup_limits.cgroup_of(container, pid);
        let ask = lives.and_then(|()| duties.admins.ask_of(source, asked, cgroup));
        self.pass(key, ask.map(|ask| Event::Admit { token: token_of(key), ask: ask.into() }));
    }

    /// Answers with a snapshot, and with the rows of metrics if `observes`.
    fn list(&mut self, key: Key, observes: bool) {
        self.read_claims();
        let at = now();
        let mut rows = self.engine.snapshot(at);
        rows.insert(0, daemon_row(&self.engine, self.started));
        for row in &mut rows {
            if let Snapshot::Gpu { uuid, product, .. } = row {
                *product = self.products.get(uuid).copied().unwrap_or(Name::EMPTY);
            }
        }
        let gpus = self.engine.gpus_in_use();
        let duties = &mut self.duties;
        duties.accounting.ask_loads(at, &gpus);
        let end = rows.pop();
        rows.extend(duties.accounting.loads.rows(at));
        rows.extend(duties.over_cap.rows());
        rows.extend(end);
        let measures = |gpu| duties.accounting.measures(gpu);
        duties.cgroup_limits.set_memory_enforcement(&mut rows, measures);
        duties.preemption.set_time_enforcement(&mut rows);
        duties.add_owners(&mut rows);
        match observes {
            true => duties.add_metrics(&self.engine, at, &mut rows),
            false => duties.add_unhealthy(&mut rows),
        }
        duties.admins.answer_all(key, &rows, &mut duties.tasks);
    }

    /// Brings the claims of all processes up to now.
    fn read_claims(&mut self) {
        let duties = &mut self.duties;
        duties.clients.read_all_claims(&mut duties.tasks);
        self.settle();
    }

    /// Ends the daemon: closes all connections and removes sockets; if `ephemeral`, removes all files.
    pub fn close(mut self, ephemeral: bool) {
        self.duties.preemption.close();
        self.follow_grants();
        self.duties.containers.follow_untracked(&self.engine);
        if ephemeral {
            let duties = &mut self.duties;
            let finished = duties.cgroup_limits.clear_all(&mut duties.accounting);
            duties.continue_after_limits(finished);
            self.settle();
            self.duties.cgroup_limits.await_leftover_groups();
        }
        let duties = self.duties;
        duties.containers.end(ephemeral);
        drop((duties.clients, duties.admins));
        self.closer.finish();
    }
}

/// Checks that a container's id is none that only the slices of claims have.
fn not_a_claims(container: &ContainerId) -> Result<(), Denied> {
    match ClaimId::is_reserved(container) {
        false => Ok(()),
        true => {
            let text = format!(
                "the id {container} is that of a claim's slice; give the container another"
            );
            Err((Denial::Invalid, text))
        }
    }
}
