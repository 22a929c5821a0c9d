//! Preemption: takes a container's work off a GPU through the process's own open file.
//!
//! # Problem
//! A program cannot recall a kernel that it has launched. The driver can take it off the GPU, but only through the
//! open file with which its channel group was created, and that file belongs to the process.
//!
//! # Idea
//! Root may duplicate a descriptor of another process (`pidfd_getfd`), and a duplicate is the same open file. So a
//! process reports its descriptor's number and the names of its groups. When the engine wants its work stopped, the
//! daemon duplicates the descriptor, checks that it is the driver's node, and issues the controls on it. The driver
//! refuses names of another file's client, so a process can name only its own groups. The duplicate is closed
//! afterwards: while it is open, the driver keeps a dead process's memory.
//!
//! A control that reports success proves nothing: a stop counts only if the driver's statistics show that work was
//! taken off the GPU by it; otherwise it is undone at once. After eight failed stops in a row a container is not
//! stopped again: the next containers wait for its turns to drain, as without preemption.
//!
//! Where a stop has worked, groups also get hardware time slices by weight, for work that still overlaps:
//! [`time_slices`] decides when, [`time_slicer`] sets them.
//!
//! * [`worker`] stops and resumes work, on its own thread, because the calls may take milliseconds;
//! * [`controls`] wraps the calls; `kernel` is their raw part;
//! * [`journal`] is written before anything is changed, so that a crash leaves no group stopped.

pub mod controls;
pub mod journal;
mod time_slicer;
mod time_slices;
mod worker;

use crate::config::PreemptionMode;
use crate::daemon::{Daemon, Task};
use crate::poll::{Poll, Source};
use crate::slab::Key;
use crate::state::State;
use controls::Controls;
use gpuslice_engine::Event;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::limits::GROUPS_PER_CLIENT_MAX;
use gpuslice_wire::snapshot::{Snapshot, TimeEnforcement};
use gpuslice_wire::tenant::{ObjectName, Rejection};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
pub use time_slices::LOOK_EVERY;
use time_slices::TimeSlices;
use worker::{Job, Target, WorkerAnswer};

/// After this many failed stops in a row a container is not stopped again.
const MISSES_MAX: u32 = 8;
/// Most groups stopped at the same time, on all GPUs; a container with more is not stopped. Each needs two
/// descriptors, for its file and its process.
const GROUPS_MAX: usize = 128;
/// How long the daemon's end waits until all work is resumed.
const END_WITHIN: Duration = Duration::from_secs(2);

/// A container and one of its GPUs.
pub type SliceLane = (ContainerId, Lane);

/// A channel group, as its process reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelGroup {
    /// GPU of the slice.
    pub lane: Lane,
    /// The process's descriptor number of the open file.
    pub fd: u32,
    /// The driver's client of that file.
    pub client: ObjectName,
    /// The group.
    pub group: ObjectName,
    /// The object of its GPU in that client.
    pub subdevice: ObjectName,
}

/// Failed stops of a container.
#[derive(Clone, Copy, Debug, Default)]
struct Misses {
    /// In a row, up to the last stop.
    row: u32,
    /// In total.
    all: u64,
}

/// The event loop's side of preemption.
#[derive(Debug)]
pub struct Preemption {
    jobs: Option<Sender<Job>>,
    answers: Receiver<WorkerAnswer>,
    notify: Arc<EventFd>,
    misses: BTreeMap<ContainerId, Misses>,
    /// GPUs on which a stop has worked.
    shown: BTreeSet<GpuUuid>,
    slices: TimeSlices,
}

