//! The daemon's clock, as this process can tell it.
//!
//! Daemon and processes compare instants of CLOCK_MONOTONIC: heartbeats, the ends of turns, when work began. In a time
//! namespace (`unshare --time`, a container restored from a checkpoint) that clock is ahead or behind by a constant.
//! A process that did not know would take the daemon for gone, or for alive for ever after its death.
//!
//! The daemon stamps its heartbeat as it answers an attach, so its clock was at the stamp at some moment between request
//! and answer. If the two clocks can be the same, they are. Else `/proc/self/timens_offsets` has the exact
//! difference, if that is possible too; and else it is taken from the stamp, which is good to the time that an
//! answer takes.

use core::sync::atomic::{AtomicI64, Ordering};
use gpuslice_wire::limits::HEARTBEAT_STALE_NS;
use gpuslice_wire::units::Instant;

/// How far this process's clock is ahead of the daemon's, ns.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// CLOCK_MONOTONIC of this process.
fn own() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The daemon's CLOCK_MONOTONIC, with which it stamps pages.
#[must_use]
pub fn now() -> Instant {
    Instant(own().wrapping_sub(AHEAD.load(Ordering::Relaxed).cast_unsigned()))
}

/// An attach that is under way.
#[derive(Debug)]
pub struct Asked(u64);

/// The request is about to be sent.
#[must_use]
pub fn asked() -> Asked {
    Asked(own())
}

impl Asked {
    /// It was answered, and the daemon's page says `heartbeat`.
    pub fn answered(self, heartbeat: u64) {
        let between = (self.0, own());
        AHEAD.store(ahead(between, heartbeat, exact), Ordering::Relaxed);
    }
}

/// In the child of a fork, which may be in another time namespace. Async-signal-safe.
pub fn in_child() {
    AHEAD.store(0, Ordering::Relaxed);
}

/// How far the clock that showed `between` when a heartbeat of `heartbeat` was read is ahead, ns. `exact` is what the
/// kernel says.
fn ahead(between: (u64, u64), heartbeat: u64, exact: impl FnOnce() -> Option<i64>) -> i64 {
    let least = between.0 as i128 - i128::from(heartbeat);
    let most = between.1 as i128 - i128::from(heartbeat);
    // An older daemon does not stamp its answer, and its last heartbeat may be as old as this.
    let can_be = |ns: i64| (least - i128::from(HEARTBEAT_STALE_NS)..=most).contains(&ns.into());
    // No daemon has stamped this page.
    if can_be(0) || heartbeat == 0 || heartbeat == u64::MAX {
        return 0;
    }
    let offset = exact().filter(|ns| can_be(*ns));
    offset.unwrap_or_else(|| i64::try_from((least + most) / 2).unwrap_or(0))
}

/// The offset of this process's time namespace, ns, if the kernel shows it: what it shows is of the namespace for
/// children.
fn exact() -> Option<i64> {
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    if namespace("time")? != namespace("time_for_children")? {
        return None;
    }
    monotonic(&std::fs::read_to_string("/proc/self/timens_offsets").ok()?)
}

/// The line of CLOCK_MONOTONIC in the format of time_namespaces(7), ns.
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

    /// Attached from 100 s to 100.2 s by our clock, with `heartbeat`.
    fn attached(heartbeat: u64, exact: Option<i64>) -> i64 {
        ahead((100 * S, 100 * S + S / 5), heartbeat, || exact)
    }

    #[test]
    fn one_clock_is_one_clock() {
        for heartbeat in [100 * S, 100 * S + S / 5, 100 * S - S / 20, 0, u64::MAX] {
            assert_eq!(attached(heartbeat, Some(HOUR)), 0, "{heartbeat}");
        }
    }

    #[test]
    fn another_namespace_s_clock_is_told_exactly_where_it_can_be() {
        assert_eq!(attached(50 * S, Some(50 * S as i64 + 7)), 50 * S as i64 + 7);
        let behind = 3_700 * S;
        assert_eq!(attached(behind, Some(-HOUR)), -HOUR);
        // What the kernel shows cannot be, or nothing: a daemon that is in a namespace itself.
        for exact in [None, Some(0), Some(HOUR)] {
            let offset = attached(behind, exact);
            assert!(offset.abs_diff(-HOUR) <= S / 10, "{offset}");
        }
    }

    #[test]
    fn offsets_are_read_whatever_is_in_them() {
        let text = "monotonic        5000         7\nboottime            1         0\n";
        assert_eq!(monotonic(text), Some(5_000 * S as i64 + 7));
        assert_eq!(monotonic("monotonic -300 0\n"), Some(-300 * S as i64));
        for text in [
            "",
            "monotonic",
            "monotonic x 0",
            "monotonic 9223372036854775807 0",
            "boottime 1 0",
        ] {
            assert_eq!(monotonic(text), None, "{text}");
        }
    }

    #[test]
    fn no_number_makes_it_fall_over() {
        for heartbeat in [1, S, u64::MAX - 1, 1 << 63] {
            for between in [(0, 0), (u64::MAX, u64::MAX), (0, u64::MAX)] {
                ahead(between, heartbeat, || Some(i64::MIN));
            }
        }
    }
}
