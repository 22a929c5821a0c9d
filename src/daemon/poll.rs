//! What the one thread sleeps on: an epoll set whose entries say what they are.
//!
//! An entry's 64 bits are kind, generation and slot. An event that was fetched for a descriptor
//! closed meanwhile carries a key that finds nothing; nothing is looked up by descriptor number.

use crate::slab::Key;
use gpuslice_wire::units::Instant;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId as Clock, clock_gettime};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

/// Events fetched at once. After each batch everything is looked at anew, so that a tenant who
/// makes many events waits for the others in between.
const BATCH: usize = 64;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A deadline was reached.
    Timer,
    /// The end was asked for.
    Signal,
    /// Somebody connects to the admin socket.
    AdminListener,
    /// Somebody connects who may look only.
    ObserveListener,
    /// An admin connection can be read or written, or ended.
    Admin(Key),
    /// A process connects to a container's socket.
    Listener(Key),
    /// A process's connection can be read, or ended.
    Tenant(Key),
    /// A process rang.
    Doorbell(Key),
    /// A process ended.
    Exit(Key),
    /// What an account without a connection waits for.
    Lingering(Key),
    /// A container's first process ended.
    ContainerExit(Key),
    /// NVML answered.
    Accounting,
    /// Work was stopped, or goes on.
    Preemption,
    /// A helper has closed a socket.
    Closer,
}

const NO_KEY: Key = Key {
    slot: 0,
    generation: 0,
};

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
            Source::Preemption => (10, NO_KEY),
            Source::ContainerExit(key) => (11, key),
            Source::Closer => (12, NO_KEY),
            Source::Lingering(key) => (13, key),
        };
        kind << 48 | u64::from(key.generation) << 16 | u64::from(key.slot)
    }

    fn of(word: u64) -> Source {
        let key = Key {
            slot: word as u16,
            generation: (word >> 16) as u32,
        };
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
            10 => Source::Preemption,
            11 => Source::ContainerExit(key),
            12 => Source::Closer,
            _ => Source::Lingering(key),
        }
    }
}

/// The set alone, to be shared.
#[derive(Clone, Debug)]
pub struct Watch(Rc<Epoll>);

impl Watch {
    /// Watches a descriptor for input and for its end. This ends when all processes that have the
    /// descriptor open have closed it.
    ///
    /// # Errors
    /// No memory.
    pub fn add<F: AsFd>(&self, fd: F, source: Source) -> nix::Result<()> {
        self.0
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, source.word()))
    }

    /// Watches a descriptor no more, though it stays open.
    ///
    /// # Errors
    /// Not in the set.
    pub fn forget<F: AsFd>(&self, fd: F) -> nix::Result<()> {
        self.0.delete(fd)
    }
}

/// The set, and the one timer.
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
        let poll = Poll {
            watch: Watch(Rc::new(epoll)),
            timer,
            armed: None,
        };
        poll.add_edge_triggered(&poll.timer, Source::Timer)?;
        Ok(poll)
    }

    /// The set.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// [`Watch::add`].
    ///
    /// # Errors
    /// No memory.
    pub fn add<F: AsFd>(&self, fd: F, source: Source) -> nix::Result<()> {
        self.watch.add(fd, source)
    }

    /// [`Watch::forget`].
    ///
    /// # Errors
    /// Not in the set.
    pub fn forget<F: AsFd>(&self, fd: F) -> nix::Result<()> {
        self.watch.forget(fd)
    }

    /// Watches a descriptor on under another name, for input or for its end alone.
    ///
    /// # Errors
    /// Not in the set.
    pub fn watch_on<F: AsFd>(&self, fd: F, source: Source, input: bool) -> nix::Result<()> {
        let flags = match input {
            true => EpollFlags::EPOLLIN,
            false => EpollFlags::empty(), // the end is always told
        };
        let mut event = EpollEvent::new(flags, source.word());
        self.watch.0.modify(fd, &mut event)
    }

    /// Watches for every write to an eventfd that the other side may write and is never read here:
    /// edge-triggered. (Its non-blocking flag is shared with the other side, so a read could be
    /// made to block.) The same for the timer, of which there is nothing to read.
    ///
    /// # Errors
    /// No memory.
    pub fn add_edge_triggered<F: AsFd>(&self, fd: F, source: Source) -> nix::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        self.watch.0.add(fd, EpollEvent::new(flags, source.word()))
    }

    /// Waits for room to write instead of for input, or the other way round.
    ///
    /// # Errors
    /// Not in the set.
    pub fn wait_to_write(
        &self,
        fd: BorrowedFd<'_>,
        source: Source,
        write: bool,
    ) -> nix::Result<()> {
        let flags = if write {
            EpollFlags::EPOLLOUT
        } else {
            EpollFlags::EPOLLIN
        };
        self.watch
            .0
            .modify(fd, &mut EpollEvent::new(flags, source.word()))
    }

    /// Sets the timer, if it is not set so already.
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
        self.timer.set(
            Expiration::OneShot(at),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME,
        )
    }

    /// The timer's event was seen. A one-shot timer is disarmed by firing, and its event is heard once
    /// without being read: setting it anew forgets that it fired.
    pub fn timer_fired(&mut self) {
        self.armed = None;
    }

    /// Sleeps until something happens; fills `sources`.
    ///
    /// # Errors
    /// None but a bug's.
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

/// CLOCK_MONOTONIC, the clock of the engine and of the pages.
pub fn now() -> Instant {
    // This clock cannot be missing on Linux; zero would only make everything seem early.
    clock_gettime(Clock::CLOCK_MONOTONIC).map_or(Instant(0), |t| {
        Instant(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};

    #[test]
    fn sources_survive_the_kernel() {
        let key = Key {
            slot: u16::MAX,
            generation: u32::MAX,
        };
        for source in [
            Source::Timer,
            Source::Signal,
            Source::AdminListener,
            Source::ObserveListener,
            Source::Admin(key),
            Source::Listener(key),
            Source::Tenant(Key {
                slot: 1,
                generation: 2,
            }),
            Source::Doorbell(key),
            Source::Exit(key),
            Source::Accounting,
            Source::Preemption,
            Source::ContainerExit(key),
            Source::Closer,
            Source::Lingering(key),
        ] {
            assert_eq!(Source::of(source.word()), source);
        }
    }

    #[test]
    fn every_ring_is_heard_without_reading_the_bell() {
        let mut poll = Poll::new().expect("a set");
        let bell =
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).expect("bell");
        let ring = Source::Doorbell(Key {
            slot: 3,
            generation: 1,
        });
        poll.add_edge_triggered(&bell, ring).expect("added");
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
