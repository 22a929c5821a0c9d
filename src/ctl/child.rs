//! The child process of `gpuslice run`: start, wait, and signal forwarding.
//!
//! A terminating signal must not leave a slice behind, so such signals are caught from the start.
//! Before the command runs, a signal is remembered and the command never starts; afterwards the signal
//! is forwarded, and `gpuslice run` exits after the command. Signals from the terminal reach the command
//! directly. If `gpuslice run` is killed, the kernel sends the command SIGTERM.

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction, signal};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

const OURS: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP];

/// The command's process while it runs.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// The terminating signal that arrived before the command started.
static EARLY: AtomicI32 = AtomicI32::new(0);
/// Whether a terminating signal has arrived, before, during or after the command.
static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(number: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    ASKED.store(true, Ordering::SeqCst);
    // SAFETY: the kernel gives a handler of this form a valid siginfo.
    let typed = unsafe { (*info).si_code } == libc::SI_KERNEL;
    let from_terminal = typed && matches!(number, libc::SIGINT | libc::SIGQUIT);
    match CHILD.load(Ordering::SeqCst) {
        0 => EARLY.store(number, Ordering::SeqCst),
        _ if from_terminal => {}
        // SAFETY: kill is async-signal-safe; the child is not reaped before `CHILD` is cleared.
        child => drop(unsafe { libc::kill(child, number) }),
    }
}

/// Catches terminating signals from now on. A signal that was ignored at start (`nohup`) stays ignored,
/// here and in the command.
///
/// # Errors
/// A system call fails.
pub fn catch_signals() -> Result<()> {
    let handler = SigHandler::SigAction(on_signal);
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    for number in OURS {
        // SAFETY: the handler only loads and stores atomics and calls kill.
        let was = unsafe { sigaction(number, &action) }?;
        if was.handler() == SigHandler::SigIgn {
            // SAFETY: restores the previous action.
            unsafe { sigaction(number, &was) }?;
        }
    }
    Ok(())
}

/// The exit status after a terminating signal that arrived before the command ran.
pub fn interrupted() -> Option<ExitCode> {
    match EARLY.load(Ordering::SeqCst) {
        0 => None,
        number => Some(code(128 + number)),
    }
}

/// Whether a terminating signal has arrived.
pub fn is_interrupted() -> bool {
    ASKED.load(Ordering::SeqCst)
}

fn code(number: i32) -> ExitCode {
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}

/// Runs the command to its end and returns its exit status, or 128 + signal if a signal ended it.
///
/// # Errors
/// It cannot be started.
pub fn status(command: &mut Command) -> Result<ExitCode> {
    let us = nix::unistd::getpid();
    // SAFETY: only asynchronous-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for number in OURS {
                if signal(number, SigHandler::SigDfl)? == SigHandler::SigIgn {
                    signal(number, SigHandler::SigIgn)?;
                }
            }
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            // The parent died before PR_SET_PDEATHSIG took effect: the slice is gone, so do not run.
            if nix::unistd::getppid() != us {
                libc::_exit(1);
            }
            Ok(())
        });
    }
    if let Some(code) = interrupted() {
        return Ok(code);
    }
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    CHILD.store(pid.as_raw(), Ordering::SeqCst);
    // Forward a signal that arrived while the command was being started.
    if let Ok(early) = Signal::try_from(EARLY.swap(0, Ordering::SeqCst)) {
        nix::sys::signal::kill(pid, early)?;
    }
    // Reap only after the handler has forgotten the pid: until then the kernel cannot reuse it.
    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(pid), ended) == Err(Errno::EINTR) {}
    CHILD.store(0, Ordering::SeqCst);
    let status = child.wait()?;
    let number = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(code(number))
}
