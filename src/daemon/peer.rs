//! Identifies the process at the other end of a socket, as the kernel reports it.
//!
//! The kernel can reuse a pid while it is being examined, but not a pidfd. So the peer's pidfd is taken from
//! the socket, and its cgroup is read by pid; the result counts only if the pidfd then still names a running
//! process. The pidfd is kept as long as the connection: it reports the process's exit even if a child
//! inherited the socket.
//!
//! A kernel before 6.5 gives no pidfd with the socket. There the pidfd is opened by pid, and the socket's other
//! end must still be open afterwards: as long as the peer has not closed it, the kernel cannot reuse its pid.
//! If another process keeps that end open and the pid is reused before the daemon accepts, the daemon takes the
//! new process for the peer; and a client never ends before its connection (`clients/lingering.rs`).
//!
//! A kernel that has pidfds of peers refuses the one of a process that is gone (until 6.16). Such a peer is
//! refused: its pid may be a member's by now.

use gpuslice_engine::Process;
use gpuslice_host::cgroup;
use gpuslice_host::process::{exists, has_exited, login_uid, pid_of, pidfd_open, start_time};
use gpuslice_host::seqpacket::hung_up;
use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest part of a cgroup's name that is kept, bytes.
const CGROUP_BYTES_MAX: usize = 256;

/// The process and the user behind a command.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Process id in the daemon's namespace; 0 if it has none there.
    pub pid: i32,
    /// User id in the daemon's namespace.
    pub uid: u32,
    /// The user that logged in, which `sudo` does not change.
    pub login_uid: Option<u32>,
}

/// The process at the other end of a socket.
#[derive(Debug)]
pub struct Peer {
    /// Process id in the daemon's namespace; 0 if it has none there.
    pub pid: i32,
    /// User id in the daemon's namespace.
    pub uid: u32,
    /// Its pidfd; `None` on kernels that cannot give one, and before 6.5 for a process without a pid here.
    pub pidfd: Option<OwnedFd>,
}

impl Peer {
    /// The process that connected this socket.
    ///
    /// # Errors
    /// Not a connected Unix socket; the process is gone; no descriptor is left.
    pub fn of(socket: BorrowedFd<'_>) -> nix::Result<Peer> {
        let creds = getsockopt(&socket, PeerCredentials)?;
        let by_number = || pidfd_by_number(socket, creds.pid());
        let pidfd = pidfd_of_peer(getsockopt(&socket, PeerPidfd), by_number)?;
        Ok(Peer { pid: creds.pid(), uid: creds.uid(), pidfd })
    }

    /// The process as one that asks for something; its login counts only if its pid is still its own.
    pub fn asker(&self) -> Asker {
        let login_uid = login_uid(self.pid).filter(|_| self.is_alive());
        Asker { pid: self.pid, uid: self.uid, login_uid }
    }

    /// Pid and start time, if the process runs and has a pid in the daemon's namespace.
    pub fn process(&self) -> Option<Process> {
        let pid = u32::try_from(self.pid).ok().filter(|&pid| pid > 0)?;
        let process = Process { pid, born: start_time(pid)? };
        // The start time belongs to the process of this pidfd only if that still runs.
        let lives = !has_exited(self.pidfd.as_ref()?.as_fd());
        lives.then_some(process)
    }

    /// The peer's cgroup, if it is certain; bytes that are not printable are escaped.
    pub fn cgroup(&self) -> Option<String> {
        let pidfd = self.pidfd.as_ref()?;
        let text = cgroup::text_of(self.pid);
        let first = || text.split(|byte| *byte == b'\n').find(|line| !line.is_empty());
        let name = cgroup::unified(&text).or_else(first)?;
        let alive = pid_of(pidfd.as_fd()) == Some(self.pid.unsigned_abs());
        let shown = &name[..name.len().min(CGROUP_BYTES_MAX)];
        alive.then(|| shown.escape_ascii().to_string())
    }

