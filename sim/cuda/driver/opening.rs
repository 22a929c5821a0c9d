//! What a driver's first call asks of the operating system, beside its devices.
//!
//! A real `cuInit` makes an abstract socket on which the process offers its descriptor of unified memory to others,
//! and names a thread of its own through /proc. Where the system refuses one of these, the call answers
//! CUDA_ERROR_OPERATING_SYSTEM, as driver 580.159.04 did in a process that may not listen. A sandbox that forbids them
//! must fail with the simulated driver, too. The names are those that rules of other sandboxes permit: snapd's for
//! AppArmor have `@cuda-uvmfd-[0-9a-f]*`, of which the digits are the pid namespace and the pid.

use gpuslice_nvabi::types::CUresult;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Connections that may wait.
const WAITING: i32 = 16;

/// What stays open as long as the process.
#[derive(Debug)]
pub struct Opening {
    _offer: OwnedFd,
}

impl Opening {
    /// Does all of it.
    ///
    /// # Errors
    /// The system refuses something.
    pub fn new() -> Result<Opening, CUresult> {
        let opened = name_thread().and_then(|()| offer());
        opened.map(|_offer| Opening { _offer }).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    }
}

/// Writes the calling thread's name, which stays as it was: a real driver names a thread that it starts.
fn name_thread() -> io::Result<()> {
    // Which is /proc/self/task/TID/comm, also where /proc counts in another pid namespace.
    let path = "/proc/thread-self/comm";
    let name = fs::read(path)?;
    // Read, it has a line's end; written, that would become a part of it.
    OpenOptions::new().write(true).open(path)?.write_all(name.trim_ascii_end())
}

/// The socket: bound to the process's name, listening. Nothing connects to it here.
fn offer() -> io::Result<OwnedFd> {
    let space = fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned();
    let space: String = space.chars().filter(char::is_ascii_digit).collect();
    let name = format!("\0cuda-uvmfd-{space}-{}\0", std::process::id());
    // SAFETY: plain numbers.
    let socket =
        unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the structure is valid as zeros.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + name.len();
    debug_assert!(len <= size_of::<libc::sockaddr_un>());
    // SAFETY: `len` bytes of a live structure.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len as u32) };
    // SAFETY: plain numbers.
    if bound != 0 || unsafe { libc::listen(socket.as_raw_fd(), WAITING) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
