//! Closes connections in a helper process, on kernels whose sockets cannot refuse descriptors (before Linux 6.16).
//!
//! # Problem
//! A process can send a descriptor that the daemon never receives. The kernel closes it together with
//! the socket in which it waits, on the thread that closes the socket. That close can take as long as the
//! sender likes: a TCP connection that lingers waits for its peer; a file of a FUSE server waits for that
//! server, and SIGKILL does not end this wait. (Before Linux 6.8, closing any Unix socket can also
//! collect unreachable sockets of other processes, with the same effect.) The thread that gives turns
//! must not wait for that. Nor may another thread of the daemon: a process ends only when all its threads
//! have ended, and until then it holds the lock of its runtime directory.
//!
//! # Idea
//! A socket to be closed is shut down at once, so that its peer sees the end, and is handed to a child
//! process (a *helper*), which closes it. The helper waits until the daemon has closed its own copy;
//! otherwise the daemon's close could be the last. A helper that takes longer than [`STUCK_AFTER`] is
//! killed, which ends every wait except the one for a FUSE server, and another helper takes over. At most
//! [`HELPERS_MAX`] helpers work, and at most [`HELPERS_PER_OWNER`] of them for one container at a time, those
//! included that are killed and do not end. Containers are served in turn, one socket each. So a container that
//! blocks its helpers delays its own sockets: they wait, open but shut down, and beyond [`BEHIND`] of them
//! none of its connections is accepted. Another container's socket waits for one of each such container at most.

// For the code between fork and exec.
#![allow(unsafe_code)]

use crate::descriptors::stops_blocking;
use crate::log_limit::LogLimit;
use crate::poll::{Source, Watch};
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::{Duration, Instant};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, recv, recvmsg, sendmsg, shutdown,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

/// Helpers that work at a time.
const HELPERS_MAX: usize = 8;
/// Helpers at a time, including killed ones that have not ended yet: more of these only if so many containers have
/// FUSE servers that do not answer.
const ALL_MAX: usize = 24;
/// Helpers that work for one owner at a time.
const HELPERS_PER_OWNER: usize = 2;
/// How long a helper may take to close a socket. It normally takes microseconds.
const STUCK_AFTER: Duration = Duration(1_000_000_000);
/// How long after a failed hand-over the next one is tried.
const AGAIN_AFTER: Duration = Duration(100_000_000);
/// Waiting sockets of one owner from which on no connection of it is accepted.
const BEHIND: usize = 16;
/// Sockets in one message; the kernel takes up to 253.
const TOGETHER_MAX: usize = 128;

/// Descriptors that a [`SocketCloser`] needs for its helpers.
pub const DESCRIPTORS: u64 = ALL_MAX as u64;

/// The peers for which a socket is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOwner {
    /// Clients of the admin socket.
    Admins,
    /// Clients of the observers' socket.
    Observers,
    /// Agents of the node.
    Agents,
    /// The processes of a container.
    Container(ContainerId),
}

/// See the file's head. All clones are the same one.
#[derive(Clone, Debug)]
pub struct SocketCloser(Rc<RefCell<Closings>>);

#[derive(Debug)]
struct Closings {
    watch: Watch,
    helpers: Vec<Helper>,
    /// Helpers that have closed their channel, until they can be reaped.
    gone: Vec<Child>,
    /// Sockets to be closed, oldest first, by owner; the owner that is served next is the first one.
    waiting: VecDeque<(SocketOwner, VecDeque<OwnedFd>)>,
    /// When the next hand-over is tried, after one failed.
    again: Option<Instant>,
    /// Stuck helpers.
    stuck: LogLimit,
}

/// A child process that closes sockets.
#[derive(Debug)]
struct Helper {
    process: Child,
    channel: OwnedFd,
    /// For which owner it closes a socket, and since when.
    busy: Option<(SocketOwner, Instant)>,
    killed: bool,
}

