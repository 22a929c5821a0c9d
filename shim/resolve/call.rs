//! Helpers around calls of the real driver.

use crate::real;
use gpuslice_nvabi::types::{CU_STREAM_CAPTURE_MODE_RELAXED, CUresult};

/// Converts the driver's status into a `Result`.
///
/// # Errors
/// Anything but success.
#[inline]
pub fn check(result: CUresult) -> Result<(), CUresult> {
    if result == CUresult::SUCCESS { Ok(()) } else { Err(result) }
}

/// Makes a call that a stream capture in another thread may forbid: a thread of the application may be
/// capturing in a mode that forbids "unsafe" calls in all threads, event queries among them. So the call is
/// made in the relaxed capture mode of this thread.
pub fn relaxed<R>(call: impl FnOnce() -> R) -> R {
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    let exchanged = real!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
    let result = call();
    if exchanged == CUresult::SUCCESS {
        let _ = real!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
    }
    result
}
