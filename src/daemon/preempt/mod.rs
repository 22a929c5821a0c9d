//! Preemption: takes a container's work off a GPU through the process's own open file.
//!
//! # Problem
//! A program cannot recall a kernel that it has launched. The driver can take it off the GPU, but only through the
//! open file with which its channel group was created, and that file belongs to the process.
//!
//! # Idea
//! Root may duplicate a descriptor of another process (`pidfd_getfd`), and a duplicate is the same open file. So a
//! process reports its descriptor's number and the names of its groups and their channels. When the engine wants its
//! work stopped, the daemon duplicates the descriptor, checks that it is the driver's node, and disables the channels
//! through it: of all controls that a card was asked (H200, driver 580), only this one keeps work off. The driver
//! refuses another file's client, and the daemon names channels in no other one: so a process can name only its own.
//! The duplicate is closed afterwards: while it is open, the driver keeps a dead process's memory.
//!
//! A control that reports success proves nothing: a stop counts only if the driver's statistics show that work was
//! taken off the GPU by it; otherwise it is undone at once. After eight failed stops in a row a container is not
//! stopped again: the next containers wait for its turns to drain, as without preemption.
//!
//! Where a stop has worked, groups also get hardware time slices by weight, for work that still overlaps:
//! [`time_slices`] decides when, [`time_slicer`] sets them.
//!
//! A descriptor of a tenant's can block whatever touches it, also its close, for as long as the tenant likes. So each
//! container has a worker process, and the event loop only writes packets and reads answers:
//!
//! * [`worker`] is that process: it stops and resumes work; [`controls`] wraps the driver's calls;
//! * [`workers`] starts workers, and replaces those that hang; [`process`] is one as the daemon sees it, [`jobs`] what
//!   both say to each other;
//! * [`journal`] is written before anything is changed, so that the next worker can resume what a lost one stopped.

pub mod controls;
mod jobs;
pub mod journal;
mod process;
mod time_slicer;
mod time_slices;
pub mod worker;
mod workers;

use crate::clients::Clients;
use crate::config::PreemptionMode;
use crate::containers::Containers;
use crate::paths::Driver;
use crate::poll::Watch;
use crate::slab::Key;
use crate::tasks::Tasks;
use gpuslice_engine::{Engine, Event};
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::limits::CONTAINERS_MAX;
use gpuslice_wire::snapshot::{Snapshot, TimeEnforcement};
use gpuslice_wire::units::{Duration, Instant};
use jobs::{GROUPS_MAX, Job, Target, WorkerAnswer};
use journal::JournalEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
pub use time_slices::LOOK_EVERY;
use time_slices::{SliceLane, TimeSlices};
use workers::{Told, Workers};

/// After this many failed stops in a row a container is not stopped again.
const MISSES_MAX: u32 = 8;
/// How long the daemon's start and its end wait until all work is resumed.
const RESUMED_WITHIN: Duration = Duration(2_000_000_000);

/// Failed stops of a container.
#[derive(Clone, Copy, Debug, Default)]
struct Misses {
    /// In a row, up to the last stop.
    row: u32,
    /// In total.
    all: u64,
}

impl Misses {
    /// Counts a stop that was tried.
    fn count(&mut self, has_stopped: bool) {
        (self.row, self.all) = match has_stopped {
            true => (0, self.all),
            false => (self.row + 1, self.all + 1),
        };
    }

    /// Whether the container is stopped again.
    fn may_stop(self) -> bool {
        self.row < MISSES_MAX
    }
}

/// The event loop's side of preemption.
#[derive(Debug)]
pub struct Preemption {
    is_on: bool,
    workers: Workers,
    misses: BTreeMap<ContainerId, Misses>,
    /// GPUs on which a stop has worked.
    shown: BTreeSet<GpuUuid>,
    slices: TimeSlices,
}

