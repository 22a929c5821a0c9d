//! The simulated driver's own entry points.
//!
//! The daemon does not link the simulator. It reaches a real driver's kernel side through the kernel. The simulated
//! driver has none, so its `libcuda.so.1` exports functions instead (`gpuslice_nvabi::control::simulated`). The
//! library cannot be unloaded. So the daemon loads it only for controls; a child process makes the device's files.

// For calls into the driver.
#![allow(unsafe_code)]

use crate::one_answer::answer;
use gpuslice_nvabi::control::simulated::{
    CONTROL, ControlFn, INVALID, PREPARE, PREPARED, PrepareFn,
};
use libloading::Library;
use std::ffi::{CStr, OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Longest directory or error, bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Makes the simulated device's files, if they are not there; returns their directory.
///
/// # Errors
/// Why not, in the child's words if it printed any.
pub fn prepare(library: &Path) -> Result<PathBuf, String> {
    let arguments = [OsStr::new("--prepare-simulated"), library.as_os_str()];
    Ok(PathBuf::from(OsString::from_vec(answer(arguments)?)))
}

/// The child: makes the device's files and prints their directory.
///
/// # Errors
/// Why they cannot be made or used.
pub fn print_device(library: &Path) -> Result<(), String> {
    let driver = load(library)?;
    let mut text = [0; TEXT_BYTES_MAX];
    // SAFETY: the library's function of this name has this type; the buffer is of the length passed.
    let status = unsafe {
        let prepare = driver.get::<PrepareFn>(PREPARE.as_bytes());
        let prepare = prepare.map_err(|error| error.to_string())?;
        prepare(text.as_mut_ptr().cast(), text.len())
    };
    let said = CStr::from_bytes_until_nul(&text).map_err(|error| error.to_string())?;
    let hint = match status {
        PREPARED => {
            let printed = std::io::stdout().write_all(said.to_bytes());
            return printed.map_err(|error| error.to_string());
        }
        INVALID => "; `gpuslice sim --help` explains GPUSLICE_SIM",
        _ => "",
    };
    Err(format!("{}{hint}", said.to_string_lossy()))
}

/// The control function of the simulated driver's library, which stays loaded.
///
/// # Errors
/// Why it cannot be loaded.
pub fn control_function(library: &Path) -> Result<ControlFn, String> {
    let driver = load(library)?;
    // SAFETY: the library's function of this name has this type, and the library is never unloaded.
    let control = unsafe { driver.get::<ControlFn>(CONTROL.as_bytes()) };
    let control = *control.map_err(|error| error.to_string())?;
    std::mem::forget(driver);
    Ok(control)
}

fn load(library: &Path) -> Result<Library, String> {
    // SAFETY: loading the driver runs its constructors, as intended.
    let driver = unsafe { Library::new(library.as_os_str()) };
    driver.map_err(|error| error.to_string())
}
