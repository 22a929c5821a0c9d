//! The daemon's state and its event loop: events go to the engine, and the engine's actions are executed in
//! order, until the queue is empty.
//!
//! A claim must be read after all actions decided before it have been executed (see
//! `gpuslice_engine::Event::Claims`). So the queue `tasks` holds not the claim but the request to read it,
//! and the claim is read when that task runs.

use crate::accounting::Accounting;
use crate::admin::Admin;
use crate::budget::Budget;
use crate::cgroup_limits::CgroupLimits;
use crate::config::DaemonConfig;
use crate::idle_exit::IdleExit;
use crate::lingering::{ClientHolder, LingeringClient};
use crate::paths::Paths;
use crate::policies::Policies;
use crate::poll::{Poll, Source};
use crate::preempt::{LOOK_EVERY, Preemption};
use crate::requests::Requests;
use crate::service::{ActivatedSockets, Manager};
use crate::slab::{Key, Slab};
use crate::slices::{PageSettings, Slices};
use crate::socket_closer::{SocketCloser, SocketOwner};
use crate::sockets::{Socket, can_refuse_descriptors};
use crate::state::State;
use crate::tenants::Tenant;
use gpuslice_engine::{Action, Engine, Event};
use gpuslice_host::clock::now;
use gpuslice_wire::admin::Command;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::{CLIENTS_MAX, HEARTBEAT_NS};
use gpuslice_wire::units::{Duration, Instant};
use nix::sys::signalfd::SignalFd;
use std::collections::VecDeque;
use std::fs::File;
use std::io;

/// Heartbeats between two reads of all claims, so that observers see processes that never ring their doorbell.
const CLAIMS_EVERY: u64 = 10;

/// A task of the event loop.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one or two at a time
pub enum Task {
    /// Pass this event to the engine.
    Step(Event),
    /// Read this process's page and pass its claims to the engine.
    ReadClaims(Key, Lane),
}

/// See the file's head.
pub struct Daemon {
    /// Takes every decision.
    pub engine: Engine,
    /// The epoll set and the timer.
    pub poll: Poll,
    /// The runtime directory.
    pub state: State,
    /// Paths of the runtime directory, the driver and the shim.
    pub paths: Paths,
    /// The daemon's settings on each container's page.
    pub page_settings: PageSettings,
    /// Most containers, processes and admin connections.
    pub budget: Budget,
    /// Policies changed at run time, as on disk.
    pub policies: Policies,
    /// The slices of containers.
    pub slices: Slices,
    /// Usage accounting.
    pub accounting: Accounting,
    /// The driver's own limits on cgroups.
    pub cgroup_limits: CgroupLimits,
    /// Preemption of work on GPUs.
    pub preemption: Preemption,
    /// Sources and bounds of requests for slices.
    pub requests: Requests,
    /// Cap on pinned host memory of containers that ask for none.
    pub pinned_default: Option<gpuslice_wire::units::Bytes>,
    /// Connections of processes.
    pub tenants: Slab<Tenant>,
    /// Clients whose processes have no connection.
    pub lingering: Slab<LingeringClient>,
    /// The engine's clients, by slot.
    pub clients: Vec<Option<(ClientId, ClientHolder)>>,
    /// Connections to the admin socket.
    pub admins: Slab<Admin>,
    /// Commands that wait until an earlier slice of their container is removed.
    pub parked: Vec<(Key, Command)>,
    /// The admin socket.
    pub admin_listener: Socket,
    /// The observers' socket, if the service manager made one.
    pub observe_listener: Option<Socket>,
    /// Closes connections on kernels where a close could block.
    pub closer: SocketCloser,
    /// Listeners that accept nothing until their closed connections are gone.
    pub paused: Vec<Source>,
    /// Notifications to the service manager.
    pub manager: Manager,
    /// Deadlines for a connection's first message, the earliest first.
    pub handshake_deadlines: VecDeque<(Instant, Source)>,
    /// The queue of tasks; empty between events.
    pub tasks: VecDeque<Task>,
    /// A spare descriptor, released to accept and close a connection when none is left.
    pub spare: Option<File>,
    /// A process released memory or exited, and that is not on disk yet.
    pub given_back: bool,
    /// When the daemon ends by itself.
    pub idle_exit: IdleExit,
    /// A signal asked for the end.
    pub ending: bool,
    signals: SignalFd,
    actions: Vec<Action>,
    heartbeat: Instant,
    heartbeats: u64,
}

