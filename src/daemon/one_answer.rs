//! Runs this program again, for one answer that needs a driver's library.
//!
//! In the daemon itself such a library would keep megabytes resident and start threads, and a crash in it would end the
//! daemon. The program loads it, prints the answer and ends.

// For the code between fork and exec.
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs it with these arguments, and returns what it prints. It ends with the daemon.
///
/// # Errors
/// Why it gave no answer, in its own words if it printed any.
pub fn answer<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<Vec<u8>, String> {
    // This program, even if an upgrade has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).stdin(Stdio::null());
    // A daemon that is killed now has its files removed: the program must not make them again.
    let daemon = getpid();
    // SAFETY: prctl and getppid are async-signal-safe and touch no memory.
    unsafe {
        command.pre_exec(move || {
            set_pdeathsig(Signal::SIGKILL)?;
            // The daemon was killed before the order took effect.
            match getppid() == daemon {
                true => Ok(()),
                false => Err(Errno::ESRCH.into()),
            }
        })
    };
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(match said.trim() {
        "" => format!("the process that loads it ended with {}", output.status),
        said => said.to_owned(),
    })
}
