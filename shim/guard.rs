//! One fence around every intercepted call: a bug of ours becomes an error code of theirs.
//!
//! A panic that reached the C caller would end the process, and Rust's default panic hook would
//! write to its standard error. [`silence`] replaces that hook (this library has its own copy of
//! the standard library, so the application's is untouched), and [`guard`] stops the panic.

use gpuslice_nvabi::types::CUresult;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

/// Result of a hook's body: `Err` is the error code to answer early with.
pub type Outcome = Result<CUresult, CUresult>;

/// Runs a hook's body; a panic answers `CUDA_ERROR_UNKNOWN`.
///
/// What a body shares with the outside are atomics, maps behind locks whose critical sections are
/// single operations, and drop guards that give reservations back: all whole after an unwind.
#[inline]
pub fn guard(body: impl FnOnce() -> Outcome) -> CUresult {
    guarded(CUresult::ERROR_UNKNOWN, || match body() {
        Ok(result) | Err(result) => result,
    })
}

/// Runs `body`; a panic answers `otherwise`.
#[inline]
pub fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Keeps panics of this library off the application's standard error. Not a `Once`, which a fork in its
/// middle leaves half done for ever.
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
        assert_eq!(
            guard(|| panic!("not for the tenant's eyes")),
            CUresult::ERROR_UNKNOWN
        );
        assert_eq!(
            guard(|| Err(CUresult::ERROR_OUT_OF_MEMORY)),
            CUresult::ERROR_OUT_OF_MEMORY
        );
        assert_eq!(guard(|| Ok(CUresult::SUCCESS)), CUresult::SUCCESS);
    }
}
