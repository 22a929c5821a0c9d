//! The daemon's whole state, and the rule by which it moves: what happened goes to the engine, what
//! the engine decides is performed, in order, until nothing is left to do.
//!
//! A claim must be read later than every action decided before it is performed (see
//! `gpuslice_engine::Event::Claims`): so what waits in `work` is not the claim but the intent to
//! read it, and it is read when its turn comes.

use crate::accounting::Accounting;
use crate::admin::Admin;
use crate::budget::Budget;
use crate::cgroup_limits::CgroupLimits;
use crate::closer::{Closer, SocketOwner};
use crate::config::Config;
use crate::keepers::Keepers;
use crate::leave::{Absent, Holder};
use crate::places::Places;
use crate::policies::Policies;
use crate::poll::{Poll, Source, now};
use crate::preempt::{LOOK_EVERY, Preemption};
use crate::requests::Requests;
use crate::service::{Given, Manager};
use crate::slices::{Life, Slices};
use crate::slots::{Key, Slots};
use crate::sockets::{Socket, can_refuse_descriptors};
use crate::state::State;
use crate::tenants::Tenant;
use gpuslice_engine::{Action, Engine, Event};
use gpuslice_wire::admin::Command;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::{CLIENTS_MAX, HEARTBEAT_NS};
use gpuslice_wire::units::{Duration, Instant};
use nix::sys::signalfd::SignalFd;
use std::collections::VecDeque;
use std::fs::File;
use std::io;

/// Every so many heartbeats all claims are read, so that observers see processes that never ring.
const CLAIMS_EVERY: u64 = 10;

/// Something to do, in order.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one or two at a time
pub enum Work {
    /// The engine is to know this.
    Tell(Event),
    /// This process's page is to be read, then told.
    Read(Key, Lane),
}

/// See the file's head.
pub struct Daemon {
    /// Every decision.
    pub engine: Engine,
    /// What the thread sleeps on.
    pub poll: Poll,
    /// What is on disk.
    pub state: State,
    /// Where things are.
    pub places: Places,
    /// What pages say about this daemon.
    pub life: Life,
    /// How many of what there can be.
    pub budget: Budget,
    /// How time is divided where that was changed, as on disk.
    pub policies: Policies,
    /// Containers.
    pub slices: Slices,
    /// What NVML says.
    pub accounting: Accounting,
    /// The driver's own limits.
    pub cgroup_limits: CgroupLimits,
    /// The stopping of work on GPUs.
    pub preemption: Preemption,
    /// Which requests this node takes.
    pub requests: Requests,
    /// Cap on pinned host memory where none is asked for.
    pub pinned_default: Option<gpuslice_wire::units::Bytes>,
    /// Connections of processes.
    pub tenants: Slots<Tenant>,
    /// Accounts of processes without a connection.
    pub absent: Slots<Absent>,
    /// The process of each account of the engine, by the account's slot.
    pub clients: Vec<Option<(ClientId, Holder)>>,
    /// Connections to the admin socket.
    pub admins: Slots<Admin>,
    /// Commands that wait until an earlier slice of their container has ended altogether.
    pub parked: Vec<(Key, Command)>,
    /// The admin socket.
    pub admin_listener: Socket,
    /// The socket of those who may look only, if the service manager made one.
    pub observe_listener: Option<Socket>,
    /// Closes connections on kernels where a close could block.
    pub closer: Closer,
    /// Listeners that are not accepted from until connections to them are closed.
    pub paused: Vec<Source>,
    /// What the service manager is told.
    pub manager: Manager,
    /// Who must speak by when, the earliest first.
    pub greetings: VecDeque<(Instant, Source)>,
    /// What waits to be done; empty between events.
    pub work: VecDeque<Work>,
    /// Given up when descriptors have run out, to accept and turn away with.
    pub spare: Option<File>,
    /// A process gave something back, or is gone, and that is not written down yet.
    pub given_back: bool,
    /// What keeps it running.
    pub keepers: Keepers,
    /// The end was asked for.
    pub ending: bool,
    signals: SignalFd,
    actions: Vec<Action>,
    heartbeat: Instant,
    heartbeats: u64,
}