impl Preemption {
    /// Starts preemption as configured. First undoes the changes that an earlier daemon left on groups, whatever
    /// the present configuration is.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn new(
        mode: PreemptionMode,
        simulated: bool,
        state: &State,
        poll: &Poll,
    ) -> nix::Result<Preemption> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let notify = Arc::new(EventFd::from_flags(flags)?);
        poll.add_edge_triggered(&*notify, Source::Preemption)?;
        let left = journal::left_behind(state.dir());
        let controls =
            (mode == PreemptionMode::Probe || !left.is_empty()).then(|| Controls::of(simulated));
        let controls = match controls.transpose() {
            Ok(controls) => controls,
            Err(why) => {
                tracing::error!(
                    why,
                    "work is not stopped on GPUs: the driver cannot be reached"
                );
                None
            }
        };
        if let Some(controls) = &controls {
            journal::undo(left, controls);
        }
        let (answer, answers) = mpsc::channel();
        let jobs = controls
            .filter(|_| mode == PreemptionMode::Probe)
            .map(|controls| {
                let (jobs, todo) = mpsc::channel();
                let dir = state.dir().to_owned();
                let worker = worker::Worker::new(controls, dir, answer, Arc::clone(&notify));
                std::thread::spawn(move || worker.serve(&todo));
                jobs
            });
        Ok(Preemption {
            jobs,
            answers,
            notify,
            misses: BTreeMap::new(),
            shown: BTreeSet::new(),
            slices: TimeSlices::default(),
        })
    }

    /// Whether work may be stopped.
    pub fn is_on(&self) -> bool {
        self.jobs.is_some()
    }

    /// How many descriptors it may use.
    pub fn descriptors(&self) -> u64 {
        if self.is_on() {
            2 * GROUPS_MAX as u64
        } else {
            0
        }
    }

    fn ask(&self, job: Job) -> bool {
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok())
    }

    fn misses(&self, container: &ContainerId) -> Misses {
        self.misses.get(container).copied().unwrap_or_default()
    }

    /// A container's slice ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.misses.remove(container);
        self.slices.forget(container);
    }

    /// Resumes all work and restores all time slices, at the daemon's end.
    pub fn close(&mut self) {
        if self.ask(Job::End) {
            let ended = |answer| matches!(answer, WorkerAnswer::Ended);
            while let Ok(answer) = self.answers.recv_timeout(END_WITHIN) {
                if ended(answer) {
                    break;
                }
            }
        }
        self.jobs = None;
    }
}

impl Daemon {
    /// Stores a channel group that a process reports, in a bounded list. It is checked when it is used.
    pub fn name_group(&mut self, key: Key, named: ChannelGroup) {
        let Some(tenant) = self.tenants.get_mut(key) else {
            return;
        };
        if !tenant.has_lane(named.lane) {
            return self.reject(key, Rejection::NoSuchLane);
        }
        let groups = &mut tenant.groups;
        groups.retain(|it| (it.client, it.group) != (named.client, named.group));
        if groups.len() >= GROUPS_PER_CLIENT_MAX {
            return self.reject(key, Rejection::Overdrawn);
        }
        groups.push(named);
    }

    /// Removes a channel group that a process reports as gone.
    pub fn forget_group(&mut self, key: Key, client: ObjectName, group: ObjectName) {
        if let Some(tenant) = self.tenants.get_mut(key) {
            tenant
                .groups
                .retain(|it| (it.client, it.group) != (client, group));
        }
    }

    /// Stops a container's work on a GPU, for the engine.
    pub fn stop_work(&mut self, container: ContainerId, lane: Lane) {
        let asked = self.preemption.misses(&container).row < MISSES_MAX
            && match self.targets(&container, lane) {
                Some(targets) => self.preemption.ask(Job::Stop((container, lane), targets)),
                None => false,
            };
        if !asked {
            self.tasks.push_back(Task::Step(Event::Stopped {
                container,
                lane,
                ok: false,
            }));
        }
    }

