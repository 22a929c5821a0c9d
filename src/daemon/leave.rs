//! The end of a process, which is another thing than the end of its connection.
//!
//! # Problem
//! A connection may end while its process goes on: it closed the descriptor, broke a rule, or stopped
//! reading. A process that dies closes its descriptors one after the other, the connection perhaps
//! first and the driver's, whose close takes its memory from the GPU, last. And one that has died may have
//! forked a child that inherited the driver's descriptors: then the driver keeps its memory for as long
//! as that child keeps them. Were the books cleared before the memory is, a sibling would be
//! given what the device does not have.
//!
//! # Idea
//! What a process was granted stays charged until its pidfd says that it is gone: the kernel makes that readable
//! after all descriptors were closed. A forked child has our connection just as it has the driver's
//! descriptors, and loses both by the same means: it closes what it inherited, becomes another program,
//! or ends. So where a process is gone and its connection is still open, the end of that is waited for too.
//! An account that is waited for in either way is *absent*; the next connection of its process takes
//! it over.
//!
//! What this does not see: a child that was forked before its parent connected anew, as after a restart of the daemon,
//! has a connection that tells nothing any more. On a kernel without pidfds (before 5.3) the end of
//! the connection is all there is.

use crate::daemon::{Daemon, Work};
use crate::poll::Source;
use crate::slots::Key;
use crate::sockets::Socket;
use crate::tenants::Tenant;
use gpuslice_engine::{Event, Process};
use gpuslice_wire::ids::{ClientId, ContainerId};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What ends an account without a connection.
#[derive(Debug)]
pub enum Until {
    /// The end of its process, which lives.
    Exit(OwnedFd),
    /// The end of a connection whose process is gone: something else has it open.
    Close(Socket),
}

/// An account of the engine whose process has no connection.
#[derive(Debug)]
pub struct Absent {
    /// Whose.
    pub container: ContainerId,
    /// The engine's name for it.
    pub client: ClientId,
    /// Which process it is, if that is known.
    pub process: Option<Process>,
    /// What it waits for.
    pub until: Until,
}

/// A process with an account of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process with a connection.
    Tenant(Key),
    /// One without.
    Absent(Key),
}

/// Whether the process of a pidfd is gone.
pub fn gone(pidfd: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(pidfd, PollFlags::POLLIN)];
    // Not to be told is to be told that it is: nothing is waited for without end.
    poll(&mut watched, PollTimeout::ZERO).map_or(true, |ready| ready > 0)
}

/// Whether no process has the other end of a connection any more.
pub fn hung_up(connection: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(connection, PollFlags::empty())];
    let over = PollFlags::POLLHUP | PollFlags::POLLERR;
    // As above.
    poll(&mut watched, PollTimeout::ZERO).is_err()
        || watched[0]
            .revents()
            .is_none_or(|events| events.intersects(over))
}

impl Until {
    /// What is to be waited for at the end of a connection; nothing where nothing holds memory.
    fn of(tenant: Tenant) -> Option<Until> {
        let (pidfd, connection) = tenant.into_parts();
        let pidfd = pidfd?;
        if !gone(pidfd.as_fd()) {
            Some(Until::Exit(pidfd))
        } else {
            (!hung_up(connection.as_fd())).then_some(Until::Close(connection))
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Until::Exit(pidfd) => gone(pidfd.as_fd()),
            Until::Close(connection) => hung_up(connection.as_fd()),
        }
    }
}

impl Absent {
    /// Its number, while the process lives; 0 if it has none here.
    pub fn pid(&self) -> Option<u32> {
        let lives = matches!(self.until, Until::Exit(_));
        lives.then(|| self.process.map_or(0, |process| process.pid))
    }
}

impl Daemon {
    /// A process's connection ends, and perhaps the process.
    pub fn part(&mut self, key: Key) {
        let Some(tenant) = self.remove_tenant(key) else {
            return;
        };
        if let Some(client) = tenant.client() {
            self.keep_account(client, tenant);
        }
    }

    /// What a process was granted stays charged for as long as it may have it.
    pub fn keep_account(&mut self, client: ClientId, tenant: Tenant) {
        let (container, process) = (tenant.container(), tenant.process());
        let Some(until) = Until::of(tenant) else {
            return self.work.push_back(Work::Tell(Event::Gone { client }));
        };
        let absent = Absent {
            container,
            client,
            process,
            until,
        };
        match self.watch_absent(absent, true) {
            Ok(()) => self.work.push_back(Work::Tell(Event::Left { client })),
            Err(why) => {
                tracing::error!(%container, why, "the end of a process will not be seen; its memory is not charged any more");
                self.work.push_back(Work::Tell(Event::Gone { client }));
            }
        }
    }

    /// Waits for the end of a process that has no connection yet.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn wait_for(
        &mut self,
        container: ContainerId,
        client: ClientId,
        process: Process,
        pidfd: OwnedFd,
    ) -> Result<(), &'static str> {
        let absent = Absent {
            container,
            client,
            process: Some(process),
            until: Until::Exit(pidfd),
        };
        self.watch_absent(absent, false)
    }

    /// Waits for what ends an account; `known` is what was watched before.
    fn watch_absent(&mut self, absent: Absent, known: bool) -> Result<(), &'static str> {
        let client = absent.client;
        let key = self.absent.insert(absent);
        let key = key.map_err(|_| "more accounts than there can be")?;
        let watched = match self.absent.get(key).map(|it| &it.until) {
            Some(Until::Exit(pidfd)) if !known => self.poll.add(pidfd, Source::Absent(key)),
            Some(Until::Exit(pidfd)) => self.poll.watch_on(pidfd, Source::Absent(key), true),
            Some(Until::Close(fd)) => self.poll.watch_on(fd, Source::Absent(key), false),
            None => Ok(()),
        };
        if watched.is_err() {
            self.absent.remove(key);
            return Err("no memory to watch it");
        }
        self.clients[usize::from(client.slot)] = Some((client, Holder::Absent(key)));
        Ok(())
    }

    /// Something about an account without a connection.
    pub fn absent_ready(&mut self, key: Key) {
        let absent = self.absent.get(key);
        if absent.is_some_and(|it| it.until.is_over())
            && let Some(client) = self.forget_absent(key)
        {
            self.work.push_back(Work::Tell(Event::Gone { client }));
        }
    }

    /// The engine knows the account no more.
    pub fn forget_absent(&mut self, key: Key) -> Option<ClientId> {
        let absent = self.absent.remove(key)?;
        self.free_client(absent.client);
        Some(absent.client)
    }

    /// How many accounts without a connection a container has.
    pub fn absent_of(&self, container: &ContainerId) -> usize {
        let all = self.absent.iter();
        all.filter(|(_, it)| it.container == *container).count()
    }

    /// Whether a process of a container has one.
    pub fn is_absent(&self, container: &ContainerId, process: Option<Process>) -> bool {
        let mut all = self.absent.iter();
        process.is_some() && all.any(|(_, it)| it.container == *container && it.process == process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
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

    #[test]
    fn a_connection_is_open_while_anybody_has_its_other_end() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (ours, theirs) = pair.expect("a pair");
        let inherited = theirs.try_clone().expect("a copy");
        nix::unistd::write(&theirs, b"unread").expect("sent");
        drop(theirs);
        assert!(!hung_up(ours.as_fd()));
        drop(inherited);
        assert!(hung_up(ours.as_fd()));
    }
}
