//! The terminal as it was before, also when a signal ends the program.
//!
//! # Problem
//! A screen leaves a terminal without echo, without a cursor and on its second page. A supervisor's SIGTERM, or the
//! SIGHUP of a closed window, would end the program there and then.
//!
//! # Idea
//! The signals are blocked in all threads but one, which waits for them. It restores the terminal while it holds the
//! lock of the output, so that no cell is drawn afterwards, and then lets the signal end the program as it would have:
//! a parent process sees the signal. A terminal that is not read any more blocks the output; the program then ends
//! after [`RESTORE_SECONDS`].

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::alarm;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{LeaveAlternateScreen, disable_raw_mode};
use std::mem::MaybeUninit;

/// The signals that end programs on request.
const ENDING: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM];
/// Time for the restoration of a terminal that takes no output.
const RESTORE_SECONDS: u32 = 1;

/// Restores the terminal before a signal ends the program. Call it before any other thread is started: threads inherit
/// the blocked signals. A signal that was ignored at the start (`nohup`) stays ignored.
///
/// # Errors
/// No memory for a thread.
pub fn restore_at_signals() -> Result<()> {
    let ours = ENDING.into_iter().filter(|signal| !is_ignored(*signal)).collect::<SigSet>();
    ours.thread_block()?;
    let waits = move || {
        if let Ok(signal) = ours.wait() {
            end(signal, ours);
        }
    };
    std::thread::Builder::new().spawn(waits).context("a thread that waits for signals")?;
    Ok(())
}

fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the present action alone, and has room for it.
    let asked = unsafe { libc::sigaction(signal as i32, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: a sigaction of zeros is valid, and the kernel has written it if it answered 0.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Restores the terminal, and ends the program by this signal.
fn end(signal: Signal, ours: SigSet) {
    alarm::set(RESTORE_SECONDS);
    // A terminal that is gone cannot be restored.
    let _ = disable_raw_mode();
    let mut out = std::io::stdout().lock();
    let _ = execute!(out, LeaveAlternateScreen, Show);
    let _ = ours.thread_unblock();
    let _ = raise(signal);
}