impl Daemon {
    /// A daemon without GPUs and slices.
    ///
    /// # Errors
    /// A system call failed.
    pub fn new(
        config: &DaemonConfig,
        paths: Paths,
        mut state: State,
        signals: SignalFd,
        (given, manager): (ActivatedSockets, Manager),
        fds: u64,
    ) -> io::Result<Daemon> {
        let poll = Poll::new()?;
        let closer = SocketCloser::new(poll.watch());
        if !can_refuse_descriptors() {
            closer.prepare()?;
        }
        let (admin_listener, observe_listener) = listeners(given, &mut state, &poll, &closer)?;
        poll.add(&signals, Source::Signal)?;
        let interval_ms = config.accounting_interval_ms.get();
        let accounting = Accounting::new(paths.driver.nvml.as_str(), interval_ms)?;
        poll.add_edge_triggered(&accounting.notify, Source::Accounting)?;
        let simulated = paths.driver.is_simulated();
        let preemption = Preemption::new(config.preemption, simulated, &state, &poll)?;
        let fds = fds.saturating_sub(preemption.descriptors());
        let budget = Budget::told(fds, config.containers_max.get());
        let start = now();
        Ok(Daemon {
            engine: Engine::new(gpuslice_engine::Config {
                stop: preemption.is_on(),
                containers: budget.containers.into(),
                ..config.engine()
            }),
            poll,
            state,
            paths,
            page_settings: PageSettings {
                epoch: start.0,
                hard: config.block_without_daemon,
                foreign: config.foreign_memory.word(),
                stop: preemption.is_on(),
            },
            slices: Slices::new(),
            requests: Requests::new(config),
            pinned_default: config.pinned_memory.map(|size| size.0),
            accounting,
            cgroup_limits: CgroupLimits::new(config.cgroup_limits, config.cgroup_guarantees),
            preemption,
            tenants: Slab::new(budget.clients),
            lingering: Slab::new(CLIENTS_MAX as u16),
            clients: vec![None; CLIENTS_MAX],
            admins: Slab::new(budget.admins),
            parked: Vec::new(),
            budget,
            policies: Policies::default(),
            admin_listener,
            observe_listener,
            closer,
            paused: Vec::new(),
            manager,
            handshake_deadlines: VecDeque::new(),
            tasks: VecDeque::new(),
            spare: File::open("/dev/null").ok(),
            given_back: false,
            idle_exit: IdleExit::default(),
            ending: false,
            signals,
            actions: Vec::new(),
            heartbeat: start,
            heartbeats: 0,
        })
    }

    /// Runs the event loop until the daemon ends.
    ///
    /// # Errors
    /// None but a bug's.
    pub fn serve(&mut self) -> io::Result<()> {
        let mut sources = Vec::new();
        while !self.ending {
            self.poll.wake_at(self.next_deadline())?;
            self.poll.wait(&mut sources)?;
            for source in sources.drain(..) {
                self.dispatch(source);
            }
            self.end_if_unused();
        }
        Ok(())
    }

