//! The machine's clocks.

use gpuslice_wire::units::Instant;
use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, the clock of the engine and of the pages.
pub fn now() -> Instant {
    read(ClockId::CLOCK_MONOTONIC)
}

/// CLOCK_BOOTTIME, which also counts the time that the machine is suspended: no two moments since boot have
/// the same value.
pub fn since_boot() -> Instant {
    read(ClockId::CLOCK_BOOTTIME)
}

fn read(clock: ClockId) -> Instant {
    // Linux always has these clocks; a zero would only delay deadlines.
    clock_gettime(clock)
        .map_or(Instant(0), |t| Instant(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64))
}
