//! Liveness of processes, by the kernel's byte locks.
//!
//! Each attached process holds a POSIX write lock on one byte of the file `locks`. The kernel
//! releases it at the process's death, and a forked child does not inherit it. F_GETLK returns the
//! holder's pid in the caller's own pid namespace, 0 where it is not visible: the pids that NVML
//! reports to containers.
//!
//! Two properties shape the code. Closing *any* descriptor of that file releases *all* locks of
//! the process, so it is opened, never closed (one number per library is the price). And
//! F_GETLK never reports the caller's own locks, though two libraries of one process (the driver
//! and NVML) hold separate ones: they know each other by an identity made of the pid and the random
//! bytes the kernel hands to each program it starts.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{IntoRawFd, RawFd};

/// The holder of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// No process, or the calling process itself.
    None,
    /// A living process; its pid in the caller's pid namespace, 0 if it has none there.
    Process(i32),
}

/// The open file `locks`, for ever.
#[derive(Clone, Copy)]
pub(crate) struct Locks {
    fd: RawFd,
}

impl Locks {
    pub(crate) fn keep(file: File) -> Self {
        Self { fd: file.into_raw_fd() }
    }

    /// Takes a byte unless another process has it.
    pub(crate) fn take(self, byte: usize) -> io::Result<bool> {
        let mut lock = request(byte);
        // SAFETY: `lock` is a valid flock structure and the descriptor is never closed.
        if unsafe { libc::fcntl(self.fd, libc::F_SETLK, &mut lock) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        }
    }

    /// Gives up a byte that [`Locks::take`] took.
    pub(crate) fn leave(self, byte: usize) {
        let mut lock = request(byte);
        lock.l_type = libc::F_UNLCK as libc::c_short;
        // SAFETY: as in `take`. Without success the byte stays taken until this process ends.
        unsafe { libc::fcntl(self.fd, libc::F_SETLK, &mut lock) };
    }

    pub(crate) fn holder(self, byte: usize) -> Holder {
        let mut lock = request(byte);
        // SAFETY: as in `take`.
        let answer = unsafe { libc::fcntl(self.fd, libc::F_GETLK, &mut lock) };
        // If the kernel gives no answer, the process counts as alive.
        if answer != 0 {
            return Holder::Process(0);
        }
        if lock.l_type == libc::F_UNLCK as libc::c_short {
            return Holder::None;
        }
        Holder::Process(lock.l_pid)
    }
}

fn request(byte: usize) -> libc::flock {
    // SAFETY: flock is plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

/// Not zero, the same in all libraries of this process, different after fork and after exec.
pub(crate) fn identity() -> u64 {
    // SAFETY: AT_RANDOM is the address of 16 bytes that live as long as the process, or 0.
    let random = unsafe {
        let at = libc::getauxval(libc::AT_RANDOM) as *const [u8; 16];
        if at.is_null() { [0; 16] } else { at.read_unaligned() }
    };
    // FNV-1a: the bytes also seed the C library's stack protector, so they are not published as
    // they are.
    let pid = std::process::id().to_le_bytes();
    let hash = random.iter().chain(&pid).fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash | 1
}