    fn dispatch(&mut self, source: Source) {
        match source {
            Source::Timer => {
                self.poll.timer_fired();
                self.time_passed(now());
            }
            Source::Signal => self.ending = matches!(self.signals.read_signal(), Ok(Some(_))),
            Source::AdminListener => self.accept_admin(),
            Source::ObserveListener => self.accept_observer(),
            Source::Admin(key) => self.admin_ready(key),
            Source::Listener(key) => self.accept_tenant(key),
            Source::Tenant(key) => self.tenant_ready(key),
            Source::Doorbell(key) => self.read_claims(key),
            Source::Exit(key) => self.disconnect(key),
            Source::Lingering(key) => self.lingering_ready(key),
            Source::ContainerExit(key) => self.container_exited(key),
            Source::Accounting => self.read_nvml_answers(),
            Source::Preemption => self.read_preemption_answers(),
            Source::Closer => {
                self.closer.read_helper_answers();
                self.accept_again();
            }
        }
        self.settle();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let heartbeat = (self.slices.len() > 0).then_some(self.heartbeat);
        let greeting = self.handshake_deadlines.front().map(|(by, _)| *by);
        [
            self.engine.next_deadline(),
            heartbeat,
            greeting,
            self.accounting_deadline(),
            self.manager.deadline(),
            self.closer.deadline(),
            self.unused_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn time_passed(&mut self, now: Instant) {
        if self.slices.len() > 0 && self.heartbeat <= now {
            self.beat(now);
        }
        while let Some((by, source)) = self.handshake_deadlines.front().copied()
            && by <= now
        {
            self.handshake_deadlines.pop_front();
            self.handshake_expired(source);
        }
        self.closer.due(now);
        self.run_due_accounting(now);
        self.manager.due(now, self.slices.len());
        if self
            .engine
            .next_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            self.tasks.push_back(Task::Step(Event::Tick));
        }
    }

    /// Writes the heartbeat to every page.
    pub fn beat(&mut self, now: Instant) {
        self.heartbeat = now.plus(Duration(HEARTBEAT_NS));
        self.heartbeats += 1;
        for slice in self.slices.iter() {
            slice.page.heartbeat(now);
        }
        self.follow_grants();
        if self.heartbeats.is_multiple_of(CLAIMS_EVERY) {
            self.read_all_claims();
        }
        if self.heartbeats.is_multiple_of(LOOK_EVERY) {
            self.look_at_slices();
        }
    }

    /// Stops accepting from a listener if too many of its connections wait to be closed; returns whether it did.
    pub fn pause(&mut self, source: Source) -> bool {
        let (listener, owner) = match source {
            Source::ObserveListener => (self.observe_listener.as_ref(), SocketOwner::Observers),
            Source::Listener(key) => match self.slices.get(key) {
                Some(slice) => (
                    Some(&slice.listener),
                    SocketOwner::Container(slice.container),
                ),
                None => return false,
            },
            _ => return false,
        };
        let paused = self.closer.is_behind(owner)
            && listener.is_some_and(|listener| self.poll.forget(listener).is_ok());
        if paused {
            self.paused.push(source);
        }
        paused
    }

    fn accept_again(&mut self) {
        for source in std::mem::take(&mut self.paused) {
            let listener = match source {
                Source::Listener(key) => self.slices.get(key).map(|slice| &slice.listener),
                _ => self.observe_listener.as_ref(),
            };
            // A listener that was replaced meanwhile is watched already.
            if let Some(listener) = listener {
                let _ = self.poll.add(listener, source);
            }
        }
    }

    fn handshake_expired(&mut self, source: Source) {
        match source {
            Source::Tenant(key) if self.tenants.get(key).is_some_and(|t| !t.is_attached()) => {
                tracing::debug!("a process connected and sent nothing; disconnected");
                self.remove_tenant(key);
            }
            Source::Admin(key) if self.admins.get(key).is_some_and(|a| !a.has_sent) => {
                self.drop_admin(key);
            }
            _ => {}
        }
    }

    /// Passes an event to the engine and runs all tasks that follow.
    pub fn deliver(&mut self, event: Event) {
        self.tasks.push_back(Task::Step(event));
        self.settle();
    }

    /// Queues an event behind the waiting tasks.
    pub fn enqueue(&mut self, event: Event) {
        self.tasks.push_back(Task::Step(event));
    }

    /// Runs all waiting tasks and those that follow.
    pub fn settle(&mut self) {
        while let Some(work) = self.tasks.pop_front() {
            let event = match work {
                Task::Step(event) => Some(event),
                Task::ReadClaims(key, lane) => self.claims_of(key, lane),
            };
            let Some(event) = event else { continue };
            let mut actions = std::mem::take(&mut self.actions);
            self.engine.step(now(), event, &mut actions);
            for action in actions.drain(..) {
                self.perform(action);
            }
            self.actions = actions;
        }
    }

    /// Ends the daemon: closes all connections and removes sockets; if `ephemeral`, removes all files.
    pub fn close(mut self, ephemeral: bool) {
        self.preemption.close();
        self.follow_grants();
        if ephemeral {
            self.clear_all_limits();
        }
        let containers: Vec<_> = self.slices.iter().map(|slice| slice.container).collect();
        self.state.close(containers.into_iter(), ephemeral);
        let closer = self.closer;
        drop((self.tenants, self.admins, self.slices));
        closer.finish();
    }
}

/// The admin socket and, if the service manager made one, the observers' socket; both in the epoll set.
fn listeners(
    given: ActivatedSockets,
    state: &mut State,
    poll: &Poll,
    closer: &SocketCloser,
) -> io::Result<(Socket, Option<Socket>)> {
    let admin = match given.admin {
        Some(fd) => Socket::handed_over(fd, SocketOwner::Admins, closer),
        None => Socket::listening(state.listen_admin()?, SocketOwner::Admins, closer),
    };
    poll.add(&admin, Source::AdminListener)?;
    let observe = given.observe;
    let observe = observe.map(|fd| Socket::handed_over(fd, SocketOwner::Observers, closer));
    if let Some(observe) = &observe {
        poll.add(observe, Source::ObserveListener)?;
    }
    Ok((admin, observe))
}
