//! NVML in a process of its own. The library keeps megabytes resident, a bug in it would be the
//! daemon's, and a call that the kernel never returns from would keep the daemon from ending.
//!
//! The child is this program again (`--ask-nvml`). It gets a list of questions as a line of JSON, and
//! answers with a line. It ends with its parent, whatever it is doing.

// What is done between fork and exec.
#![allow(unsafe_code)]

use super::thread::{Fact, Question};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// No answer is longer, bytes: processes of sixteen GPUs, with long cgroups.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The child; ended when dropped.
pub struct Child {
    process: std::process::Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
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
            (Some(to), Some(from)) => Ok(Child {
                process,
                to,
                from: BufReader::new(from),
            }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Asks, and waits for all answers.
    ///
    /// # Errors
    /// It ended, or answers something else.
    pub fn ask(&mut self, questions: &[Question]) -> io::Result<Vec<Fact>> {
        let mut line = serde_json::to_vec(questions)?;
        line.push(b'\n');
        self.to.write_all(&line)?;
        line.clear();
        let mut answer = (&mut self.from).take(ANSWER_BYTES_MAX);
        answer.read_until(b'\n', &mut line)?;
        let facts: Vec<Fact> = serde_json::from_slice(&line)?;
        match facts.len() == questions.len() {
            true => Ok(facts),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
