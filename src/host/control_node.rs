//! The driver's control node, `/dev/nvidiactl`: how a file of it is recognised, and its control ioctl.

#![allow(unsafe_code)]

use gpuslice_nvabi::control::{CONTROL, Control};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Major and minor number of the node.
const CONTROL_NODE: (u32, u32) = (195, 255);

/// Whether a descriptor is of the driver's control node.
///
/// # Errors
/// The system call failed.
pub fn is_control_node(file: &OwnedFd) -> io::Result<bool> {
    let stat = nix::sys::stat::fstat(file)?;
    let device = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    Ok(stat.st_mode & libc::S_IFMT == libc::S_IFCHR && device == CONTROL_NODE)
}

/// The driver's control ioctl, whose status is in `it` afterwards.
///
/// # Safety
/// `it` names a live parameter structure of the command, and its size.
///
/// # Errors
/// The system call failed.
pub unsafe fn control(file: BorrowedFd<'_>, it: &mut Control) -> io::Result<()> {
    // SAFETY: the structure of this request; the caller's promise for the parameters.
    match unsafe { libc::ioctl(file.as_raw_fd(), CONTROL as _, std::ptr::from_mut(it)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
