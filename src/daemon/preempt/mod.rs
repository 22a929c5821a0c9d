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

use crate::clients::Clients;
use crate::config::PreemptionMode;
use crate::containers::Containers;
use crate::paths::Driver;
use crate::poll::{Source, Watch};
use crate::slab::Key;
use crate::tasks::Tasks;
use controls::Controls;
use gpuslice_engine::{Engine, Event};
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::snapshot::{Snapshot, TimeEnforcement};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
pub use time_slices::LOOK_EVERY;
use time_slices::TimeSlices;
use worker::{GROUPS_MAX, Job, Target, WorkerAnswer};

/// After this many failed stops in a row a container is not stopped again.
const MISSES_MAX: u32 = 8;
/// How long the daemon's end waits until all work is resumed.
const END_WITHIN: Duration = Duration::from_secs(2);

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
        driver: &Driver,
        runtime_dir: &Path,
        watch: &Watch,
    ) -> nix::Result<Preemption> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let notify = Arc::new(EventFd::from_flags(flags)?);
        watch.add_edge_triggered(&*notify, Source::Preemption)?;
        let left = journal::left_behind(runtime_dir);
        let controls =
            (mode == PreemptionMode::Probe || !left.is_empty()).then(|| Controls::of(driver));
        let controls = match controls.transpose() {
            Ok(controls) => controls,
            Err(why) => {
                tracing::error!(why, "work is not stopped on GPUs: the driver cannot be reached");
                None
            }
        };
        if let Some(controls) = &controls {
            journal::undo(left, controls);
        }
        let (answer, answers) = mpsc::channel();
        let jobs = controls.filter(|_| mode == PreemptionMode::Probe).map(|controls| {
            let (jobs, todo) = mpsc::channel();
            let dir = runtime_dir.to_owned();
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
        if self.is_on() { 2 * GROUPS_MAX as u64 } else { 0 }
    }

    fn ask(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
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

    /// Stops a container's work on a GPU, for the engine; `order` is the number of its order.
    pub fn stop(
        &mut self,
        slice_lane @ (container, lane): time_slicer::SliceLane,
        order: u32,
        clients: &Clients,
        out: &mut Tasks,
    ) {
        let asked = self.misses(&container).row < MISSES_MAX
            && targets(clients, &container, lane)
                .is_some_and(|targets| self.ask(Job::Stop(slice_lane, order, targets)));
        if !asked {
            let ok = false;
            out.step(Event::Stopped { container, lane, order, ok });
        }
    }

    /// Resumes a container's work on a GPU, for the engine.
    pub fn resume(&mut self, container: ContainerId, lane: Lane, out: &mut Tasks) {
        if !self.ask(Job::Resume((container, lane))) {
            out.step(Event::Resumed { container, lane });
        }
    }

    /// Resumes the work of a process whose connection ended, and closes its files.
    pub fn release(&self, key: Key) {
        self.ask(Job::Release(key));
    }

    /// Handles the worker's answers.
    pub fn read_answers(&mut self, containers: &Containers, out: &mut Tasks) {
        // Resets the eventfd; an empty one is not an error.
        let _ = self.notify.read();
        while let Ok(answer) = self.answers.try_recv() {
            match answer {
                WorkerAnswer::Stopped((container, lane), order, done) => {
                    self.tried(containers, &container, lane, &done);
                    let ok = done.is_ok();
                    out.step(Event::Stopped { container, lane, order, ok });
                }
                WorkerAnswer::Resumed((container, lane)) => {
                    out.step(Event::Resumed { container, lane });
                }
                WorkerAnswer::Sliced(found) => self.slices.found(found),
                WorkerAnswer::Ended => return,
            }
        }
    }

    fn tried(
        &mut self,
        containers: &Containers,
        container: &ContainerId,
        lane: Lane,
        done: &Result<Duration, String>,
    ) {
        match done {
            Ok(took) => {
                if let Some(misses) = self.misses.get_mut(container) {
                    misses.row = 0;
                }
                let took_us = took.as_micros() as u64;
                tracing::debug!(%container, gpu = lane.0, took_us, "stopped on the GPU");
                self.shown.extend(containers.gpu_of(container, lane));
            }
            Err(why) => {
                let misses = self.misses.entry(*container).or_default();
                (misses.row, misses.all) = (misses.row + 1, misses.all + 1);
                if misses.row == MISSES_MAX {
                    tracing::warn!(%container, gpu = lane.0, why, "cannot be stopped on the GPU; not tried again");
                } else {
                    tracing::debug!(%container, gpu = lane.0, why, "not stopped on the GPU");
                }
            }
        }
    }

    /// Starts a round of time slices for all groups, unless one is in progress.
    pub fn look(&mut self, clients: &Clients, containers: &Containers, engine: &Engine) {
        if !self.shown.is_empty() && !self.slices.is_looking() {
            let wanted = time_slices::wanted(&self.shown, clients, containers, engine);
            let asked = self.ask(Job::Slices(wanted));
            self.slices.look(asked);
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
                (*time_slice_us, *time_slice_changes) = self.slices.of((*container, *lane));
                let misses = self.misses(container);
                *stops_missed = misses.all;
                let stops = self.shown.contains(gpu) && misses.row < MISSES_MAX;
                *time_enforcement = match (stops, *time_slice_us) {
                    (true, _) => TimeEnforcement::Preempt,
                    (false, 0) => TimeEnforcement::Shim,
                    (false, _) => TimeEnforcement::Timeslice,
                };
            }
        }
    }
}

/// The groups of all processes of a container; `None` if a process has work in a group that it did not report.
fn targets(clients: &Clients, container: &ContainerId, lane: Lane) -> Option<Vec<Target>> {
    let mut targets = Vec::new();
    for (key, tenant) in clients.attached_of(container) {
        let own = tenant.groups().iter().filter(|named| named.lane == lane);
        if own.clone().next().is_none() && !tenant.is_quiet(lane) {
            return None;
        }
        for named in own {
            if targets.len() >= GROUPS_MAX {
                return None;
            }
            targets.push(Target {
                key,
                pidfd: tenant.pidfd()?.try_clone_to_owned().ok()?,
                pid: tenant.pid(),
                named: *named,
            });
        }
    }
    (!targets.is_empty()).then_some(targets)
}