impl SocketCloser {
    /// A closer without helpers. `watch` is the set in which sockets and helpers are watched.
    pub fn new(watch: Watch) -> SocketCloser {
        SocketCloser(Rc::new(RefCell::new(Closings {
            watch,
            helpers: Vec::new(),
            gone: Vec::new(),
            waiting: VecDeque::new(),
            again: None,
            stuck: LogLimit::default(),
        })))
    }

    /// Starts the first helper now, so that it exists when descriptors or memory run out.
    ///
    /// # Errors
    /// The helper cannot be started.
    pub fn prepare(&self) -> io::Result<()> {
        self.0.borrow_mut().start()
    }

    /// Ends a connection or stops listening at once, and closes the socket later.
    pub fn close(&self, owner: SocketOwner, fd: OwnedFd) {
        let mut closings = self.0.borrow_mut();
        // Otherwise it is watched as long as any process has it open. It may not be watched at all.
        let _ = closings.watch.forget(&fd);
        // Fails on a socket that is no longer connected, which is as good.
        let _ = shutdown(fd.as_raw_fd(), Shutdown::Both);
        match closings.waiting.iter_mut().find(|(whose, _)| *whose == owner) {
            Some((_, its)) => its.push_back(fd),
            None => closings.waiting.push_back((owner, VecDeque::from([fd]))),
        }
        closings.hand_over();
    }

    /// Whether too many sockets of an owner wait to be closed.
    pub fn is_behind(&self, owner: SocketOwner) -> bool {
        let closings = self.0.borrow();
        let its = closings.waiting.iter().find(|(whose, _)| *whose == owner);
        its.is_some_and(|(_, its)| its.len() >= BEHIND)
    }

    /// Handles a helper that has closed its socket or has ended.
    pub fn read_helper_answers(&self) {
        let mut closings = self.0.borrow_mut();
        closings.reap_helpers();
        closings.hand_over();
    }

    /// When [`SocketCloser::due`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let closings = self.0.borrow();
        let stuck = closings.helpers.iter().filter_map(Helper::stuck_at);
        stuck.chain(closings.again).min()
    }

    /// Kills helpers that are stuck, and repeats a failed hand-over.
    pub fn due(&self, now: Instant) {
        let mut closings = self.0.borrow_mut();
        closings.kill_stuck(now);
        if closings.again.is_some_and(|at| at <= now) {
            closings.hand_over();
        }
    }

    /// Leaves all waiting sockets to one helper, which ends with the daemon.
    pub fn finish(&self) {
        let mut closings = self.0.borrow_mut();
        if !closings.waiting.is_empty() && closings.helpers.iter().all(|it| it.killed) {
            // Without a helper this process closes them.
            let _ = closings.start();
        }
        let waiting: Vec<OwnedFd> = closings.waiting.drain(..).flat_map(|(_, its)| its).collect();
        if let Some(helper) = closings.helpers.iter().rfind(|it| !it.killed) {
            for part in waiting.chunks(TOGETHER_MAX) {
                let _ = helper.give(part);
            }
            drop(waiting);
            let _ = helper.send(&[]);
        }
    }
}

impl Closings {
    fn start(&mut self) -> io::Result<()> {
        let helper = Helper::start()?;
        self.watch.add(&helper.channel, Source::Closer)?;
        self.helpers.push(helper);
        Ok(())
    }

    fn kill_stuck(&mut self, now: Instant) {
        for helper in &mut self.helpers {
            if helper.stuck_at().is_none_or(|at| at > now) {
                continue;
            }
            helper.kill();
            if let Some((owner, _)) = helper.busy
                && let Some(count) = self.stuck.one_more(now)
            {
                tracing::warn!(
                    ?owner,
                    count,
                    "closing a connection takes too long, probably because of a descriptor that was sent in it"
                );
            }
        }
    }

