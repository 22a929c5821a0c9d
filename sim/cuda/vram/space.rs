//! The range of device pointers: one large range of addresses, reserved without memory behind it.
//!
//! A pointer in this range is meant for a device, so a wrong one can be refused.
//! Ranges are handed out in steps of 2 MiB, the lowest that fits.

use super::map;
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Granularity of addresses, and of the memory behind them.
pub const STEP: u64 = gpuslice_sim_device::limits::PAGE_BYTES;
/// Size of the range requested from the system; smaller where that fails (limits on address space).
const MOST: u64 = 16 << 40;
const LEAST: u64 = 1 << 30;

/// Free ranges by start, in a range of addresses.
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The lowest free range of `len` bytes, aligned; or exactly at `wanted`, if that is free.
    fn take(&mut self, len: u64, align: u64, wanted: u64) -> Option<u64> {
        let (start, size, address) = self.fit(len, align, wanted).or_else(|| {
            // A wish that cannot be met is no order.
            if wanted == 0 {
                None
            } else {
                self.fit(len, align, 0)
            }
        })?;
        self.0.remove(&start);
        if address > start {
            self.0.insert(start, address - start);
        }
        let end = address + len;
        if end < start + size {
            self.0.insert(end, start + size - end);
        }
        Some(address)
    }

    fn fit(&self, len: u64, align: u64, wanted: u64) -> Option<(u64, u64, u64)> {
        self.0.iter().find_map(|(&start, &size)| {
            let address = if wanted == 0 {
                start.checked_next_multiple_of(align)?
            } else {
                wanted
            };
            let end = address.checked_add(len)?;
            (address >= start && end <= start + size).then_some((start, size, address))
        })
    }

    fn give(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &size)) = self.0.range(..start).next_back()
            && before + size == start
        {
            self.0.remove(&before);
            (start, len) = (before, len + size);
        }
        if let Some(size) = self.0.remove(&(start + len)) {
            len += size;
        }
        self.0.insert(start, len);
    }
}

struct Space {
    start: u64,
    end: u64,
    free: Mutex<Ranges>,
}

/// The process's one range; `None` where the system refuses even a small one.
fn space() -> Option<&'static Space> {
    static SPACE: OnceLock<Option<Space>> = OnceLock::new();
    let made = SPACE.get_or_init(|| {
        let mut len = MOST;
        while len >= LEAST {
            if let Ok(start) = map::reserve(len) {
                let first = start.next_multiple_of(STEP);
                let end = (start + len) / STEP * STEP;
                let free = Mutex::new(Ranges(BTreeMap::from([(first, end - first)])));
                return Some(Space {
                    start: first,
                    end,
                    free,
                });
            }
            len /= 2;
        }
        None
    });
    made.as_ref()
}

/// Takes `len` bytes (a multiple of [`STEP`]) of addresses, aligned to `align` (a power of two, at
/// least [`STEP`]), at `wanted` if that is free and not 0.
pub fn take(len: u64, align: u64, wanted: u64) -> Option<u64> {
    let space = space()?;
    space
        .free
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take(len, align, wanted)
}

/// Gives addresses back; nothing is mapped there any more.
pub fn give(address: u64, len: u64) {
    if let Some(space) = space() {
        space
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .give(address, len);
    }
}

/// Whether an address is one of a device.
pub fn contains(address: u64) -> bool {
    space().is_some_and(|space| (space.start..space.end).contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_and_join() {
        let mut ranges = Ranges(BTreeMap::from([(2 * STEP, 10 * STEP)]));
        assert_eq!(ranges.take(STEP, STEP, 0), Some(2 * STEP));
        assert_eq!(ranges.take(2 * STEP, 4 * STEP, 0), Some(4 * STEP));
        assert_eq!(ranges.take(STEP, STEP, 8 * STEP), Some(8 * STEP));
        assert_eq!(
            ranges.take(STEP, STEP, 8 * STEP),
            Some(3 * STEP),
            "a wish is no order"
        );
        assert_eq!(ranges.take(9 * STEP, STEP, 0), None);
        for (at, len) in [(2, 1), (8, 1), (4, 2), (3, 1)] {
            ranges.give(at * STEP, len * STEP);
        }
        assert_eq!(ranges.0, BTreeMap::from([(2 * STEP, 10 * STEP)]));
        assert_eq!(ranges.take(u64::MAX, STEP, 0), None);
    }
}
