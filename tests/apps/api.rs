//! Every function of the driver's table, found by name when it is first called.
//!
//! [`crate::driver`] is for programs that need eighteen functions and want to fail at once when one
//! is missing. A program that tries the whole interface on whatever driver there is needs the
//! opposite: each function by itself, and one that is not there answers [`ABSENT`].
//!
//! The functions are not marked unsafe although they pass pointers on. Their caller is a test of
//! the driver's own checks: it passes pointers to live values of its own, or on purpose bad ones
//! that a driver must refuse without touching them.

use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::*;
use std::ffi::CStr;
use std::sync::OnceLock;

/// The answer of a function that the driver does not export.
pub const ABSENT: CUresult = CUresult(u32::MAX as _);

/// The same for NVML.
pub const NVML_ABSENT: nvmlReturn_t = nvmlReturn_t(u32::MAX);

/// Judges a call that must succeed.
///
/// # Errors
/// What it answered instead.
pub fn check(what: &str, result: CUresult) -> Result<(), String> {
    match result {
        CUresult::SUCCESS => Ok(()),
        other => Err(format!("{what} answered {other:?}")),
    }
}

/// Calls a function of [`calls`](crate::api::calls), which must succeed.
#[macro_export]
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        $crate::api::check(stringify!($name), $crate::api::calls::$name($($arg),*))
    };
}

fn open(name: &CStr) -> usize {
    // SAFETY: loading a driver runs its constructors, which is what is wanted.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) as usize }
}

/// The driver, or 0.
fn cuda() -> usize {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    *HANDLE.get_or_init(|| open(c"libcuda.so.1"))
}

/// NVML, or 0.
fn nvml() -> usize {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    *HANDLE.get_or_init(|| open(c"libnvidia-ml.so.1"))
}

/// Whether there is an NVML.
pub fn has_nvml() -> bool {
    nvml() != 0
}

/// The driver's function of that name by `dlsym`, or 0.
pub fn address(name: &CStr) -> usize {
    address_in(cuda(), name)
}

fn address_in(library: usize, name: &CStr) -> usize {
    if library == 0 {
        return 0;
    }
    // SAFETY: the handle came from dlopen and is never closed; the name ends in NUL.
    unsafe { libc::dlsym(library as *mut libc::c_void, name.as_ptr()) as usize }
}

/// Makes a function of each driver row.
macro_rules! driver_calls {
    ($([$s:ident, $m:ident, $v:literal] $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the driver, or [`ABSENT`].")]
            pub fn $name($($arg: $ty),*) -> CUresult {
                static AT: OnceLock<usize> = OnceLock::new();
                let name = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                match *AT.get_or_init(|| address(name)) {
                    0 => ABSENT,
                    at => {
                        // SAFETY: the driver's function of that name has the table's signature;
                        // for its arguments see the head of this file.
                        unsafe { std::mem::transmute::<usize, sig::$name>(at)($($arg),*) }
                    }
                }
            }
        )*
    };
}

/// Makes a function of each of these NVML rows.
macro_rules! nvml_calls {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of NVML, or [`NVML_ABSENT`].")]
            pub fn $name($($arg: $ty),*) -> nvmlReturn_t {
                let name = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                match address_in(nvml(), name) {
                    0 => NVML_ABSENT,
                    at => {
                        // SAFETY: as for the driver's.
                        unsafe { std::mem::transmute::<usize, sig::$name>(at)($($arg),*) }
                    }
                }
            }
        )*
    };
}

/// The driver's functions.
#[allow(non_snake_case, clippy::too_many_arguments, clippy::not_unsafe_ptr_arg_deref)]
pub mod calls {
    use super::*;
    gpuslice_nvabi::for_each_driver_fn!(driver_calls);
}

/// NVML's, as far as a test of memory asks it.
#[allow(non_snake_case, clippy::not_unsafe_ptr_arg_deref)]
pub mod nvml_calls {
    use super::*;
    nvml_calls! {
        nvmlInit_v2();
        nvmlShutdown();
        nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t);
        nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t);
        nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);
        nvmlDeviceGetComputeRunningProcesses_v3(
            device: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_t
        );
        nvmlDeviceGetCount_v2(count: *mut u32);
    }
}