impl Daemon {
    /// A daemon that knows no GPU and no container yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        config: &Config,
        places: Places,
        mut state: State,
        signals: SignalFd,
        (given, manager): (Given, Manager),
        fds: u64,
    ) -> io::Result<Daemon> {
        let poll = Poll::new()?;
        let closer = Closer::new(poll.watch());
        if !can_refuse_descriptors() {
            closer.prepare()?;
        }
        let (admin_listener, observe_listener) = listeners(given, &mut state, &poll, &closer)?;
        poll.add(&signals, Source::Signal)?;
        let interval_ms = config.accounting_interval_ms.get();
        let accounting = Accounting::new(places.driver.nvml.as_str(), interval_ms)?;
        poll.add_edge_triggered(&accounting.notify, Source::Accounting)?;
        let simulated = places.driver.is_simulated();
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
            places,
            life: Life {
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
            tenants: Slots::new(budget.clients),
            absent: Slots::new(CLIENTS_MAX as u16),
            clients: vec![None; CLIENTS_MAX],
            admins: Slots::new(budget.admins),
            parked: Vec::new(),
            budget,
            policies: Policies::default(),
            admin_listener,
            observe_listener,
            closer,
            paused: Vec::new(),
            manager,
            greetings: VecDeque::new(),
            work: VecDeque::new(),
            spare: File::open("/dev/null").ok(),
            given_back: false,
            keepers: Keepers::default(),
            ending: false,
            signals,
            actions: Vec::new(),
            heartbeat: start,
            heartbeats: 0,
        })
    }

    /// Serves until a signal asks for the end.
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
            Source::Exit(key) => self.part(key),
            Source::Absent(key) => self.absent_ready(key),
            Source::Over(key) => self.container_over(key),
            Source::Accounting => self.read_nvml_answers(),
            Source::Preemption => self.read_preemption_answers(),
            Source::Closer => {
                self.closer.spoke();
                self.accept_again();
            }
        }
        self.settle();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let heartbeat = (self.slices.len() > 0).then_some(self.heartbeat);
        let greeting = self.greetings.front().map(|(by, _)| *by);
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
        while let Some((by, source)) = self.greetings.front().copied()
            && by <= now
        {
            self.greetings.pop_front();
            self.missed_greeting(source);
        }
        self.closer.due(now);
        self.run_due_accounting(now);
        self.manager.due(now, self.slices.len());
        if self
            .engine
            .next_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            self.work.push_back(Work::Tell(Event::Tick));
        }
    }

    /// Stamps the heartbeat on every page.
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

    /// Stops accepting from a listener if too many connections to it wait to be closed; returns whether so.
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

    fn missed_greeting(&mut self, source: Source) {
        match source {
            Source::Tenant(key) if self.tenants.get(key).is_some_and(|t| !t.is_attached()) => {
                tracing::debug!("a process connected and said nothing; disconnected");
                self.remove_tenant(key);
            }
            Source::Admin(key) if self.admins.get(key).is_some_and(|a| !a.greeted) => {
                self.drop_admin(key);
            }
            _ => {}
        }
    }

    /// Tells the engine, and does all that follows from it.
    pub fn tell(&mut self, event: Event) {
        self.work.push_back(Work::Tell(event));
        self.settle();
    }

    /// Tells the engine after what waits already.
    pub fn tell_later(&mut self, event: Event) {
        self.work.push_back(Work::Tell(event));
    }

    /// Does all that waits, and all that follows from it.
    pub fn settle(&mut self) {
        while let Some(work) = self.work.pop_front() {
            let event = match work {
                Work::Tell(event) => Some(event),
                Work::Read(key, lane) => self.claims_of(key, lane),
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

    /// The end: everybody is disconnected, sockets go; with `ephemeral` everything goes.
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

/// The admin socket, and the observers' if the service manager made one, both watched.
fn listeners(
    given: Given,
    state: &mut State,
    poll: &Poll,
    closer: &Closer,
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
