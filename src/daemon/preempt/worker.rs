//! A container's worker: the process that stops and resumes the container's work, one job after the other.
//!
//! It duplicates descriptors of the container's processes, and examining or closing one can block for ever: a process
//! can name a file of a FUSE server that does not answer. So there is a process for each container, which works in the
//! container's directory and holds nothing of another one. `workers` replaces one that hangs.
//!
//! A stop is all or nothing: if one group of a container cannot be stopped, or no work left the GPU by it, the groups
//! stopped so far are resumed at once. A resume that fails is retried until it succeeds or the process exits, so
//! no group stays stopped forever.
//!
//! A container of a higher class waits while it works. So journal entries stay as long as the process runs: work that
//! was stopped once is mostly stopped again, and then nothing is written. An extra entry resumes a group twice,
//! which is harmless.

use super::controls::{ControlError, Controls};
use super::jobs::{GROUPS_MAX, Job, PACKET_BYTES_MAX, Target, WorkerAnswer};
use super::journal::{self, Ident, JournalEntry};
use super::time_slicer::TimeSlicer;
use crate::slab::Key;
use gpuslice_host::seqpacket;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{MsgFlags, recv};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

/// Pause between two attempts to resume a group, ms.
const AGAIN_MS: u16 = 100;

/// A stopped group.
struct StoppedGroup {
    key: Key,
    file: OwnedFd,
    line: JournalEntry,
}

impl StoppedGroup {
    fn ident(&self) -> Ident {
        self.line.ident(self.key)
    }
}

/// See the file's head.
struct Worker {
    controls: Controls,
    /// By GPU.
    stopped: BTreeMap<u8, Vec<StoppedGroup>>,
    /// How often each group had been taken off the GPU when it was last resumed. On a card each read takes 0.2 ms, for
    /// which a container of a higher class would wait.
    seen: BTreeMap<Ident, u32>,
    /// Groups whose resume has failed so far.
    refused: Vec<StoppedGroup>,
    /// The entries of the container's file: groups that are or were stopped.
    written: Vec<(Key, JournalEntry)>,
    slicer: TimeSlicer,
}

/// The worker's program: answers jobs from standard input, until the daemon closes it. `simulated` is the simulated
/// driver's library; empty for the machine's driver.
pub fn serve_child(simulated: &Path) -> Result<(), String> {
    let controls = match simulated.as_os_str().is_empty() {
        true => Controls::Kernel,
        false => Controls::of_simulated(simulated)?,
    };
    // The service manager ends all processes of the daemon's at once. This one resumes its work first: it ends with its
    // channel.
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
        .thread_block()
        .map_err(|why| why.to_string())?;
    let mut worker = Worker {
        slicer: TimeSlicer::new(controls),
        controls,
        stopped: BTreeMap::new(),
        seen: BTreeMap::new(),
        refused: Vec::new(),
        written: Vec::new(),
    };
    let channel = io::stdin();
    while let Some(job) = worker.next(channel.as_fd()).map_err(|why| why.to_string())? {
        let answer = worker.execute(job);
        let answer = serde_json::to_vec(&answer).map_err(|why| why.to_string())?;
        seqpacket::send(&channel, &answer, &[]).map_err(|why| why.to_string())?;
    }
    Ok(())
}

impl Worker {
    /// The next job, or `None` when the daemon has closed the channel. Meanwhile tries failed resumes again.
    fn next(&mut self, channel: impl AsFd) -> io::Result<Option<Job>> {
        while !self.refused.is_empty() {
            let mut watched = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
            if poll(&mut watched, PollTimeout::from(AGAIN_MS)).unwrap_or(0) > 0 {
                break;
            }
            self.try_again();
        }
        let mut packet = vec![0; PACKET_BYTES_MAX];
        let len = loop {
            match recv(channel.as_fd().as_raw_fd(), &mut packet, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                done => break done?,
            }
        };
        match len {
            0 => Ok(None),
            len => Ok(Some(serde_json::from_slice(&packet[..len])?)),
        }
    }

    fn execute(&mut self, job: Job) -> WorkerAnswer {
        match job {
            Job::Stop(lane, _, targets) => {
                let begun = Instant::now();
                let done = self.stop(lane, &targets);
                let done = done.map(|()| begun.elapsed().as_micros() as u64);
                match done {
                    Err(why) if why.is_of_an_ended_process() => WorkerAnswer::Gone,
                    done => WorkerAnswer::Stopped(done.map_err(|why| why.to_string())),
                }
            }
            Job::Resume(lane) => {
                let refused = self.resume(lane).map(|why| why.to_string());
                WorkerAnswer::Resumed(refused)
            }
            Job::Slices(wanted, last) => {
                self.slicer.set_some(&wanted);
                match last {
                    true => WorkerAnswer::Sliced(self.slicer.end_round()),
                    false => WorkerAnswer::Done,
                }
            }
            Job::Release(key) => {
                self.release(key);
                WorkerAnswer::Done
            }
            Job::Undo(entry) => {
                let undone = entry.undo(&self.controls);
                WorkerAnswer::Undone(undone.err().map(|why| why.to_string()))
            }
            Job::Clear => {
                for file in [journal::STOPPED, journal::SLICED] {
                    // A container that has ended has no journal.
                    let _ = journal::write(Path::new("."), file, &[]);
                }
                WorkerAnswer::Done
            }
            Job::End => {
                for lane in self.stopped.keys().copied().collect::<Vec<_>>() {
                    self.resume(lane);
                }
                self.keep_entries(|_| false);
                self.slicer.end();
                WorkerAnswer::Done
            }
        }
    }

