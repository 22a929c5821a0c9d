//! The hook's system calls, each a small safe function; the only module with unsafe code.

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
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value as i32) }
}

/// Takes ownership of the result of a call that creates descriptors.
fn owned(value: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY: a non-negative result of such a call is a new descriptor without another owner.
    result(value).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
