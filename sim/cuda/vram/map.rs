//! The system's mappings, in the forms needed here.

use gpuslice_nvabi::types::CUresult;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::null_mut;

fn answer(address: *mut libc::c_void) -> io::Result<u64> {
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address as u64) }
}

/// Reserves `len` bytes of addresses without access.
pub fn reserve(len: u64) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel likes it touches no existing one.
    answer(unsafe { libc::mmap(null_mut(), len as usize, libc::PROT_NONE, flags, -1, 0) })
}

/// New zeroed memory of the host.
pub fn anonymous(len: usize) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: as above.
    answer(unsafe { libc::mmap(null_mut(), len, access(true), flags, -1, 0) })
}

/// A new file in the host's memory, for memory that is mapped more than once or sent to a process.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: makes a file of its own; the name is NUL-terminated.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, not owned elsewhere.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// All memory the host has.
pub fn host_bytes() -> usize {
    // SAFETY: both calls only ask for a number.
    let [pages, page] =
        [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    usize::try_from(pages.saturating_mul(page)).unwrap_or(0)
}

/// Gives memory of [`anonymous`] back.
///
/// # Safety
/// The range is a mapping of [`anonymous`] that is no longer in use.
pub unsafe fn drop_anonymous(address: u64, len: usize) {
    // SAFETY: promised by the caller.
    unsafe { libc::munmap(address as *mut _, len) };
}

/// Reading and writing, or no access.
fn access(open: bool) -> libc::c_int {
    if open { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE }
}

/// Maps a piece of a file over reserved addresses, without access if `open` is false.
///
/// # Safety
/// The range lies in a range of [`reserve`], and its present mapping is not in use.
pub unsafe fn over(address: u64, file: &File, at: u64, len: u64, open: bool) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (fd, len, at) = (file.as_raw_fd(), len as usize, at as libc::off_t);
    // SAFETY: promised by the caller.
    answer(unsafe { libc::mmap(address as *mut _, len, access(open), flags, fd, at) }).map(drop)
}

/// Turns mapped addresses back into reserved ones; if `open`, into zeroed memory of the host.
///
/// # Safety
/// As for [`over`].
pub unsafe fn empty(address: u64, len: u64, open: bool) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let len = len as usize;
    // SAFETY: promised by the caller.
    answer(unsafe { libc::mmap(address as *mut _, len, access(open), flags, -1, 0) }).map(drop)
}

/// Sets whether a mapped range can be read, and written.
///
/// # Safety
/// The range lies in a range of [`reserve`].
pub unsafe fn protect(address: u64, len: u64, read: bool, write: bool) -> io::Result<()> {
    let access = match (read, write) {
        (_, true) => libc::PROT_READ | libc::PROT_WRITE,
        (true, false) => libc::PROT_READ,
        (false, false) => libc::PROT_NONE,
    };
    // SAFETY: promised by the caller.
    let result = unsafe { libc::mprotect(address as *mut _, len as usize, access) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ranges from here on are backed before they are written.
const BACK_FROM: u64 = 64 << 10;

/// Makes the system find memory for a range that is about to be written, so that "there is none"
/// is an error code and not a signal.
pub fn back(address: u64, len: u64) -> Result<(), CUresult> {
    if len < BACK_FROM {
        return Ok(());
    }
    let start = address & !4095;
    let len = (address + len - start) as usize;
    // SAFETY: asking for pages to be present changes no content, wherever the range is.
    let result = unsafe { libc::madvise(start as *mut _, len, libc::MADV_POPULATE_WRITE) };
    // Older kernels do not know the question, and are not asked further.
    let full = result != 0
        && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM | libc::EFAULT));
    if full { Err(CUresult::ERROR_OUT_OF_MEMORY) } else { Ok(()) }
}

/// Makes whole pages of a shared mapping read as zeros without memory behind them; false where the
/// file system cannot.
///
/// # Safety
/// The range consists of whole pages of mappings of [`over`] that may be written.
pub unsafe fn zero(address: u64, len: u64) -> bool {
    // SAFETY: promised by the caller.
    unsafe { libc::madvise(address as *mut _, len as usize, libc::MADV_REMOVE) == 0 }
}
