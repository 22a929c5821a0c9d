//! NVML in a process of its own. The library keeps megabytes resident, a bug in it would be the
//! daemon's, and a call that the kernel never returns from would keep the daemon from ending.
//!
//! The child is this program again (`--ask-nvml`). It gets a list of questions as a line of JSON, and
//! answers with a line. It ends with its parent, whatever it is doing. One that answers nothing for
//! [`HUNG_AFTER`] hangs in the driver: it is killed and left alone, because a process the kernel does
//! not let go cannot be waited for either.

// What is done between fork and exec.
#![allow(unsafe_code)]

use super::thread::{Fact, Question};
use crate::sockets::stops_blocking;
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

/// No answer is longer, bytes: processes of sixteen GPUs, with long cgroups.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A child that has not answered for this long never will. A look takes milliseconds.
pub const HUNG_AFTER: Duration = Duration::from_secs(10);
/// Read at once, bytes.
const PART_BYTES: usize = 64 << 10;

/// The child; ended when dropped.
pub struct Child {
    process: std::process::Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Child {
    /// Starts one for this library.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(library: &Path) -> io::Result<Child> {
        // Itself, also when an upgrade has put another file in its place.
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

    /// Asks, and waits for all answers.
    ///
    /// # Errors
    /// It ended, answers something else, or (`TimedOut`) nothing.
    pub fn ask(&mut self, questions: &[Question]) -> io::Result<Vec<Fact>> {
        let mut line = serde_json::to_vec(questions)?;
        line.push(b'\n');
        let answer = self.talk(&line, Instant::now() + HUNG_AFTER)?;
        let facts: Vec<Fact> = serde_json::from_slice(&answer)?;
        match facts.len() == questions.len() {
            true => Ok(facts),
            false => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Says a line and hears one.
    fn talk(&mut self, line: &[u8], until: Instant) -> io::Result<Vec<u8>> {
        let (mut left, mut answer, mut part) = (line, Vec::new(), vec![0; PART_BYTES]);
        loop {
            self.wait(!left.is_empty(), until)?;
            if !left.is_empty() {
                let said = later(self.to.write(left))?.unwrap_or(0);
                left = &left[said..];
            }
            let Some(heard) = later(self.from.read(&mut part))? else {
                continue;
            };
            if heard == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&part[..heard]);
            match answer.last() {
                Some(b'\n') => return Ok(answer),
                _ if answer.len() > ANSWER_BYTES_MAX => return Err(ErrorKind::InvalidData.into()),
                _ => {}
            }
        }
    }

    /// Until it says something, or listens if there is something to say.
    fn wait(&self, says: bool, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        // One too many, so that what is left of a millisecond is not spun away.
        let left = PollTimeout::try_from(left.as_millis() as i32 + 1).unwrap_or(PollTimeout::MAX);
        let mut both = [
            PollFd::new(self.from.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.to.as_fd(), PollFlags::POLLOUT),
        ];
        let wanted = if says { 2 } else { 1 };
        match poll(&mut both[..wanted], left) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::EINTR) if Instant::now() < until => Ok(()),
            Ok(_) | Err(Errno::EINTR) => Err(ErrorKind::TimedOut.into()),
            Err(why) => Err(why.into()),
        }
    }

    /// Kills one that hangs, and gives what there is to be waited for when it is gone.
    pub fn abandon(mut self) -> Abandoned {
        // Nothing else can be done about one that the kernel keeps.
        let _ = self.process.kill();
        Abandoned(self.process)
    }
}

/// Nothing for now, or what came of it.
fn later<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(why) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&why.kind()) => {
            Ok(None)
        }
        done => done.map(Some),
    }
}

/// A killed child that the kernel may not have let go yet.
pub struct Abandoned(std::process::Child);

impl Abandoned {
    /// Whether it is gone by now.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}
