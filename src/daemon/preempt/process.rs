//! A worker as the daemon sees it: a child process, the job that it is at, and the jobs that wait.

// For the code between fork and exec.
#![allow(unsafe_code)]

use super::jobs::{Job, PACKET_BYTES_MAX, WorkerAnswer};
use crate::descriptors::stops_blocking;
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket;
use gpuslice_wire::units::{Duration, Instant};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, recv};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// See the file's head.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    channel: OwnedFd,
    /// The job that it is at, and by when it must be done.
    at: Option<(Job, Instant)>,
    urgent: VecDeque<Job>,
    /// Parts of a round of time slices, which any other job overtakes.
    later: VecDeque<Job>,
    fresh: bool,
}

/// What was heard from a worker.
#[derive(Debug)]
pub enum Heard {
    /// Nothing more for now.
    Nothing,
    /// The answer to this job.
    Answer(Job, WorkerAnswer),
    /// It has ended, or sent something else.
    End,
}

impl WorkerProcess {
    /// Starts a worker in a container's directory. `simulated` is the simulated driver's library; empty for the
    /// machine's driver.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(simulated: &Path, dir: &Path) -> io::Result<WorkerProcess> {
        let (channel, theirs) = seqpacket::pair()?;
        stops_blocking(&channel)?;
        // This program, even if an upgrade has replaced its file.
        let mut command = Command::new("/proc/self/exe");
        command.arg("--stop-work").arg(simulated).current_dir(dir);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // A key that interrupts the daemon must not end what resumes stopped work at the daemon's end.
        command.process_group(0);
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        let (at, urgent, later) = (None, VecDeque::new(), VecDeque::new());
        Ok(WorkerProcess { child: command.spawn()?, channel, at, urgent, later, fresh: true })
    }

    /// The daemon's end of the channel.
    pub fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Queues a job.
    pub fn ask(&mut self, job: Job) {
        match job {
            Job::Slices(..) => self.later.push_back(job),
            _ => self.urgent.push_back(job),
        }
        self.send_next();
    }

    /// Whether it has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.at.is_none() && self.urgent.is_empty() && self.later.is_empty()
    }

    /// When the present job must be done.
    pub fn deadline(&self) -> Option<Instant> {
        self.at.as_ref().map(|(_, by)| *by)
    }

    /// Sends the next job to an idle worker. An error is the worker's end, which the next read notices.
    fn send_next(&mut self) {
        if self.at.is_some() {
            return;
        }
        let Some(job) = self.urgent.pop_front().or_else(|| self.later.pop_front()) else {
            return;
        };
        let packet = serde_json::to_vec(&job).unwrap_or_default();
        let _ = seqpacket::send(&self.channel, &packet, &[]);
        let within = job.within(std::mem::take(&mut self.fresh)).as_nanos() as u64;
        self.at = Some((job, now().plus(Duration(within))));
    }

    /// Reads an answer, and sends the next job.
    pub fn hear(&mut self) -> Heard {
        let mut packet = vec![0; PACKET_BYTES_MAX];
        let len = match recv(self.channel.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Heard::Nothing,
            Err(_) => 0,
            Ok(len) => len,
        };
        match (serde_json::from_slice(&packet[..len]), self.at.take()) {
            (Ok(answer), Some((job, _))) => {
                self.send_next();
                Heard::Answer(job, answer)
            }
            (_, at) => {
                self.at = at;
                Heard::End
            }
        }
    }

    /// Kills it; returns the process, which may end much later, and its unanswered jobs, the present one first.
    pub fn abandon(mut self) -> (Child, Vec<Job>) {
        // Nothing more can be done if the kernel does not end it.
        let _ = self.child.kill();
        let present = self.at.map(|(job, _)| job).into_iter();
        (self.child, present.chain(self.urgent).chain(self.later).collect())
    }
}
