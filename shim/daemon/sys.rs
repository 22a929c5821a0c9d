//! The few system calls of this room, each in a small safe wrapper.
//!
//! All descriptors are close-on-exec from their creation, no call raises a signal, and every wait has
//! a deadline. An application may close descriptors that are not its own (daemons close all of
//! them) and reuse the numbers for its files; [`Stamp`] distinguishes the shim's descriptor from such a
//! successor before anything is written to it.
//!
//! Device and inode distinguish a socket from any other file, but all eventfds of a machine share one inode.
//! So the shim's eventfd is tagged with `O_APPEND`: the flag has no effect on an eventfd, belongs to the open
//! file and not to its number, and no program sets it. (`/proc/self/fdinfo` has an id for each eventfd; reading
//! it takes 9 µs and reading the tag 0.1 µs, and the doorbell is used in every turn.)

pub use super::clock::now;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::Ordering::{self, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64};
use gpuslice_wire::limits::PAGE_BYTES;
use gpuslice_wire::units::Instant;
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Descriptors sent with one frame.
pub const DESCRIPTORS: usize = 4;

/// Sleeps for about `ns`; a signal may end it early.
pub fn nap(ns: u64) {
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `time` is a valid timespec; no remainder is asked for.
    unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
}

/// Longest pause between two attempts to reach the daemon. A daemon that is being replaced is away for a tenth of a
/// second, and longer pauses would double that for a process that waits. An attempt that fails is one system call.
const PAUSE_NS_MAX: u64 = 40_000_000;

/// Growing pauses between attempts to reach the daemon: from 5 ms to `PAUSE_NS_MAX`.
#[derive(Debug)]
pub struct Backoff(u64);

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff(5_000_000)
    }
}

impl Backoff {
    /// Sleeps for the next of them.
    pub fn nap(&mut self) {
        nap(self.next());
    }

    fn next(&mut self) -> u64 {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_NS_MAX);
        pause
    }
}

/// The identity of an open file behind a descriptor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64, u64, u32);

/// The stamp of a descriptor number; `None` if it is closed.
#[must_use]
pub fn stamp(fd: RawFd) -> Option<Stamp> {
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is writable; any number may be asked for.
    let failed = unsafe { libc::fstat(fd, &raw mut stat) } != 0;
    (!failed).then_some(Stamp(stat.st_dev, stat.st_ino, stat.st_mode))
}

/// Tags an eventfd as one of the shim's.
pub fn tag(eventfd: &OwnedFd) {
    let flags = libc::O_NONBLOCK | libc::O_APPEND;
    // SAFETY: plain numbers.
    unsafe { libc::fcntl(eventfd.as_raw_fd(), libc::F_SETFL, flags) };
}

fn is_tagged(fd: RawFd) -> bool {
    // SAFETY: plain numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

/// The number of a tagged eventfd that is read without a lock, also by a forked child.
#[derive(Debug)]
pub struct Doorbell {
    number: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Doorbell {
    /// An eventfd with this number.
    #[must_use]
    pub fn new(fd: RawFd) -> Doorbell {
        let doorbell = Doorbell {
            number: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        };
        doorbell.set(fd);
        doorbell
    }

    /// Sets the number to `fd`.
    pub fn set(&self, fd: RawFd) {
        self.number.store(-1, Ordering::Release);
        if let Some(Stamp(device, inode, _)) = stamp(fd) {
            self.device.store(device, Ordering::Relaxed);
            self.inode.store(inode, Ordering::Relaxed);
            self.number.store(fd, Ordering::Release);
        }
    }

    /// The number, unless the application has closed it and may have reused it. Async-signal-safe.
    #[must_use]
    pub fn get(&self) -> Option<RawFd> {
        let fd = self.number.load(Ordering::Acquire);
        let Stamp(device, inode, _) = stamp(fd)?;
        let same = device == self.device.load(Ordering::Relaxed)
            && inode == self.inode.load(Ordering::Relaxed);
        (same && is_tagged(fd)).then_some(fd)
    }
}

/// Whether two descriptor numbers of this process refer to one open file: one is a copy of the other. `false`
/// if the kernel does not tell (some sandboxes forbid the call).
#[must_use]
pub fn same_file(one: RawFd, other: RawFd) -> bool {
    /// `KCMP_FILE` of the kernel's `linux/kcmp.h`.
    const FILE: libc::c_int = 0;
    let own = std::process::id() as libc::pid_t;
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, own, own, FILE, one, other) == 0 }
}

/// The address of the socket at `path`. One with a longer path than an address holds is reached through its
/// directory, by a path that lasts as long as the second value.
pub(super) fn address(path: &Path) -> Result<(libc::sockaddr_un, Option<File>)> {
    // SAFETY: all-zero bytes are a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut directory = None;
    let mut path = CString::new(path.as_os_str().as_encoded_bytes())?;
    if path.as_bytes_with_nul().len() > address.sun_path.len() {
        let whole = Path::new(OsStr::from_bytes(path.to_bytes()));
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(parent)?;
        let short = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string()).join(name);
        path = CString::new(short.into_os_string().into_encoded_bytes())?;
        directory = Some(opened);
    }
    let bytes = path.as_bytes_with_nul();
    if bytes.len() > address.sun_path.len() {
        return Err(ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, directory))
}