    fn reap_helpers(&mut self) {
        for at in (0..self.helpers.len()).rev() {
            if self.helpers[at].has_ended() {
                self.gone.push(self.helpers.swap_remove(at).process);
            }
        }
        self.gone.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Hands waiting sockets to free helpers, one of each owner in turn.
    fn hand_over(&mut self) {
        self.again = None;
        while let Some(next) = self.next() {
            let Some(helper) = self.idle() else { return };
            let Some((owner, mut its)) = self.waiting.remove(next) else {
                return;
            };
            let Some(fd) = its.pop_front() else { continue };
            let taken = self.helpers[helper].take_on(owner, fd);
            let failed = taken.map_err(|fd| its.push_front(fd)).is_err();
            if !its.is_empty() {
                self.waiting.push_back((owner, its));
            }
            if failed {
                self.again = Some(now().plus(AGAIN_AFTER));
                return;
            }
        }
    }

    /// The index of the owner whose socket is handed over next; none if each has as many helpers as it may.
    fn next(&self) -> Option<usize> {
        let busy = |owner| {
            let with_it = |it: &&Helper| it.busy.is_some_and(|(whose, _)| whose == owner);
            self.helpers.iter().filter(with_it).count()
        };
        self.waiting.iter().position(|(owner, _)| busy(*owner) < HELPERS_PER_OWNER)
    }

    /// The index of a free helper; starts one if there is none.
    fn idle(&mut self) -> Option<usize> {
        let idle = |it: &Helper| it.busy.is_none() && !it.killed;
        if let Some(at) = self.helpers.iter().position(idle) {
            return Some(at);
        }
        let working = self.helpers.iter().filter(|it| !it.killed).count();
        if working >= HELPERS_MAX || self.helpers.len() + self.gone.len() >= ALL_MAX {
            return None;
        }
        if let Err(why) = self.start() {
            tracing::warn!(%why, "cannot start a process that closes connections; trying again");
            self.again = Some(now().plus(AGAIN_AFTER));
            return None;
        }
        Some(self.helpers.len() - 1)
    }
}

impl Helper {
    fn start() -> io::Result<Helper> {
        let (channel, theirs) = seqpacket::pair()?;
        stops_blocking(&channel)?;
        // This very program, even if an upgrade has replaced its file.
        let mut command = Command::new("/proc/self/exe");
        command.arg("--close-sockets").stdin(Stdio::from(theirs));
        command.stdout(Stdio::null());
        if cfg!(test) {
            // The runner of tests, which says that it has no such option.
            command.stderr(Stdio::null());
        }
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        Ok(Helper { process: command.spawn()?, channel, busy: None, killed: false })
    }

    /// Hands the helper a socket to close, or returns the socket.
    fn take_on(&mut self, owner: SocketOwner, fd: OwnedFd) -> Result<(), OwnedFd> {
        let together = [fd];
        if self.give(&together).is_err() {
            let [fd] = together;
            return Err(fd);
        }
        drop(together);
        self.busy = Some((owner, now()));
        if self.send(&[]).is_err() {
            self.kill();
        }
        Ok(())
    }

    fn give(&self, sockets: &[OwnedFd]) -> nix::Result<()> {
        let fds: Vec<RawFd> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        self.send(&[ControlMessage::ScmRights(&fds)])
    }

