//! The epoll set and the timer of the event loop.
//!
//! An entry's 64 bits are kind, generation and slot. An event fetched for a descriptor that has been closed
//! since carries a stale key, which finds no entry; nothing is looked up by descriptor number.

use crate::slab::Key;
use gpuslice_wire::units::Instant;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

/// Events fetched at once. After each batch all sources are polled again, so that a tenant with many events
/// waits for the others in between.
const BATCH: usize = 64;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A deadline was reached.
    Timer,
    /// A signal asked for the end.
    Signal,
    /// A client connects to the admin socket.
    AdminListener,
    /// A client connects to the observers' socket.
    ObserveListener,
    /// An admin connection is readable, writable or closed.
    Admin(Key),
    /// An agent connects to the node's socket.
    AgentListener,
    /// An agent's connection is readable, writable or closed.
    Agent(Key),
    /// A process connects to a container's socket.
    Listener(Key),
    /// A process's connection is readable or closed.
    Tenant(Key),
    /// A process rang its doorbell.
    Doorbell(Key),
    /// A process exited.
    Exit(Key),
    /// A lingering client's process or connection ended.
    Lingering(Key),
    /// A container's first process exited.
    ContainerExit(Key),
    /// The first process of a container that joined a claim exited.
    JoinedExit(Key),
    /// The child that watches the health of GPUs tells something.
    Health,
    /// NVML answered.
    Accounting,
    /// The process that stops a container's work on GPUs has answered or ended.
    Preemption(Key),
    /// The process that moves a container's memory has answered or ended.
    Suspension(Key),
    /// A helper has closed a socket.
    Closer,
    /// Claims' files were written.
    ClaimsWritten,
}

const NO_KEY: Key = Key { slot: 0, generation: 0 };

impl Source {
    fn word(self) -> u64 {
        let (kind, key) = match self {
            Source::Timer => (0, NO_KEY),
            Source::Signal => (1, NO_KEY),
            Source::AdminListener => (2, NO_KEY),
            Source::Admin(key) => (3, key),
            Source::Listener(key) => (4, key),
            Source::Tenant(key) => (5, key),
            Source::Doorbell(key) => (6, key),
            Source::Exit(key) => (7, key),
            Source::Accounting => (8, NO_KEY),
            Source::ObserveListener => (9, NO_KEY),
            Source::Preemption(key) => (10, key),
            Source::ContainerExit(key) => (11, key),
            Source::Closer => (12, NO_KEY),
            Source::Lingering(key) => (13, key),
            Source::AgentListener => (14, NO_KEY),
            Source::Agent(key) => (15, key),
            Source::JoinedExit(key) => (16, key),
            Source::Health => (17, NO_KEY),
            Source::ClaimsWritten => (18, NO_KEY),
            Source::Suspension(key) => (19, key),
        };
        kind << 48 | u64::from(key.generation) << 16 | u64::from(key.slot)
    }

    fn of(word: u64) -> Source {
        let key = Key { slot: word as u16, generation: (word >> 16) as u32 };
        match word >> 48 {
            0 => Source::Timer,
            1 => Source::Signal,
            2 => Source::AdminListener,
            3 => Source::Admin(key),
            4 => Source::Listener(key),
            5 => Source::Tenant(key),
            6 => Source::Doorbell(key),
            7 => Source::Exit(key),
            8 => Source::Accounting,
            9 => Source::ObserveListener,
            10 => Source::Preemption(key),
            11 => Source::ContainerExit(key),
            12 => Source::Closer,
            14 => Source::AgentListener,
            15 => Source::Agent(key),
            16 => Source::JoinedExit(key),
            17 => Source::Health,
            18 => Source::ClaimsWritten,
            19 => Source::Suspension(key),
            _ => Source::Lingering(key),
        }
    }
}

/// The epoll set. All clones are the same one.
#[derive(Clone, Debug)]
pub struct Watch(Rc<Epoll>);