/// The descriptor that a system call returned, or its error.
///
/// # Safety
/// A descriptor has no other owner.
unsafe fn made(fd: RawFd) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects to a SOCK_SEQPACKET socket, in non-blocking mode afterwards.
///
/// # Errors
/// Of `socket` and `connect`; a daemon whose backlog is full counts as away.
pub fn connect(path: &Path) -> Result<OwnedFd> {
    let (address, _directory) = address(path)?;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain arguments; the kernel makes a descriptor.
    let fd = unsafe { made(libc::socket(libc::AF_UNIX, kind, 0)) }?;
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is a NUL-terminated sockaddr_un of `len` bytes.
    let failed = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } != 0;
    if failed { Err(Error::last_os_error()) } else { Ok(fd) }
}

/// Waits until `fd` is ready for `events`.
///
/// # Errors
/// `TimedOut` at the deadline, else of `poll`.
pub fn wait(fd: RawFd, events: libc::c_short, deadline: Instant) -> Result<()> {
    loop {
        let ms = deadline.since(now()).0.div_ceil(1_000_000);
        let ms = libc::c_int::try_from(ms).unwrap_or(libc::c_int::MAX);
        let mut poll = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one valid pollfd.
        match unsafe { libc::poll(&raw mut poll, 1, ms) } {
            1.. => return Ok(()),
            0 => return Err(ErrorKind::TimedOut.into()),
            _ => {
                let error = Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Sends one frame.
///
/// # Errors
/// Of `send` and [`wait`].
pub fn send(fd: RawFd, frame: &[u8], deadline: Instant) -> Result<()> {
    loop {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: `frame` is readable for its length.
        let sent = unsafe { libc::send(fd, frame.as_ptr().cast(), frame.len(), flags) };
        if sent >= 0 {
            return Ok(());
        }
        let error = Error::last_os_error();
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => wait(fd, libc::POLLOUT, deadline)?,
            _ => return Err(error),
        }
    }
}

/// Room for the control message with [`DESCRIPTORS`] descriptors, aligned as cmsghdr.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Receives one frame and its descriptors; returns the frame's length in bytes.
///
/// # Errors
/// `UnexpectedEof` when the daemon closed, `InvalidData` for a frame longer than `frame`, else of
/// `recvmsg` and [`wait`].
pub fn receive(fd: RawFd, frame: &mut [u8], deadline: Instant) -> Result<(usize, Vec<OwnedFd>)> {
    loop {
        let mut control = ControlBuffer([0; 64]);
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: all-zero bytes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: `message` names one writable buffer and one writable control buffer.
        let got = unsafe { libc::recvmsg(fd, &raw mut message, flags) };
        if got < 0 {
            let error = Error::last_os_error();
            match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => wait(fd, libc::POLLIN, deadline)?,
                _ => return Err(error),
            }
            continue;
        }
        let descriptors = descriptors(&message);
        if got == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(ErrorKind::InvalidData.into());
        }
        return Ok((got as usize, descriptors));
    }
}

/// Takes ownership of all descriptors of a received message.
fn descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    // SAFETY: `message` was filled by recvmsg and its control buffer is alive.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a whole header in the buffer.
        let (level, kind, len) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: arithmetic only.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: `header` is a whole header; its data follows it.
            let data: *const RawFd = unsafe { libc::CMSG_DATA(header) }.cast();
            for at in 0..len.saturating_sub(head) / size_of::<RawFd>() {
                // SAFETY: the kernel wrote that many descriptors, each new and owned by us.
                taken.push(unsafe { OwnedFd::from_raw_fd(data.add(at).read_unaligned()) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    taken
}

/// Checks that the page behind `fd` begins with this magic and version.
///
/// # Errors
/// `InvalidData` when it does not, else of `pread`.
pub fn check_head(fd: &OwnedFd, magic: u64, version: u32) -> Result<()> {
    let mut head = [0u8; 12];
    // SAFETY: `head` is writable for its length.
    let got = unsafe { libc::pread(fd.as_raw_fd(), head.as_mut_ptr().cast(), head.len(), 0) };
    if got == -1 {
        return Err(Error::last_os_error());
    }
    let good = head[..8] == magic.to_ne_bytes() && head[8..] == version.to_ne_bytes();
    if good { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Maps the pages behind `fd`, shared: at a new address, or in place of those at `over`.
///
/// # Errors
/// Of `fstat` and `mmap`; `InvalidData` for a file shorter than they are, which would raise SIGBUS.
pub fn map<T>(fd: &OwnedFd, writable: bool, over: Option<&'static T>) -> Result<&'static T> {
    const { assert!(size_of::<T>().is_multiple_of(PAGE_BYTES) && align_of::<T>() <= PAGE_BYTES) };
    let len = size_of::<T>();
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is writable.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(Error::last_os_error());
    }
    if stat.st_size < len as i64 {
        return Err(ErrorKind::InvalidData.into());
    }
    let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let (at, fixed) = match over {
        Some(page) => (ptr::from_ref(page).cast_mut().cast::<c_void>(), libc::MAP_FIXED),
        None => (ptr::null_mut(), 0),
    };
    // SAFETY: `at` is null, or pages that an earlier call of this function mapped for this type and that are
    // never unmapped; replacing them is atomic, and their contents are atomics only.
    let pages = unsafe { libc::mmap(at, len, prot, libc::MAP_SHARED | fixed, fd.as_raw_fd(), 0) };
    if pages == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // SAFETY: whole pages, mapped for good, of a type that is valid for any bytes (atomics).
    Ok(unsafe { &*pages.cast::<T>() })
}

/// Puts empty memory of this process in place of pages that [`map`] has mapped: what a thread still writes
/// there is read by no other process, and the file behind them can go.
pub fn blank<T>(pages: &'static T) {
    let at = ptr::from_ref(pages).cast_mut().cast::<c_void>();
    let (prot, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: pages as in `map`, whose contents are atomics only. If it fails, they stay as they are.
    unsafe { libc::mmap(at, size_of::<T>(), prot, how | libc::MAP_FIXED, -1, 0) };
}

/// A reference that another one can replace, while other threads use it.
#[derive(Debug)]
pub struct Replaceable<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Replaceable<T> {
    /// This reference, or none.
    pub fn new(to: Option<&'static T>) -> Replaceable<T> {
        Replaceable(AtomicPtr::new(to.map_or(ptr::null_mut(), |it| ptr::from_ref(it).cast_mut())))
    }

    /// Replaces it, in the one order of all sequentially consistent operations.
    pub fn set(&self, to: Option<&'static T>) {
        let to = to.map_or(ptr::null_mut(), |it| ptr::from_ref(it).cast_mut());
        self.0.store(to, SeqCst);
    }

    /// The present one, in the same order.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: it is null, or was a shared reference that is valid for ever.
        unsafe { self.0.load(SeqCst).as_ref() }
    }
}

/// A second mapping of a shared page; unmapped when dropped.
#[derive(Debug)]
pub struct SecondMapping<T>(ptr::NonNull<T>);

// SAFETY: a mapping belongs to no thread; what is in it is reached by shared references alone.
unsafe impl<T: Sync> Send for SecondMapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SecondMapping<T> {}

impl<T> SecondMapping<T> {
    /// Maps the page behind `page` again: this mapping stays when another page is mapped at that address.
    ///
    /// # Errors
    /// Of `mremap`.
    pub fn of(page: &'static T) -> Result<SecondMapping<T>> {
        const { assert!(size_of::<T>() == PAGE_BYTES && align_of::<T>() <= PAGE_BYTES) };
        let old = ptr::from_ref(page).cast_mut().cast::<c_void>();
        // SAFETY: from an old size of 0 the call leaves a shared mapping as it is and makes another one,
        // at an address of the kernel's choice.
        let new = unsafe { libc::mremap(old, 0, PAGE_BYTES, libc::MREMAP_MAYMOVE) };
        match ptr::NonNull::new(new.cast::<T>()) {
            Some(at) if new != libc::MAP_FAILED => Ok(SecondMapping(at)),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }
}

impl<T> core::ops::Deref for SecondMapping<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a whole page, mapped until `self` is dropped, of a type that is valid for any bytes.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for SecondMapping<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no reference to it is left.
        unsafe { libc::munmap(self.address(), PAGE_BYTES) };
    }
}

/// Atomically replaces the file behind the number `old` by that of `new`.
///
/// # Errors
/// Of `dup3`.
pub fn replace(new: &OwnedFd, old: RawFd) -> Result<()> {
    // SAFETY: plain numbers; `old` is ours.
    let done = unsafe { libc::dup3(new.as_raw_fd(), old, libc::O_CLOEXEC) };
    if done == -1 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Increments an eventfd; if its counter is full the write is lost, but the reader is woken anyway.
pub fn ring(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is readable for 8 bytes.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Closes a descriptor number; for the child of a fork, where only plain system calls are allowed.
pub fn close(fd: RawFd) {
    // SAFETY: plain number; the caller gives up the descriptor.
    unsafe { libc::close(fd) };
}

/// Registers `child` to run in every child that this process forks from now on.
pub fn at_fork(child: unsafe extern "C" fn()) {
    // SAFETY: `child` stays mapped: the shim libraries are linked with `-z nodelete`.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

#[cfg(test)]
mod tests;
