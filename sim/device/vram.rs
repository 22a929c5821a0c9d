//! The memory of one GPU: a sparse file. Pages never written cost no memory of the host; pages
//! wiped are given back to it.

#![allow(unsafe_code)]

use crate::limits::PAGE_BYTES;
use crate::types::Extent;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Makes a piece of the file read as zeros, by a hole where the file system can, by zeros where
/// it cannot.
pub(crate) fn wipe(file: &File, extent: Extent) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open; the other arguments are numbers.
    let answer = unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            mode,
            extent.offset as libc::off_t,
            extent.len as libc::off_t,
        )
    };
    if answer == 0 {
        return;
    }
    let zeros = vec![0; PAGE_BYTES as usize];
    for at in (0..extent.len).step_by(zeros.len()) {
        // The only failure left is a full disk, on which the pages cannot be written by anyone.
        let _ = file.write_all_at(&zeros, extent.offset + at);
    }
}
