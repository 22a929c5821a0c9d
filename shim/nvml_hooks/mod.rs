//! The intercepted NVML functions: they show the slice's memory and processes.
//!
//! Monitoring tools and frameworks size themselves by NVML's numbers, so these must agree with the driver's.
//! The real library is called first; its answer is narrowed and never widened.
//!
//! A process that uses NVML attaches like any other, for the page with the numbers; it is never runnable.
//! Without a daemon the numbers are unknown, and the call fails.
#![allow(non_snake_case, missing_docs)] // NVML's names; NVIDIA documents them

mod devices;
mod memory;
mod peers;
mod processes;

pub use devices::nvmlShutdown;
pub use memory::*;
pub use processes::*;

use crate::daemon::{Purpose, Session};
use crate::guard::guarded;
use crate::real;
use crate::slice;
use gpuslice_nvabi::types::{c_char, nvmlDevice_t, nvmlReturn_t};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::units::Duration;

/// How long a query waits for a daemon that does not answer.
const PATIENCE: Duration = Duration::from_millis(2_000);
/// Size of the longest text that NVML returns as a UUID.
const UUID_BYTES: usize = 96;

type Outcome = Result<nvmlReturn_t, nvmlReturn_t>;

fn guard(body: impl FnOnce() -> Outcome) -> nvmlReturn_t {
    guarded(nvmlReturn_t::ERROR_UNKNOWN, || match body() {
        Ok(result) | Err(result) => result,
    })
}

/// The session, if this process is in a slice. No thread checks its connection here, so every query does: the
/// numbers of a dead daemon would never change again.
fn session() -> Result<Option<&'static Session>, nvmlReturn_t> {
    if let Some(slice) = slice::attached() {
        if slice.daemon.is_stale() {
            slice.daemon.tend();
        }
        return Ok(Some(&slice.daemon));
    }
    match slice::attach(Purpose::Look, PATIENCE) {
        Ok(slice) => Ok(slice.map(|slice| &slice.daemon)),
        Err(_) => Err(nvmlReturn_t::ERROR_TIMEOUT),
    }
}

/// The lane of a device; `None` outside a slice, and for a device outside the slice.
fn lane(device: nvmlDevice_t) -> Result<Option<(&'static Session, Lane)>, nvmlReturn_t> {
    let Some(session) = session()? else {
        return Ok(None);
    };
    if let Some(lane) = devices::known(device) {
        return Ok(Some((session, lane)));
    }
    let mut text = [0 as c_char; UUID_BYTES];
    let result = real!(nvmlDeviceGetUUID(device, text.as_mut_ptr(), UUID_BYTES as u32));
    if result != nvmlReturn_t::SUCCESS {
        return Err(result);
    }
    let text = text.map(|byte| byte as u8);
    let uuid = text.split(|&byte| byte == 0).next().and_then(|text| str::from_utf8(text).ok());
    let lane = uuid.and_then(|uuid| uuid.parse().ok()).and_then(|gpu| session.lane_of(gpu));
    lane.into_iter().for_each(|lane| devices::note(device, lane));
    Ok(lane.map(|lane| (session, lane)))
}
