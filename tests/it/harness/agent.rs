//! A process of its own that connects where it is told to, and hands its connections over.
//!
//! Whose memory is charged, and until when, depends on which process connected, where that is, and whether it
//! lives. So a test that is about that needs processes that it can place, end, stop and outlive. An agent is
//! a fork of the test that makes system calls and nothing else: it keeps no descriptor but the one
//! through which it is told.

use super::wire::{Connection, Heard, TenantClient};
use gpuslice_host::seqpacket;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Longer than any path of a socket.
const PATH_BYTES_MAX: usize = 108;

/// Killed when dropped.
pub struct Agent {
    pid: Pid,
    to: Connection,
}

impl Agent {
    /// Starts one.
    pub fn start() -> Agent {
        Agent::start_after(|| Ok(()))
    }

    /// Starts one that first does something that changes where or who it is.
    pub fn start_after(change: impl FnOnce() -> io::Result<()>) -> Agent {
        let (to, from) = seqpacket::pair().expect("a pair");
        // SAFETY: the child only makes system calls, see `serve`.
        match unsafe { fork() }.expect("a process") {
            ForkResult::Child => match change() {
                Ok(()) => serve(from.as_raw_fd()),
                // SAFETY: ends this process alone.
                Err(_) => unsafe { libc::_exit(1) },
            },
            ForkResult::Parent { child } => Agent { pid: child, to: Connection::of(to) },
        }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// It connects to this socket.
    pub fn connect(&self, socket: &Path) -> Connection {
        self.try_connect(socket).expect("it could connect")
    }

    /// The same where it may not be able to.
    pub fn try_connect(&self, socket: &Path) -> Option<Connection> {
        let path = socket.as_os_str().as_bytes();
        assert!(path.len() < PATH_BYTES_MAX, "a short path");
        self.to.send_raw(path, &[]).expect("it listens");
        handed(&self.to)
    }

    /// The same, as a process in a slice that outlives this connection.
    pub fn tenant(&self, socket: &Path) -> TenantClient {
        TenantClient(self.connect(socket), None)
    }

    /// Kills it and waits until it is gone.
    pub fn end(self) {}
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = kill(self.pid, Signal::SIGKILL);
        let gone = |status| matches!(status, WaitStatus::Signaled(..) | WaitStatus::Exited(..));
        while !waitpid(self.pid, Some(WaitPidFlag::empty())).map_or(true, gone) {}
    }
}

/// The connection of a program that connects before it begins.
pub struct Promised(Connection);

impl Promised {
    /// The program of this command connects to the socket, and hands the connection over, as its first act.
    pub fn by(command: &mut Command, socket: &Path) -> Promised {
        let (ours, theirs) = seqpacket::pair().expect("a pair");
        let path = socket.as_os_str().as_bytes().to_vec();
        assert!(path.len() < PATH_BYTES_MAX, "a short path");
        let connect = move || {
            let mut address = unnamed();
            for (to, from) in address.sun_path.iter_mut().zip(&path) {
                *to = *from as libc::c_char;
            }
            connect_for(theirs.as_raw_fd(), &address);
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(connect) };
        Promised(Connection::of(ours))
    }

    /// Once the program was started.
    pub fn tenant(self) -> TenantClient {
        TenantClient(handed(&self.0).expect("it could connect"), None)
    }
}

/// The connection that it hands over, if it could connect.
fn handed(by: &Connection) -> Option<Connection> {
    match by.hear() {
        Heard::Packet(_, mut fds) => fds.pop().map(Connection::of),
        Heard::End => panic!("it is gone"),
    }
}

fn unnamed() -> libc::sockaddr_un {
    // SAFETY: all-zero bytes are an address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    address
}

/// Connects, and hands the connection over.
fn connect_for(to: RawFd, address: &libc::sockaddr_un) {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: plain numbers; an address that lives; and the number is closed once it was sent.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        let connected = libc::connect(fd, std::ptr::from_ref(address).cast(), size) == 0;
        hand_over(to, connected.then_some(fd));
        libc::close(fd);
    }
}

/// The agent itself. Where other threads may have held any lock, only system calls are allowed.
fn serve(from: RawFd) -> ! {
    // SAFETY: plain numbers; what is closed here is of this process alone.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, from - 1, 0);
        libc::syscall(libc::SYS_close_range, from + 1, u32::MAX, 0);
    }
    loop {
        let mut address = unnamed();
        let path = (&raw mut address.sun_path).cast();
        // SAFETY: the path's place is writable for its length, and stays closed by a zero.
        let heard = unsafe { libc::recv(from, path, PATH_BYTES_MAX - 1, 0) };
        if heard <= 0 {
            // SAFETY: ends this process alone.
            unsafe { libc::_exit(0) };
        }
        connect_for(from, &address);
    }
}

/// Sends a byte, and a descriptor with it if there is one.
fn hand_over(to: RawFd, fd: Option<RawFd>) {
    let mut byte = 1u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 8];
    // SAFETY: all-zero bytes are a message without parts.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if let Some(fd) = fd {
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: arithmetic; and the control buffer has room for one header and one descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        }
    }
    // SAFETY: the message and all that it names live.
    unsafe { libc::sendmsg(to, &raw const message, libc::MSG_NOSIGNAL) };
}
