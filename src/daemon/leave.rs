//! The end of a process, which takes longer than the end of its connection.
//!
//! # Problem
//! When a process dies, the kernel closes its descriptors one after the other: first, perhaps, the
//! connection to us, later the driver's, whose close takes the process's memory from the GPU. Were
//! the books cleared at the first, a sibling could be given what the device does not have yet.
//!
//! # Idea
//! A connection that ended wants nothing and runs nothing any more, at once. What its process
//! holds stays charged until the process is gone altogether, which its pidfd tells: the kernel makes that
//! readable after all descriptors were closed. A process that lives on, because it only closed
//! our number or became another program, is waited for no longer than [`EXIT_WAIT_NS`]; one that
//! attaches anew is not waited for at all.

use crate::daemon::Daemon;
use crate::poll::now;
use crate::slots::Key;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::EXIT_WAIT_NS;
use gpuslice_wire::units::{Duration, Instant};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;

/// Whether the process of a pidfd is gone.
pub fn gone(pidfd: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(pidfd, PollFlags::POLLIN)];
    // Not to be told is to be told that it is: nothing is waited for without end.
    poll(&mut watched, PollTimeout::ZERO).map_or(true, |ready| ready > 0)
}

impl Daemon {
    /// A process's connection ended by itself.
    pub fn leave(&mut self, key: Key) {
        let Some(tenant) = self.tenants.get_mut(key) else {
            return;
        };
        let dying = tenant.is_attached() && tenant.pidfd().is_some_and(|pidfd| !gone(pidfd));
        if !dying || self.poll.forget(tenant.connection()).is_err() {
            return self.drop_tenant(key);
        }
        tenant.leaving = true;
        self.leaving
            .push_back((now().plus(Duration(EXIT_WAIT_NS)), key));
        self.read_claims(key); // which now say that it wants nothing
    }

    /// A process of a container attaches: an earlier connection of its own need not be waited for.
    pub fn came_back(&mut self, container: &ContainerId, pid: i32) {
        let of_it = |key: &Key| {
            let tenant = self.tenants.get(*key);
            tenant.is_some_and(|it| it.leaving && it.is_process(container, pid))
        };
        let old: Vec<Key> = self.leaving.iter().map(|(_, key)| *key).collect();
        for key in old.into_iter().filter(of_it).collect::<Vec<_>>() {
            self.drop_tenant(key);
        }
    }

    /// When the first one has been waited for long enough.
    pub fn leave_deadline(&self) -> Option<Instant> {
        self.leaving.front().map(|(by, _)| *by)
    }

    /// Gives up waiting for those whose time is over.
    pub fn leave_due(&mut self, now: Instant) {
        while let Some((by, key)) = self.leaving.front().copied()
            && by <= now
        {
            self.leaving.pop_front();
            self.drop_tenant(key); // finds nobody, mostly
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, fork, pause};
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    #[test]
    #[allow(unsafe_code)]
    fn a_process_is_gone_when_it_died() {
        // SAFETY: the child only waits for its signal.
        let child = match unsafe { fork() }.expect("a process") {
            ForkResult::Child => loop {
                pause();
            },
            ForkResult::Parent { child } => child,
        };
        // SAFETY: a plain system call, whose result is a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.as_raw(), 0) };
        assert!(fd >= 0, "a pidfd");
        // SAFETY: fresh from the kernel, nobody else's.
        let pidfd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        assert!(!gone(pidfd.as_fd()));
        kill(child, Signal::SIGKILL).expect("it lives");
        waitpid(child, None).expect("it dies");
        assert!(gone(pidfd.as_fd()));
    }
}
