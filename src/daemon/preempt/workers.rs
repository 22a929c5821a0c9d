//! The workers of all containers: starts one when a container first needs it, and replaces one that hangs.
//!
//! A worker that owes an answer for too long, or ends by itself, is killed and not waited for: a process that a FUSE
//! server blocks in the kernel ends when that server lets it. What it had stopped is in the container's journal, and
//! the container's next worker resumes it, line by line. If a line hangs that one too, the line is given up and another
//! worker takes the rest. A container has [`LOST_MAX`] workers to lose, the node [`ABANDONED_MAX`] that have not
//! ended; after [`MARKED_AFTER`] a container's work is not stopped any more. Nothing of this touches another container:
//! its worker, its files and its journal are its own.

use super::jobs::{Job, SLICES_TOGETHER, WorkerAnswer};
use super::journal::{self, JournalEntry};
use super::process::{Heard, WorkerProcess};
use super::time_slicer::WantedSlice;
use crate::log_limit::LogLimit;
use crate::poll::{Source, Watch};
use crate::slab::{Key, Slab};
use gpuslice_host::clock::now;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::CONTAINERS_MAX;
use gpuslice_wire::units::{Duration, Instant};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Child;

/// Lost workers after which a container's work is not stopped any more.
const MARKED_AFTER: u32 = 2;
/// Most workers that a container may lose, those that resume its work included.
const LOST_MAX: u32 = 4;
/// Killed workers of all containers that have not ended; with so many, none is started.
const ABANDONED_MAX: usize = 32;

/// Something that the event loop must know of.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// The answer to a job.
    Answer(ContainerId, Job, WorkerAnswer),
    /// A job that will not be answered.
    Lost(ContainerId, Job),
    /// A worker hung or ended: how many of the container's have by now.
    WorkerLost(ContainerId, u32),
}

/// A container's worker.
#[derive(Debug)]
struct Worker {
    container: ContainerId,
    process: WorkerProcess,
    /// Its slice has ended, or the daemon ends: it is let go when it is idle.
    ending: bool,
}

/// See the file's head.
#[derive(Debug)]
pub struct Workers {
    watch: Watch,
    /// The simulated driver's library; empty for the machine's driver.
    simulated: PathBuf,
    runtime_dir: PathBuf,
    workers: Slab<Worker>,
    of: BTreeMap<ContainerId, Key>,
    lost: BTreeMap<ContainerId, u32>,
    /// Killed ones, until they can be reaped.
    abandoned: Vec<Child>,
    /// Refusals to start one more.
    full: LogLimit,
}

impl Workers {
    /// Without any worker.
    pub fn new(watch: &Watch, simulated: PathBuf, runtime_dir: PathBuf) -> Workers {
        Workers {
            watch: watch.clone(),
            simulated,
            runtime_dir,
            // Those of slices that end are beside those of new ones.
            workers: Slab::new(2 * CONTAINERS_MAX as u16),
            of: BTreeMap::new(),
            lost: BTreeMap::new(),
            abandoned: Vec::new(),
            full: LogLimit::default(),
        }
    }

    /// Whether a container lost so many workers that its work is not stopped any more.
    pub fn is_marked(&self, container: &ContainerId) -> bool {
        self.lost.get(container).is_some_and(|lost| *lost >= MARKED_AFTER)
    }

    /// Containers with a worker.
    pub fn containers(&self) -> impl Iterator<Item = ContainerId> {
        self.of.keys().copied()
    }

    /// Asks a container's worker, which is started if there is none. Returns false if there can be none.
    pub fn ask(&mut self, container: ContainerId, job: Job) -> bool {
        if self.is_marked(&container) {
            return false;
        }
        self.ask_any(container, job)
    }

    /// Asks a container's worker, if there is one.
    pub fn ask_living(&mut self, container: &ContainerId, job: Job) -> bool {
        let key = self.of.get(container).copied();
        let worker = key.and_then(|key| self.workers.get_mut(key));
        worker.map(|it| it.process.ask(job)).is_some()
    }