    /// The groups of all processes of a container; `None` if a process has work in a group that it did not report.
    fn targets(&self, container: &ContainerId, lane: Lane) -> Option<Vec<Target>> {
        let slice = self.slices.of(container)?;
        let mut targets = Vec::new();
        for key in &slice.tenants {
            let Some(tenant) = self.tenants.get(*key).filter(|it| it.is_attached()) else {
                continue;
            };
            let own = tenant.groups.iter().filter(|named| named.lane == lane);
            if own.clone().next().is_none() && !tenant.is_quiet(lane) {
                return None;
            }
            for named in own {
                if targets.len() >= GROUPS_MAX {
                    return None;
                }
                targets.push(Target {
                    key: *key,
                    pidfd: tenant.pidfd()?.try_clone_to_owned().ok()?,
                    pid: tenant.pid(),
                    named: *named,
                });
            }
        }
        (!targets.is_empty()).then_some(targets)
    }

    /// Resumes a container's work on a GPU, for the engine.
    pub fn resume_work(&mut self, container: ContainerId, lane: Lane) {
        if !self.preemption.ask(Job::Resume((container, lane))) {
            let resumed = Event::Resumed { container, lane };
            self.tasks.push_back(Task::Step(resumed));
        }
    }

    /// Resumes the work of a process whose connection ended, and closes its files.
    pub fn release_work(&self, key: Key) {
        self.preemption.ask(Job::Release(key));
    }

    /// Handles the worker's answers.
    pub fn read_preemption_answers(&mut self) {
        // Resets the eventfd; an empty one is not an error.
        let _ = self.preemption.notify.read();
        while let Ok(answer) = self.preemption.answers.try_recv() {
            let event = match answer {
                WorkerAnswer::Stopped((container, lane), done) => {
                    self.tried(&container, lane, &done);
                    Event::Stopped {
                        container,
                        lane,
                        ok: done.is_ok(),
                    }
                }
                WorkerAnswer::Resumed((container, lane)) => Event::Resumed { container, lane },
                WorkerAnswer::Sliced(found) => {
                    self.preemption.slices.found(found);
                    continue;
                }
                WorkerAnswer::Ended => continue,
            };
            self.tasks.push_back(Task::Step(event));
        }
    }

    fn tried(&mut self, container: &ContainerId, lane: Lane, done: &Result<Duration, String>) {
        match done {
            Ok(took) => {
                if let Some(misses) = self.preemption.misses.get_mut(container) {
                    misses.row = 0;
                }
                let gpu = self.cgroup_limits.gpu_of(container, lane);
                let took_us = took.as_micros() as u64;
                tracing::debug!(%container, gpu = lane.0, took_us, "stopped on the GPU");
                self.preemption.shown.extend(gpu);
            }
            Err(why) => {
                let misses = self.preemption.misses.entry(*container).or_default();
                (misses.row, misses.all) = (misses.row + 1, misses.all + 1);
                if misses.row == MISSES_MAX {
                    tracing::warn!(%container, gpu = lane.0, why, "cannot be stopped on the GPU; not tried again");
                } else {
                    tracing::debug!(%container, gpu = lane.0, why, "not stopped on the GPU");
                }
            }
        }
    }

    /// Adds the enforcement level of each container's turns to the engine's rows.
    pub fn set_time_enforcement(&self, rows: &mut [Snapshot]) {
        for row in rows {
            if let Snapshot::Slice {
                container,
                lane,
                gpu,
                time_enforcement,
                stops_missed,
                time_slice_us,
                time_slice_changes,
                ..
            } = row
            {
                (*time_slice_us, *time_slice_changes) =
                    self.preemption.slices.of((*container, *lane));
                let misses = self.preemption.misses(container);
                *stops_missed = misses.all;
                let stops = self.preemption.shown.contains(gpu) && misses.row < MISSES_MAX;
                *time_enforcement = match (stops, *time_slice_us) {
                    (true, _) => TimeEnforcement::Preempt,
                    (false, 0) => TimeEnforcement::Shim,
                    (false, _) => TimeEnforcement::Timeslice,
                };
            }
        }
    }
}
