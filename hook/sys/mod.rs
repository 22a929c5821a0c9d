//! The system calls of the hook, each a small safe function; the only room with unsafe code.

pub(crate) mod file;
pub mod heap;
pub(crate) mod mount;
pub(crate) mod process;
pub(crate) mod socket;

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn cstring(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn result(value: libc::c_long) -> io::Result<i32> {
    if value < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value as i32)
    }
}

/// Takes over what a call that makes descriptors returned.
fn owned(value: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY: a non-negative result of such a call is a new descriptor nobody else owns.
    result(value).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
