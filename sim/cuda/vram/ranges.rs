//! Free ranges of addresses: the lowest that fits is taken, neighbours join again.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Free ranges by start, and their lengths.
pub struct FreeRanges(BTreeMap<u64, u64>);

impl FreeRanges {
    /// One range, free as a whole.
    pub fn new(start: u64, len: u64) -> Self {
        Self(BTreeMap::from([(start, len)]))
    }

    /// Whether exactly this range is free, and nothing beside it.
    pub fn is(&self, start: u64, len: u64) -> bool {
        self.0.get(&start) == Some(&len)
    }

    /// The lowest free range of `len` bytes, aligned; or exactly at `wanted`, if that is free.
    pub fn take(&mut self, len: u64, align: u64, wanted: u64) -> Option<u64> {
        let (start, size, address) = self.fit(len, align, wanted).or_else(|| {
            // A wish that cannot be met is no order.
            if wanted == 0 { None } else { self.fit(len, align, 0) }
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
            let address = if wanted == 0 { start.checked_next_multiple_of(align)? } else { wanted };
            let end = address.checked_add(len)?;
            (address >= start && end <= start + size).then_some((start, size, address))
        })
    }

    /// Gives a range back that was taken.
    pub fn give(&mut self, mut start: u64, mut len: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 2 << 20;

    #[test]
    fn ranges_split_and_join() {
        let mut ranges = FreeRanges::new(2 * STEP, 10 * STEP);
        assert_eq!(ranges.take(STEP, STEP, 0), Some(2 * STEP));
        assert_eq!(ranges.take(2 * STEP, 4 * STEP, 0), Some(4 * STEP));
        assert_eq!(ranges.take(STEP, STEP, 8 * STEP), Some(8 * STEP));
        assert_eq!(ranges.take(STEP, STEP, 8 * STEP), Some(3 * STEP), "a wish is no order");
        assert_eq!(ranges.take(9 * STEP, STEP, 0), None);
        for (at, len) in [(2, 1), (8, 1), (4, 2), (3, 1)] {
            ranges.give(at * STEP, len * STEP);
        }
        assert!(ranges.is(2 * STEP, 10 * STEP));
        assert_eq!(ranges.take(u64::MAX, STEP, 0), None);
    }
}
