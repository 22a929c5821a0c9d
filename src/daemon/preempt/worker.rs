//! The thread that stops and resumes work, one job after the other. Its remaining time goes to the [`TimeSlicer`].
//!
//! A stop is all or nothing: if one group of a container cannot be stopped, or no work left the GPU by it, the groups
//! stopped so far are resumed at once. A resume that fails is retried until it succeeds or the process exits, so
//! no group stays stopped forever.
//!
//! A container of a higher class waits while it works. So journal entries stay as long as the process runs: work that
//! was stopped once is mostly stopped again, and then nothing is written. An extra entry resumes a group twice,
//! which is harmless.

use super::controls::{ControlError, Controls};
use super::journal::{self, JournalEntry};
use super::time_slicer::{Observed, SliceLane, TimeSlicer, WantedSlice};
use crate::clients::ChannelGroup;
use crate::slab::Key;
use gpuslice_wire::ids::ContainerId;
use nix::sys::eventfd::EventFd;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// Most groups stopped at the same time, on all GPUs; a container with more is not stopped. Each needs two
/// descriptors, for its file and its process.
pub const GROUPS_MAX: usize = 128;
/// Pause between two attempts to resume a group.
const AGAIN: Duration = Duration::from_millis(100);

/// A group and its process.
#[derive(Debug)]
pub struct Target {
    /// The process's connection.
    pub key: Key,
    /// The process.
    pub pidfd: OwnedFd,
    /// Its pid.
    pub pid: u32,
    /// The group.
    pub named: ChannelGroup,
}

/// A job for the worker.
#[derive(Debug)]
pub enum Job {
    /// Stop these groups, which are all groups of a container on a GPU; with the number of the engine's order.
    Stop(SliceLane, u32, Vec<Target>),
    /// Resume the stopped groups.
    Resume(SliceLane),
    /// Set these time slices; restore those of all other groups.
    Slices(Vec<WantedSlice>),
    /// A process's connection ended.
    Release(Key),
    /// Resume everything and end.
    End,
}

/// The worker's answer.
#[derive(Debug)]
pub enum WorkerAnswer {
    /// To `Stop`: its duration, or why nothing is stopped.
    Stopped(SliceLane, u32, Result<Duration, String>),
    /// To `Resume`.
    Resumed(SliceLane),
    /// To `TimeSlices`.
    Sliced(BTreeMap<SliceLane, Observed>),
    /// To `End`.
    Ended,
}

/// A stopped group.
struct StoppedGroup {
    key: Key,
    file: OwnedFd,
    named: ChannelGroup,
    line: JournalEntry,
}

/// See the file's head.
pub struct Worker {
    controls: Controls,
    dir: PathBuf,
    answers: Sender<WorkerAnswer>,
    notify: Arc<EventFd>,
    stopped: BTreeMap<SliceLane, Vec<StoppedGroup>>,
    /// Groups whose resume has failed so far.
    refused: Vec<(SliceLane, StoppedGroup)>,
    /// The entries of each container's file: groups that are or were stopped.
    written: BTreeMap<ContainerId, Vec<(Key, JournalEntry)>>,
    slicer: TimeSlicer,
}

impl Worker {
    /// A worker without stopped groups.
    pub fn new(
        controls: Controls,
        dir: PathBuf,
        answers: Sender<WorkerAnswer>,
        notify: Arc<EventFd>,
    ) -> Worker {
        Worker {
            slicer: TimeSlicer::new(controls, dir.clone()),
            controls,
            dir,
            answers,
            notify,
            stopped: BTreeMap::new(),
            refused: Vec::new(),
            written: BTreeMap::new(),
        }
    }

    /// Works until the end.
    pub fn serve(mut self, jobs: &Receiver<Job>) {
        loop {
            let job = self.next(jobs);
            self.try_again();
            let answer = match job {
                Ok(Job::Stop(slice_lane, order, targets)) => {
                    let begun = Instant::now();
                    let done = self.stop(slice_lane, &targets);
                    let done = done.map(|()| begun.elapsed());
                    let done = done.map_err(|why| why.to_string());
                    Some(WorkerAnswer::Stopped(slice_lane, order, done))
                }
                Ok(Job::Resume(slice_lane)) => {
                    self.resume(slice_lane);
                    Some(WorkerAnswer::Resumed(slice_lane))
                }
                Ok(Job::Release(key)) => {
                    self.release(key);
                    None
                }
                Ok(Job::Slices(wishes)) => {
                    self.slicer.look(wishes);
                    None
                }
                Err(RecvTimeoutError::Timeout) => self.slicer.step().map(WorkerAnswer::Sliced),
                Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => {
                    let all: Vec<SliceLane> = self.stopped.keys().copied().collect();
                    all.into_iter().for_each(|slice_lane| self.resume(slice_lane));
                    self.rewrite(|_| false);
                    self.slicer.end();
                    self.answer(WorkerAnswer::Ended);
                    return;
                }
            };
            answer.into_iter().for_each(|answer| self.answer(answer));
        }
    }

