//! The processes of workers: one for each move, and one that waits for the next move.
//!
//! A worker loads the driver and initialises it, which takes milliseconds, and longer on a node with many GPUs. What
//! was moved to the host is often moved back soon, and one container's move is often for another one. So the last
//! worker that did its job stays for [`KEPT`]. It stays no longer, because a process that has the driver open keeps it
//! from being unloaded or replaced. One that failed never stays: what it has seen of the driver may be out of date.

use super::jobs::PACKET_BYTES_MAX;
use crate::descriptors::stops_blocking;
use gpuslice_host::seqpacket;
use gpuslice_wire::units::{Duration, Instant};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, recv};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Killed workers that have not ended; with so many, none is started.
const ABANDONED_MAX: usize = 16;
/// How long a worker waits for another job.
const KEPT: Duration = Duration::from_millis(30_000);

/// A process that has a job.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    channel: OwnedFd,
    /// It has done a job, and was kept for this one.
    has_waited: bool,
}

impl Worker {
    /// Its answer; `None` if there is none yet. It is empty if the process has ended.
    pub(super) fn answer(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; PACKET_BYTES_MAX];
        let len = match recv(self.channel.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => return None,
            Err(_) => 0,
            Ok(len) => len,
        };
        packet.truncate(len);
        Some(packet)
    }

    /// Whether it waited for its job, and may thus have been killed before it took it.
    pub(super) fn has_waited(&self) -> bool {
        self.has_waited
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// The command of a worker: this program, even if an upgrade has replaced its file.
pub(super) fn of_this_program(library: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--move-memory").arg(library);
    command
}

/// All of them but those with a job.
#[derive(Debug)]
pub(super) struct Workers {
    /// Makes the command of a worker of this library.
    command: fn(&Path) -> Command,
    /// The driver's library.
    library: PathBuf,
    /// The one that waits, and until when.
    spare: Option<(Worker, Instant)>,
    abandoned: Vec<Child>,
}

impl Workers {
    pub(super) fn new(command: fn(&Path) -> Command, library: PathBuf) -> Workers {
        Workers { command, library, spare: None, abandoned: Vec::new() }
    }

    /// When [`Workers::due`] must be called next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.spare.as_ref().map(|(_, until)| *until)
    }

    /// Ends the worker that has waited long enough, and reaps those that have ended.
    pub(super) fn due(&mut self, now: Instant) {
        if let Some((worker, _)) = self.spare.take_if(|(_, until)| *until <= now) {
            self.end(worker);
        }
        self.abandoned.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Gives a job to the worker that waits, or to a new one.
    ///
    /// # Errors
    /// No process can be started, or too many of them hang.
    pub(super) fn start(&mut self, job: &[u8]) -> io::Result<Worker> {
        if let Some((worker, _)) = self.spare.take() {
            if seqpacket::send(&worker.channel, job, &[]).is_ok() {
                return Ok(worker);
            }
            self.end(worker); // it was killed meanwhile
        }
        self.abandoned.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if self.abandoned.len() >= ABANDONED_MAX {
            return Err(io::Error::other("too many processes that call the driver hang"));
        }
        let worker = self.spawn()?;
        seqpacket::send(&worker.channel, job, &[])?;
        Ok(worker)
    }

    /// `worker` has done its job, and is not watched any more.
    pub(super) fn keep(&mut self, worker: Worker, now: Instant) {
        let worker = Worker { has_waited: true, ..worker };
        if let Some((other, _)) = self.spare.replace((worker, now.plus(KEPT))) {
            self.end(other);
        }
    }

    /// Ends a worker.
    pub(super) fn end(&mut self, mut worker: Worker) {
        // It has ended, or hangs; nothing more can be done if the kernel does not end it.
        let _ = worker.child.kill();
        self.abandoned.push(worker.child);
    }

    #[allow(unsafe_code)]
    fn spawn(&self) -> io::Result<Worker> {
        let (channel, theirs) = seqpacket::pair()?;
        stops_blocking(&channel)?;
        let mut command = (self.command)(&self.library);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // Two workers, of this daemon and of the next one, would undo each other's calls.
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        Ok(Worker { child: command.spawn()?, channel, has_waited: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that waits for its channel to be closed.
    fn waiting() -> Worker {
        let (channel, theirs) = seqpacket::pair().expect("sockets");
        let child = Command::new("cat").stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn();
        Worker { child: child.expect("it starts"), channel, has_waited: false }
    }

    #[test]
    fn one_waits_for_a_while_and_no_second_one_beside_it() {
        let mut workers = Workers::new(of_this_program, PathBuf::new());
        let (began, later) = (Instant(0), Instant(7));
        workers.keep(waiting(), began);
        assert_eq!(workers.deadline(), Some(began.plus(KEPT)));
        workers.keep(waiting(), later);
        assert_eq!(workers.deadline(), Some(later.plus(KEPT)), "the one that did a job last");
        workers.due(began.plus(KEPT));
        assert_eq!(workers.deadline(), Some(later.plus(KEPT)));
        workers.due(later.plus(KEPT));
        assert_eq!(workers.deadline(), None);
        while !workers.abandoned.is_empty() {
            workers.due(later.plus(KEPT)); // both end
            std::thread::yield_now();
        }
    }
}
