//! The file `state` as memory.

#![allow(unsafe_code)]

use crate::layout::{FILE_BYTES, Header, STATE_AT, State};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// A shared mapping of the whole file, unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
}

// SAFETY: the mapping is shared memory; the header is read-only or atomic, and the state is reached
// through the lock alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file that has at least `FILE_BYTES` bytes.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < FILE_BYTES as u64 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // SAFETY: a new mapping at an address the kernel chooses, of a file long enough.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Of these tables a process touches a few pages, and the file is sparse. The kernel would read, and fill with
        // zeroes, many pages after each of them. A refusal of the advice changes no result.
        // SAFETY: the mapping made above.
        unsafe { libc::madvise(base, FILE_BYTES, libc::MADV_RANDOM) };
        NonNull::new(base.cast()).map(|base| Self { base }).ok_or_else(io::Error::last_os_error)
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the mapping is large and aligned enough, lives as long as `self`, and any bytes
        // are a valid header. Only its atomics change after the file got its name.
        unsafe { self.base.cast().as_ref() }
    }

    /// The header of a file that no other process knows yet.
    pub(crate) fn header_of_new_file(&mut self) -> &mut Header {
        // SAFETY: as in `header`; exclusive because the caller has just made the file.
        unsafe { self.base.cast().as_mut() }
    }

    /// The state of a file that no other process knows yet.
    pub(crate) fn state_of_new_file(&mut self) -> &mut State {
        // SAFETY: as in `header_of_new_file`.
        unsafe { &mut *self.state() }
    }

    /// Where the state is; to be used under the lock.
    pub(crate) fn state(&self) -> *mut State {
        // SAFETY: within the mapping by its length, aligned by the assertion in `layout`.
        unsafe { self.base.as_ptr().add(STATE_AT).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`; no borrow of it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), FILE_BYTES) };
    }
}

/// A zeroed state in ordinary memory, for tests of the pure parts.
#[cfg(test)]
pub(crate) fn state_for_test() -> Box<State> {
    // SAFETY: the state is plain numbers, for which zero is a value; it is too large for the stack.
    unsafe { Box::<State>::new_zeroed().assume_init() }
}
