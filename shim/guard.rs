//! A guard around every intercepted call: a bug in the shim becomes an error code for the application.
//!
//! A panic that reached the C caller would end the process, and Rust's default panic hook would
//! write to its standard error. [`silence`] replaces that hook (this library has its own copy of
//! the standard library, so the application's is unaffected), and [`guard`] stops the panic.
//!
//! # Cancelled threads
//! `pthread_cancel` unwinds a thread's stack from the system call in which it waits. That must not happen above
//! the guard, which ends the process for an unwinding that is no panic. So a thread is not cancelled in an
//! intercepted call, but at the next cancellation point after it, as in a call that never waits.
//!
//! Disabling cancellation takes longer than an allocation may. Calls that mostly do not wait use
//! [`quick`] instead, and disable it only where they begin to wait for the daemon: [`Uncancelled`]. A thread
//! cancelled while the driver itself waits in one of these calls (a free that synchronises) still ends the
//! process.

use gpuslice_nvabi::types::CUresult;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    /// Of `pthread.h`; the libc crate does not have it.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc's `pthread.h`.
const DISABLE: c_int = 1;

/// Disables cancellation of the calling thread while it lives.
#[derive(Debug)]
pub struct Uncancelled(c_int);

impl Uncancelled {
    /// Disables cancellation.
    #[must_use]
    pub fn begin() -> Uncancelled {
        let mut before = 0;
        // SAFETY: writes the state before to a live integer.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above; a state that the C library gave.
        unsafe { pthread_setcancelstate(self.0, &raw mut disabled) };
    }
}

/// Result of a hook's body: `Err` is an error code to return early.
pub type Outcome = Result<CUresult, CUresult>;

/// Runs a hook's body; a panic returns `CUDA_ERROR_UNKNOWN`.
///
/// A body shares with other code only atomics, maps behind locks with single-operation critical sections, and
/// drop guards that release reservations: all are consistent after an unwind.
#[inline]
pub fn guard(body: impl FnOnce() -> Outcome) -> CUresult {
    let _uncancelled = Uncancelled::begin();
    quick(body)
}

/// [`guard`] for a body in which neither the shim nor the driver waits, mostly.
#[inline]
pub fn quick(body: impl FnOnce() -> Outcome) -> CUresult {
    fenced(CUresult::ERROR_UNKNOWN, || match body() {
        Ok(result) | Err(result) => result,
    })
}

/// Runs `body`; a panic returns `otherwise`.
#[inline]
pub fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    let _uncancelled = Uncancelled::begin();
    fenced(otherwise, body)
}

#[inline]
fn fenced<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Keeps panics of this library off the application's standard error. Not a `Once`, which a fork during it
/// leaves half done for ever.
pub fn silence() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        set_hook(Box::new(|_| ()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_code() {
        silence();
        assert_eq!(guard(|| panic!("not for the tenant's eyes")), CUresult::ERROR_UNKNOWN);
        assert_eq!(guard(|| Err(CUresult::ERROR_OUT_OF_MEMORY)), CUresult::ERROR_OUT_OF_MEMORY);
        assert_eq!(guard(|| Ok(CUresult::SUCCESS)), CUresult::SUCCESS);
    }
}
