//! The attachment of this process to the simulated machine, made by `cuInit`.
//!
//! It is made once and stays. A forked child inherits its parent's memory but not its slot at the
//! device, so there every call returns "not initialised", as the real driver does.

use super::kernel::Client;
use super::opening::Opening;
use super::visible;
use crate::entry::{Out, Outcome, is_forked, refuse_if, set_forked, set_ready};
use gpuslice_nvabi::types::{CUdevice, CUresult};
use gpuslice_sim_device::{DeviceError, Error, GpuInfo, Machine, now_ns};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

/// The driver's state that lives as long as the process.
pub struct Process {
    pub machine: &'static Machine,
    /// The GPUs this process may see, by CUDA ordinal.
    pub gpus: Vec<&'static GpuInfo>,
    /// The way to the kernel side, if there is one.
    pub client: Option<Client>,
    _opening: Opening,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// The attached process; before `cuInit` there is none.
pub fn process() -> Result<&'static Process, CUresult> {
    PROCESS.get().ok_or(CUresult::ERROR_NOT_INITIALIZED)
}

impl Process {
    /// The GPU of a CUDA ordinal.
    pub fn gpu(&self, device: CUdevice) -> Result<&'static GpuInfo, CUresult> {
        let ordinal = usize::try_from(device).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
        let gpu = self.gpus.get(ordinal);
        gpu.copied().ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    fn attach() -> Result<Self, CUresult> {
        let machine = Machine::attach().map_err(|error| attach_error(&error))?;
        let order = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let shown = visible::choose(order.as_deref(), machine.gpus());
        if shown.is_empty() {
            return Err(CUresult::ERROR_NO_DEVICE);
        }
        let gpus = shown.into_iter().map(|index| &machine.gpus()[index]);
        let gpus = gpus.collect();
        // SAFETY: the handler is a plain function that stores one atomic number.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            return Err(CUresult::ERROR_OPERATING_SYSTEM);
        }
        let client = Client::new(machine);
        Ok(Self { machine, gpus, client, _opening: Opening::new()? })
    }
}

/// A number no other process has: the time and the process of the first call.
pub fn identity() -> u64 {
    static IDENTITY: LazyLock<u64> = LazyLock::new(|| {
        let pid = u64::from(std::process::id());
        now_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ pid
    });
    *IDENTITY
}

unsafe extern "C" fn in_child() {
    set_forked();
}

fn attach_error(error: &Error) -> CUresult {
    match error {
        Error::Config(_) => CUresult::ERROR_INVALID_VALUE,
        Error::Io { .. } => CUresult::ERROR_OPERATING_SYSTEM,
        Error::Layout { .. } => CUresult::ERROR_SYSTEM_DRIVER_MISMATCH,
        Error::TooManyProcesses { .. } => CUresult::ERROR_DEVICE_UNAVAILABLE,
    }
}

/// The driver's code for a refusal of the device.
pub fn device_error(error: DeviceError) -> CUresult {
    match error {
        DeviceError::NoSuchGpu => CUresult::ERROR_INVALID_DEVICE,
        DeviceError::BadSize | DeviceError::StaleMemory => CUresult::ERROR_INVALID_VALUE,
        DeviceError::OutOfMemory | DeviceError::TooManyContexts => CUresult::ERROR_OUT_OF_MEMORY,
        DeviceError::StaleContext => CUresult::ERROR_CONTEXT_IS_DESTROYED,
        DeviceError::NoDescriptor => CUresult::ERROR_OPERATING_SYSTEM,
        DeviceError::QueueFull => CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES,
        DeviceError::Faulted { xid } => fault_code(xid),
    }
}

/// What a program is told after a fault: the Xids that have a code of their own have it.
fn fault_code(xid: u32) -> CUresult {
    match xid {
        31 => CUresult::ERROR_ILLEGAL_ADDRESS,
        48 | 94 | 95 => CUresult::ERROR_ECC_UNCORRECTABLE,
        8 => CUresult::ERROR_LAUNCH_TIMEOUT,
        _ => CUresult::ERROR_LAUNCH_FAILED,
    }
}

pub fn cuInit(flags: u32) -> Outcome {
    refuse_if(flags != 0)?;
    if is_forked() {
        return Err(CUresult::ERROR_NOT_INITIALIZED);
    }
    {
        // One thread at a time: the process can have its names only once.
        static ONCE: Mutex<()> = Mutex::new(());
        let _alone = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
        if PROCESS.get().is_none() {
            let attached = Process::attach()?;
            PROCESS.get_or_init(|| attached);
        }
    }
    set_ready(process()?.machine);
    Ok(())
}

pub fn cuDriverGetVersion(version: Out<i32>) -> Outcome {
    version.require()?;
    let (major, minor) = match PROCESS.get() {
        Some(process) => process.machine.driver(),
        // Asked before cuInit, which real programs do: attaching is harmless, and only the
        // device knows.
        None => Machine::attach().map_err(|error| attach_error(&error))?.driver(),
    };
    version.set((major * 1000 + minor * 10) as i32)
}

pub fn cuProfilerInitialize(
    _config: *const std::ffi::c_char,
    _output: *const std::ffi::c_char,
    _mode: gpuslice_nvabi::types::CUoutput_mode,
) -> Outcome {
    Err(CUresult::ERROR_NOT_SUPPORTED)
}

pub fn cuProfilerStart() -> Outcome {
    Ok(())
}

pub fn cuProfilerStop() -> Outcome {
    Ok(())
}