impl Watch {
    /// Watches a descriptor for input and hang-up, until all processes that have it open have closed it.
    ///
    /// # Errors
    /// No memory.
    pub fn add<F: AsFd>(&self, fd: F, source: Source) -> nix::Result<()> {
        self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, source.word()))
    }

    /// Stops watching a descriptor that stays open.
    ///
    /// # Errors
    /// Not in the set.
    pub fn forget<F: AsFd>(&self, fd: F) -> nix::Result<()> {
        self.0.delete(fd)
    }

    /// Changes a descriptor's source; watches for input, or for hang-up only.
    ///
    /// # Errors
    /// Not in the set.
    pub fn watch_on<F: AsFd>(&self, fd: F, source: Source, input: bool) -> nix::Result<()> {
        let flags = match input {
            true => EpollFlags::EPOLLIN,
            false => EpollFlags::empty(), // hang-up is always reported
        };
        let mut event = EpollEvent::new(flags, source.word());
        self.0.modify(fd, &mut event)
    }

    /// Watches an eventfd edge-triggered: each write of the other side is an event, and the daemon never reads
    /// it. (The non-blocking flag is shared with the other side, so a read could be made to block.) The timer
    /// is watched in the same way.
    ///
    /// # Errors
    /// No memory.
    pub fn add_edge_triggered<F: AsFd>(&self, fd: F, source: Source) -> nix::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        self.0.add(fd, EpollEvent::new(flags, source.word()))
    }

    /// Watches for writability instead of input, or back.
    ///
    /// # Errors
    /// Not in the set.
    pub fn wait_to_write(
        &self,
        fd: BorrowedFd<'_>,
        source: Source,
        write: bool,
    ) -> nix::Result<()> {
        let flags = if write { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
        self.0.modify(fd, &mut EpollEvent::new(flags, source.word()))
    }
}

/// The epoll set and the timer.
#[derive(Debug)]
pub struct Poll {
    watch: Watch,
    timer: TimerFd,
    armed: Option<Instant>,
}

impl Poll {
    /// An empty set.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn new() -> nix::Result<Poll> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let poll = Poll { watch: Watch(Rc::new(epoll)), timer, armed: None };
        poll.watch.add_edge_triggered(&poll.timer, Source::Timer)?;
        Ok(poll)
    }

    /// The epoll set.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Sets the timer, unless it is set to this time already.
    ///
    /// # Errors
    /// None that the kernel documents for a valid timer.
    pub fn wake_at(&mut self, deadline: Option<Instant>) -> nix::Result<()> {
        if deadline == self.armed {
            return Ok(());
        }
        self.armed = deadline;
        let Some(Instant(ns)) = deadline else {
            return self.timer.unset();
        };
        // An all-zero time would disarm the timer.
        let at = TimeSpec::from_duration(Duration::from_nanos(ns.max(1)));
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }

    /// Notes that the timer fired. A one-shot timer disarms itself, and its edge-triggered event need not be
    /// read: setting the timer again clears it.
    pub fn timer_fired(&mut self) {
        self.armed = None;
    }

    /// Sleeps until an event; fills `sources`.
    ///
    /// # Errors
    /// Only in case of a bug.
    pub fn wait(&self, sources: &mut Vec<Source>) -> nix::Result<()> {
        let mut events = [EpollEvent::empty(); BATCH];
        sources.clear();
        match self.watch.0.wait(&mut events, EpollTimeout::NONE) {
            Ok(n) => sources.extend(events[..n].iter().map(|event| Source::of(event.data()))),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_host::clock::now;
    use nix::sys::eventfd::{EfdFlags, EventFd};

    #[test]
    fn sources_survive_the_kernel() {
        let key = Key { slot: u16::MAX, generation: u32::MAX };
        for source in [
            Source::Timer,
            Source::Signal,
            Source::AdminListener,
            Source::ObserveListener,
            Source::Admin(key),
            Source::Listener(key),
            Source::Tenant(Key { slot: 1, generation: 2 }),
            Source::Doorbell(key),
            Source::Exit(key),
            Source::Accounting,
            Source::Preemption(key),
            Source::ContainerExit(key),
            Source::Closer,
            Source::Lingering(key),
        ] {
            assert_eq!(Source::of(source.word()), source);
        }
    }

    #[test]
    fn every_write_to_an_eventfd_is_an_event_without_reading_it() {
        let mut poll = Poll::new().expect("a set");
        let bell =
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).expect("bell");
        let ring = Source::Doorbell(Key { slot: 3, generation: 1 });
        poll.watch().add_edge_triggered(&bell, ring).expect("added");
        let mut seen = Vec::new();
        for _ in 0..3 {
            bell.write(1).expect("rung");
            poll.wait(&mut seen).expect("heard");
            assert_eq!(seen, [ring]);
        }
        poll.wake_at(Some(now())).expect("armed");
        poll.wait(&mut seen).expect("woken");
        assert_eq!(seen, [Source::Timer], "the old rings are not heard again");
    }
}
