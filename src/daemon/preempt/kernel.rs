//! The raw part of the controls: descriptors of other processes, and the ioctl itself.

#![allow(unsafe_code)]

use gpuslice_nvabi::control::Control;
use gpuslice_sim_device::Machine;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Major and minor number of the driver's control node.
const CONTROL_NODE: (u32, u32) = (195, 255);

/// A duplicate of a process's descriptor.
///
/// # Errors
/// It has no such descriptor, has exited, or access is denied.
pub fn duplicate(pidfd: BorrowedFd<'_>, number: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
    owned(fd)
}

/// A pidfd by pid.
///
/// # Errors
/// There is no such process.
pub fn process(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(fd)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel just made this descriptor, and no other code owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a descriptor is of the driver's control node.
///
/// # Errors
/// The system call failed.
pub fn is_control_node(file: &OwnedFd) -> io::Result<bool> {
    let stat = nix::sys::stat::fstat(file)?;
    let device = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    Ok(stat.st_mode & libc::S_IFMT == libc::S_IFCHR && device == CONTROL_NODE)
}

/// The driver's control ioctl. `it` names parameters that live as long as the call.
///
/// # Errors
/// The system call failed.
pub fn control(file: BorrowedFd<'_>, request: u64, it: &mut Control) -> io::Result<()> {
    // SAFETY: the structure of this request; the caller's parameters are of the size that it names.
    match unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(it)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The control ioctl of the simulated GPU.
///
/// # Errors
/// The error that a kernel would report.
pub fn simulated(
    machine: &Machine,
    file: BorrowedFd<'_>,
    request: u64,
    it: &mut Control,
) -> io::Result<()> {
    // SAFETY: as above.
    let done = unsafe { machine.ioctl(file, request, std::ptr::from_mut(it).cast()) };
    done.map_err(io::Error::from_raw_os_error)
}
