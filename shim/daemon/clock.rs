//! The daemon's clock, as this process computes it.
//!
//! Daemon and processes compare instants of CLOCK_MONOTONIC: heartbeats, the ends of turns, starts of work. In a
//! time namespace (`unshare --time`, a container restored from a checkpoint) that clock has a constant offset.
//! A process that ignored it would take the daemon for dead, or for alive for ever after its death.
//!
//! The daemon stamps its heartbeat when it answers an attach, so its clock showed the stamp at some moment
//! between request and reply. If that is possible with equal clocks, the offset is zero. Otherwise
//! `/proc/self/timens_offsets` has the exact offset, if that is possible too. Otherwise it is computed from the
//! stamp, with the precision of the reply time.

use core::sync::atomic::{AtomicI64, Ordering};
use gpuslice_wire::limits::HEARTBEAT_STALE_NS;
use gpuslice_wire::units::Instant;
use std::path::Path;

/// Offset of this process's clock to the daemon's, ns; positive if ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// CLOCK_MONOTONIC of this process.
fn own() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The daemon's CLOCK_MONOTONIC, used for the time stamps in pages.
#[must_use]
pub fn now() -> Instant {
    Instant(own().wrapping_sub(AHEAD.load(Ordering::Relaxed).cast_unsigned()))
}

/// An attach in progress.
#[derive(Debug)]
pub struct Asked(u64);

/// Notes that the request is about to be sent.
#[must_use]
pub fn asked() -> Asked {
    Asked(own())
}

impl Asked {
    /// Notes the reply, when the daemon's page shows `heartbeat`.
    pub fn answered(self, heartbeat: u64) {
        let between = (self.0, own());
        let exact = || exact(Path::new("/proc/self"));
        AHEAD.store(ahead(between, heartbeat, exact), Ordering::Relaxed);
    }
}

/// Resets the offset in the child of a fork, which may be in another time namespace. Async-signal-safe.
pub fn in_child() {
    AHEAD.store(0, Ordering::Relaxed);
}

/// Offset of the clock that showed `between` around the time of `heartbeat`, ns. `exact` is the kernel's
/// value.
fn ahead(between: (u64, u64), heartbeat: u64, exact: impl FnOnce() -> Option<i64>) -> i64 {
    let least = between.0 as i128 - i128::from(heartbeat);
    let most = between.1 as i128 - i128::from(heartbeat);
    // An older daemon does not stamp its answer, so its last heartbeat may be this old.
    let can_be = |ns: i64| (least - i128::from(HEARTBEAT_STALE_NS)..=most).contains(&ns.into());
    // No daemon has stamped this page.
    if can_be(0) || heartbeat == 0 || heartbeat == u64::MAX {
        return 0;
    }
    let offset = exact().filter(|ns| can_be(*ns));
    offset.unwrap_or_else(|| i64::try_from((least + most) / 2).unwrap_or(0))
}

/// The offset of the time namespace of the process with this directory, ns, if the kernel shows it: the file shows the
/// namespace for children.
fn exact(process: &Path) -> Option<i64> {
    let namespace = |name: &str| std::fs::read_link(process.join("ns").join(name)).ok();
    if namespace("time")? != namespace("time_for_children")? {
        return None;
    }
    monotonic(&std::fs::read_to_string(process.join("timens_offsets")).ok()?)
}

/// The CLOCK_MONOTONIC entry in the format of time_namespaces(7), ns.
fn monotonic(offsets: &str) -> Option<i64> {
    let mut words = offsets
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut words| (words.next() == Some("monotonic")).then_some(words))?;
    let mut number = || words.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000_000)?.checked_add(number()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const HOUR: i64 = 3_600_000_000_000;

    /// Attached from 100 s to 100.2 s by the process's clock, with `heartbeat`.
    fn attached(heartbeat: u64, exact: Option<i64>) -> i64 {
        ahead((100 * S, 100 * S + S / 5), heartbeat, || exact)
    }

    #[test]
    fn without_a_namespace_the_offset_is_zero() {
        for heartbeat in [100 * S, 100 * S + S / 5, 100 * S - S / 20, 0, u64::MAX] {
            assert_eq!(attached(heartbeat, Some(HOUR)), 0, "{heartbeat}");
        }
    }

    #[test]
    fn the_offset_of_another_time_namespace_is_exact_if_the_kernel_shows_it() {
        assert_eq!(attached(50 * S, Some(50 * S as i64 + 7)), 50 * S as i64 + 7);
        let behind = 3_700 * S;
        assert_eq!(attached(behind, Some(-HOUR)), -HOUR);
        // The kernel shows an impossible value, or none: a daemon that is in a namespace itself.
        for exact in [None, Some(0), Some(HOUR)] {
            let offset = attached(behind, exact);
            assert!(offset.abs_diff(-HOUR) <= S / 10, "{offset}");
        }
    }

    #[test]
    fn any_text_of_offsets_is_parsed() {
        let text = "monotonic        5000         7\nboottime            1         0\n";
        assert_eq!(monotonic(text), Some(5_000 * S as i64 + 7));
        assert_eq!(monotonic("monotonic -300 0\n"), Some(-300 * S as i64));
        for text in
            ["", "monotonic", "monotonic x 0", "monotonic 9223372036854775807 0", "boottime 1 0"]
        {
            assert_eq!(monotonic(text), None, "{text}");
        }
    }

    /// The test is in the namespace of its children. A kernel without time namespaces has no such file.
    #[test]
    fn the_kernel_shows_the_offset_of_this_process() {
        let shown = std::fs::read_to_string("/proc/self/timens_offsets").ok();
        assert_eq!(exact(Path::new("/proc/self")), shown.and_then(|offsets| monotonic(&offsets)));
    }

    #[test]
    fn the_offset_of_children_is_not_that_of_the_process() {
        let process = std::env::temp_dir().join(format!("gpuslice-timens-{}", std::process::id()));
        std::fs::create_dir_all(process.join("ns")).expect("a directory");
        std::fs::write(process.join("timens_offsets"), "monotonic 5 7\n").expect("written");
        let link = |name: &str, to: &str| {
            std::os::unix::fs::symlink(to, process.join("ns").join(name)).expect("a link");
        };
        link("time", "time:[1]");
        link("time_for_children", "time:[1]");
        assert_eq!(exact(&process), Some(5 * S as i64 + 7));
        std::fs::remove_file(process.join("ns/time_for_children")).expect("removed");
        link("time_for_children", "time:[2]");
        assert_eq!(exact(&process), None);
        std::fs::remove_dir_all(&process).expect("removed");
    }

    #[test]
    fn the_clock_is_the_kernel_s_in_nanoseconds() {
        let kernel = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `time` is a valid timespec.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
            core::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos()
        };
        let (before, is, after) = (kernel(), own(), kernel());
        assert!((before..=after).contains(&is.into()), "{before} {is} {after}");
    }

    /// The offset is of a whole process, so a child of this one tries it.
    #[test]
    fn an_answer_sets_the_clock_until_a_fork() {
        let tries = || {
            let hour = HOUR.cast_unsigned();
            asked().answered(own() + hour);
            let is_set = now().0 > own() + hour / 2;
            in_child();
            is_set && now().0 <= own()
        };
        assert!(super::super::fake::in_child(tries));
    }

    #[test]
    fn no_value_overflows() {
        for heartbeat in [1, S, u64::MAX - 1, 1 << 63] {
            for between in [(0, 0), (u64::MAX, u64::MAX), (0, u64::MAX)] {
                ahead(between, heartbeat, || Some(i64::MIN));
            }
        }
    }
}
