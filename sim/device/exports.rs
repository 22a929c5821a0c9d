//! Memory kept alive by a file descriptor, wherever that travels.
//!
//! An exported block is held by every descriptor made of it: in this process, in flight over a
//! socket, in another container. The kernel alone knows when the last copy of one is closed, so it
//! is asked: a descriptor is one of the file `exports`, opened for it alone, with a shared lock of
//! that opening (F_OFD_SETLK) on the block's byte. Its file position is the same byte: that is how
//! a receiver knows which memory it was given.
//!
//! The same way it is known whether a process's own descriptors are closed, which a forked child inherits: a
//! process of a driver that waits for that holds one on the byte of its slot, behind those of all blocks.

#![allow(unsafe_code)]

use crate::limits::{MAX_FRAMES, MAX_GPUS};
use crate::types::MemoryKey;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file `exports`.
pub(crate) struct Exports {
    path: PathBuf,
    file: File,
}

/// The byte that stands for a block.
fn byte(gpu: usize, block: u32) -> u64 {
    gpu as u64 * MAX_FRAMES as u64 + u64::from(block)
}

/// The byte that stands for a process.
fn process_byte(slot: usize) -> u64 {
    byte(MAX_GPUS, slot as u32)
}

impl Exports {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: open(path)?, path: path.into() })
    }

    /// A descriptor that holds the block.
    pub(crate) fn hold(&self, key: MemoryKey) -> io::Result<File> {
        self.hold_byte(byte(usize::from(key.gpu), key.block))
    }

    /// A descriptor that stands for all of a process's.
    pub(crate) fn hold_process(&self, slot: usize) -> io::Result<File> {
        self.hold_byte(process_byte(slot))
    }

    fn hold_byte(&self, at: u64) -> io::Result<File> {
        let mut file = open(&self.path)?;
        ask(file.as_raw_fd(), libc::F_OFD_SETLK, libc::F_RDLCK, at)?;
        file.seek(SeekFrom::Start(at))?;
        Ok(file)
    }

    /// Whether any descriptor holds the block. Where that cannot be asked, it is taken to.
    pub(crate) fn is_held(&self, gpu: usize, block: u32) -> bool {
        self.is_byte_held(byte(gpu, block))
    }

    /// Whether a copy of the process's descriptor is open in any process.
    pub(crate) fn is_process_held(&self, slot: usize) -> bool {
        self.is_byte_held(process_byte(slot))
    }

    fn is_byte_held(&self, at: u64) -> bool {
        let found = ask(self.file.as_raw_fd(), libc::F_OFD_GETLK, libc::F_WRLCK, at);
        found.map_or(true, |kind| kind != libc::F_UNLCK as libc::c_short)
    }

    /// GPU and block of a descriptor, if it is one of [`Exports::hold`].
    pub(crate) fn named(&self, fd: BorrowedFd) -> Option<(usize, u32)> {
        // SAFETY: open for the time of the borrow; `ManuallyDrop` keeps it the caller's. A copy
        // would have to be closed, which could cost this process its locks (see `alive`).
        let theirs = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
        let (ours, facts) = (self.file.metadata().ok()?, theirs.metadata().ok()?);
        if (ours.dev(), ours.ino()) != (facts.dev(), facts.ino()) {
            return None;
        }
        let at = (&*theirs).stream_position().ok()?;
        let (gpu, block) = (at / MAX_FRAMES as u64, at % MAX_FRAMES as u64);
        Some((usize::try_from(gpu).ok()?, u32::try_from(block).ok()?))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Sets or asks about one byte's lock; gives the kind of lock the kernel answers.
fn ask(fd: RawFd, command: i32, kind: i32, at: u64) -> io::Result<libc::c_short> {
    // SAFETY: flock is plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at as libc::off_t;
    lock.l_len = 1;
    // SAFETY: a valid flock structure, and a descriptor open for the time of the call.
    if unsafe { libc::fcntl(fd, command, &mut lock) } == 0 {
        return Ok(lock.l_type);
    }
    Err(io::Error::last_os_error())
}
