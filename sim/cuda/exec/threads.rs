//! Threads that the driver starts in a program's process.
//!
//! They must not disturb the program: no signal is ever delivered to them. Their timers are exact; a
//! thread otherwise inherits a timer slack of 50 microseconds.

use std::thread::{Builder, ThreadId};

/// Starts a thread for the rest of the process's life; false where the system refuses one.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: both sets are plain data that `sigfillset` and `pthread_sigmask` fill; the calling
    // thread's mask is put back before anything else happens in it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64, 0, 0, 0);
            body();
        });
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        thread.is_ok()
    }
}

/// The calling thread.
pub fn current() -> ThreadId {
    std::thread::current().id()
}
