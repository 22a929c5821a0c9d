//! Small operations on descriptors of any kind.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Makes a descriptor non-blocking.
///
/// # Errors
/// None that the system documents.
pub fn stops_blocking<F: AsFd>(fd: &F) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// A descriptor that no other code in this process owns.
#[allow(unsafe_code)]
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: `accept4` just made it, or the service manager passed it under this number.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
