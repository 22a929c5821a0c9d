//! When units of work begin: the clock, pauses, seeded random numbers.
//!
//! A pause ends within some microseconds of its time, or the load would not be the one asked for. So the thread's timer
//! slack, 50 µs by default, is made small once, sleeps end at absolute times, and a pause too short to sleep is spun.

use std::time::Duration;

/// A sleep is not shorter; most of it would be the way into it and out.
const SPUN_NS: u64 = 40_000;

/// CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Lets this thread's sleeps end within a microsecond, as far as the machine can.
pub fn sleep_exactly() {
    // SAFETY: takes a plain number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

/// Returns at this time of [`now_ns`], or at once if it is past.
pub fn pause_until(until: u64) {
    let left = until.saturating_sub(now_ns());
    if left >= SPUN_NS {
        let at = libc::timespec {
            tv_sec: (until / 1_000_000_000) as libc::time_t,
            tv_nsec: (until % 1_000_000_000) as libc::c_long,
        };
        let none = std::ptr::null_mut();
        // SAFETY: `at` is ours, and no remainder is asked for.
        unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &at, none) };
    }
    while now_ns() < until {
        std::hint::spin_loop();
    }
}

/// Reproducible random numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    /// The numbers of this seed; any seed.
    pub fn of(seed: u64) -> Random {
        Random(seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Evenly between 0, which is never reached, and 1.
    pub fn part(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
        (bits as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Evenly between two times, ns.
    pub fn between(&mut self, low: Duration, high: Duration) -> u64 {
        let span = high.saturating_sub(low).as_nanos() as f64;
        low.as_nanos() as u64 + (span * self.part()) as u64
    }

    /// Time to the next arrival where so many come in a second, independently of each other; ns.
    pub fn arrival(&mut self, per_second: f64) -> u64 {
        (-self.part().ln() * 1e9 / per_second) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_as_many_as_asked_and_the_same_for_a_seed() {
        let mut random = Random::of(7);
        let all: Vec<u64> = (0..10_000).map(|_| random.arrival(1_000.0)).collect();
        let mean = all.iter().sum::<u64>() as f64 / 1e4;
        assert!((0.95e6..1.05e6).contains(&mean), "{mean} ns");
        let mut again = Random::of(7);
        assert!(all.iter().all(|one| *one == again.arrival(1_000.0)));
        let mut other = Random::of(8);
        assert!(all.iter().any(|one| *one != other.arrival(1_000.0)));
    }
}