impl Preemption {
    /// Starts preemption as configured. First undoes the changes that an earlier daemon left on groups, whatever
    /// the present configuration is. What takes longer than [`RESUMED_WITHIN`] goes on beside the daemon's other work.
    pub fn new(
        mode: PreemptionMode,
        driver: &Driver,
        runtime_dir: &Path,
        watch: &Watch,
    ) -> Preemption {
        let simulated = driver.is_simulated().then(|| PathBuf::from(driver.cuda.as_str()));
        let simulated = simulated.unwrap_or_default();
        let mut workers = Workers::new(watch, simulated, runtime_dir.to_owned());
        for (container, lines) in journal::left_behind(runtime_dir) {
            workers.undo(container, lines);
        }
        for told in workers.await_idle(RESUMED_WITHIN) {
            log_lost(&told);
        }
        Preemption {
            is_on: mode == PreemptionMode::Probe,
            workers,
            misses: BTreeMap::new(),
            shown: BTreeSet::new(),
            slices: TimeSlices::default(),
        }
    }

    /// Whether work may be stopped.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// How many descriptors it may use.
    pub fn descriptors(&self) -> u64 {
        if self.is_on { CONTAINERS_MAX as u64 } else { 0 }
    }

    fn misses(&self, container: &ContainerId) -> Misses {
        self.misses.get(container).copied().unwrap_or_default()
    }

