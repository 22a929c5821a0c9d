//! Entry points for `gpusliced`, which reaches a real driver through the kernel and does not link the simulator.

use gpuslice_nvabi::control::simulated::{ControlFn, INVALID, PREPARED, PrepareFn, UNUSABLE};
use gpuslice_sim_device::{Error, Machine, default_dir, prepare};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;

const _: (ControlFn, PrepareFn) = (gpuslice_sim_control, gpuslice_sim_prepare);

/// See [`ControlFn`].
///
/// # Safety
/// The descriptor is open; the argument is of the request's form, pointers in it included.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuslice_sim_control(
    fd: c_int,
    request: u64,
    argument: *mut c_void,
) -> c_int {
    let machine = Machine::observe().map_err(|_| libc::ENODEV);
    // SAFETY: the caller's promise.
    let done =
        machine.and_then(|it| unsafe { it.ioctl(BorrowedFd::borrow_raw(fd), request, argument) });
    done.err().unwrap_or(0)
}

/// See [`PrepareFn`].
///
/// # Safety
/// `text` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuslice_sim_prepare(text: *mut c_char, bytes: usize) -> c_int {
    let (status, said) = match prepare(&default_dir()) {
        Ok(dir) => (PREPARED, dir.into_os_string().into_encoded_bytes()),
        Err(why @ Error::Config(_)) => (INVALID, why.to_string().into_bytes()),
        Err(why) => (UNUSABLE, why.to_string().into_bytes()),
    };
    let Some(room) = bytes.checked_sub(1) else {
        return UNUSABLE;
    };
    let (fits, length) = (said.len() <= room, said.len().min(room));
    // SAFETY: within the caller's buffer, with the closing zero.
    unsafe {
        text.copy_from_nonoverlapping(said.as_ptr().cast(), length);
        text.add(length).write(0);
    }
    if fits { status } else { UNUSABLE }
}