    fn stop(&mut self, lane: u8, targets: &[Target]) -> Result<(), ControlError> {
        let stopped: usize = self.stopped.values().map(Vec::len).sum();
        if stopped + self.refused.len() + targets.len() > GROUPS_MAX {
            return Err(ControlError::TooMany);
        }
        let open = |target: &Target| {
            let file = target.entry.open(&self.controls)?;
            let file = file.ok_or(ControlError::System(Errno::ESRCH.into()))?;
            Ok(StoppedGroup { key: target.key, file, line: target.entry })
        };
        let held: Vec<StoppedGroup> =
            targets.iter().map(open).collect::<Result<_, ControlError>>()?;
        let before = self.saves_before(&held)?;
        self.write_down(&held)?;
        // Else the next attempt would resume it in the middle of this stop.
        self.refused.retain(|it| held.iter().all(|held| held.ident() != it.ident()));
        self.stopped.entry(lane).or_default().extend(held);
        let mut off = 0;
        let done = (|| {
            let held = &self.stopped[&lane];
            for it in held {
                off += 1;
                self.controls.stop(&it.file, it.line.named())?;
            }
            match self.saves(held)? != before {
                true => Ok(()),
                false => Err(ControlError::NoEffect),
            }
        })();
        if done.is_err() {
            // A group that was not taken off need not be resumed.
            if let Some(held) = self.stopped.get_mut(&lane) {
                held.truncate(off);
            }
            self.resume(lane);
        }
        done
    }

    /// The sum of the counts at the last resumes, or now for groups that were not stopped yet. A group that its GPU has
    /// taken off by itself since then is believed to be stopped; the next stop has a fresh count.
    fn saves_before(&self, held: &[StoppedGroup]) -> Result<u64, ControlError> {
        let before = |it: &StoppedGroup| match self.seen.get(&it.ident()) {
            Some(saves) => Ok(*saves),
            None => self.controls.saves(&it.file, it.line.named()),
        };
        held.iter().map(|it| before(it).map(u64::from)).sum()
    }

    fn saves(&self, held: &[StoppedGroup]) -> Result<u64, ControlError> {
        let saves = |it: &StoppedGroup| self.controls.saves(&it.file, it.line.named());
        held.iter().map(|it| saves(it).map(u64::from)).sum()
    }

    /// Writes the entries of these groups to the container's file, unless they are there already.
    fn write_down(&mut self, held: &[StoppedGroup]) -> Result<(), ControlError> {
        let fresh = held.iter().map(|it| (it.key, it.line));
        let fresh: Vec<(Key, JournalEntry)> =
            fresh.filter(|it| !self.written.contains(it)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let mut lines = [&self.written[..], &fresh].concat();
        if lines.len() > 2 * GROUPS_MAX {
            // groups that come and go
            let needed = self.stopped.values().flatten().chain(held).chain(&self.refused);
            lines = needed.map(|it| (it.key, it.line)).collect();
        }
        write(&lines)?;
        self.written = lines;
        Ok(())
    }

    /// Keeps the entries of connections for which `keep` is true. Without the container there is no file.
    fn keep_entries(&mut self, keep: impl Fn(Key) -> bool) {
        let before = self.written.len();
        self.written.retain(|(key, _)| keep(*key));
        if self.written.len() < before {
            let _ = write(&self.written);
        }
    }

    /// Resumes the groups of a GPU; returns the last error.
    fn resume(&mut self, lane: u8) -> Option<ControlError> {
        let mut last = None;
        for held in self.stopped.remove(&lane).unwrap_or_default() {
            match self.controls.resume(&held.file, held.line.named()) {
                Ok(()) => self.note_saves(&held),
                Err(refused) if refused.is_gone() => {}
                Err(refused) => {
                    last = Some(refused);
                    self.refused.push(held);
                }
            }
        }
        last
    }

    fn note_saves(&mut self, held: &StoppedGroup) {
        let saves = self.controls.saves(&held.file, held.line.named());
        if self.seen.len() >= 2 * GROUPS_MAX {
            self.seen.clear(); // groups that come and go
        }
        match saves {
            Ok(saves) => self.seen.insert(held.ident(), saves),
            Err(_) => self.seen.remove(&held.ident()),
        };
    }

    fn try_again(&mut self) {
        let controls = self.controls;
        self.refused.retain(|held| {
            let done = controls.resume(&held.file, held.line.named());
            done.is_err_and(|refused| !refused.is_gone())
        });
    }

    /// Resumes a process's groups and closes its files.
    fn release(&mut self, key: Key) {
        for held in self.stopped.values_mut() {
            let its = held.extract_if(.., |held| held.key == key);
            for held in its {
                // Errors are ignored: a dead process's groups end with this file.
                let _ = self.controls.resume(&held.file, held.line.named());
            }
        }
        self.stopped.retain(|_, held| !held.is_empty());
        self.refused.retain(|held| held.key != key);
        self.seen.retain(|(of, ..), _| *of != key);
        self.keep_entries(|of| of != key);
        self.slicer.release(key);
    }
}

fn write(lines: &[(Key, JournalEntry)]) -> Result<(), ControlError> {
    let lines: Vec<JournalEntry> = lines.iter().map(|(_, line)| *line).collect();
    journal::write(Path::new("."), journal::STOPPED, &lines).map_err(ControlError::System)
}