    fn ask_any(&mut self, container: ContainerId, job: Job) -> bool {
        if self.of.contains_key(&container) {
            return self.ask_living(&container, job);
        }
        match self.start(container) {
            Some(mut worker) => {
                worker.process.ask(job);
                self.insert(worker)
            }
            None => false,
        }
    }

    /// Asks for a round of time slices; returns whether it was begun.
    pub fn slices(&mut self, container: ContainerId, wanted: &[WantedSlice]) -> bool {
        let mut parts: Vec<_> = wanted.chunks(SLICES_TOGETHER).map(<[_]>::to_vec).collect();
        let last = parts.pop().unwrap_or_default();
        let parts = parts.into_iter().map(|part| Job::Slices(part, false));
        let mut all = parts.chain([Job::Slices(last, true)]);
        all.all(|part| self.ask(container, part))
    }

    /// Undoes what a lost worker, perhaps of an earlier daemon, left of a container.
    pub fn undo(&mut self, container: ContainerId, lines: Vec<JournalEntry>) {
        let Some(mut worker) = self.start(container) else {
            return lines.iter().for_each(|line| give_up(&container, line, "no process does it"));
        };
        lines.into_iter().for_each(|line| worker.process.ask(Job::Undo(Box::new(line))));
        worker.process.ask(Job::Clear);
        self.insert(worker);
    }

    /// A container's slice ended: resumes its work and lets its worker go.
    pub fn end(&mut self, container: &ContainerId) {
        self.lost.remove(container);
        self.ask_living(container, Job::End);
        if let Some(worker) = self.of.remove(container).and_then(|key| self.workers.get_mut(key)) {
            worker.ending = true;
        }
    }

    /// Resumes all work, at the daemon's end, and waits for that.
    pub fn end_all(&mut self, within: Duration) {
        for worker in self.workers.iter_mut() {
            worker.process.ask(Job::End);
        }
        self.await_idle(within);
    }

    /// Waits until no worker has a job; returns what was told meanwhile.
    pub fn await_idle(&mut self, within: Duration) -> Vec<Told> {
        let (until, mut told) = (now().plus(within), Vec::new());
        loop {
            let busy = self.workers.iter().filter(|(_, it)| !it.process.is_idle());
            let Some((key, by)) = busy.map(|(key, it)| (key, it.process.deadline())).next() else {
                return told;
            };
            let by = by.map_or(until, |by| by.min(until));
            if now() >= until {
                return told;
            }
            if let Some(worker) = self.workers.get(key) {
                let left = by.since(now()).0 / 1_000_000 + 1;
                let left = PollTimeout::try_from(left as i32).unwrap_or(PollTimeout::ZERO);
                let mut watched = [PollFd::new(worker.process.channel(), PollFlags::POLLIN)];
                // An interrupted wait is repeated.
                let _ = poll(&mut watched, left);
            }
            told.extend(self.read(key));
            told.extend(self.due(now()));
        }
    }