    /// A container's slice ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.workers.end(container);
        self.misses.remove(container);
        self.slices.forget(container);
    }

    /// Resumes all work and restores all time slices, at the daemon's end.
    pub fn close(&mut self) {
        self.workers.end_all(RESUMED_WITHIN);
    }

    /// Stops a container's work on a GPU, for the engine; `order` is the number of its order.
    pub fn stop(
        &mut self,
        (container, lane): SliceLane,
        order: u32,
        clients: &Clients,
        out: &mut Tasks,
    ) {
        let may = self.is_on && self.misses(&container).may_stop();
        let targets = if may { targets(clients, &container, lane) } else { None };
        let job = targets.map(|targets| Job::Stop(lane.0, order, targets));
        if !job.is_some_and(|job| self.workers.ask(container, job)) {
            let ok = false;
            out.step(Event::Stopped { container, lane, order, ok });
        }
    }

    /// Resumes a container's work on a GPU, for the engine.
    pub fn resume(&mut self, container: ContainerId, lane: Lane, out: &mut Tasks) {
        if !self.workers.ask_living(&container, Job::Resume(lane.0)) {
            out.step(Event::Resumed { container, lane });
        }
    }

    /// Resumes the work of a process whose connection ended, and closes its files.
    pub fn release(&mut self, container: &ContainerId, key: Key) {
        self.workers.ask_living(container, Job::Release(key));
    }

    /// Handles a worker's answers.
    pub fn read(&mut self, key: Key, containers: &Containers, out: &mut Tasks) {
        let told = self.workers.read(key);
        self.take_in(told, containers, out);
    }

    /// When [`Preemption::due`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.workers.deadline()
    }

    /// Replaces workers that hang.
    pub fn due(&mut self, now: Instant, containers: &Containers, out: &mut Tasks) {
        let told = self.workers.due(now);
        self.take_in(told, containers, out);
    }

    fn take_in(&mut self, told: Vec<Told>, containers: &Containers, out: &mut Tasks) {
        for told in told {
            log_lost(&told);
            match told {
                Told::Answer(container, Job::Stop(lane, order, _), WorkerAnswer::Stopped(done)) => {
                    let (lane, ok) = (Lane(lane), done.is_ok());
                    self.tried(containers, &container, lane, &done);
                    out.step(Event::Stopped { container, lane, order, ok });
                }
                // Its end is no sign that work cannot be stopped.
                Told::Answer(container, Job::Stop(lane, order, _), WorkerAnswer::Gone) => {
                    let (lane, ok) = (Lane(lane), false);
                    out.step(Event::Stopped { container, lane, order, ok });
                }
                Told::Lost(container, Job::Stop(lane, order, _)) => {
                    let (lane, ok) = (Lane(lane), false);
                    self.misses.entry(container).or_default().all += 1;
                    out.step(Event::Stopped { container, lane, order, ok });
                }
                Told::Answer(container, Job::Resume(lane), WorkerAnswer::Resumed(refused)) => {
                    let lane = Lane(lane);
                    if let Some(why) = refused {
                        tracing::error!(%container, gpu = lane.0, why, "stopped on the GPU and not resumed; trying again");
                    }
                    out.step(Event::Resumed { container, lane });
                }
                Told::Lost(container, Job::Resume(lane)) => {
                    let lane = Lane(lane);
                    out.step(Event::Resumed { container, lane });
                }
                Told::Answer(container, Job::Slices(..), WorkerAnswer::Sliced(found)) => {
                    self.slices.found(container, found);
                }
                Told::Lost(container, Job::Slices(..)) => self.slices.lost(&container),
                Told::Answer(..) | Told::Lost(..) | Told::WorkerLost(..) => {}
            }
        }
    }

    fn tried(
        &mut self,
        containers: &Containers,
        container: &ContainerId,
        lane: Lane,
        done: &Result<u64, String>,
    ) {
        let misses = self.misses.entry(*container).or_default();
        misses.count(done.is_ok());
        match done {
            Ok(took_us) => {
                tracing::debug!(%container, gpu = lane.0, took_us, "stopped on the GPU");
                self.shown.extend(containers.gpu_of(container, lane));
            }
            Err(why) if misses.row == MISSES_MAX => {
                tracing::warn!(%container, gpu = lane.0, why, "cannot be stopped on the GPU; not tried again");
            }
            Err(why) => {
                tracing::debug!(%container, gpu = lane.0, why, "not stopped on the GPU");
            }
        }
    }

    /// Starts a round of time slices for all groups, of each container whose last round is over.
    pub fn look(&mut self, clients: &Clients, containers: &Containers, engine: &Engine) {
        if self.shown.is_empty() {
            return;
        }
        let mut wanted = time_slices::wanted(&self.shown, clients, containers, engine);
        for container in self.workers.containers() {
            wanted.entry(container).or_default();
        }
        for (container, wanted) in wanted {
            if !self.slices.is_looking(&container) && self.workers.slices(container, &wanted) {
                self.slices.look(container);
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
                (*time_slice_us, *time_slice_changes) = self.slices.of((*container, *lane));
                let misses = self.misses(container);
                *stops_missed = misses.all;
                let stops = self.shown.contains(gpu) && misses.may_stop();
                let stops = stops && !self.workers.is_marked(container);
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
            if targets.len() >= GROUPS_MAX || named.channels().next().is_none() {
                return None;
            }
            let process = tenant.process()?;
            let entry = JournalEntry::of(process.pid, process.born, *named);
            targets.push(Target { key, entry });
        }
    }
    (!targets.is_empty()).then_some(targets)
}

/// Logs a lost worker.
fn log_lost(told: &Told) {
    match told {
        Told::WorkerLost(container, lost) if workers::is_last(*lost) => {
            tracing::warn!(%container, lost, "its work is not stopped on GPUs any more: processes that did it hung or ended, probably because of a descriptor of its own");
        }
        Told::WorkerLost(container, lost) => {
            tracing::warn!(%container, lost, "the process that stops its work on GPUs hung or ended; another one takes over");
        }
        Told::Answer(..) | Told::Lost(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failed_stops_in_a_row_end_the_tries() {
        let mut misses = Misses::default();
        let mut after = |has_stopped: bool, times: u32| {
            (0..times).for_each(|_| misses.count(has_stopped));
            (misses.may_stop(), misses.all)
        };
        assert_eq!(after(false, MISSES_MAX - 1), (true, 7));
        assert_eq!(after(true, 1), (true, 7));
        assert_eq!(after(false, MISSES_MAX - 1), (true, 14), "the row began anew");
        assert_eq!(after(false, 1), (false, 15));
    }
}
