//! The library itself: starting, stopping, versions, texts of errors, names of processes.

use crate::abi::{Out, Outcome};
use crate::session;
use core::ffi::c_char;
use gpuslice_nvabi::types::nvmlReturn_t;

/// First driver release of each CUDA version (NVIDIA's CUDA release notes, table "CUDA Toolkit and
/// Corresponding Driver Versions"); a version between two rows is the earlier one's driver.
const DRIVERS: [((u32, u32), &str); 10] = [
    ((11, 0), "450.51.06"),
    ((11, 8), "520.61.05"),
    ((12, 0), "525.60.13"),
    ((12, 2), "535.54.03"),
    ((12, 4), "550.54.14"),
    ((12, 6), "560.28.03"),
    ((12, 8), "570.26"),
    ((12, 9), "575.51.03"),
    ((13, 0), "580.65.06"),
    ((13, 1), "590.44.01"),
];

fn driver_version((major, minor): (u32, u32)) -> &'static str {
    let known = DRIVERS.iter().rev().find(|(cuda, _)| *cuda <= (major, minor));
    known.map_or(DRIVERS[0].1, |(_, driver)| driver)
}

pub(crate) fn error_text(result: nvmlReturn_t) -> *const c_char {
    result.description().unwrap_or(c"Unknown Error").as_ptr()
}

pub(crate) fn nvmlInit() -> Outcome {
    session::init()
}

pub(crate) fn nvmlInit_v2() -> Outcome {
    session::init()
}

pub(crate) fn nvmlInitWithFlags(_flags: u32) -> Outcome {
    session::init()
}

pub(crate) fn nvmlShutdown() -> Outcome {
    session::shutdown()
}

pub(crate) fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: u32) -> Outcome {
    version.text(length, driver_version(session::machine()?.driver()))
}

pub(crate) fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: u32) -> Outcome {
    let cuda = session::machine()?.driver();
    version.text(length, &format!("{}.{}", cuda.0, driver_version(cuda)))
}

pub(crate) fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) -> Outcome {
    let (major, minor) = session::machine()?.driver();
    version.put((major * 1000 + minor * 10) as i32)
}

pub(crate) fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) -> Outcome {
    nvmlSystemGetCudaDriverVersion(version)
}

pub(crate) fn nvmlUnitGetCount(count: Out<u32>) -> Outcome {
    session::machine()?;
    count.put(0)
}

/// The first word of the process's command line, cut to the room there is, as NVML does.
pub(crate) fn nvmlSystemGetProcessName(pid: u32, name: Out<c_char>, length: u32) -> Outcome {
    session::machine()?;
    if name.is_null() || length == 0 {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    let command = std::fs::read(format!("/proc/{pid}/cmdline"));
    let command = command.map_err(|_| nvmlReturn_t::ERROR_NOT_FOUND)?;
    let first = command.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut text = String::from_utf8_lossy(first).into_owned();
    let mut end = text.len().min(length as usize - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    name.text(length, &text)
}
