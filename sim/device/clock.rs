//! The device's clock is the machine's CLOCK_MONOTONIC, the same in all processes.
//!
//! A process in a time namespace sees that clock ahead or behind by a constant, which is taken off again.

#![allow(unsafe_code)]

use std::sync::OnceLock;

/// How far this process's clock is ahead of the machine's, ns. What the kernel shows is of the namespace that
/// children get, so it counts only where that is the process's own.
fn ahead() -> i64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    let read = || {
        let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
        let same = namespace("time")? == namespace("time_for_children")?;
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").ok()?;
        let mut numbers = offsets
            .lines()
            .find_map(|line| line.strip_prefix("monotonic"))
            .filter(|_| same)?
            .split_whitespace()
            .map_while(|word| word.parse::<i64>().ok());
        Some(numbers.next()? * 1_000_000_000 + numbers.next()?)
    };
    *AHEAD.get_or_init(|| read().unwrap_or(0))
}

/// Nanoseconds of the machine's CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer; this clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let own = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    own.wrapping_sub(ahead().cast_unsigned())
}

/// Sleeps until the machine's CLOCK_MONOTONIC shows `until`, to within microseconds: the thread's timer slack
/// (50 µs by default, as long as many kernels) is made small for the time of the sleep.
pub fn sleep_until_ns(until: u64) {
    let until = until.wrapping_add_signed(ahead());
    let time = libc::timespec {
        tv_sec: (until / 1_000_000_000) as libc::time_t,
        tv_nsec: (until % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: these prctl operations take and return plain numbers.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
    // SAFETY: `time` is valid and no remainder is asked for. A signal ends the sleep early, which
    // callers expect: they look again anyway.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            std::ptr::null_mut(),
        )
    };
    if slack > 0 {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack as libc::c_ulong) };
    }
}