    /// Whether its pid still belongs to it, as far as this kernel can tell.
    pub fn is_alive(&self) -> bool {
        let its = |pidfd: &OwnedFd| pid_of(pidfd.as_fd()) == Some(self.pid.unsigned_abs());
        self.pidfd.as_ref().is_none_or(its)
    }

    /// Whether no process has its pid any more.
    pub fn has_ended(&self) -> bool {
        !exists(self.pid.unsigned_abs())
    }
}

/// The peer's pidfd: the one that the kernel gave with the socket, or where it has none for any socket, the one by
/// number. `None` where the kernel has no pidfds at all.
fn pidfd_of_peer(
    given: nix::Result<OwnedFd>,
    by_number: impl FnOnce() -> nix::Result<Option<OwnedFd>>,
) -> nix::Result<Option<OwnedFd>> {
    match given {
        Ok(pidfd) => Ok(Some(pidfd)),
        // What a kernel answers that does not know the option. Others, EINVAL or ESRCH, are of a process that is gone.
        Err(Errno::ENOPROTOOPT) => by_number(),
        Err(why) => Err(why),
    }
}

/// The peer's pidfd by its pid, if it still runs; `None` if it has no pid here, or the kernel has no pidfds (before
/// 5.3).
fn pidfd_by_number(socket: BorrowedFd<'_>, pid: i32) -> nix::Result<Option<OwnedFd>> {
    let Some(pid) = u32::try_from(pid).ok().filter(|&pid| pid > 0) else {
        return Ok(None);
    };
    let pidfd = match pidfd_open(pid) {
        Err(Errno::ENOSYS) => return Ok(None),
        pidfd => pidfd?,
    };
    if hung_up(socket) || has_exited(pidfd.as_fd()) {
        return Err(Errno::ESRCH);
    }
    Ok(Some(pidfd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_host::seqpacket::pair;

    #[test]
    fn a_peer_is_the_process_that_made_the_pair() {
        let (a, _b) = pair().expect("a pair");
        let peer = Peer::of(a.as_fd()).expect("creds");
        assert_eq!(peer.pid, std::process::id() as i32);
        if peer.pidfd.is_some() {
            let own = std::fs::read_to_string("/proc/self/cgroup").expect("cgroup");
            assert!(own.contains(&peer.cgroup().expect("alive")));
        }
    }

    #[test]
    fn without_a_pidfd_from_the_socket_a_running_peer_is_found_by_pid() {
        let (ours, theirs) = pair().expect("a pair");
        let own = std::process::id();
        let by_number = |pid| pidfd_by_number(ours.as_fd(), pid);
        let pidfd = by_number(own as i32).expect("it is there").expect("this kernel has pidfds");
        assert!(!has_exited(pidfd.as_fd()));
        let peer = Peer { pid: own as i32, uid: 0, pidfd: Some(pidfd) };
        let born = start_time(own).expect("this process runs");
        assert_eq!(peer.process(), Some(Process { pid: own, born }));
        assert!(by_number(0).expect("it may have none here").is_none());
        assert_eq!(by_number(i32::MAX).err(), Some(Errno::ESRCH));
        drop(theirs);
        assert_eq!(by_number(own as i32).err(), Some(Errno::ESRCH), "the pid may have been reused");
    }

    /// What kernels answer for a process that is gone: 6.5 to 6.15.
    #[test]
    fn a_peer_that_is_gone_is_not_looked_for_by_number() {
        for gone in [Errno::EINVAL, Errno::ESRCH, Errno::EMFILE] {
            let found = pidfd_of_peer(Err(gone), || panic!("it was"));
            assert_eq!(found.err(), Some(gone));
        }
        let found = pidfd_of_peer(Err(Errno::ENOPROTOOPT), || Ok(None));
        assert!(found.is_ok_and(|pidfd| pidfd.is_none()), "a kernel before 5.3");
    }
}