    /// When [`Workers::due`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.workers.iter().filter_map(|(_, it)| it.process.deadline()).min()
    }

    /// Replaces workers that hang.
    pub fn due(&mut self, now: Instant) -> Vec<Told> {
        self.abandoned.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let late = |it: &Worker| it.process.deadline().is_some_and(|by| by <= now);
        let late = self.workers.iter().filter(|(_, it)| late(it)).map(|(key, _)| key);
        let late: Vec<Key> = late.collect();
        late.into_iter().flat_map(|key| self.replace(key)).collect()
    }

    /// Reads a worker's answers.
    pub fn read(&mut self, key: Key) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(worker) = self.workers.get_mut(key) {
            match worker.process.hear() {
                Heard::Nothing => break,
                Heard::Answer(job, answer) => {
                    let (container, ending) = (worker.container, worker.ending);
                    log_undone(&container, &job, &answer);
                    told.push(Told::Answer(container, job, answer));
                    if worker.process.is_idle() && (ending || self.is_marked(&container)) {
                        self.remove(key);
                    }
                }
                Heard::End => told.extend(self.replace(key)),
            }
        }
        told
    }

    /// Kills a worker; returns its container unless that has ended, and its unanswered jobs.
    fn remove(&mut self, key: Key) -> Option<(ContainerId, Vec<Job>)> {
        let Worker { container, process, ending } = self.workers.remove(key)?;
        if self.of.get(&container) == Some(&key) {
            self.of.remove(&container);
        }
        // Its channel is no longer watched once it is closed here.
        let (child, jobs) = process.abandon();
        self.abandoned.push(child);
        (!ending).then_some((container, jobs))
    }

    /// Gives a lost worker's container another one, if there is something to undo.
    fn replace(&mut self, key: Key) -> Vec<Told> {
        let Some((container, jobs)) = self.remove(key) else {
            return Vec::new();
        };
        let lost = self.lost.entry(container).or_default();
        *lost += 1;
        let lost = *lost;
        let left = match jobs.split_first() {
            Some((Job::Undo(line), others)) => {
                give_up(&container, line, "the process that does it hangs");
                lines_of(others)
            }
            _ if jobs.contains(&Job::Clear) => Vec::new(),
            _ => journal::read(&self.dir(&container)).unwrap_or_default(),
        };
        match lost <= LOST_MAX {
            _ if left.is_empty() => {}
            true => self.undo(container, left),
            false => left.iter().for_each(|line| give_up(&container, line, "too many hang")),
        }
        let unanswered = jobs.into_iter().map(|job| Told::Lost(container, job));
        [Told::WorkerLost(container, lost)].into_iter().chain(unanswered).collect()
    }

    fn dir(&self, container: &ContainerId) -> PathBuf {
        self.runtime_dir.join("c").join(container.as_str())
    }

    fn start(&mut self, container: ContainerId) -> Option<Worker> {
        self.abandoned.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if self.abandoned.len() >= ABANDONED_MAX {
            if let Some(count) = self.full.one_more(now()) {
                tracing::error!(%container, count, "its work is not stopped on GPUs: too many processes that stop work hang");
            }
            return None;
        }
        match WorkerProcess::start(&self.simulated, &self.dir(&container)) {
            Ok(process) => Some(Worker { container, process, ending: false }),
            Err(why) => {
                tracing::warn!(%container, %why, "the process that stops its work on GPUs does not start");
                None
            }
        }
    }

    fn insert(&mut self, worker: Worker) -> bool {
        let container = worker.container;
        let Ok(key) = self.workers.insert(worker) else {
            return false;
        };
        let source = Source::Preemption(key);
        let watched = self.workers.get(key).map(|it| self.watch.add(it.process.channel(), source));
        if !matches!(watched, Some(Ok(()))) {
            self.remove(key);
            return false;
        }
        self.of.insert(container, key);
        true
    }
}

/// Whether this loss of a worker is the one after which a container's work is not stopped any more.
pub fn is_last(lost: u32) -> bool {
    lost == MARKED_AFTER
}

/// The lines that these jobs undo.
fn lines_of(jobs: &[Job]) -> Vec<JournalEntry> {
    let line = |job: &Job| match job {
        Job::Undo(line) => Some(**line),
        _ => None,
    };
    jobs.iter().filter_map(line).collect()
}

/// Logs a line that is not undone.
fn give_up(container: &ContainerId, line: &JournalEntry, why: &str) {
    let pid = line.pid();
    match line.is_stop() {
        true => {
            tracing::error!(%container, pid, why, "stopped on the GPU, and cannot be resumed; end that process");
        }
        false => tracing::warn!(%container, pid, why, "its time slice cannot be restored"),
    }
}

fn log_undone(container: &ContainerId, job: &Job, answer: &WorkerAnswer) {
    if let (Job::Undo(line), WorkerAnswer::Undone(done)) = (job, answer) {
        let pid = line.pid();
        match done {
            Some(why) => give_up(container, line, why),
            None if line.is_stop() => {
                tracing::info!(%container, pid, "its work was stopped by a process that is gone; resumed");
            }
            None => {}
        }
    }
}
