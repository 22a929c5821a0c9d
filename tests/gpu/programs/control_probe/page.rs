//! A page of host memory with the progress of a kernel: the GPU writes it, several processes read it.
//!
//! A simulated GPU runs no kernels, so it writes nothing there; its own account of a process's time is used instead.

use gpuslice_sim_device::Machine;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of it.
pub const BYTES: usize = 4096;
const PROGRESS: usize = 0;
const COMPUTED: usize = 8;
/// Offset of the word that a gate waits for; away from the words that the kernel writes.
const GATE: usize = 2048;

/// The page, mapped for as long as the process lives.
pub struct Page {
    at: *mut u8,
    file: OwnedFd,
}

// SAFETY: the mapping stays, and its words are only used as atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Makes and maps a new page.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Page> {
        // SAFETY: a name that ends with a zero.
        let fd = unsafe { libc::memfd_create(c"page".as_ptr(), 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fresh from the kernel, not owned elsewhere.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        File::from(file.try_clone()?).set_len(BYTES as u64)?;
        Page::map(file)
    }

    /// Maps an inherited page.
    ///
    /// # Errors
    /// The system's.
    pub fn inherited(number: i32) -> io::Result<Page> {
        // SAFETY: the number a parent gave us for it, which nothing else here uses; a wrong one is an error below.
        Page::map(unsafe { OwnedFd::from_raw_fd(number) })
    }

    fn map(file: OwnedFd) -> io::Result<Page> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: a new mapping, wherever there is room.
        let at = unsafe { libc::mmap(null_mut(), BYTES, access, libc::MAP_SHARED, fd, 0) };
        match at {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            at => Ok(Page { at: at.cast(), file }),
        }
    }

    /// Its file descriptor, for a child.
    pub fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Its first byte.
    pub fn address(&self) -> *mut u8 {
        self.at
    }

    /// Offset of the gate's word in bytes.
    pub fn gate_offset() -> u64 {
        GATE as u64
    }

    /// The last progress that a kernel wrote.
    pub fn progress(&self) -> u64 {
        // SAFETY: aligned, inside the mapping.
        unsafe { AtomicU64::from_ptr(self.at.add(PROGRESS).cast()) }.load(Ordering::Acquire)
    }

    /// What the last kernel computed.
    pub fn computed(&self) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at.add(COMPUTED).cast()) }.load(Ordering::Acquire)
    }

    /// The gate's word: 1 open, 0 closed.
    pub fn gate(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at.add(GATE).cast()) }
    }
}

/// The progress of a process's work on the GPU, in rounds or nanoseconds.
#[derive(Clone)]
pub enum Meter {
    /// Rounds that its kernels wrote to the page.
    Told(Arc<Page>),
    /// The simulated GPU's account of the process, ns.
    Account(&'static Machine, u32),
}

impl Meter {
    /// The progress now.
    pub fn read(&self) -> u64 {
        match self {
            Meter::Told(page) => page.progress(),
            Meter::Account(machine, pid) => {
                let all = machine.processes(0).unwrap_or_default();
                let its = all.iter().find(|one| one.pid == *pid);
                its.map_or(0, |one| one.busy_ns)
            }
        }
    }
}
