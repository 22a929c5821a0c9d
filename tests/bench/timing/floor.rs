//! The least that a hand-over can cost on this machine: its wake-ups and system calls, without any decision.
//!
//! # Problem
//! A tenant's want wakes the daemon, which wakes the holder; the holder's report wakes the daemon, which wakes the
//! tenant. Each wake-up costs what the kernel and the machine say. A figure of a hand-over means little without
//! that part.
//!
//! # Idea
//! Three threads do the same system calls as tenant, daemon and holder, and nothing else: eventfds in an epoll set
//! towards the daemon, a timer that it sets once, and futexes towards the others. The time from the first call to the
//! last wake-up is the floor of a hand-over; the processor time of the thread in the middle is the daemon's.

use crate::{Error, Pace, Row};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Between two wants, so that all threads sleep.
const PAUSE: Duration = Duration::from_millis(2);

/// A word that one thread waits for.
#[derive(Default)]
struct Word(AtomicU32);

impl Word {
    /// Waits until the word is `value`.
    fn wait_for(&self, value: u32) {
        loop {
            let now = self.0.load(SeqCst);
            if now == value {
                return;
            }
            let limit = libc::timespec { tv_sec: 1, tv_nsec: 0 };
            let (word, wait) = (self.0.as_ptr(), libc::FUTEX_WAIT);
            // SAFETY: waits on a live word, for a second at most.
            unsafe { libc::syscall(libc::SYS_futex, word, wait, now, &raw const limit) };
        }
    }

    /// Sets the word and wakes its thread.
    fn set(&self, value: u32) {
        self.0.store(value, SeqCst);
        // SAFETY: wakes waiters on a live word.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// What the threads share.
struct Chain {
    /// From the tenant to the daemon, and from the holder.
    wants: EventFd,
    drained: EventFd,
    /// From the daemon to the holder, and to the tenant.
    close: Word,
    grant: Word,
}

/// Rows of the floor: time from a want to its grant, and the daemon's processor time for it.
///
/// # Errors
/// No descriptor left, or no thread.
pub fn wake_ups(pace: Pace) -> Result<Vec<Row>, Error> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let chain = Chain {
        wants: EventFd::from_flags(flags)?,
        drained: EventFd::from_flags(flags)?,
        close: Word::default(),
        grant: Word::default(),
    };
    let rounds = (pace.seconds(5.0).as_secs_f64() / PAUSE.as_secs_f64()) as u32;
    let (mut waits, mut used) = (Vec::new(), Ok(0.0));
    std::thread::scope(|scope| {
        let daemon = scope.spawn(|| daemon(&chain, rounds).map_err(|why| why.to_string()));
        scope.spawn(|| {
            for round in 1..=rounds {
                chain.close.wait_for(round);
                let _ = chain.drained.write(1);
            }
        });
        for round in 1..=rounds {
            std::thread::sleep(PAUSE);
            let from = Instant::now();
            let _ = chain.wants.write(1);
            chain.grant.wait_for(round);
            waits.push(from.elapsed().as_secs_f64() * 1e6);
        }
        used = daemon.join().unwrap_or_else(|_| Err("the daemon's thread panicked".into()));
    });
    let none = f64::INFINITY;
    Ok(vec![
        Row::of("floor: want to grant, four wake-ups alone", "µs", waits, none),
        Row::of("floor: daemon, a hand-over", "µs", vec![used?], none),
    ])
}

/// The daemon's part. Returns its processor time for a round, µs.
fn daemon(chain: &Chain, rounds: u32) -> Result<f64, Error> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(&chain.wants, EpollEvent::new(flags, 0))?;
    epoll.add(&chain.drained, EpollEvent::new(flags, 1))?;
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?;
    epoll.add(&timer, EpollEvent::new(flags, 2))?;
    let late = Expiration::OneShot(TimeSpec::from_duration(Duration::from_secs(3_600)));
    let before = processor_us()?;
    let mut round = 0;
    while round < rounds {
        let mut events = [EpollEvent::empty(); 4];
        let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..count] {
            match event.data() {
                0 => chain.close.set(round + 1),
                1 => {
                    round += 1;
                    chain.grant.set(round);
                    timer.set(late, TimerSetTimeFlags::empty())?;
                }
                _ => {}
            }
        }
    }
    Ok((processor_us()? - before) / f64::from(rounds))
}

/// Processor time of this thread, µs.
fn processor_us() -> Result<f64, Error> {
    let time = clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Duration::from(time).as_secs_f64() * 1e6)
}
