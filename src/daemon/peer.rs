//! Who is at the other end of a socket, as the kernel says; and the second, last room with unsafe.
//!
//! A pid can be given to another process while it is being looked at. A pidfd cannot: so the
//! connector's pidfd is taken from the socket, its cgroup is read under its pid, and only if the
//! pidfd still names a living process afterwards is the answer about the right one. The pidfd is
//! kept for as long as the connection: it tells of the process's end even where a child of it
//! inherited the socket.
//!
//! A kernel before 6.5 gives no pidfd with the socket. There it is opened by the number, and then
//! the socket must still have its other end: as long as the connector has not closed that, its number
//! is no other process's. Where a child of it has kept that end open and the number went round
//! meanwhile, it is a process of the same container that is taken for it; and an account
//! ends no sooner than the connection (`leave.rs`).

#![allow(unsafe_code)]

use crate::cgroup;
use crate::exit_watch::start_time;
use crate::lingering::{has_exited, hung_up};
use gpuslice_engine::Process;
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Option of Linux 6.5 and later; not yet in libc for every target.
const SO_PEERPIDFD: libc::c_int = 77;
/// Of a cgroup's name this much is kept, bytes.
const CGROUP_BYTES_MAX: usize = 256;

/// A peer.
#[derive(Debug)]
pub struct Peer {
    /// Process id in the daemon's namespace; 0 if it has none there.
    pub pid: i32,
    /// User id in the daemon's namespace.
    pub uid: u32,
    /// The process itself; absent on kernels that cannot tell.
    pub pidfd: Option<OwnedFd>,
}

impl Peer {
    /// Who connected this socket.
    ///
    /// # Errors
    /// Not a connected Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> nix::Result<Peer> {
        let creds = getsockopt(&socket, PeerCredentials)?;
        let pidfd = peer_pidfd(socket).or_else(|| pidfd_by_number(socket, creds.pid()));
        Ok(Peer {
            pid: creds.pid(),
            uid: creds.uid(),
            pidfd,
        })
    }

    /// Which process it is, if it lives and has a number here.
    pub fn process(&self) -> Option<Process> {
        let pid = u32::try_from(self.pid).ok().filter(|&pid| pid > 0)?;
        let process = Process {
            pid,
            born: start_time(pid)?,
        };
        // What was read is of the process of this pidfd only if that still lives.
        let lives = !has_exited(self.pidfd.as_ref()?.as_fd());
        lives.then_some(process)
    }

    /// The peer's cgroup, if it can be known for certain; what is not plain in it is escaped.
    pub fn cgroup(&self) -> Option<String> {
        let pidfd = self.pidfd.as_ref()?;
        let text = fs::read(format!("/proc/{}/cgroup", self.pid)).ok()?;
        let first = || text.split(|byte| *byte == b'\n').next();
        let name = cgroup::unified(&text).or_else(first)?;
        let alive = pid_of(pidfd.as_fd()) == Some(self.pid.unsigned_abs());
        let shown = &name[..name.len().min(CGROUP_BYTES_MAX)];
        alive.then(|| shown.escape_ascii().to_string())
    }

    /// Whether its number is still its own, as far as this kernel can tell.
    pub fn is_alive(&self) -> bool {
        let its = |pidfd: &OwnedFd| pid_of(pidfd.as_fd()) == Some(self.pid.unsigned_abs());
        self.pidfd.as_ref().is_none_or(its)
    }

    /// Whether there is no process of its number any more.
    pub fn has_ended(&self) -> bool {
        !Path::new("/proc").join(self.pid.to_string()).exists()
    }
}

/// The number of a process by its pidfd, while it lives.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok() // -1 once it has ended
}

/// A process by its number.
///
/// # Errors
/// `ESRCH`: there is none; or the kernel cannot tell, or no descriptor is left.
pub fn process(pid: u32) -> nix::Result<OwnedFd> {
    // SAFETY: two numbers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: on success the kernel made this descriptor for us, and nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The connector's, where the kernel does not give it with the socket.
fn pidfd_by_number(socket: BorrowedFd<'_>, pid: i32) -> Option<OwnedFd> {
    let pid = u32::try_from(pid).ok().filter(|&pid| pid > 0)?;
    let pidfd = process(pid).ok()?;
    (!hung_up(socket) && !has_exited(pidfd.as_fd())).then_some(pidfd)
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the two pointers are to live locals of the sizes the kernel is told.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut size,
        )
    };
    // SAFETY: on success the kernel made this descriptor for us, and nobody else closes it.
    (rc == 0 && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    #[test]
    fn a_peer_is_the_process_that_made_the_pair() {
        let (a, _b) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .expect("a pair");
        let peer = Peer::of(a.as_fd()).expect("creds");
        assert_eq!(peer.pid, std::process::id() as i32);
        if peer.pidfd.is_some() {
            let own = fs::read_to_string("/proc/self/cgroup").expect("cgroup");
            assert!(own.contains(&peer.cgroup().expect("alive")));
        }
    }

    #[test]
    fn without_the_kernels_help_a_peer_is_found_by_its_number_while_it_is_there() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (ours, theirs) = pair.expect("a pair");
        let own = std::process::id();
        let pidfd = pidfd_by_number(ours.as_fd(), own as i32).expect("it is there");
        assert!(!has_exited(pidfd.as_fd()));
        let peer = Peer {
            pid: own as i32,
            uid: 0,
            pidfd: Some(pidfd),
        };
        let born = start_time(own).expect("we live");
        assert_eq!(peer.process(), Some(Process { pid: own, born }));
        assert!(pidfd_by_number(ours.as_fd(), 0).is_none());
        assert!(pidfd_by_number(ours.as_fd(), i32::MAX).is_none());
        drop(theirs);
        assert!(
            pidfd_by_number(ours.as_fd(), own as i32).is_none(),
            "the number may be another's by now"
        );
    }
}