    /// Sends a packet. Without a control message it means that the daemon has closed its copies.
    fn send(&self, beside: &[ControlMessage<'_>]) -> nix::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let (channel, parts) = (self.channel.as_raw_fd(), [IoSlice::new(&[0])]);
        sendmsg::<()>(channel, &parts, beside, flags, None).map(drop)
    }

    /// Reads the helper's answers; returns whether its line has ended.
    fn has_ended(&mut self) -> bool {
        loop {
            match recv(self.channel.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT) {
                Ok(1..) => self.busy = None,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return false,
                Ok(0) | Err(_) => return true,
            }
        }
    }

    fn stuck_at(&self) -> Option<Instant> {
        let since = self.busy.filter(|_| !self.killed);
        since.map(|(_, since)| since.plus(STUCK_AFTER))
    }

    fn kill(&mut self) {
        self.killed = true;
        // Fails if it has ended already.
        let _ = self.process.kill();
    }
}

/// The helper's program: closes what it is given when logged to, and answers. Ends with its channel.
pub fn serve_child() {
    let channel = io::stdin();
    let mut given: Vec<OwnedFd> = Vec::new();
    let mut room = nix::cmsg_space!([RawFd; TOGETHER_MAX]);
    loop {
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let more = match recvmsg::<()>(channel.as_raw_fd(), &mut parts, Some(&mut room), flags) {
            Err(Errno::EINTR) => continue,
            Ok(packet) if packet.bytes > 0 => packet.cmsgs().map_or(Vec::new(), |all| {
                let rights = all.filter_map(|part| match part {
                    ControlMessageOwned::ScmRights(fds) => Some(fds),
                    _ => None,
                });
                rights.flatten().collect()
            }),
            Ok(_) | Err(_) => return,
        };
        if !more.is_empty() {
            // SAFETY: the kernel has just made these descriptors for this process.
            let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
            given.extend(more.into_iter().map(own));
            continue;
        }
        given.clear();
        let sent = nix::sys::socket::send(channel.as_raw_fd(), &[0], MsgFlags::MSG_NOSIGNAL);
        if sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poll;

    /// Sockets of this many containers wait before that of the last one.
    const ATTACKERS: u16 = 4;

    fn owner(number: u16) -> SocketOwner {
        SocketOwner::Container(ContainerId::new(&format!("c{number}")).expect("an id"))
    }

    fn socket() -> OwnedFd {
        seqpacket::pair().expect("a pair").0
    }

    /// A helper that never answers, and the other end of its channel.
    fn silent() -> (Helper, OwnedFd) {
        let (channel, theirs) = seqpacket::pair().expect("a pair");
        let process = Command::new("true").spawn().expect("it starts");
        (Helper { process, channel, busy: None, killed: false }, theirs)
    }

    /// Containers that have all helpers, and many sockets more, delay another one's by a socket of each.
    #[test]
    fn owners_are_served_in_turn() {
        let closer = SocketCloser::new(Poll::new().expect("a poll").watch());
        let (helpers, _ends): (Vec<_>, Vec<_>) = (0..HELPERS_MAX).map(|_| silent()).unzip();
        closer.0.borrow_mut().helpers = helpers;
        for number in 0..ATTACKERS {
            (0..20).for_each(|_| closer.close(owner(number), socket()));
            assert!(closer.is_behind(owner(number)));
        }
        closer.close(owner(ATTACKERS), socket());
        assert!(!closer.is_behind(owner(ATTACKERS)));
        let mut closings = closer.0.borrow_mut();
        let served = |closings: &Closings| {
            let busy = closings.helpers.iter().filter_map(|it| it.busy);
            busy.filter(|(whose, _)| *whose == owner(ATTACKERS)).count()
        };
        let mut closed = 0;
        while served(&closings) == 0 {
            closings.helpers[closed % HELPERS_MAX].busy = None;
            closed += 1;
            closings.hand_over();
        }
        assert!(closed <= usize::from(ATTACKERS) + 1, "after {closed} others");
    }

    /// Helpers that were killed and do not end are no reason to close nothing any more.
    #[test]
    fn a_killed_helper_takes_no_place_of_one_that_works() {
        let closer = SocketCloser::new(Poll::new().expect("a poll").watch());
        let (mut helpers, _ends): (Vec<_>, Vec<_>) = (0..=HELPERS_MAX).map(|_| silent()).unzip();
        for (at, helper) in helpers.iter_mut().take(HELPERS_MAX).enumerate() {
            helper.busy = Some((owner(at as u16 / 2), now()));
            helper.killed = true;
        }
        closer.0.borrow_mut().helpers = helpers;
        closer.close(owner(0), socket());
        assert!(closer.0.borrow().helpers[HELPERS_MAX].busy.is_none(), "its two helpers are stuck");
        closer.close(owner(ATTACKERS), socket());
        let closings = closer.0.borrow();
        assert_eq!(closings.helpers[HELPERS_MAX].busy.map(|it| it.0), Some(owner(ATTACKERS)));
    }
}
