//! NVML in a child process. In the daemon itself the library would keep megabytes resident, a crash in it
//! would end the daemon, and a call that never returns from the kernel would keep the daemon from ending.
//!
//! The child is this program again (`--ask-nvml`). It reads a list of questions as a line of JSON and writes
//! the answers as a line. It ends with its parent. A child that does not answer for [`HUNG_AFTER`] hangs in
//! the driver: it is killed and not waited for, because a process blocked in the kernel cannot be reaped.

// For the code between fork and exec.
#![allow(unsafe_code)]

use super::questions::{NvmlAnswer, Question};
use crate::descriptors::stops_blocking;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest answer, bytes: processes of sixteen GPUs, with long cgroups.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A child that has not answered for this long has hung. A sample takes milliseconds.
pub const HUNG_AFTER: Duration = Duration::from_secs(10);
/// Bytes per read.
const PART_BYTES: usize = 64 << 10;

/// The child process; killed when dropped.
pub struct Child {
    process: std::process::Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Child {
    /// Starts a child for this NVML library.
    ///
    /// # Errors
    /// The child cannot be started.
    pub fn start(library: &Path) -> io::Result<Child> {
        // This program, even if an upgrade has replaced its file.
        let mut command = Command::new("/proc/self/exe");
        command.arg("--ask-nvml").arg(library);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        let mut process = command.spawn()?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(to), Some(from)) => {
                stops_blocking(&to)?;
                stops_blocking(&from)?;
                Ok(Child { process, to, from })
            }
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Sends questions and waits for their answers.
    ///
    /// # Errors
    /// The child ended, sent something else, or (`TimedOut`) did not answer.
    pub fn ask(&mut self, questions: &[Question]) -> io::Result<Vec<NvmlAnswer>> {
        let mut line = serde_json::to_vec(questions)?;
        line.push(b'\n');
        let answer = self.talk(&line, Instant::now() + HUNG_AFTER)?;
        let answers: Vec<NvmlAnswer> = serde_json::from_slice(&answer)?;
        match answers.len() == questions.len() {
            true => Ok(answers),
            false => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Writes a line and reads one.
    fn talk(&mut self, line: &[u8], until: Instant) -> io::Result<Vec<u8>> {
        let (mut left, mut answer, mut part) = (line, Vec::new(), vec![0; PART_BYTES]);
        loop {
            self.wait(!left.is_empty(), until)?;
            if !left.is_empty() {
                let written = later(self.to.write(left))?.unwrap_or(0);
                left = &left[written..];
            }
            let Some(read) = later(self.from.read(&mut part))? else {
                continue;
            };
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&part[..read]);
            match answer.last() {
                Some(b'\n') => return Ok(answer),
                _ if answer.len() > ANSWER_BYTES_MAX => return Err(ErrorKind::InvalidData.into()),
                _ => {}
            }
        }
    }

    /// Waits until the child's output is readable, or its input writable if there is something to write.
    fn wait(&self, writes: bool, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up by 1 ms, so that the last fraction of a millisecond is not spent spinning.
        let left = PollTimeout::try_from(left.as_millis() as i32 + 1).unwrap_or(PollTimeout::MAX);
        let mut both = [
            PollFd::new(self.from.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.to.as_fd(), PollFlags::POLLOUT),
        ];
        let wanted = if writes { 2 } else { 1 };
        match poll(&mut both[..wanted], left) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::EINTR) if Instant::now() < until => Ok(()),
            Ok(_) | Err(Errno::EINTR) => Err(ErrorKind::TimedOut.into()),
            Err(why) => Err(why.into()),
        }
    }

    /// Kills a hung child; returns a handle to reap it later.
    pub fn abandon(mut self) -> Abandoned {
        // Nothing more can be done if the kernel does not end it.
        let _ = self.process.kill();
        Abandoned(self.process)
    }
}

/// Maps "would block" and "interrupted" to `None`.
fn later<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(why) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&why.kind()) => {
            Ok(None)
        }
        done => done.map(Some),
    }
}

/// A killed child that may not have ended yet.
pub struct Abandoned(std::process::Child);

impl Abandoned {
    /// Whether it has ended; reaps it.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}
