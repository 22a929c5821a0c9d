//! The attachment to the device, and the names of its GPUs.
//!
//! nvmlInit and nvmlShutdown are counted; between the first and the last the device is looked at. A
//! forked child may go on with its parent's initialisation: it gets an attachment of its own.

use gpuslice_nvabi::types::{nvmlDevice_t, nvmlReturn_t};
use gpuslice_sim_device::limits::MAX_GPUS;
use gpuslice_sim_device::properties::{Listing, Properties, mix};
use gpuslice_sim_device::{DeviceError, Error, GpuInfo, Machine, now_ns, sleep_until_ns};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

static INITS: AtomicU32 = AtomicU32::new(0);

/// Their addresses are the device handles: any other pointer is known to be none.
static HANDLES: [u8; MAX_GPUS] = [0; MAX_GPUS];

pub(crate) fn init() -> Result<(), nvmlReturn_t> {
    Machine::observe().map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            nvmlReturn_t::ERROR_NO_PERMISSION
        }
        Error::Layout { .. } => nvmlReturn_t::ERROR_LIB_RM_VERSION_MISMATCH,
        Error::TooManyProcesses { .. } => nvmlReturn_t::ERROR_INSUFFICIENT_RESOURCES,
        _ => nvmlReturn_t::ERROR_DRIVER_NOT_LOADED,
    })?;
    INITS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

pub(crate) fn shutdown() -> Result<(), nvmlReturn_t> {
    let less = |count: u32| count.checked_sub(1);
    match INITS.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
        Ok(_) => Ok(()),
        Err(_) => Err(nvmlReturn_t::ERROR_UNINITIALIZED),
    }
}

/// The machine, if the library is initialised.
pub(crate) fn machine() -> Result<&'static Machine, nvmlReturn_t> {
    if INITS.load(Ordering::Acquire) == 0 {
        return Err(nvmlReturn_t::ERROR_UNINITIALIZED);
    }
    Machine::observe().map_err(|_| nvmlReturn_t::ERROR_DRIVER_NOT_LOADED)
}

/// The next number of a sequence of the process's own, for what a strict driver draws.
fn next() -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    DRAWN.fetch_add(1, Ordering::Relaxed)
}

/// Takes the time of a call.
pub(crate) fn take_time() {
    let Ok(machine) = machine() else { return };
    let Properties { nvml, seed, .. } = *machine.properties();
    if nvml.is_zero() {
        return;
    }
    let until = now_ns() + nvml.draw(seed, next());
    // A signal ends a sleep early.
    while now_ns() < until {
        sleep_until_ns(until);
    }
}

/// Whether the list of processes about to be given has their memory.
///
/// # Errors
/// There is no such list.
pub(crate) fn tells_memory() -> Result<bool, Refusal> {
    let properties = machine()?.properties();
    match properties.listing() {
        Listing::Always => Ok(true),
        Listing::Sometimes => Ok(!mix(properties.seed, next()).is_multiple_of(4)),
        Listing::Pids => Ok(false),
        Listing::Never => Err(nvmlReturn_t::ERROR_NOT_SUPPORTED),
    }
}

/// The GPU a handle names.
pub(crate) fn gpu(handle: nvmlDevice_t) -> Result<(&'static Machine, &'static GpuInfo), Refusal> {
    let machine = machine()?;
    let index = HANDLES.iter().position(|byte| std::ptr::eq(byte, handle.0.cast()));
    let gpu = index.and_then(|index| machine.gpus().get(index));
    Ok((machine, gpu.ok_or(nvmlReturn_t::ERROR_INVALID_ARGUMENT)?))
}

pub(crate) type Refusal = nvmlReturn_t;

/// The handle of a GPU.
pub(crate) fn handle(index: usize) -> nvmlDevice_t {
    nvmlDevice_t(std::ptr::from_ref(&HANDLES[index]).cast_mut().cast())
}

/// The error of a refusal by the device: an observer cannot have caused it.
pub(crate) fn device_error(_: DeviceError) -> nvmlReturn_t {
    nvmlReturn_t::ERROR_GPU_IS_LOST
}