    /// The next job; `Timeout` when there is time for other work.
    fn next(&self, jobs: &Receiver<Job>) -> Result<Job, RecvTimeoutError> {
        match (self.slicer.is_idle(), self.refused.is_empty()) {
            (false, _) => jobs.try_recv().map_err(|why| match why {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            (true, true) => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (true, false) => jobs.recv_timeout(AGAIN),
        }
    }

    fn answer(&self, answer: WorkerAnswer) {
        // A dropped receiver or a pending notification is not an error.
        let _ = self.answers.send(answer);
        let _ = self.notify.write(1);
    }

    fn stop(&mut self, slice_lane: SliceLane, targets: &[Target]) -> Result<(), ControlError> {
        let stopped: usize = self.stopped.values().map(Vec::len).sum();
        if stopped + self.refused.len() + targets.len() > GROUPS_MAX {
            return Err(ControlError::TooMany);
        }
        let open = |target: &Target| {
            let file = self.controls.open(&target.pidfd, target.named.fd)?;
            Ok(StoppedGroup {
                key: target.key,
                file,
                named: target.named,
                line: self.line(&slice_lane.0, target),
            })
        };
        let held: Vec<StoppedGroup> =
            targets.iter().map(open).collect::<Result<_, ControlError>>()?;
        let before = self.saves(&held)?;
        self.write_down(&slice_lane.0, &held)?;
        self.stopped.entry(slice_lane).or_default().extend(held);
        let mut off = 0;
        let done = (|| {
            let held = &self.stopped[&slice_lane];
            for it in held {
                self.controls.take_off(&it.file, &it.named)?;
                off += 1;
                self.controls.preempt(&it.file, &it.named)?;
            }
            match self.saves(held)? != before {
                true => Ok(()),
                false => Err(ControlError::NoEffect),
            }
        })();
        if done.is_err() {
            // A group that was not taken off need not be resumed.
            if let Some(held) = self.stopped.get_mut(&slice_lane) {
                held.truncate(off);
            }
            self.resume(slice_lane);
        }
        done
    }

    fn saves(&self, held: &[StoppedGroup]) -> Result<u64, ControlError> {
        let saves = held.iter().map(|it| self.controls.saves(&it.file, &it.named).map(u64::from));
        saves.sum()
    }

    /// The entry of a group: the written one, if there is one.
    fn line(&self, container: &ContainerId, target: &Target) -> JournalEntry {
        let mut known = self.written.get(container).into_iter().flatten();
        let its =
            |(key, line): &&(Key, JournalEntry)| *key == target.key && line.is_of(&target.named);
        let known = known.find(its).map(|(_, line)| *line);
        known.unwrap_or_else(|| JournalEntry::of(target.pid, target.named))
    }

    /// Writes the entries of these groups to the container's file, unless they are there already.
    fn write_down(
        &mut self,
        container: &ContainerId,
        held: &[StoppedGroup],
    ) -> Result<(), ControlError> {
        let written = self.written.get(container).map_or(&[][..], Vec::as_slice);
        let fresh = held.iter().map(|it| (it.key, it.line));
        let fresh: Vec<(Key, JournalEntry)> = fresh.filter(|it| !written.contains(it)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let mut lines = [written, &fresh].concat();
        if lines.len() > 2 * GROUPS_MAX {
            // groups that come and go
            let stopped = self.stopped.iter().filter(|(slice_lane, _)| slice_lane.0 == *container);
            let refused = self.refused.iter().filter(|(slice_lane, _)| slice_lane.0 == *container);
            let stopped = stopped.flat_map(|(_, held)| held).chain(held);
            let needed = stopped.chain(refused.map(|(_, held)| held));
            lines = needed.map(|it| (it.key, it.line)).collect();
        }
        self.write(container, &lines)?;
        self.written.insert(*container, lines);
        Ok(())
    }

    /// Keeps the entries of connections for which `keep` is true. Without the container there is no file.
    fn rewrite(&mut self, keep: impl Fn(Key) -> bool) {
        for (container, lines) in std::mem::take(&mut self.written) {
            let kept = lines.iter().filter(|(key, _)| keep(*key));
            let kept: Vec<(Key, JournalEntry)> = kept.copied().collect();
            if kept.len() < lines.len() {
                let _ = self.write(&container, &kept);
            }
            if !kept.is_empty() {
                self.written.insert(container, kept);
            }
        }
    }

    fn write(
        &self,
        container: &ContainerId,
        lines: &[(Key, JournalEntry)],
    ) -> Result<(), ControlError> {
        let lines: Vec<JournalEntry> = lines.iter().map(|(_, line)| *line).collect();
        journal::write(&self.dir, container, journal::STOPPED, &lines).map_err(ControlError::System)
    }

    fn resume(&mut self, slice_lane: SliceLane) {
        for held in self.stopped.remove(&slice_lane).unwrap_or_default() {
            self.resume_group(slice_lane, held);
        }
    }

    fn resume_group(&mut self, slice_lane: SliceLane, held: StoppedGroup) {
        match self.controls.resume(&held.file, &held.named) {
            Ok(()) => {}
            Err(refused) if refused.is_gone() => {}
            Err(refused) => {
                tracing::error!(container = %slice_lane.0, gpu = slice_lane.1.0, why = %refused, "stopped on the GPU and not resumed; trying again");
                self.refused.push((slice_lane, held));
            }
        }
    }

    fn try_again(&mut self) {
        let controls = self.controls;
        self.refused.retain(|(_, held)| {
            let done = controls.resume(&held.file, &held.named);
            done.is_err_and(|refused| !refused.is_gone())
        });
    }

    /// Resumes a process's groups and closes its files.
    fn release(&mut self, key: Key) {
        let lanes: Vec<SliceLane> = self.stopped.keys().copied().collect();
        for slice_lane in lanes {
            let Some(held) = self.stopped.remove(&slice_lane) else {
                continue;
            };
            let (its, others): (Vec<StoppedGroup>, Vec<StoppedGroup>) =
                held.into_iter().partition(|held| held.key == key);
            if !others.is_empty() {
                self.stopped.insert(slice_lane, others);
            }
            for held in its {
                // Errors are ignored: a dead process's groups end with this file.
                let _ = self.controls.resume(&held.file, &held.named);
            }
        }
        self.refused.retain(|(_, held)| held.key != key);
        self.rewrite(|of| of != key);
        self.slicer.release(key);
    }
}
